"""What the auditor looks for among the workers themselves."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.conf import settings

from ops import beats
from ops.audit import Finding, check, several
from ops.models import Severity, WorkerBeat

NEEDED = {
    beats.TIMER: ("No timer worker is running", "Timers that run out raise no alarm. Start run_timer_worker."),
    beats.DISPATCH: (
        "No dispatcher is running",
        "No message leaves. Start run_timer_worker or run_dispatch_worker.",
    ),
}
# A worker that is gone for so long is no news any more.
MISSED_FOR = timedelta(hours=1)


@check("workers")
def workers(now: datetime) -> Iterator[Finding]:
    """Roles that nobody fills, and workers that fell silent without saying good-bye."""
    WorkerBeat.objects.filter(cycle_at__lt=now - MISSED_FOR).exclude(pk=beats.AUDIT_ID).delete()
    patience = timedelta(seconds=settings.AUDIT_WORKER_SECONDS)
    for role in (beats.TIMER, beats.DISPATCH, beats.SCHEDULER):
        known = beats.of_role(role, now=now, within=patience)
        if role in NEEDED and not known.fresh:
            title, body = NEEDED[role]
            yield Finding(f"no-worker:{role}", title, body)
        else:
            lost = [_silent(row) for row in _not_replaced(known.silent, known.fresh)]
            yield from several(lost, key=f"worker-silent:{role}", title=f"{{}} more {role} workers fell silent")


@check("clocks")
def clocks(now: datetime) -> Iterator[Finding]:
    """Machines whose clock is far off. Deadlines don't follow it, but logs do, and certificates."""
    fresh = WorkerBeat.objects.filter(cycle_at__gt=now - timedelta(seconds=settings.AUDIT_WORKER_SECONDS))
    off = {
        row.node.rpartition(":")[0]: row.skew_ms / 1000
        for row in fresh.order_by("node", "role")
        if abs(row.skew_ms) > settings.AUDIT_SKEW_SECONDS * 1000
    }
    found = [
        Finding(
            f"clock:{host}"[:120],
            f"The clock of {host} is {abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'} the database's",
            "Alarms come in time all the same. Set it with NTP.",
            Severity.WARNING,
        )
        for host, seconds in off.items()
    ]
    yield from several(found, key="clocks", title="The clocks of {} more machines are off")


def _silent(row: WorkerBeat) -> Finding:
    return Finding(
        f"worker-silent:{row.pk}",
        f"A {row.role} worker fell silent",
        f"{row.node} finished its last cycle at {row.cycle_at:%H:%M:%S} UTC. It was killed, hangs, or fails each time.",
        Severity.WARNING,
    )


def _not_replaced(silent: Sequence[WorkerBeat], fresh: Sequence[WorkerBeat]) -> list[WorkerBeat]:
    """Those whose place no younger worker has taken: each may take one place."""
    started = sorted(row.started_at for row in fresh)
    left = []
    for row in reversed(silent):
        successor = next((at for at in started if at >= row.cycle_at), None)
        if successor is None:
            left.append(row)
        else:
            started.remove(successor)
    return left
