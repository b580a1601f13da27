"""From the deadline of a timer to the moment the carrier holds the alert, with one worker process that does both."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bench import seeding
from bench.deliveries import taken, wait_for_accepted
from bench.report import Report, percentile
from bench.setup import TITLES, CarrierProcess, database, stop, worker
from casualmeet import clock

DATABASES = ("postgres",)
AIM_P50 = 0.25
AIM_P99 = 1.0
AIM_FIRST = 0.5


@dataclass(frozen=True)
class Sizes:
    """How much of what."""

    armed: int = 100_000
    per_second: int = 50
    seconds: int = 60
    burst: int = 2_000
    latency_ms: int = 100
    lead_ms: int = 3_000


FULL = Sizes()
QUICK = Sizes(armed=50, per_second=5, seconds=1, burst=5, latency_ms=20, lead_ms=1_000)


@dataclass(frozen=True)
class Latencies:
    """Seconds from the deadline to the carrier: of each alert, and of each timer's first alert."""

    alerts: list[float]
    firsts: list[float]


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database: a steady stream, then a burst."""
    table = report.table(
        f"Deadline to carrier request, in seconds (two contacts each, carrier answers in {sizes.latency_ms} ms)",
        *("database", "load", "alerts", "first", "p50", "p95", "p99", "max", "alerts/s"),
    )
    steady = sizes.per_second * sizes.seconds
    for kind in databases:
        with database(kind) as url, CarrierProcess(latency=sizes.latency_ms / 1000) as carrier:
            report.note_database(TITLES[kind])
            total = sizes.armed + steady + sizes.burst
            seeding.armed(1, sizes.armed)
            seeding.people(sizes.armed + 1, total)
            seeding.contacts(sizes.armed + 1, total)
            seeding.settle()
            with worker("run_timer_worker", database_url=url, carrier=carrier) as process:
                process.wait_for_line("^Expiring timers")
                lead = timedelta(milliseconds=sizes.lead_ms)
                flow = _measure(carrier, sizes.armed + 1, steady, step_ms=1000 / sizes.per_second, lead=lead)
                burst = _measure(carrier, sizes.armed + steady + 1, sizes.burst, step_ms=0, lead=lead)
                stop(process)
        table.rows.append(_row(TITLES[kind], f"{sizes.per_second} timers/s for {sizes.seconds} s", flow))
        table.rows.append(_row(TITLES[kind], f"{sizes.burst:,} timers at once", burst))
        _compare(report, TITLES[kind], flow, burst)


def _measure(carrier: CarrierProcess, first: int, count: int, *, step_ms: float, lead: timedelta) -> Latencies:
    """Let these persons' timers run out, and compare each deadline with what the carrier noted."""
    carrier.clear()
    before = taken()
    start = clock.now() + lead
    seeding.timers(first, first + count - 1, due=start, step_ms=step_ms)
    if clock.now() >= start:
        raise RuntimeError("The timers were due before they were all written.")
    wait_for_accepted(before + 2 * count, timeout=count * step_ms / 1000 + 180)
    return _latencies(carrier, start, first, step_ms=step_ms)


def _latencies(carrier: CarrierProcess, start: datetime, first: int, *, step_ms: float) -> Latencies:
    by_timer: dict[int, list[float]] = defaultdict(list)
    for message in carrier.journal():
        number = seeding.person_of_number(message["to"])
        deadline = start.timestamp() + (number - first) * step_ms / 1000
        by_timer[number].append(message["at"] - deadline)
    return Latencies(
        alerts=[latency for latencies in by_timer.values() for latency in latencies],
        firsts=[min(latencies) for latencies in by_timer.values()],
    )


def _row(title: str, load: str, found: Latencies) -> list[str | int | float | None]:
    points = [percentile(found.alerts, share) for share in (0.5, 0.95, 0.99)]
    span = max(found.alerts) - min(found.alerts)
    burst = "at once" in load and span > 0
    rate = len(found.alerts) / span if burst else None
    return [title, load, len(found.alerts), min(found.alerts), *points, max(found.alerts), rate]


def _compare(report: Report, title: str, flow: Latencies, burst: Latencies) -> None:
    p50, p99 = percentile(flow.alerts, 0.5), percentile(flow.alerts, 0.99)
    report.aim(f"{title}: p50 under {AIM_P50:g} s", f"{p50:.3f} s", met=p50 < AIM_P50)
    report.aim(f"{title}: p99 under {AIM_P99:g} s", f"{p99:.3f} s", met=p99 < AIM_P99)
    first = min(burst.alerts)
    report.aim(f"{title}: first of a burst within {AIM_FIRST:g} s", f"{first:.3f} s", met=first < AIM_FIRST)
    late = percentile(burst.firsts, 1.0)
    report.notes.append(f"{title}: in the burst, every person's first contact was texted within {late:.1f} s.")
