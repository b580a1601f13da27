"""10,000 queued deliveries, at a quick and at a slow carrier: how fast they leave, beside BullMQ making the same calls.

And how long an SOS takes that is queued behind them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from bench import bullmq_workers, seeding
from bench.bullmq_workers import BullMQ, Call
from bench.deliveries import taken, wait_for_accepted, waiting
from bench.report import Report
from bench.setup import TITLES, CarrierProcess, database, stop, worker
from casualmeet import clock
from notifications import outbox, wake
from notifications.models import Delivery, DeliveryStatus, Priority
from notifications.texts import AlertFacts, Kind
from testing.processes import wait_until

DATABASES = ("postgres",)
AIM_OF_LIMIT = 0.95
AIM_SOS_SECONDS = 1.0
LOOK_SECONDS = 0.25
SOS_NUMBER = "+447700900{:03}"
PACE_SECONDS = 0.3


@dataclass(frozen=True)
class Sizes:
    """How much of what. `priority` is that of the queued (9: digests, 0: alerts); `wide`, `sos` and `bullmq` may be 0."""

    count: int = 10_000
    priority: int = Priority.BULK
    narrow: int = 25
    wide: int = 100
    processes: int = 2
    slow_ms: int = 100
    sos: int = 5
    bullmq: int = 1


FULL = Sizes()
QUICK = Sizes(count=20, narrow=2, wide=0, processes=1, slow_ms=0, sos=1, bullmq=0)


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to send: calls at once are those of each process."""

    latency_ms: int
    concurrency: int
    processes: int

    @property
    def limit(self) -> float | None:
        """Calls in a second that the carrier's latency allows."""
        return self.processes * self.concurrency / self.latency_ms * 1000 if self.latency_ms else None


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds from the commit to the carrier's receipt of the first and the last; how many were answered each second."""

    first: float
    last: float
    rate: float


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database."""
    columns = ["database", "carrier ms", "calls at once", "processes", "limit /s"]
    columns += ["/s", "first s", "last s", "BullMQ /s", "its first s", "its last s"]
    table = report.table(f"{sizes.count:,} queued deliveries, from the commit to the carrier", *columns)
    behind = report.table(
        f"An SOS queued behind {sizes.count:,} others, from the commit to the carrier; one process",
        *("database", "carrier ms", "calls at once", "SOS", "quickest s", "slowest s", "others left"),
    )
    why_not = (bullmq_workers.trouble() if sizes.bullmq else "not asked for") or ""
    report.notes.append(f"Without BullMQ: {why_not}." if why_not else f"BullMQ: {bullmq_workers.versions()}.")
    for kind in databases:
        with database(kind) as url:
            report.note_database(TITLES[kind])
            outbox_ = Outbox(url, sizes)
            for latency_ms in sorted({0, sizes.slow_ms}):
                with CarrierProcess(latency=latency_ms / 1000) as carrier:
                    for setup in _setups(sizes, latency_ms):
                        with outbox_.dispatchers(carrier, setup):
                            ours, call = outbox_.drain(carrier, setup)
                            if sizes.sos and setup.processes == 1:
                                cells = outbox_.overtake(carrier)
                                behind.rows.append([TITLES[kind], latency_ms, setup.concurrency, *cells])
                        theirs = None if why_not else _bullmq(carrier, setup, call, sizes)
                        table.rows.append([TITLES[kind], *_row(setup, ours, theirs)])
                        _compare(report, TITLES[kind], setup, ours, theirs)
            _compare_sos(report, TITLES[kind], [float(str(row[5])) for row in behind.rows if row[0] == TITLES[kind]])


def _setups(sizes: Sizes, latency_ms: int) -> Iterator[Setup]:
    for concurrency in filter(None, (sizes.narrow, sizes.wide)):
        for processes in range(1, sizes.processes + 1):
            yield Setup(latency_ms, concurrency, processes)


class Outbox:
    """The product's side: deliveries in the database, dispatchers as processes."""

    def __init__(self, url: str, sizes: Sizes) -> None:
        self.url = url
        self.sizes = sizes
        self.written = 0

    @contextmanager
    def dispatchers(self, carrier: CarrierProcess, setup: Setup) -> Iterator[None]:
        """Processes that are warm: they have had something to send."""
        env = {"DISPATCH_CONCURRENCY": str(setup.concurrency)}
        with ExitStack() as stack:
            running = [
                stack.enter_context(worker("run_dispatch_worker", database_url=self.url, carrier=carrier, **env))
                for _ in range(setup.processes)
            ]
            for process in running:
                process.wait_for_line("^Dispatching")
            before = taken()
            warming = _warm_up(setup)
            self._queue(warming)
            wait_for_accepted(before + warming, timeout=30)
            yield
            for process in running:
                stop(process)

    def drain(self, carrier: CarrierProcess, setup: Setup) -> tuple[Found, Call]:
        """Let the dispatchers send them all; also a request as they made it."""
        seeding.settle()
        carrier.clear()
        first, committed = self._queue(self.sizes.count)
        deadline = time.monotonic() + _patience(self.sizes)
        while left := waiting():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} of {self.sizes.count} deliveries are still there")
            time.sleep(LOOK_SECONDS)
        messages = carrier.journal()
        return _found(messages, setup, committed, first=first, count=self.sizes.count), Call.like(messages[0])

    def overtake(self, carrier: CarrierProcess) -> list[float]:
        """How many SOS were queued behind them, the fewest and the most seconds one took, how many others were left."""
        carrier.clear()
        self._queue(self.sizes.count)
        committed: dict[str, float] = {}
        for i in range(self.sizes.sos):
            time.sleep(PACE_SECONDS)
            row = _alert(SOS_NUMBER.format(i))
            outbox.queue([row])
            committed[row.address] = time.time()
            wake.dispatcher()
        rows = Delivery.objects.filter(address__in=list(committed))
        pending = rows.exclude(status__in=outbox.TAKEN)
        wait_until(lambda: not pending.exists(), timeout=60, message="every SOS is out")
        left = waiting()
        Delivery.objects.filter(status=DeliveryStatus.QUEUED).update(status=DeliveryStatus.CANCELLED)
        at = {message["to"]: message["at"] for message in carrier.journal() if message["to"] in committed}
        rows.delete()
        took = [max(0.0, at[number] - moment) for number, moment in committed.items()]
        return [len(took), min(took), max(took), left]

    def _queue(self, count: int) -> tuple[int, float]:
        """Write so many in one transaction: the number of the first, and when they were there, as time.time()."""
        first, self.written = self.written + 1, self.written + count
        facts = AlertFacts(kind=Kind.INVITATION, person_name="Asha Rao", happened_at=clock.now()).to_json()
        seeding.digests(first, self.written, priority=self.sizes.priority, facts=facts)
        committed = time.time()
        wake.dispatcher()
        return first, committed


