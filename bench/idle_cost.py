"""What one cycle costs when nothing is due, and whether it grows with the timers there are and were."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from bench import seeding
from bench.report import Report, percentile
from bench.setup import TITLES, database
from casualmeet import clock
from casualmeet.db import has_transactions
from ops import beats
from ops.worker import run_cycles
from safety import expiry
from safety.models import MeetingTimer, TimerStatus

DATABASES = ("postgres", "sqlite")
AIM_MS = 5.0
# A cycle in an idle worker does not follow right on another.
PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class Sizes:
    """How much of what."""

    small: int = 1_000
    middle: int = 100_000
    large: int = 1_000_000
    past: int = 1_000_000
    cycles: int = 500


FULL = Sizes()
QUICK = Sizes(small=50, middle=100, large=200, past=200, cycles=20)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database, at each size."""
    table = report.table(
        "One cycle with nothing due, in ms (turn: the cycle, its connection, and the look at the next deadline)",
        *("database", "armed", "past", "cycle p50", "p99", "max", "cycle CPU", "turn p50", "p99"),
    )
    plans = report.table("How the due timers are found", "database", "query", "plan")
    for kind in databases:
        with database(kind):
            report.note_database(TITLES[kind])
            medians = []
            for armed, past, seed in _steps(sizes):
                seed()
                seeding.settle()
                cycles, turns, cpu = _idle(sizes.cycles)
                medians.append(percentile(cycles, 0.5))
                table.rows.append(
                    [
                        *(TITLES[kind], armed, past, medians[-1], percentile(cycles, 0.99), max(cycles)),
                        *(cpu, percentile(turns, 0.5), percentile(turns, 0.99)),
                    ]
                )
            _explain(report, TITLES[kind], plans.rows)
        report.aim(
            f"{TITLES[kind]}: under {AIM_MS:g} ms at every size",
            f"medians {', '.join(f'{value:.2f}' for value in medians)} ms",
            met=max(medians) < AIM_MS,
        )


def _steps(sizes: Sizes) -> list[tuple[int, int, Callable[[], None]]]:
    """Armed timers, timers of the past, and what leads there from the step before."""
    half = sizes.past // 2
    return [
        (sizes.small, 0, lambda: seeding.armed(1, sizes.small)),
        (sizes.middle, 0, lambda: seeding.armed(sizes.small + 1, sizes.middle)),
        (sizes.large, 0, lambda: seeding.armed(sizes.middle + 1, sizes.large)),
        (sizes.large, sizes.past, lambda: _past(half)),
    ]


def _past(half: int) -> None:
    seeding.past(1, half, status=TimerStatus.SAFE)
    seeding.past(1, half, status=TimerStatus.EXPIRED)


def _idle(count: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of so many cycles, of the worker's whole turns around them, and of processor time per cycle."""
    stop = Event()
    cycles: list[float] = []
    turns: list[float] = []
    cpu = 0.0
    began = time.perf_counter()

    def cycle() -> expiry.CycleResult:
        nonlocal cpu
        started, started_cpu = time.perf_counter(), time.process_time()
        result = expiry.cycle(repairing=not has_transactions())
        cycles.append((time.perf_counter() - started) * 1000)
        cpu += time.process_time() - started_cpu
        return result

    def wait(result: expiry.CycleResult, _took: float) -> None:
        nonlocal began
        expiry.next_deadline()
        turns.append((time.perf_counter() - began) * 1000)
        if result.processed:
            raise RuntimeError("A timer was due.")
        if len(turns) == count:
            stop.set()
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()

    run_cycles(cycle, stop=stop, wait=wait, beat=beats.Beat(beats.TIMER))
    return cycles, turns, cpu / count * 1000


def _explain(report: Report, title: str, rows: list[list[str | int | float | None]]) -> None:
    """The plans of the cycle's look-ups as the database runs them, with bound parameters where it has them."""
    due = MeetingTimer.objects.due(clock.now()).order_by("escalates_at").values_list("pk", flat=True)
    coming = MeetingTimer.objects.live().order_by("escalates_at").values_list("escalates_at", "pk")
    half_done = MeetingTimer.objects.half_done()
    for name, plan in [
        ("due", due[: expiry.BATCH].explain()),
        ("next deadline", coming[:1].explain()),
        ("half-done", half_done[: expiry.BATCH].explain()),
    ]:
        lines = [line.strip() for line in plan.splitlines()]
        rows.append([title, name, next((line for line in lines if "SCAN" in line.upper() or "SEARCH" in line), plan)])
        if name != "half-done":
            report.aim(
                f"{title}: the {name} query uses timer_live_due",
                "it does" if "timer_live_due" in plan else "it does not",
                met="timer_live_due" in plan,
            )
