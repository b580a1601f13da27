"""What keeps the product running: leases, runs of scheduled jobs, heartbeats of workers, findings of the auditor."""

from datetime import datetime
from typing import Self
from uuid import uuid4

from django.db import models


class Lease(models.Model):
    """Who may do something that only one process at a time should."""

    name = models.CharField(primary_key=True, max_length=80)
    holder = models.UUIDField(null=True, blank=True)
    fence = models.PositiveBigIntegerField(default=0, help_text="Rises with each new holder; the highest one counts.")
    until = models.DateTimeField()
    slot = models.DateTimeField(
        null=True, blank=True, help_text="Of a scheduled job: the latest of its slots that has a run."
    )

    def __str__(self) -> str:
        return self.name


class JobStatus(models.TextChoices):
    """How a run of a job stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class JobRun(models.Model):
    """One slot of a scheduled job. The row, of which there is one for each slot, decides who runs it."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    job = models.CharField(max_length=60)
    slot = models.DateTimeField(help_text="The time that the cron expression names.")
    status = models.CharField(max_length=10, choices=JobStatus.choices, default=JobStatus.RUNNING)
    fence = models.PositiveBigIntegerField(default=1, help_text="Of the process that may finish it.")
    node = models.CharField(max_length=120, help_text="Host and process id of the latest try.")
    tries = models.PositiveSmallIntegerField(default=1)
    started_at = models.DateTimeField(help_text="The latest try.")
    finished_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True, help_text="Past it, a running try is taken for dead.")
    next_try_at = models.DateTimeField(null=True, blank=True, help_text="Failed, and tried again from then on.")
    summary = models.CharField(max_length=300, blank=True, help_text="What it did.")
    error = models.TextField(blank=True)

    class Meta:
        ordering = ["-slot"]
        constraints = [models.UniqueConstraint(fields=["job", "slot"], name="job_once_per_slot")]
        indexes = [
            models.Index(fields=["finished_at"], name="job_run_finished"),
            models.Index(fields=["lease_until"], name="job_run_lease"),
            models.Index(fields=["next_try_at"], name="job_run_next_try"),
        ]

    def __str__(self) -> str:
        return f"{self.job} of {self.slot}"


class WorkerBeat(models.Model):
    """That a worker process lives, and when it last finished a cycle."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    role = models.CharField(max_length=20, db_index=True, help_text="timer, dispatch, scheduler or audit.")
    node = models.CharField(max_length=120, help_text="Host and process id.")
    started_at = models.DateTimeField()
    cycle_at = models.DateTimeField(db_index=True, help_text="When it last finished a cycle.")
    cycle_ms = models.FloatField(default=0, help_text="How long that cycle took.")
    skew_ms = models.FloatField(default=0, help_text="How far its machine's clock is ahead of the database's.")

    def __str__(self) -> str:
        return f"{self.role} on {self.node}"


class Severity(models.TextChoices):
    """What a finding means: is an alarm in danger, now?"""

    CRITICAL = "critical"
    WARNING = "warning"


class FindingQuerySet(models.QuerySet["AuditFinding"]):
    """The words that queries about findings are made of."""

    def open(self, *, since: datetime) -> Self:
        """Still so at an audit after `since`."""
        return self.filter(gone_at__isnull=True, last_seen_at__gte=since)

    def untold(self) -> Self:
        """Still so, and nobody was told yet."""
        return self.filter(gone_at__isnull=True, told_at__isnull=True)

    def to_settle(self) -> Self:
        """So no more, but people were told of it."""
        return self.filter(gone_at__isnull=False, told_at__isnull=False)


class AuditFinding(models.Model):
    """Something the auditor found that should never be so."""

    key = models.CharField(primary_key=True, max_length=120, help_text="What is wrong with what.")
    check_name = models.CharField(max_length=40)
    title = models.CharField(max_length=120)
    body = models.CharField(max_length=300, blank=True)
    severity = models.CharField(
        max_length=10, choices=Severity.choices, default=Severity.CRITICAL, db_default=Severity.CRITICAL
    )
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True, help_text="When it was repaired, or was so no more.")
    told_at = models.DateTimeField(
        null=True, blank=True, help_text="When people were told; empty: not yet, or they know that it is gone."
    )

    objects = FindingQuerySet.as_manager()

    class Meta:
        ordering = ["first_seen_at"]

    def __str__(self) -> str:
        return self.title
