"""Runs of scheduled jobs in the admin: to look at, and to have failed ones tried again. What the auditor found, and which
workers there are: to look at.
"""

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest

from casualmeet.admin import ReadOnlyAdmin
from ops import runs
from ops.models import AuditFinding, JobRun, JobStatus, WorkerBeat


@admin.register(JobRun)
class JobRunAdmin(ReadOnlyAdmin):
    """For staff with the permission to view job runs; those who may change them may also have one run again."""

    actions = ["run_again"]
    list_display = ["job", "slot", "status", "tries", "node", "duration", "summary", "next_try_at"]
    list_filter = ["status", "job"]
    ordering = ["-slot"]

    @admin.display(description="duration")
    def duration(self, run: JobRun) -> str:
        """Of the latest try, in seconds."""
        if run.finished_at is None:
            return "–"
        return f"{(run.finished_at - run.started_at).total_seconds():.1f} s"

    def has_run_again_permission(self, request: HttpRequest) -> bool:
        """Who sees the action, and whose is carried out."""
        return bool(request.user.has_perm("ops.change_jobrun"))

    @admin.action(description="Run the selected failed jobs again", permissions=["run_again"])
    def run_again(self, request: HttpRequest, chosen: QuerySet[JobRun]) -> None:
        """Within seconds, by whichever scheduler sees it first."""
        rows = list(chosen)
        failed = [row for row in rows if row.status == JobStatus.FAILED and runs.run_again([row.pk])]
        if failed:
            LogEntry.objects.log_actions(str(request.user.pk), failed, CHANGE, change_message="Run again")
            messages.success(request, f"{len(failed)} being run again.")
        if left := len(rows) - len(failed):
            messages.warning(request, f"{left} left alone: only failed ones are run again.")


@admin.register(AuditFinding)
class AuditFindingAdmin(ReadOnlyAdmin):
    """Also what is gone by now, for 30 days."""

    list_display = ["title", "body", "severity", "first_seen_at", "last_seen_at", "gone_at"]
    list_filter = ["severity", "check_name"]
    ordering = ["-last_seen_at"]


@admin.register(WorkerBeat)
class WorkerBeatAdmin(ReadOnlyAdmin):
    """Those that run, and those that fell silent within the last hour."""

    list_display = ["role", "node", "started_at", "cycle_at", "cycle_ms", "skew_ms"]
    list_filter = ["role"]
    ordering = ["role", "node"]
