"""What the tables of this room tell Prometheus: jobs, workers, the auditor's findings; and this machine's clock."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from prometheus_client.metrics_core import Metric

from casualmeet import clock
from ops.jobs import Job, jobs
from ops.metrics import gauge, gauges, reading
from ops.models import AuditFinding, JobRun, JobStatus, WorkerBeat

NEWEST: Final = 50
MOST: Final = 1_000
# A beat older than this is of a process that is long gone.
FORGOTTEN: Final = timedelta(days=1)
ALIVE: Final = timedelta(seconds=30)
# The auditor looks every 30 s: what it has not seen for so long is not known to be so any more.
STILL_SO: Final = timedelta(minutes=5)


@reading("jobs")
def job_runs(now: datetime) -> Iterable[Metric]:
    """How the newest runs of each job stand. A job that never ran has no values."""
    ages: dict[str, float] = {}
    late: dict[str, float] = {}
    failed: dict[str, float] = {}
    for job in jobs():
        newest = JobRun.objects.filter(job=job.name).order_by("-slot").values_list("slot", "status", "finished_at")
        runs = list(newest[:NEWEST])
        if not runs:
            continue
        done = next(((slot, at) for slot, status, at in runs if status == JobStatus.DONE), None)
        if done and done[1]:
            ages[job.name] = (now - done[1]).total_seconds()
        late[job.name] = _late(job, done=done[0] if done else None, oldest=runs[-1][0], now=now)
        failed[job.name] = float(runs[0][1] == JobStatus.FAILED)
    yield gauges("job_last_success_age_seconds", "Since the job's last run that succeeded ended.", "job_name", ages)
    yield gauges(
        "job_late_seconds", "Since the first slot after the last one that was done; 0: none is due.", "job_name", late
    )
    yield gauges("job_failed", "1: the job's newest run failed.", "job_name", failed)


@reading("workers")
def workers(now: datetime) -> Iterable[Metric]:
    """Whether workers of each role live."""
    beats = WorkerBeat.objects.filter(cycle_at__gt=now - FORGOTTEN).order_by("-cycle_at")
    newest: dict[str, float] = {}
    alive: Counter[str] = Counter()
    skews: dict[str, float] = {}
    for role, cycle_at, skew_ms in beats.values_list("role", "cycle_at", "skew_ms")[:MOST]:
        newest.setdefault(role, max(0.0, (now - cycle_at).total_seconds()))
        alive[role] += cycle_at > now - ALIVE
        if cycle_at > now - ALIVE:
            skews[role] = max(skews.get(role, 0.0), abs(skew_ms) / 1000)
    yield gauges("worker_last_cycle_age_seconds", "Since any worker of the role finished a cycle.", "role", newest)
    yield gauges("workers", "Workers of the role that finished a cycle in the last 30 s.", "role", alive)
    yield gauges(
        "worker_clock_skew_seconds", "The farthest of their machines' clocks is off, either way.", "role", skews
    )


@reading("findings")
def findings(now: datetime) -> Iterable[Metric]:
    """What the auditor finds wrong now."""
    checks = AuditFinding.objects.open(since=now - STILL_SO).order_by().values_list("check_name", flat=True)
    yield gauges("audit_findings", "What the auditor finds wrong now, up to 1,000.", "check", Counter(checks[:MOST]))


@reading("clock")
def this_clock(_now: datetime) -> Iterable[Metric]:
    """How far this machine's clock is off."""
    yield gauge(
        "clock_skew_seconds",
        "How far this machine's clock is ahead of the database server's; it is corrected for.",
        clock.skew_seconds(),
    )


def _late(job: Job, *, done: datetime | None, oldest: datetime, now: datetime) -> float:
    """Seconds since the first slot that should have been done by now."""
    if done is None:
        return (now - oldest).total_seconds()
    missed = next(job.slots_after(done), now)
    return max(0.0, (now - missed).total_seconds())
