"""Runs of jobs in the admin: who sees them, and that only failed ones are run again, by those who may."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from casualmeet import clock
from ops.models import AuditFinding, JobRun, JobStatus, WorkerBeat
from ops.runs import run_id
from sos.tests.test_console import (  # noqa: F401 - a fixture is used by being there
    _joinless_permissions_on_mongodb,
    allow,
    make_user,
    signed_in,
)

pytestmark = pytest.mark.django_db

LIST = "/admin/ops/jobrun/"


def make(status: JobStatus, **more: Any) -> JobRun:
    now = clock.now()
    slot = now - timedelta(hours=len(JobRun.objects.all()))
    return JobRun.objects.create(
        id=run_id("digest", slot), job="digest", slot=slot, status=status, node="host:7", started_at=now, **more
    )


def staff(*permissions: str) -> Any:
    user = make_user("op", is_staff=True)
    allow(user, *permissions)
    return signed_in(user)


def run_again(client: Any, *rows: JobRun) -> str:
    body = {"action": "run_again", "_selected_action": [row.pk for row in rows]}
    return str(client.post(LIST, body, follow=True).content.decode())


def test_who_may_view_sees_the_runs_and_can_change_nothing() -> None:
    row = make(JobStatus.FAILED, finished_at=clock.now(), summary="3 texts")
    client = staff("view_jobrun")
    text = client.get(LIST).content.decode()
    assert "digest" in text
    assert "host:7" in text
    assert "0.0 s" in text
    assert "Run the selected" not in text
    assert client.get(f"{LIST}{row.pk}/change/").status_code == 200
    run_again(client, row)
    row.refresh_from_db()
    assert row.next_try_at is None
    for path in ("add/", f"{row.pk}/delete/"):
        assert client.get(f"{LIST}{path}").status_code == 403
    assert signed_in(make_user("mod", is_staff=True)).get(LIST).status_code == 403


def test_failed_ones_are_run_again_by_who_may_change_them() -> None:
    failed, done, running = (make(status) for status in (JobStatus.FAILED, JobStatus.DONE, JobStatus.RUNNING))
    text = run_again(staff("view_jobrun", "change_jobrun"), failed, done, running)
    assert "1 being run again." in text
    assert "2 left alone" in text
    assert [row.pk for row in JobRun.objects.filter(next_try_at__isnull=False)] == [failed.pk]
    assert LogEntry.objects.get().change_message == "Run again"


def test_who_may_view_sees_the_auditor_s_findings_and_the_workers() -> None:
    now = clock.now()
    AuditFinding.objects.create(key="k", title="No dispatcher is running", first_seen_at=now, last_seen_at=now)
    WorkerBeat.objects.create(role="timer", node="host:8", started_at=now, cycle_at=now)
    client = staff("view_auditfinding", "view_workerbeat")
    assert "No dispatcher is running" in client.get("/admin/ops/auditfinding/").content.decode()
    assert "host:8" in client.get("/admin/ops/workerbeat/").content.decode()
