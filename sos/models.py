"""Incidents, the contacts alerted about each, and their timelines."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Self
from uuid import UUID, uuid4

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property

from notifications.outbox import DispatchSummary, dispatch_summaries


class Source(models.TextChoices):
    """What opened an incident."""

    TIMER_EXPIRED = "timer_expired", "missed check-in"
    MANUAL = "manual", "SOS pressed"
    DURESS = "duress", "duress"


class SosStatus(models.TextChoices):
    """Where an incident stands; a resolved one is never opened again."""

    ACTIVE = "active"
    RESOLVED = "resolved"


def with_dispatch(incidents: Iterable["SosEvent"]) -> list["SosEvent"]:
    """The incidents with their dispatch summaries and what their contacts said, whatever their number in few queries."""
    rows = list(incidents)
    ids = [row.pk for row in rows]
    summaries = dispatch_summaries(ids)
    contacts: dict[UUID, list[AlertedContact]] = {}
    for contact in AlertedContact.objects.filter(incident__in=ids).order_by("name"):
        contacts.setdefault(contact.incident_id, []).append(contact)
    for row in rows:
        row.dispatch = summaries.get(row.pk, DispatchSummary())
        row.contacts = contacts.get(row.pk, [])
    return rows


def _said(contacts: Sequence["AlertedContact"], field_name: str) -> list[str]:
    said = [(at, contact.name) for contact in contacts if (at := getattr(contact, field_name)) is not None]
    return [name for _, name in sorted(said)]


class SosEventQuerySet(models.QuerySet["SosEvent"]):
    """The words that queries about incidents are made of."""

    def active(self) -> Self:
        """Not resolved yet."""
        return self.filter(status=SosStatus.ACTIVE)

    def half_open(self) -> Self:
        """Active, but a crash kept its deliveries from being queued."""
        return self.active().filter(alerted_at__isnull=True)

    def half_resolved(self) -> Self:
        """Resolved, but a crash kept its alerts from being cancelled and its all-clears from being queued."""
        return self.filter(status=SosStatus.RESOLVED, all_clear_at__isnull=True)

    def closed_before(self, edge: datetime) -> Self:
        """Resolved by then, with all that follows from it done."""
        return self.filter(status=SosStatus.RESOLVED, resolved_at__lte=edge, all_clear_at__isnull=False)


class SosEvent(models.Model):
    """An incident. Its key follows from what triggered it, so that opening it twice is the same as once."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    open_key = models.UUIDField(
        unique=True, null=True, blank=True, editable=False, help_text="The person's id while active, else nothing."
    )
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="incidents")
    source = models.CharField(max_length=15, choices=Source.choices)
    status = models.CharField(max_length=10, choices=SosStatus.choices, default=SosStatus.ACTIVE)
    reference = models.CharField(max_length=8, help_text="What people say on the phone, such as K7Q.")
    triggered_timer = models.ForeignKey(
        "safety.MeetingTimer", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    happened_at = models.DateTimeField(help_text="The deadline that was missed, or when SOS was pressed.")
    late_by = models.PositiveIntegerField(default=0, help_text="Seconds from the escalation time to the opening.")
    place_name = models.CharField(max_length=120, blank=True)
    meet_with = models.CharField(max_length=120, blank=True)
    planned_location = models.JSONField(null=True, blank=True, help_text="A GeoJSON point.")
    location = models.JSONField(null=True, blank=True, help_text="The newest position: a GeoJSON point.")
    location_accuracy_m = models.FloatField(null=True, blank=True)
    location_at = models.DateTimeField(null=True, blank=True)
    opened_at = models.DateTimeField()
    alerted_at = models.DateTimeField(
        null=True, blank=True, help_text="When all its deliveries were queued; empty means a crash came between."
    )
    wave = models.PositiveSmallIntegerField(
        default=1, db_default=1, help_text="The round of the escalation ladder that was begun."
    )
    next_wave_at = models.DateTimeField(null=True, blank=True, help_text="When the next one is due; empty: none is.")
    nobody_reached_at = models.DateTimeField(
        null=True, blank=True, help_text="When the ladder ended with nobody reached: a task for the moderators."
    )
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolution = models.CharField(max_length=20, blank=True, help_text="How the person was known safe: pin or app.")
    all_clear_at = models.DateTimeField(
        null=True, blank=True, help_text="When its all-clears were queued; empty means a crash came between."
    )
    details_gone_at = models.DateTimeField(
        null=True, blank=True, help_text="When what is personal in it was deleted; empty: it was not."
    )

    objects = SosEventQuerySet.as_manager()

    class Meta:
        ordering = ["-opened_at"]
        verbose_name = "incident"
        permissions = [("receive_digest", "Can receive the daily digest of incidents")]
        indexes = [
            models.Index(fields=["status", "alerted_at"], name="incident_status_alerted"),
            models.Index(fields=["status", "all_clear_at"], name="incident_status_all_clear"),
            models.Index(fields=["status", "next_wave_at"], name="incident_status_next_wave"),
            # What the deletions look up.
            models.Index(fields=["details_gone_at", "resolved_at"], name="incident_details_gone"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=SosStatus.values), name="incident_status_known"),
            models.CheckConstraint(condition=Q(source__in=Source.values), name="incident_source_known"),
        ]

    def __str__(self) -> str:
        return f"{self.reference} ({self.get_source_display()})"

    @property
    def active(self) -> bool:
        """Not resolved yet."""
        return self.status == SosStatus.ACTIVE

    @cached_property
    def dispatch(self) -> DispatchSummary:
        """What carriers accepted, read from the outbox, which knows best."""
        return dispatch_summaries([self.pk]).get(self.pk, DispatchSummary())

    @cached_property
    def contacts(self) -> list["AlertedContact"]:
        """Those who were alerted, by name."""
        return list(self.alerted_contacts.order_by("name"))

    @property
    def helping(self) -> list[str]:
        """The names of the contacts who are helping, the first one first."""
        return _said(self.contacts, "acknowledged_at")

    @property
    def reached_by(self) -> list[str]:
        """The names of the contacts who say that they reached the person, the first one first."""
        return _said(self.contacts, "reached_person_at")

    @property
    def declined_by(self) -> list[str]:
        """The names of the contacts who can't help, the first one first."""
        return _said(self.contacts, "declined_at")

    @property
    def opened_by(self) -> list[str]:
        """The names of the contacts who looked at the alert, the first one first."""
        return _said(self.contacts, "opened_at")

    @property
    def dead_letters(self) -> int:
        """How many of its messages no carrier would take."""
        return self.dispatch.dead_letters

    @property
    def contacts_notified(self) -> int:
        """How many contacts a carrier has accepted a message for."""
        return self.dispatch.contacts_notified

    @property
    def sms_sent(self) -> int:
        """How many texts carriers have accepted."""
        return self.dispatch.sms_sent

    @property
    def last_dispatch_at(self) -> datetime | None:
        """When a carrier last accepted a message."""
        return self.dispatch.last_dispatch_at


