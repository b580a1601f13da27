"""Many timers of a million due at once: how fast they become incidents with their deliveries, durably."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

from django.db import connection
from django.test import override_settings

from bench import plain_loop, seeding
from bench.report import Report
from bench.setup import TITLES, CarrierProcess, database
from casualmeet import clock
from casualmeet.db import has_transactions
from notifications.models import Delivery
from ops.beats import Beat
from ops.worker import run_cycles
from safety import expiry
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus

DATABASES = ("postgres", "sqlite")
AIM_PER_SECOND = 3000
AIM_TIMES_PLAIN = 100


@dataclass(frozen=True)
class Sizes:
    """How much of what."""

    armed: int = 1_000_000
    due: int = 10_000
    rounds: int = 3
    plain: int = 300
    latency_ms: int = 100


@dataclass(frozen=True, order=True)
class Taken:
    """Seconds on the clock, and seconds of this process on a processor, which a busy machine stretches less."""

    wall: float
    cpu: float


FULL = Sizes()
QUICK = Sizes(armed=300, due=50, rounds=1, plain=3, latency_ms=20)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database."""
    table = report.table(
        f"{sizes.due:,} of {sizes.armed:,} armed timers due at once, two contacts each",
        *("database", "way", "timers", "seconds", "CPU seconds", "timers/s"),
    )
    for kind in databases:
        with database(kind):
            report.note_database(TITLES[kind])
            seeding.armed(1, sizes.armed)
            seeding.contacts(1, sizes.rounds * sizes.due + 2 * sizes.plain)
            bare, cycles = _rounds(sizes)
            slow, fast = (_plain(sizes, latency_ms=ms) for ms in (sizes.latency_ms, 0))
        rate = sizes.due / _median(cycles).wall
        per_timer = slow.wall / sizes.plain
        for way, count, taken in [
            ("bare UPDATE of the rows (the limit)", sizes.due, _median(bare)),
            ("expiry cycles, median round", sizes.due, _median(cycles)),
            ("expiry cycles, slowest round", sizes.due, max(cycles)),
            (f"plain loop, carrier answers in {sizes.latency_ms} ms", sizes.plain, slow),
            ("plain loop, carrier answers at once", sizes.plain, fast),
        ]:
            table.rows.append([TITLES[kind], way, count, taken.wall, taken.cpu, count / taken.wall])
        report.aim(
            f"{TITLES[kind]}: at least {AIM_PER_SECOND:,} timers/s",
            f"{rate:,.0f} timers/s",
            met=rate >= AIM_PER_SECOND,
        )
        report.aim(
            f"{TITLES[kind]}: at least {AIM_TIMES_PLAIN} times the plain loop",
            f"{rate * per_timer:,.0f} times (from {per_timer * 1000:.0f} ms per timer on {sizes.plain} timers)",
            met=rate * per_timer >= AIM_TIMES_PLAIN,
        )


def _rounds(sizes: Sizes) -> tuple[list[Taken], list[Taken]]:
    """The time of the bare UPDATE and of the expiry cycles over the same rows, for each round with fresh rows."""
    bare, cycles = [], []
    for first in range(1, sizes.rounds * sizes.due, sizes.due):
        seeding.make_due(first, first + sizes.due - 1, at=clock.now())
        seeding.settle()
        bare.append(_timed(lambda: _bare_update(sizes.due)))
        _take_back(first, first + sizes.due - 1)
        seeding.settle()
        before = Delivery.objects.count()
        cycles.append(_timed(lambda: expire_due(sizes.due)))
        queued = Delivery.objects.count() - before
        if queued != 2 * sizes.due:
            raise RuntimeError(f"{queued} deliveries for {sizes.due} incidents with two contacts each.")
    return bare, cycles


def expire_due(expected: int) -> None:
    """Run the worker's own loop, in this process, until nothing is due."""
    stop = Event()
    total = expiry.CycleResult()

    def wait(result: expiry.CycleResult, _took: float) -> None:
        nonlocal total
        total += result
        if not result.full:
            stop.set()

    run_cycles(partial(expiry.cycle, repairing=not has_transactions()), beat=Beat("timer"), stop=stop, wait=wait)
    if total.incidents_opened != expected:
        raise RuntimeError(f"{expected} timers were due, but {total}.")


def _bare_update(expected: int) -> None:
    """One statement and its commit."""
    now = clock.now()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE safety_meetingtimer SET status = 'expired', resolved_at = %s "
            "WHERE status IN ('active', 'extended') AND escalates_at <= %s",
            [now, now],
        )
        if cursor.rowcount != expected:
            raise RuntimeError(f"{cursor.rowcount} rows instead of {expected}.")


def _take_back(first: int, last: int) -> None:
    keys = [seeding.timer_key(i) for i in range(first, last + 1)]
    for start in range(0, len(keys), seeding.CHUNK):
        MeetingTimer.objects.filter(pk__in=keys[start : start + seeding.CHUNK]).update(
            status=TimerStatus.ACTIVE, resolved_at=None
        )


def _plain(sizes: Sizes, *, latency_ms: int) -> Taken:
    """The time of the plain loop over the next timers that nobody has expired."""
    first = sizes.rounds * sizes.due + (1 if latency_ms else sizes.plain + 1)
    seeding.make_due(first, first + sizes.plain - 1, at=clock.now())
    assert MeetingTimer.objects.filter(status__in=LIVE_STATUSES, escalates_at__lte=clock.now()).count() == sizes.plain
    with CarrierProcess(latency=latency_ms / 1000) as carrier, override_settings(**carrier.environment()):
        return _timed(plain_loop.expire_due)


def _timed(work: Callable[[], object]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def _median(rounds: Sequence[Taken]) -> Taken:
    return sorted(rounds)[len(rounds) // 2]
