"""Timers that run out at a steady rate among many: with several workers of each kind, and the plain loop beside them; and
what a second worker brings.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

from django.test import override_settings

from bench import gauges, plain_loop, seeding
from bench.deliveries import taken, wait_for_accepted
from bench.report import Report, percentile
from bench.setup import CarrierProcess, stop, worker
from casualmeet import clock
from safety.models import MeetingTimer
from testing.processes import ManagedProcess, wait_until

AIM_P99 = 1.0
AIM_SECOND = 1.6
FLAT_MIB = 10.0
LEAD = timedelta(seconds=3)
WARM_SECONDS = 20


@contextmanager
def workers(url: str, carrier: CarrierProcess, *, timer: int, dispatch: int) -> Iterator[dict[str, ManagedProcess]]:
    """So many workers of each kind, by name, up and running."""
    with ExitStack() as stack:
        running = {}
        for name, command, ready, count in (
            ("timer", ["run_timer_worker", "--no-dispatch"], "^Expiring", timer),
            ("dispatch", ["run_dispatch_worker"], "^Dispatching", dispatch),
        ):
            for number in range(1, count + 1):
                process = worker(command[0], *command[1:], database_url=url, carrier=carrier)
                running[f"{name} {number}"] = stack.enter_context(process)
                process.wait_for_line(ready, timeout=60)
        yield running
        for process in running.values():
            stop(process)


def sustain(
    report: Report, url: str, first: int, *, rate: int, seconds: int, timer: int, dispatch: int, latency_ms: int
) -> int:
    """`rate` timers a second run out for `seconds`, after a warm-up; persons are numbered from `first`.

    Returns the number after the last person's.
    """
    measured = first + rate * min(seconds, WARM_SECONDS)
    end = measured + rate * seconds
    seeding.people(first, end - 1)
    seeding.contacts(first, end - 1)
    gauges.log_lock_waits()
    with CarrierProcess(latency=latency_ms / 1000) as carrier:
        with workers(url, carrier, timer=timer, dispatch=dispatch) as running:
            # PostgreSQL plans the checks of foreign keys once, and for tables that were empty then it reads them whole,
            # until autovacuum has looked at them.
            _run_out(first, measured - 1, rate=rate)
            carrier.clear()
            waits = gauges.logged_lock_waits()
            with gauges.Watch(running) as watch:
                start = _run_out(measured, end - 1, rate=rate)
        firsts: dict[int, float] = {}
        for message in carrier.journal():
            firsts.setdefault(seeding.person_of_number(message["to"]), message["at"])
    late = [at - start.timestamp() - (number - measured) / rate for number, at in sorted(firsts.items())]
    title = f"{rate} timers/s for {seconds} s, {timer} timer and {dispatch} dispatch workers, {latency_ms} ms carrier"
    table = report.table(
        f"{title}: deadline to first carrier request, in seconds", "part", "timers", "p50", "p99", "max"
    )
    for part, some in (
        ("all", late),
        ("first tenth", late[: len(late) // 10]),
        ("last tenth", late[-len(late) // 10 :]),
    ):
        table.rows.append([part, len(some), percentile(some, 0.5), percentile(some, 0.99), max(some)])
    _usage(report, title, watch)
    p99 = percentile(late, 0.99)
    report.aim(f"{title}: p99 under {AIM_P99:g} s", f"{p99:.3f} s", met=p99 < AIM_P99)
    waited = gauges.logged_lock_waits() - waits
    report.aim("no wait for a lock over 100 ms", f"{waited} logged by PostgreSQL", met=not waited)
    report.notes.append(f"Some backend waited for a lock in {watch.waiting} of {watch.samples} samples.")
    return end


def _run_out(first: int, last: int, *, rate: int) -> datetime:
    """The timers of these persons run out, `rate` a second, and all alerts go out; returns when the first was due."""
    count = last - first + 1
    sent = taken()
    # Written well ahead, so that the writing is over when the first runs out.
    start = clock.now() + LEAD + timedelta(seconds=count / 2000)
    seeding.timers(first, last, due=start, step_ms=1000 / rate)
    seeding.settle()
    if clock.now() >= start:
        raise RuntimeError("The timers were due before they were all written.")
    # Counting reads much, so not while it matters.
    time.sleep((start - clock.now()).total_seconds() + count / rate)
    wait_for_accepted(sent + 2 * count, timeout=count / rate * 3 + 240)
    return start


def _usage(report: Report, title: str, watch: gauges.Watch) -> None:
    table = report.table(f"{title}: usage", "process", "CPU s", "MiB after a tenth", "MiB at the end", "MiB at most")
    grown = 0.0
    for name, seconds in watch.cpu.items():
        memory = watch.memory.get(name)
        warm, last, most = (memory[len(memory) // 10], memory[-1], max(memory)) if memory else (None, None, None)
        table.rows.append([name, seconds, warm, last, most])
        grown = max(grown, (last or 0.0) - (warm or 0.0))
    report.aim(f"memory flat (within {FLAT_MIB:g} MiB after a tenth)", f"+{grown:.1f} MiB", met=grown < FLAT_MIB)


def plainly(report: Report, first: int, *, count: int, rate: int, latency_ms: int) -> None:
    """The same work by the plain loop, in this process."""
    seeding.people(first, first + count - 1)
    seeding.contacts(first, first + count - 1)
    seeding.timers(first, first + count - 1, due=clock.now())
    with CarrierProcess(latency=latency_ms / 1000) as carrier, override_settings(**carrier.environment()):
        began = time.perf_counter()
        plain_loop.expire_due()
        took = time.perf_counter() - began
    table = report.table("The plain loop on the same work", "timers", "seconds", "timers/s", "behind after an hour")
    speed = count / took
    table.rows.append([count, took, speed, max(0.0, (rate - speed) * 3600)])


def second(report: Report, url: str, first: int, *, count: int) -> None:
    """How fast one timer worker, and then two, turn timers that are all due into incidents with queued alerts."""
    table = report.table("What a second timer worker brings", "workers", "timers", "seconds", "timers/s")
    with CarrierProcess(latency=0) as carrier:
        # For the same reason as in `sustain`.
        warm = count // 10
        _expire_all(url, carrier, first, warm, timer=1)
        rates = []
        for number in (1, 2):
            took = _expire_all(url, carrier, first + warm + (number - 1) * count, count, timer=number)
            rates.append(count / took)
            table.rows.append([number, count, took, count / took])
    times = rates[1] / rates[0]
    report.aim(f"a second worker: at least {AIM_SECOND:g} times", f"{times:.2f} times", met=times >= AIM_SECOND)


def _expire_all(url: str, carrier: CarrierProcess, first: int, count: int, *, timer: int) -> float:
    """Seconds that so many timer workers take for `count` timers which are due at the same moment."""
    seeding.people(first, first + count - 1)
    seeding.contacts(first, first + count - 1)
    with workers(url, carrier, timer=timer, dispatch=0):
        due = clock.now() + LEAD + timedelta(seconds=count / 2000)
        seeding.timers(first, first + count - 1, due=due)
        seeding.settle()
        left = MeetingTimer.objects.due(due)
        wait_until(lambda: clock.now() >= due, timeout=120)
        wait_until(lambda: not left.exists(), timeout=60 + count / 50)
        return (clock.now() - due).total_seconds()
