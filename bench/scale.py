"""What one machine carries: the cost of a timer, an incident and a socket; sustained load; a Saturday night of a million."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench import scale_costs, scale_night, scale_sockets, scale_sustained, seeding
from bench.report import Report
from bench.setup import TITLES, database

DATABASES = ("postgres",)


@dataclass(frozen=True)
class Sizes:
    """How much of what. `costs`, `sustained`, `night`, `second` and `sockets` set to 0 leave that part out.

    `rate` timers run out each second for `seconds`. `misses` are in thousandths.
    """

    armed: int = 1_000_000
    costs: int = 1
    verbs: int = 1_000
    incidents: int = 5_000
    sustained: int = 1
    rate: int = 100
    seconds: int = 1_800
    timer: int = 4
    dispatch: int = 4
    latency_ms: int = 100
    plain: int = 200
    night: int = 1
    people: int = 20_000
    compress: int = 50
    misses: int = 5
    clients: int = 2
    second: int = 20_000
    sockets: int = 2_000
    events: int = 600
    event_rate: int = 20


FULL = Sizes()
QUICK = Sizes(
    armed=500,
    verbs=10,
    incidents=20,
    rate=5,
    seconds=3,
    timer=1,
    dispatch=1,
    latency_ms=20,
    plain=3,
    people=30,
    compress=4_000,
    misses=100,
    clients=1,
    second=40,
    sockets=10,
    events=5,
)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Measure, on PostgreSQL: the only one that many workers share."""
    if list(databases) != ["postgres"]:
        raise SystemExit("scale runs on PostgreSQL only")
    with database("postgres") as url:
        report.note_database(TITLES["postgres"])
        seeding.armed(1, sizes.armed)
        seeding.settle()
        person = sizes.armed + 1
        if sizes.costs:
            scale_costs.measure(report, url, armed=sizes.armed, verbs=sizes.verbs, incidents=sizes.incidents)
            person += sizes.verbs + sizes.incidents
        if sizes.sockets:
            scale_sockets.measure(
                report, url, person, sockets=sizes.sockets, rate=sizes.event_rate, events=sizes.events
            )
            person += sizes.sockets
        if sizes.night:
            scale_night.measure(
                report,
                url,
                person,
                people=sizes.people,
                compress=sizes.compress,
                misses=sizes.misses,
                clients=sizes.clients,
                latency_ms=sizes.latency_ms,
            )
            person += sizes.people
        if sizes.sustained:
            person = scale_sustained.sustain(
                report,
                url,
                person,
                rate=sizes.rate,
                seconds=sizes.seconds,
                timer=sizes.timer,
                dispatch=sizes.dispatch,
                latency_ms=sizes.latency_ms,
            )
            scale_sustained.plainly(report, person, count=sizes.plain, rate=sizes.rate, latency_ms=sizes.latency_ms)
            person += sizes.plain
        if sizes.second:
            scale_sustained.second(report, url, person, count=sizes.second)
