"""The people of the chaos bench: they arm, check in, extend, cancel, miss and press SOS at random over the real HTTP API,
and write down what they were told.

Deadlines of a quarter of an hour would make a long bench, so a person's deadline is brought nearer in the database, by
the same compare-and-swap that the verbs use; everything else is a client's request.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self
from uuid import UUID

import aiohttp
from django.db import close_old_connections

from bench import seeding
from casualmeet import clock
from casualmeet.db import is_transient
from safety import tokens
from safety.models import LIVE_STATUSES, MeetingTimer, TrustedContact, User
from sos.models import SosEvent

Outcome = Literal["done", "refused", "unknown"]

TIMEOUT = aiohttp.ClientTimeout(total=12)
RETRY_SECONDS = 1.0
# How far ahead deadlines are brought, in seconds.
AHEAD = (1.5, 8.0)
COURSES = {"safe": 22, "cancel": 10, "extend": 16, "miss": 26, "photo finish": 16, "two at once": 10}


@dataclass(frozen=True, slots=True)
class Act:
    """One request of a person and what they were told; times are the database's, in seconds since 1970.

    `replaced` is the deadline that the verb was decided on, `deadline` the one that holds after its success.
    """

    person: int
    verb: str
    outcome: Outcome
    status: int
    sent_at: float
    answered_at: float
    timer: UUID | None = None
    incident: UUID | None = None
    replaced: datetime | None = None
    deadline: datetime | None = None
    told: str = ""


@dataclass
class Journal:
    """What all of them did and were told."""

    acts: list[Act] = field(default_factory=list)
    skew: float = 0.0
    looks: int = 0
    twice_active: list[UUID] = field(default_factory=list)

    def now(self) -> float:
        """The database's time."""
        return time.time() - self.skew

    def count(self) -> dict[tuple[str, str], int]:
        """How many acts of each verb came out how."""
        found: dict[tuple[str, str], int] = {}
        for act in self.acts:
            found[act.verb, act.outcome] = found.get((act.verb, act.outcome), 0) + 1
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """What came back."""

    outcome: Outcome
    status: int
    body: dict[str, Any]


def settle_people(count: int) -> list[str]:
    """Write the persons, two verified contacts each; their bearer tokens, in the order of their numbers."""
    now = clock.now()
    persons = [
        User(
            username=f"person{i}",
            password="!",
            full_name="Asha Rao",
            phone=f"+9197{seeding.FIRST_NUMBER + i}",
            time_zone="Asia/Kolkata",
        )
        for i in range(count)
    ]
    User.objects.bulk_create(persons)
    TrustedContact.objects.bulk_create(
        [
            TrustedContact(
                person=person,
                slot=slot,
                name=name,
                phone=f"{prefix}{seeding.FIRST_NUMBER + i}",
                status=TrustedContact.Status.VERIFIED,
                token=f"chaos{i}x{slot}",
                invited_at=now,
                answered_at=now,
            )
            for i, person in enumerate(persons)
            for slot, (name, prefix) in enumerate([("Meera Nair", seeding.MUMBAI), ("Tom Baker", seeding.LONDON)])
        ]
    )
    return [tokens.issue(person) for person in persons]


