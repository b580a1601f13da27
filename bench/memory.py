"""Whether a worker process grows: its memory before, after a warm-up, and along many expiries."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench import seeding
from bench.deliveries import taken
from bench.gauges import resident_mib
from bench.report import Report
from bench.setup import TITLES, CarrierProcess, database, stop, worker
from casualmeet import clock
from safety.models import MeetingTimer
from testing.processes import wait_until

DATABASES = ("postgres",)
# Python gives memory back in lumps; a leak of 100 bytes per expiry would show as 10 MiB.
FLAT_MIB = 10.0


@dataclass(frozen=True)
class Sizes:
    """How much of what."""

    expiries: int = 100_000
    portion: int = 10_000


FULL = Sizes()
QUICK = Sizes(expiries=40, portion=20)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure on each database: the whole worker, expiring and sending."""
    table = report.table(
        "Memory of run_timer_worker with its dispatcher, in MiB", "database", "expiries", "alerts sent", "MiB"
    )
    for kind in databases:
        with database(kind) as url, CarrierProcess(latency=0) as carrier:
            report.note_database(TITLES[kind])
            seeding.people(1, sizes.expiries)
            seeding.contacts(1, sizes.expiries)
            seeding.settle()
            with worker("run_timer_worker", database_url=url, carrier=carrier) as process:
                process.wait_for_line("^Expiring timers")
                table.rows.append([TITLES[kind], 0, 0, resident_mib(process.pid)])
                for first in range(1, sizes.expiries, sizes.portion):
                    _expire(first, first + sizes.portion - 1)
                    sent = taken()
                    table.rows.append([TITLES[kind], first + sizes.portion - 1, sent, resident_mib(process.pid)])
                stop(process)
            warm, last = (row[-1] for row in (table.rows[-sizes.expiries // sizes.portion], table.rows[-1]))
        assert isinstance(warm, float)
        assert isinstance(last, float)
        report.aim(
            f"{TITLES[kind]}: flat (within {FLAT_MIB:g} MiB) after the first {sizes.portion:,} expiries",
            f"{warm:.0f} MiB, then {last:.0f} MiB",
            met=last - warm < FLAT_MIB,
        )


def _expire(first: int, last: int) -> None:
    """Let these persons' timers be due now, and wait until the worker is through with them."""
    seeding.timers(first, last, due=clock.now())
    due = MeetingTimer.objects.due(clock.now())
    wait_until(lambda: not due.exists(), timeout=300, message="all timers expired")
