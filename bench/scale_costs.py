"""What one timer and one incident cost: bytes in PostgreSQL with its indexes, and processor time of each verb."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import gauges, seeding
from bench.mass_expiry import expire_due
from bench.report import Report
from bench.setup import CarrierProcess, stop, worker
from casualmeet import clock
from notifications.models import Delivery, DeliveryStatus
from safety import timers
from safety.models import MeetingTimer, User
from testing.processes import wait_until

INCIDENT_TABLES = (
    "sos_sosevent",
    "sos_alertedcontact",
    "sos_timelineentry",
    "notifications_notification",
    "notifications_delivery",
    "notifications_deliveryattempt",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one verb, in ms: on the clock, and on a processor here and in PostgreSQL."""

    wall: float
    python: float
    postgres: float


def measure(report: Report, url: str, *, armed: int, verbs: int, incidents: int) -> None:
    """With `armed` timers live. Persons up to `armed` + `verbs` + `incidents` are written."""
    _bytes_of_timers(report, armed)
    table = report.table(
        f"One verb with {armed:,} timers live, in ms", "verb", "number", "clock", "CPU Python", "CPU PostgreSQL"
    )
    first = armed + 1
    seeding.people(first, armed + verbs + incidents)
    seeding.contacts(first, armed + verbs + incidents)
    persons = list(User.objects.filter(username__in=[f"person{i}" for i in range(first, first + verbs)]))
    armed_now: list[MeetingTimer] = []
    for name, work in (
        ("arm", lambda: armed_now.extend(_arm(person) for person in persons)),
        ("extend", lambda: armed_now.__setitem__(slice(None), [timers.extend(timer) for timer in armed_now])),
        ("safe", lambda: [timers.check_in(timer) for timer in armed_now]),
    ):
        cost = _cost(work, verbs)
        table.rows.append([name, verbs, cost.wall, cost.python, cost.postgres])
    _incidents(report, table.rows, url, first + verbs, incidents)


def _incidents(report: Report, rows: list[list[str | int | float | None]], url: str, first: int, count: int) -> None:
    seeding.timers(first, first + count - 1, due=clock.now())
    seeding.settle()
    before = gauges.table_sizes()
    cost = _cost(lambda: expire_due(count), count)
    rows.append(["expiry, two contacts", count, cost.wall, cost.python, cost.postgres])
    with CarrierProcess(latency=0) as carrier:
        process = worker("run_dispatch_worker", database_url=url, carrier=carrier)
        with process:
            process.wait_for_line("^Dispatching")
            began, cpu, database = time.perf_counter(), gauges.cpu_seconds(process.pid), gauges.postgres_cpu()
            waiting = Delivery.objects.filter(status__in=[DeliveryStatus.QUEUED, DeliveryStatus.SENDING])
            wait_until(lambda: not waiting.exists(), timeout=60 + count / 20, message="all alerts are out")
            sent = 2 * count
            wall = (time.perf_counter() - began) / sent * 1000
            python = (gauges.cpu_seconds(process.pid) - cpu) / sent * 1000
            rows.append(["one alert sent", sent, wall, python, (gauges.postgres_cpu() - database) / sent * 1000])
            stop(process)
    after = gauges.table_sizes()
    table = report.table("Bytes of one incident with two contacts, texted", "table", "rows", "indexes", "together")
    grown = [(name, after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in INCIDENT_TABLES]
    grown.append(("together", sum(rows for _, rows, _ in grown), sum(indexes for _, _, indexes in grown)))
    table.rows.extend([name, data // count, index // count, (data + index) // count] for name, data, index in grown)


def _bytes_of_timers(report: Report, armed: int) -> None:
    table = report.table(f"Bytes of one live timer, of {armed:,}", "what", "bytes")
    data, _ = gauges.table_sizes()["safety_meetingtimer"]
    indexes = gauges.index_sizes("safety_meetingtimer")
    table.rows.append(["the row", data // armed])
    table.rows.extend([f"index {name}", size // armed] for name, size in sorted(indexes.items()))
    table.rows.append(["together", (data + sum(indexes.values())) // armed])


def _arm(person: User) -> MeetingTimer:
    return timers.arm(person, location_name="Café Mondegar, Colaba", duration_minutes=120, meet_with="Rohan")


def _cost(work: Callable[[], object], number: int) -> Cost:
    wall, python, database = time.perf_counter(), time.process_time(), gauges.postgres_cpu()
    work()
    spent: Sequence[float] = (
        time.perf_counter() - wall,
        time.process_time() - python,
        gauges.postgres_cpu() - database,
    )
    return Cost(*(seconds / number * 1000 for seconds in spent))