class Person:
    """One of them, with their phone."""

    def __init__(self, number: int, token: str, crowd: "Crowd") -> None:
        self.number = number
        self.crowd = crowd
        self.random = random.Random(f"{crowd.seed}-{number}")
        self._headers = {"Authorization": f"Bearer {token}"}
        self.alarms: set[UUID] = set()

    async def live(self) -> None:
        """Until it is over."""
        await self._pause(0.0, 3.0)
        while not self.crowd.over.is_set():
            if self.random.random() < 0.06:
                await self.press_sos()
            timer = await self._timer()
            if timer is not None:
                await self._meet(timer)
            await self._see_to_alarms()
            await self._pause(0.2, 2.0)

    async def press_sos(self) -> None:
        """SOS."""
        told = await self._do("sos", "POST", "/api/sos", {"location_name": "Café Mondegar"})
        if told.outcome == "done":
            self.alarms.add(UUID(told.body["id"]))

    async def come_home(self) -> bool:
        """After the trouble: end the timer that runs; True when none runs any more."""
        try:
            timers = await self._ask("/api/timers")
            live = [timer for timer in timers if timer["status"] in LIVE_STATUSES]
            for timer in live:
                await self._end(timer, "safe")
            return not live
        except (aiohttp.ClientError, TimeoutError, KeyError):
            return False

    async def say_safe(self, incident: UUID) -> bool:
        """End an alarm; True when the answer was a success."""
        told = await self._do("alarm over", "PUT", f"/api/sos/{incident}/safe", {}, incident=incident)
        if told.outcome == "done":
            self.alarms.discard(incident)
        return told.outcome == "done"

    async def _timer(self) -> dict[str, Any] | None:
        """A timer with a near deadline: the one that runs, else a new one."""
        body = {"location_name": "Café Mondegar", "duration_minutes": 15, "meet_with": "Rohan"}
        told = await self._do("arm", "POST", "/api/timers", body)
        timer = told.body if told.outcome == "done" else told.body.get("current")
        if timer is None:
            timer = await self._running()
        if timer is None or timer["status"] not in LIVE_STATUSES:
            return None
        return await self._bring_near(timer)

    async def _running(self) -> dict[str, Any] | None:
        try:
            timers = await self._ask("/api/timers")
        except (aiohttp.ClientError, TimeoutError, KeyError):
            await self._pause(RETRY_SECONDS, 2 * RETRY_SECONDS)
            return None
        return next((timer for timer in timers if timer["status"] in LIVE_STATUSES), None)

    async def _meet(self, timer: dict[str, Any]) -> None:
        course = self.random.choices(list(COURSES), weights=list(COURSES.values()))[0]
        left = _moment(timer["escalates_at"]).timestamp() - self.crowd.journal.now()
        if course in {"safe", "cancel"}:
            await self._pause(0.0, max(0.1, left))
            await self._end(timer, course)
        elif course == "extend":
            await self._pause(0.0, max(0.1, left))
            if await self._extend(timer):
                await self._pause(0.1, 2.0)
        elif course == "photo finish":
            await asyncio.sleep(max(0.0, left + self.random.uniform(-0.4, 0.3)))
            await (self._extend(timer) if self.random.random() < 0.3 else self._end(timer, "safe"))
        elif course == "two at once":
            await asyncio.sleep(max(0.0, left - self.random.uniform(0.0, 1.0)))
            await asyncio.gather(self._extend(timer), self._end(timer, "safe"), self._end(timer, "cancel"))
        else:
            await self._miss(timer, left)

    async def _miss(self, timer: dict[str, Any], left: float) -> None:
        """Let it run out, and learn that the alarm is on."""
        await asyncio.sleep(max(0.0, left))
        while not self.crowd.over.is_set():
            await self._pause(0.5, 1.5)
            try:
                seen = await self._ask(f"/api/timers/{timer['id']}")
            except (aiohttp.ClientError, TimeoutError, KeyError):
                continue
            if seen["incident"]:
                self.alarms.add(UUID(seen["incident"]))
                return

    async def _see_to_alarms(self) -> None:
        """Most say that they are safe after a while; some let the alarm stand, and the next one joins it."""
        for incident in list(self.alarms):
            if self.random.random() < 0.6:
                await self._pause(0.0, 5.0)
                await self.say_safe(incident)

    async def _end(self, timer: dict[str, Any], verb: str) -> None:
        path = f"/api/timers/{timer['id']}/{verb}"
        await self._do(verb, "PUT", path, {}, timer=UUID(timer["id"]), replaced=_moment(timer["escalates_at"]))

    async def _extend(self, timer: dict[str, Any]) -> bool:
        minutes = self.random.randint(1, 20)
        replaced = _moment(timer["escalates_at"])
        told = await self._do(
            "extend",
            "PUT",
            f"/api/timers/{timer['id']}/extend",
            {"minutes": minutes},
            timer=UUID(timer["id"]),
            replaced=replaced,
            deadline=replaced + timedelta(minutes=minutes),
        )
        return told.outcome == "done"

    async def _bring_near(self, timer: dict[str, Any]) -> dict[str, Any] | None:
        """Move its deadline to a few seconds from now; None where that did not work."""
        now = self.crowd.journal.now()
        deadline = _moment_of(now + self.random.uniform(*AHEAD))
        moved = await self.crowd.back_door(_move, timer, deadline)
        outcome: Outcome = "unknown" if moved is None else "done" if moved else "refused"
        self._note(
            "(deadline moved)",
            Told(outcome, 0, {}),
            now,
            timer=UUID(timer["id"]),
            replaced=_moment(timer["escalates_at"]),
            deadline=deadline,
        )
        return {**timer, "escalates_at": deadline.isoformat()} if moved else None

    async def _do(self, verb: str, method: str, path: str, body: dict[str, Any], **about: Any) -> Told:
        """One request, noted with what came back. 4xx is a clear no; 5xx and silence leave it open."""
        sent_at = self.crowd.journal.now()
        try:
            async with self.crowd.http.request(method, path, json=body, headers=self._headers) as answer:
                told = Told(_outcome(answer.status), answer.status, await answer.json())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            told = Told("unknown", 0, {})
        if verb == "arm" and told.outcome == "done":
            about = {"timer": UUID(told.body["id"]), "deadline": _moment(told.body["escalates_at"])}
        if verb == "sos" and told.outcome == "done":
            about = {"incident": UUID(told.body["id"])}
        self._note(verb, told, sent_at, **about)
        if told.outcome == "unknown":
            await self._pause(RETRY_SECONDS / 2, 3 * RETRY_SECONDS)
        return told

    async def _ask(self, path: str) -> Any:
        async with self.crowd.http.get(path, headers=self._headers) as answer:
            if answer.status != 200:
                raise KeyError(answer.status)
            return await answer.json()

    def _note(self, verb: str, told: Told, sent_at: float, **about: Any) -> None:
        code = str(told.body.get("code", ""))
        act = Act(self.number, verb, told.outcome, told.status, sent_at, self.crowd.journal.now(), told=code, **about)
        self.crowd.journal.acts.append(act)

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self.random.uniform(least, most))


