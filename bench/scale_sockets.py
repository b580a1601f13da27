"""Many open sockets on one Daphne: what each costs, and how soon an event is there."""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import aiohttp
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from bench import gauges, seeding
from bench.report import Report, percentile
from casualmeet import clock
from notifications import live
from safety.models import MeetingTimer, User
from testing.processes import PYTHON_MODULE, ManagedProcess, free_port, wait_until

AIM_P99 = 1.0
OPENING_AT_ONCE = 8
IDLE_SECONDS = 20
PATIENCE_SECONDS = 60
OPENING_SECONDS = 0.1


def measure(report: Report, url: str, first: int, *, sockets: int, rate: int, events: int) -> None:
    """`sockets` persons, numbered from `first`, with a timer each; then `events` of them change, `rate` in a second."""
    last = first + sockets - 1
    seeding.people(first, last)
    seeding.timers(first, last, due=clock.now() + timedelta(hours=6))
    cookies = [_cookie(person) for person in User.objects.filter(pk__in=_keys(first, last)).order_by("pk")]
    port = free_port()
    env = {"DATABASE_URL": url, "REDIS_URL": settings.REDIS_URL}
    arguments = ["daphne", "-b", "127.0.0.1", "-p", str(port), "casualmeet.asgi:application"]
    with ManagedProcess(arguments, env, program=PYTHON_MODULE) as web:
        asyncio.run(_measure(report, web, f"http://127.0.0.1:{port}", cookies, rate=rate, events=events))


async def _measure(
    report: Report, web: ManagedProcess, address: str, people: Sequence[tuple[str, str]], *, rate: int, events: int
) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
        await asyncio.to_thread(wait_until, lambda: _answers(address), 120)
        memory, cpu, began = gauges.resident_mib(web.pid), gauges.cpu_seconds(web.pid), time.monotonic()
        crowd = Crowd(http, address)
        await crowd.open(people)
        opened, spent = time.monotonic() - began, gauges.cpu_seconds(web.pid) - cpu
        grown = gauges.resident_mib(web.pid) - memory
        cpu = gauges.cpu_seconds(web.pid)
        await asyncio.sleep(IDLE_SECONDS)
        idle = (gauges.cpu_seconds(web.pid) - cpu) / IDLE_SECONDS
        count = len(crowd.users)
        report.aim(f"{len(people):,} sockets open", f"{count:,}", met=count == len(people))
        if not count:
            return
        table = report.table(
            f"{count:,} sockets on one Daphne",
            "opened in s",
            "CPU ms each",
            "KiB each",
            "idle: share of a core",
            "each",
        )
        table.rows.append([opened, spent / count * 1000, grown * 1024 / count, idle, idle / count])
        latency = report.table(
            "From the commit to the socket, in seconds", "what", "events", "arrived", "p50", "p99", "max"
        )
        steady = await crowd.change(crowd.users[:events], pause=1 / rate)
        _row(latency.rows, f"{rate} a second, each on one of {count:,} sockets", min(events, count), steady)
        burst = await crowd.change(crowd.users, pause=0.0)
        _row(latency.rows, "on every socket at once", count, burst)
        p99 = percentile(steady, 0.99) if steady else PATIENCE_SECONDS
        report.aim(f"{count:,} sockets: events at {rate}/s p99 under {AIM_P99:g} s", f"{p99:.3f} s", met=p99 < AIM_P99)
        p99 = percentile(burst, 0.99) if burst else PATIENCE_SECONDS
        report.aim(
            f"{count:,} sockets: one event to each at once, p99 under {AIM_P99:g} s", f"{p99:.3f} s", met=p99 < 1
        )
        report.notes.append(
            f"{crowd.refused} handshakes had to be repeated; {crowd.closed} sockets closed by themselves."
        )


def _row(rows: list[list[str | int | float | None]], what: str, wanted: int, found: list[float]) -> None:
    points = [percentile(found, share) for share in (0.5, 0.99, 1.0)] if found else [None, None, None]
    rows.append([what, wanted, len(found), *points])


class Crowd:
    """The browsers: each holds a socket and notes when an event came."""

    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self._http = http
        self._address = address
        self._gate = asyncio.Semaphore(OPENING_AT_ONCE)
        self._arrived: dict[str, float] = {}
        self._wanted = 0
        self._all_there = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []
        self.users: list[str] = []
        self.closed = self.refused = 0

    async def open(self, people: Sequence[tuple[str, str]]) -> None:
        """Open all sockets and wait for each one's snapshot; after a while, be content with those that are open."""
        opening = [asyncio.create_task(self._open(user, cookie)) for user, cookie in people]
        done, late = await asyncio.wait(opening, timeout=PATIENCE_SECONDS + len(people) * OPENING_SECONDS)
        for task in late:
            task.cancel()
        for task in done:
            task.result()

    async def change(self, users: Sequence[str], *, pause: float) -> list[float]:
        """Change a timer of each, and wait until their sockets say so; seconds from the commit."""
        self._arrived, self._wanted = {}, len(users)
        self._all_there.clear()
        committed: dict[str, float] = {}
        if pause:
            for user in users:
                committed[user] = await asyncio.to_thread(_change, [user])
                await asyncio.sleep(pause)
        else:
            committed = dict.fromkeys(users, await asyncio.to_thread(_change, users))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_there.wait(), PATIENCE_SECONDS)
        return [max(0.0, at - committed[user]) for user, at in self._arrived.items() if user in committed]

    async def _open(self, user: str, cookie: str) -> None:
        """Open one, and again where the handshake took longer than Daphne waits, as a browser would."""
        headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}", "Origin": self._address}
        while True:
            try:
                async with self._gate:
                    socket = await self._http.ws_connect(
                        "/ws/person/", headers=headers, timeout=aiohttp.ClientWSTimeout(ws_close=5)
                    )
                    await socket.receive(timeout=PATIENCE_SECONDS)
            except (aiohttp.ClientError, TimeoutError):
                self.refused += 1
                await asyncio.sleep(1.0)
            else:
                self.users.append(user)
                self._readers.append(asyncio.create_task(self._read(user, socket)))
                return

    async def _read(self, user: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT and json.loads(message.data).get("type") == "timer_updated":
                self._arrived.setdefault(user, time.time())
                if len(self._arrived) >= self._wanted:
                    self._all_there.set()
        self.closed += 1


def _change(users: Sequence[str]) -> float:
    """Another note on their timers, in one update; then the hints that the verbs give. When it was committed."""
    MeetingTimer.objects.filter(person_id__in=list(users)).update(note=f"changed at {clock.now()}")
    committed = time.time()
    live.publish(*(live.person_group(UUID(user)) for user in users))
    return committed


def _cookie(person: User) -> tuple[str, str]:
    """The person's id, and a session of theirs."""
    store: Any = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(person.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = person.get_session_auth_hash()
    store.create()
    return str(person.pk), store.session_key


def _keys(first: int, last: int) -> list[Any]:
    return list(
        User.objects.filter(username__in=[f"person{i}" for i in range(first, last + 1)]).values_list("pk", flat=True)
    )


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5):
            return True
    except OSError:
        return False
