"""The person, their trusted contacts, their meeting timers and the positions their phone sent."""

from datetime import datetime
from typing import Self
from uuid import UUID, uuid4

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property

from casualmeet.db import constants
from notifications.optouts import stopped

MAX_GRACE_MINUTES = 15
MAX_CONTACTS = 10


class Language(models.TextChoices):
    """Languages that texts are written in."""

    ENGLISH = "en", "English"
    HINDI = "hi", "हिन्दी"


class User(AbstractUser):
    """A person who meets strangers, or a moderator."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    full_name = models.CharField(max_length=80)
    phone = models.CharField(max_length=16, blank=True, db_index=True, help_text="E.164, such as +919812345678.")
    language = models.CharField(max_length=2, choices=Language.choices, default=Language.ENGLISH)
    time_zone = models.CharField(max_length=64, default="UTC", help_text="IANA name, such as Asia/Kolkata.")
    grace_minutes = models.PositiveSmallIntegerField(default=0, validators=[MaxValueValidator(MAX_GRACE_MINUTES)])
    safe_pin = models.CharField(max_length=128, blank=True, editable=False, help_text="Hashed; empty when none is set.")
    pin_failures = models.PositiveSmallIntegerField(default=0, editable=False)
    pin_locked_until = models.DateTimeField(null=True, blank=True, editable=False)

    REQUIRED_FIELDS = ["full_name"]

    class Meta:
        ordering = ["username"]

    def __str__(self) -> str:
        return self.display_name

    @property
    def display_name(self) -> str:
        """The full name, or the user name where none was given."""
        return self.full_name or self.username

    def get_full_name(self) -> str:
        """The name that the admin shows."""
        return self.display_name


class ApiToken(models.Model):
    """A bearer token of the JSON API; only its digest is stored."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token, hexadecimal.")
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"token of {self.user_id}"


class TrustedContact(models.Model):
    """Somebody a person wants alerted. Alerted only once they have accepted."""

    class Status(models.TextChoices):
        """Where the invitation stands."""

        PENDING = "pending"
        VERIFIED = "verified"
        DECLINED = "declined"
        LEFT = "left"

    class Asked(models.IntegerChoices):
        """Where asking them whether they still will stands."""

        NOT = 0, "not asked"
        ASKED = 1
        REMINDED = 2
        TOLD = 3, "the person was told that they don't answer"

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    person = models.ForeignKey(User, on_delete=models.CASCADE, related_name="contacts", db_index=False)
    slot = models.PositiveSmallIntegerField(help_text="0 to 9: with its constraint, the limit of ten contacts.")
    name = models.CharField(max_length=80)
    phone = models.CharField(max_length=16, db_index=True, help_text="E.164.")
    language = models.CharField(max_length=2, choices=Language.choices, default=Language.ENGLISH)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    token = models.CharField(max_length=32, unique=True, help_text="The secret part of the contact's own link.")
    invited_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True, help_text="Their latest word, also that they still will.")
    asked = models.PositiveSmallIntegerField(
        choices=Asked.choices, default=Asked.NOT, db_default=Asked.NOT, help_text="Since then: whether they still will."
    )
    asked_at = models.DateTimeField(null=True, blank=True, help_text="When that step was taken.")
    question_id = models.UUIDField(null=True, blank=True, help_text="The latest text that asked them.")

    class Meta:
        ordering = ["slot"]
        constraints = [
            models.UniqueConstraint(fields=["person", "phone"], name="contact_once_per_person"),
            models.UniqueConstraint(fields=["person", "slot"], name="contact_slots"),
            models.CheckConstraint(
                condition=Q(status__in=["pending", "verified", "declined", "left"]), name="contact_status_known"
            ),
        ]
        # Who is to be asked again.
        indexes = [models.Index(fields=["status", "asked", "answered_at"], name="contact_asked")]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def sms_stopped(self) -> bool:
        """Whether their number wants no texts: an alarm reaches them by call and push only."""
        return bool(stopped([self.phone]))


class TimerStatus(models.TextChoices):
    """Where a meeting timer stands; a timer that is not live never becomes live again."""

    ACTIVE = "active"
    EXTENDED = "extended"
    SAFE = "safe"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


NO_TOKEN = UUID(int=0)
LIVE_STATUSES = [TimerStatus.ACTIVE.value, TimerStatus.EXTENDED.value]
ENDED_BY_PERSON = [TimerStatus.SAFE.value, TimerStatus.CANCELLED.value]


class MeetingTimerQuerySet(models.QuerySet["MeetingTimer"]):
    """The words that queries about timers are made of."""

    def live(self) -> Self:
        """Active or extended."""
        return self.filter(status__in=constants(LIVE_STATUSES))

    def due(self, now: datetime) -> Self:
        """Live, with the escalation time reached."""
        return self.live().filter(escalates_at__lte=now)

    def half_done(self) -> Self:
        """Expired, but a crash kept the expiry cycle from handing the timer over to an incident."""
        # The same as "is not null", which SQLite answers by reading the whole table.
        return self.filter(expiry_token__gt=NO_TOKEN)

    def ended_by_person(self) -> Self:
        """Safe or cancelled."""
        return self.filter(status__in=ENDED_BY_PERSON)