class Crowd:
    """All of them, in one event loop. The last `callers` of them do nothing but press SOS when they are told to."""

    def __init__(self, web_url: str, secrets: Sequence[str], *, seed: int, callers: int) -> None:
        self.seed = seed
        self.journal = Journal()
        self.over = asyncio.Event()
        self._web_url = web_url
        self._pool = ThreadPoolExecutor(max_workers=3, thread_name_prefix="back door")
        persons = [Person(i, token, self) for i, token in enumerate(secrets)]
        self.everybody = persons
        self.people, self.callers = persons[: len(persons) - callers], persons[len(persons) - callers :]
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self.http = aiohttp.ClientSession(self._web_url, connector=connector, timeout=TIMEOUT)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.http.close()
        self._pool.shutdown()

    async def back_door(self, work: Any, *args: Any) -> Any:
        """Do something in the database, in a thread; None while it is away."""

        def guarded() -> Any:
            try:
                close_old_connections()
                return work(*args)
            except Exception as error:
                if is_transient(error):
                    return None
                raise
            finally:
                close_old_connections()

        return await asyncio.get_running_loop().run_in_executor(self._pool, guarded)

    async def watch(self, seconds: float) -> None:
        """Each second: keep the database's time, and look for persons with two active incidents (P4)."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            seen = await self.back_door(_look)
            if seen is not None:
                self.journal.skew, active = seen
                self.journal.looks += 1
                twice = [pk for pk, count in Counter(active).items() if count > 1]
                self.journal.twice_active += twice


def _look() -> tuple[float, list[UUID]]:
    return clock.skew_seconds(), list(SosEvent.objects.active().values_list("person_id", flat=True))


def _move(timer: dict[str, Any], deadline: datetime) -> bool:
    as_read = MeetingTimer.objects.filter(
        pk=timer["id"], status=timer["status"], escalates_at=_moment(timer["escalates_at"])
    )
    return bool(as_read.update(expires_at=deadline, escalates_at=deadline))


def _outcome(status: int) -> Outcome:
    return "done" if 200 <= status < 300 else "refused" if status < 500 else "unknown"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _moment_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds * 1000) / 1000, tz=UTC)
