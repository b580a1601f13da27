"""What old traces of running go, and which stay."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session

from casualmeet import clock
from ops import trimming
from ops.models import AuditFinding, JobRun

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
MOMENT = timedelta(milliseconds=1)


def ran(job: str, ago: timedelta, **changes: Any) -> JobRun:
    at = clock.now() - ago
    given = {"slot": at, "started_at": at, "finished_at": at, "status": "done", "node": "one:1"}
    return JobRun.objects.create(job=job, **{**given, **changes})


def test_runs_go_after_30_days_but_each_jobs_latest() -> None:
    """Without it a yearly job's slot would look as if it had never run."""
    now = clock.now()
    for days in (31, 35, 40):
        ran("yearly", days * DAY)
    hourly = ran("hourly", 2 * DAY)
    ran("hourly", 31 * DAY)
    running = ran("hung", 50 * DAY, status="running", finished_at=None)
    assert trimming.trim_runs(now) == 3
    assert set(JobRun.objects.values_list("job", flat=True)) == {"yearly", "hourly", "hung"}
    assert JobRun.objects.get(job="hourly") == hourly
    assert JobRun.objects.get(job="yearly").slot < now - 30 * DAY
    assert JobRun.objects.get(job="hung") == running
    assert trimming.trim_runs(now) == 0


def test_findings_go_30_days_after_they_are_gone() -> None:
    now = clock.now()
    for key, gone_at in (("old", now - 30 * DAY - MOMENT), ("young", now - 30 * DAY), ("open", None)):
        AuditFinding.objects.create(
            key=key, check_name="c", title="t", first_seen_at=now, last_seen_at=now, gone_at=gone_at
        )
    assert trimming.trim_findings(now) == 1
    assert set(AuditFinding.objects.values_list("key", flat=True)) == {"young", "open"}


def test_sessions_go_when_they_have_run_out() -> None:
    now = clock.now()
    for key, until in (("a", now - MOMENT), ("b", now + DAY)):
        Session.objects.create(session_key=key, session_data="x", expire_date=until)
    assert trimming.trim_sessions(now) == 1
    assert Session.objects.get().session_key == "b"