class AlertedContact(models.Model):
    """A contact as they were when an incident opened: whom its alerts, updates and all-clear go to."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    incident = models.ForeignKey(SosEvent, on_delete=models.CASCADE, related_name="alerted_contacts")
    contact_id = models.UUIDField(help_text="The trusted contact, who may have been removed since.")
    name = models.CharField(max_length=80)
    phone = models.CharField(max_length=16, db_index=True, help_text="E.164.")
    language = models.CharField(max_length=2)
    token = models.CharField(max_length=32, unique=True, help_text="The secret part of the link to the alert page.")
    opened_at = models.DateTimeField(null=True, blank=True, help_text="When they looked at the alert page.")
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    declined_at = models.DateTimeField(null=True, blank=True, help_text="When they said that they can't help.")
    reached_person_at = models.DateTimeField(null=True, blank=True, help_text="When they said they had reached them.")

    def __str__(self) -> str:
        return self.name


class TimelineKind(models.TextChoices):
    """What happened to an incident."""

    OPENED = "opened"
    JOINED = "joined", "another alarm"
    LOCATION = "location"
    ACKNOWLEDGED = "acknowledged"
    DECLINED = "declined", "can't help"
    REACHED = "reached", "reached the person"
    WAVE = "wave", "alerted again"
    NOBODY_REACHED = "nobody_reached", "nobody reached"
    RESOLVED = "resolved"


class TimelineQuerySet(models.QuerySet["TimelineEntry"]):
    """Append-only: what was written down stays as it is."""

    def update(self, **kwargs: object) -> int:
        """Refused."""
        raise NotImplementedError("The timeline is append-only.")

    def before(self, at: datetime) -> Self:
        """What had happened by then."""
        return self.filter(at__lte=at)


class TimelineEntry(models.Model):
    """One line of an incident's history. Never changed."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    incident = models.ForeignKey(SosEvent, on_delete=models.CASCADE, related_name="timeline")
    at = models.DateTimeField()
    kind = models.CharField(max_length=15, choices=TimelineKind.choices)
    text = models.CharField(max_length=300)

    objects = TimelineQuerySet.as_manager()

    class Meta:
        ordering = ["at"]
        verbose_name_plural = "timeline entries"

    def __str__(self) -> str:
        return self.text
