"""How long the traces of running stay: job runs, findings, sessions. Heartbeats go sooner, by the auditor (`ops.audits`)."""

from datetime import datetime, timedelta
from typing import Final

from django.contrib.sessions.models import Session
from django.db.models import Max

from casualmeet.db import delete_in_batches
from ops.models import AuditFinding, JobRun

KEEP_RUNS: Final = timedelta(days=30)
KEEP_FINDINGS: Final = timedelta(days=30)


def trim_runs(now: datetime) -> int:
    """Delete the runs of jobs that ended 30 days ago, but each job's latest slot: it keeps the slot from running again."""
    latest = JobRun.objects.order_by().values("job").annotate(slot=Max("slot")).values_list("job", "slot")
    ended = JobRun.objects.filter(finished_at__lt=now - KEEP_RUNS)
    return sum(delete_in_batches(ended.filter(job=job, slot__lt=slot)) for job, slot in latest)


def trim_findings(now: datetime) -> int:
    """Delete the auditor's findings that have been gone for 30 days."""
    return delete_in_batches(AuditFinding.objects.filter(gone_at__lt=now - KEEP_FINDINGS))


def trim_sessions(now: datetime) -> int:
    """Delete the sessions that have run out: `clearsessions`, in portions."""
    return delete_in_batches(Session.objects.filter(expire_date__lt=now))