def _bullmq(carrier: CarrierProcess, setup: Setup, call: Call, sizes: Sizes) -> Found:
    """The same requests by BullMQ."""
    with BullMQ(carrier, concurrency=setup.concurrency, processes=setup.processes, call=call) as rival:
        given: dict[str, Any] = {"prefix": seeding.LONDON, "timeout": _patience(sizes)}
        first = seeding.FIRST_NUMBER + 1
        rival.send(_warm_up(setup), first=first, **given)
        carrier.clear()
        released = rival.send(sizes.count, first=first, **given)
        rival.stop()
    return _found(carrier.journal(), setup, released, first=1, count=sizes.count)


def _patience(sizes: Sizes) -> float:
    return 60 + sizes.count / 20


def _warm_up(setup: Setup) -> int:
    return 4 * setup.concurrency * setup.processes


def _found(messages: list[dict[str, Any]], setup: Setup, began: float, *, first: int, count: int) -> Found:
    """What the carrier's journal tells. Raises RuntimeError unless each number got exactly one message."""
    numbers = sorted(seeding.person_of_number(message["to"]) for message in messages)
    if numbers != list(range(first, first + count)):
        raise RuntimeError(f"{len(numbers)} messages to {len(set(numbers))} numbers, not one to each of {count}.")
    times = [message["at"] - began for message in messages]
    last = max(times)
    return Found(first=max(0.0, min(times)), last=last, rate=count / (last + setup.latency_ms / 1000))


def _row(setup: Setup, ours: Found, theirs: Found | None) -> list[str | int | float | None]:
    cells = [setup.latency_ms, setup.concurrency, setup.processes, setup.limit, ours.rate, ours.first, ours.last]
    return [*cells, *((theirs.rate, theirs.first, theirs.last) if theirs else (None, None, None))]


def _compare(report: Report, title: str, setup: Setup, ours: Found, theirs: Found | None) -> None:
    how = f"{setup.concurrency} calls at once, {setup.processes} process{'es' if setup.processes > 1 else ''}"
    if setup.limit:
        report.aim(
            f"{title}: {AIM_OF_LIMIT:.0%} of the limit at {setup.latency_ms} ms, {how}",
            f"{ours.rate:,.0f}/s of {setup.limit:,.0f}/s",
            met=ours.rate >= AIM_OF_LIMIT * setup.limit,
        )
    elif theirs and setup.processes > 1:
        report.aim(
            f"{title}: ahead of BullMQ at 0 ms, {how}",
            f"{ours.rate:,.0f}/s against {theirs.rate:,.0f}/s",
            met=ours.rate > theirs.rate,
        )


def _compare_sos(report: Report, title: str, slowest: list[float]) -> None:
    if slowest:
        report.aim(
            f"{title}: an SOS overtakes within {AIM_SOS_SECONDS:g} s",
            f"{max(slowest):.3f} s at most",
            met=max(slowest) <= AIM_SOS_SECONDS,
        )


def _alert(number: str) -> Delivery:
    """An unsaved SOS text."""
    now = clock.now()
    facts = AlertFacts(kind=Kind.SOS, person_name="Asha Rao", reference="K7Q", happened_at=now, opened_at=now)
    addressee = outbox.Addressee(uuid4(), "Tom Baker", number, "en", "http://localhost:8000/i/x")
    return outbox.text_to(addressee, key="sos", kind=Kind.SOS, facts=facts.to_json(), now=now, priority=Priority.SOS)
