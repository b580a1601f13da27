"""The figures of a chaos run, as tables."""

from dataclasses import dataclass

from bench.chaos_checks import Evidence, Findings
from bench.chaos_faults import Faults
from bench.chaos_people import Journal
from bench.report import Report, percentile
from safety.models import TimerStatus

PROMISES = {
    "P1": "no alert for a deadline that was replaced",
    "P2": "each missed timer has exactly one incident",
    "P3": "no alert lost",
    "P4": "one active incident per person",
    "P5": "an attempt is committed before each call",
    "P6": "nothing is stuck",
    "P7": "duplicates only after a lost answer, and marked",
    "P8": "SOS overtakes the bulk",
}
SHOWN = 12


@dataclass(frozen=True)
class Course:
    """How a run went. `seconds` are how long its parts took."""

    journal: Journal
    faults: Faults
    found: Findings
    evidence: Evidence
    seconds: dict[str, float]


def write(report: Report, title: str, course: Course) -> None:
    """Into the report; every broken promise also into `report.broken`."""
    found = course.found
    _promises(report, title, found)
    people = report.table(f"{title}: what people did, and were told", "verb", "done", "refused", "no clear answer")
    count = course.journal.count()
    for verb in sorted({verb for verb, _ in count}):
        people.rows.append([verb, *(count.get((verb, outcome), 0) for outcome in ("done", "refused", "unknown"))])
    trouble = report.table(f"{title}: trouble made", "what", "times")
    trouble.rows.extend([kind, times] for kind, times in sorted(course.faults.counts.items()))
    trouble.rows.append(["processes started again", sum(keeper.restarts for keeper in course.faults.stage.keepers)])
    came = report.table(f"{title}: what came of it", "what", "number")
    came.rows.extend([what, number] for what, number in _came(course.evidence, found).items())
    delays = report.table(f"{title}: delays in seconds, faults and all", "what", "number", "p50", "p99", "max")
    for what, values in {
        "deadline to incident": found.late,
        "SOS answered to first carrier request": found.sos_seconds,
        "alert that still left after the alarm's end": found.after_all_clear,
    }.items():
        if values:
            delays.rows.append([what, len(values), percentile(values, 0.5), percentile(values, 0.99), max(values)])
    for what, lasted in course.seconds.items():
        delays.rows.append([what, 1, None, None, lasted])
    violations = sum(map(len, found.broken.values()))
    report.aim(f"{title}: violations of P1 to P8", str(violations), met=not violations)


def _promises(report: Report, title: str, found: Findings) -> None:
    promises = report.table(f"{title}: promises", "promise", "what", "looked at", "broken")
    for name, what in PROMISES.items():
        broken = found.broken.get(name, [])
        promises.rows.append([name, what, found.checked[name], len(broken)])
        report.broken += [f"{title} {name}: {sentence}" for sentence in broken[:SHOWN]]
        if len(broken) > SHOWN:
            report.broken.append(f"{title} {name}: and {len(broken) - SHOWN} more")


def _came(evidence: Evidence, found: Findings) -> dict[str, int]:
    statuses = [timer.status for timer in evidence.timers.values()]
    figures = {f"timers that ended as {status.value}": statuses.count(status) for status in TimerStatus}
    figures |= {
        "incidents": len(evidence.incidents),
        "alarms that joined another": len(evidence.joined),
        "deliveries": len(evidence.deliveries),
        "attempts": len(evidence.attempts),
        "requests at the carriers": len(evidence.requests),
        "messages that they took": sum(asked.taken for asked in evidence.requests),
        "messages twice": sum(found.duplicates.values()),
    }
    figures |= {f"  twice, since {why}": number for why, number in found.duplicates.items()}
    figures["dead letters"] = sum(found.dead.values())
    return figures | {f"  dead, since {why}": number for why, number in found.dead.items()}