class MeetingTimer(models.Model):
    """A promise to be back by a deadline."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    # (person, status) serves the foreign key; MongoDB takes no second index on the key of the partial one.
    person = models.ForeignKey(User, on_delete=models.CASCADE, related_name="timers", db_index=False)
    location_name = models.CharField(max_length=120)
    meetup_location = models.JSONField(null=True, blank=True, help_text="The planned place: a GeoJSON point.")
    meet_with = models.CharField(max_length=120, blank=True, help_text="Whom they meet, as they typed it.")
    meet_with_user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    note = models.CharField(max_length=500, blank=True)
    duration_minutes = models.PositiveSmallIntegerField()
    grace_minutes = models.PositiveSmallIntegerField(default=0)
    moderators_only = models.BooleanField(default=False)
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="The deadline that the person sees.")
    escalates_at = models.DateTimeField(help_text="The deadline plus the grace; the worker expires on this.")
    check_sent_at = models.DateTimeField(null=True, blank=True)
    next_prompt_at = models.DateTimeField(null=True, blank=True, help_text="When the next check prompt is due.")
    resolved_at = models.DateTimeField(null=True, blank=True)
    status = models.CharField(max_length=10, choices=TimerStatus.choices, default=TimerStatus.ACTIVE)
    last_fix = models.JSONField(null=True, blank=True, help_text="The newest position, as in Position.")
    last_fix_at = models.DateTimeField(null=True, blank=True)
    traces_gone_at = models.DateTimeField(
        null=True, blank=True, help_text="When its positions were deleted; empty: they were not."
    )
    expiry_token = models.UUIDField(
        null=True, blank=True, editable=False, db_index=True, help_text="Set while an expiry cycle works on the row."
    )

    objects = MeetingTimerQuerySet.as_manager()

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["person", "status"], name="timer_person_status"),
            models.Index(fields=["escalates_at", "status"], name="timer_escalates_status"),
            # The worker's look-up: its cost must not grow with the timers of the past.
            models.Index(fields=["escalates_at"], name="timer_live_due", condition=Q(status__in=LIVE_STATUSES)),
            models.Index(fields=["next_prompt_at"], name="timer_next_prompt", condition=Q(status__in=LIVE_STATUSES)),
            # What the deletions look up.
            models.Index(fields=["traces_gone_at", "resolved_at"], name="timer_traces"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["person"], condition=Q(status__in=LIVE_STATUSES), name="one_live_timer_per_person"
            ),
            models.CheckConstraint(condition=Q(status__in=TimerStatus.values), name="timer_status_known"),
        ]

    def __str__(self) -> str:
        return f"{self.location_name} ({self.status})"

    @property
    def live(self) -> bool:
        """Active or extended."""
        return self.status in LIVE_STATUSES


class Position(models.Model):
    """Where the person's phone was while a timer ran."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    timer = models.ForeignKey(MeetingTimer, on_delete=models.CASCADE, related_name="positions")
    latitude = models.FloatField()
    longitude = models.FloatField()
    accuracy_m = models.FloatField(null=True, blank=True)
    battery_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    captured_at = models.DateTimeField()
    received_at = models.DateTimeField()

    class Meta:
        ordering = ["-captured_at"]

    def __str__(self) -> str:
        return f"position at {self.captured_at}"


class FailSafeAlert(models.Model):
    """An alert that a carrier keeps and sends by itself, should this site be gone when the timer runs out.

    What is wanted and what is known to stand at the carrier are apart: a worker makes the one the other.
    """

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    timer = models.ForeignKey(MeetingTimer, on_delete=models.CASCADE, related_name="fail_safe_alerts")
    contact_id = models.UUIDField()
    phone = models.CharField(max_length=16, help_text="E.164.")
    language = models.CharField(max_length=2)
    wanted_at = models.DateTimeField(null=True, blank=True, help_text="When it is to go out; empty: never.")
    scheduled_at = models.DateTimeField(null=True, blank=True, help_text="What stands at the carrier; empty: nothing.")
    carrier_message_id = models.CharField(max_length=80, blank=True)
    asked_at = models.DateTimeField(
        null=True, blank=True, help_text="When scheduling was last asked for, while the answer is not known."
    )
    sent_at = models.DateTimeField(null=True, blank=True, help_text="When we learned that the carrier sent it.")
    settled = models.BooleanField(default=False, help_text="What stands at the carrier is what is wanted.")
    next_try_at = models.DateTimeField(null=True, blank=True, help_text="Empty: there is nothing more to do.")
    tries = models.PositiveSmallIntegerField(default=0)
    lease_token = models.UUIDField(null=True, blank=True, editable=False)

    class Meta:
        indexes = [models.Index(fields=["settled", "next_try_at"], name="fail_safe_unsettled")]
        constraints = [models.UniqueConstraint(fields=["timer", "contact_id"], name="fail_safe_once")]

    def __str__(self) -> str:
        return f"fail-safe for {self.wanted_at or 'nothing'}"


class Deleted(models.TextChoices):
    """What is deleted when its time is over."""

    POSITIONS = "positions"
    TIMER = "timer"
    INCIDENT_DETAILS = "incident_details"
    INCIDENT = "incident"


class DeletionReceipt(models.Model):
    """That something about a person was deleted, for them to see. It holds nothing of what was deleted.

    Written before the deletion and completed after it, so that a crash in between leaves no false word: what is not
    complete is not shown, and is completed by the next run.
    """

    id = models.UUIDField(primary_key=True, editable=False, help_text="Follows from what was deleted.")
    person = models.ForeignKey(User, on_delete=models.CASCADE, related_name="deletions", db_index=False)
    what = models.CharField(max_length=20, choices=Deleted.choices)
    subject_id = models.UUIDField(help_text="The timer or the incident.")
    count = models.PositiveIntegerField(help_text="How many records.")
    period_from = models.DateTimeField(help_text="From when to when they were.")
    period_to = models.DateTimeField()
    policy = models.CharField(max_length=120, help_text="The rule that was followed, in words.")
    begun_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True, db_index=True, help_text="Empty: it is under way.")

    class Meta:
        ordering = ["-deleted_at"]
        indexes = [models.Index(fields=["person", "deleted_at"], name="deletions_of_person")]

    def __str__(self) -> str:
        return f"{self.what} deleted at {self.deleted_at}"
