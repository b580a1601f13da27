"""How many alerts one dispatcher process sends each second, at carriers of different slowness."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from django.test import override_settings

from bench import seeding
from bench.deliveries import waiting
from bench.mass_expiry import expire_due
from bench.report import Report
from bench.setup import TITLES, CarrierProcess, database, stop, worker
from casualmeet import clock
from notifications.carriers import routing
from notifications.carriers.base import OutgoingMessage
from notifications.carriers.loop import CarrierLoop
from testing.processes import wait_until

DATABASES = ("postgres",)
# Below this share of what the pool or the processor allows, a slower carrier has cost more than its own time.
CLIFF = 0.6
TEXT = "Missed check-in: Asha Rao has not answered since 21:12. Please call her, then the police. http://localhost/i/x"


@dataclass(frozen=True)
class Sizes:
    """How much of what. `fastest` is more than any dispatcher can send in a second; `wide` may be 0, for none."""

    seconds: int = 10
    warm_up: int = 2
    fastest: int = 800
    narrow: int = 25
    wide: int = 100
    middle_ms: int = 100
    slow_ms: int = 1200


FULL = Sizes()
QUICK = Sizes(seconds=1, warm_up=0, fastest=50, narrow=2, wide=0, middle_ms=20, slow_ms=20)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database, at each latency and pool size."""
    table = report.table(
        "Alerts per second of one dispatcher process",
        *("database", "carrier ms", "calls at once", "limit of the pool", "carrier client alone", "dispatcher"),
    )
    for kind in databases:
        with database(kind) as url:
            report.note_database(TITLES[kind])
            queue = Queue()
            rates: dict[tuple[int, int], float] = {}
            for concurrency in filter(None, (sizes.narrow, sizes.wide)):
                for latency_ms in sorted({0, sizes.middle_ms, sizes.slow_ms}):
                    limit = concurrency / latency_ms * 1000 if latency_ms else None
                    wanted = min(limit or sizes.fastest, sizes.fastest) * (sizes.seconds + sizes.warm_up) * 1.2
                    queue.fill(int(wanted) + concurrency)
                    with CarrierProcess(latency=latency_ms / 1000) as carrier:
                        rate = _dispatch(url, carrier, concurrency, sizes)
                        alone = _client_alone(carrier, concurrency, sizes) if not latency_ms else None
                    rates[concurrency, latency_ms] = rate
                    table.rows.append([TITLES[kind], latency_ms, concurrency, limit, alone, rate])
        _compare(report, TITLES[kind], rates)


class Queue:
    """The outbox, filled by expiring timers."""

    def __init__(self) -> None:
        self.persons = 0

    def fill(self, count: int) -> None:
        """See to it that at least so many deliveries are queued."""
        timers = (max(0, count - waiting()) + 1) // 2
        if not timers:
            return
        first, last = self.persons + 1, self.persons + timers
        seeding.people(first, last)
        seeding.contacts(first, last)
        seeding.timers(first, last, due=clock.now())
        expire_due(timers)
        seeding.settle()
        self.persons = last


def _dispatch(url: str, carrier: CarrierProcess, concurrency: int, sizes: Sizes) -> float:
    """Requests per second that reach the carrier while more are queued than can be sent."""
    process = worker("run_dispatch_worker", database_url=url, carrier=carrier, DISPATCH_CONCURRENCY=str(concurrency))
    with process:
        wait_until(carrier.journal, timeout=30, message="the first request")
        began = time.time() + sizes.warm_up
        ended = began + sizes.seconds
        time.sleep(ended - time.time())
        dry = waiting() <= concurrency
        stop(process)
    times: list[float] = [message["at"] for message in carrier.journal()]
    if dry:
        print(f"  The queue ran dry at {concurrency} calls at once; counted up to then.")
        ended = max(times)
    return sum(began <= at <= ended for at in times) / (ended - began)


def _client_alone(carrier: CarrierProcess, concurrency: int, sizes: Sizes) -> float:
    """The same calls without a database: what Python and its HTTP client allow."""
    ended = time.monotonic() + sizes.seconds / 2

    async def send() -> int:
        sent = 0
        while time.monotonic() < ended:
            number = "+919810000001" if sent % 2 else "+447710000001"
            await routing.configured()[routing.route(number)[0]].send(
                OutgoingMessage(to=number, text=TEXT, kind="sos", variables=(), language="en", attempt_id=uuid4())
            )
            sent += 1
        return sent

    async def all_at_once() -> int:
        return sum(await asyncio.gather(*(send() for _ in range(concurrency))))

    with override_settings(**carrier.environment()):
        calls = CarrierLoop()
        sent = calls.run(all_at_once())
        calls.close()
    return sent / (sizes.seconds / 2)


def _compare(report: Report, title: str, rates: dict[tuple[int, int], float]) -> None:
    """A cliff is where a slower carrier brings the rate below what its own time explains."""
    fastest = max(rates.values())
    for (concurrency, latency_ms), rate in rates.items():
        possible = min(concurrency / latency_ms * 1000, fastest) if latency_ms else fastest
        report.aim(
            f"{title}: no cliff at {latency_ms} ms with {concurrency} calls at once",
            f"{rate:,.0f}/s of {possible:,.0f}/s possible",
            met=rate >= CLIFF * possible,
        )
