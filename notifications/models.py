"""The outbox, what each carrier was asked and answered, and in-app notifications."""

from datetime import datetime
from typing import Self
from uuid import uuid4

from django.conf import settings
from django.db import models
from django.db.models import Q


class Priority(models.IntegerChoices):
    """Lower goes first. SOS overtakes everything."""

    SOS = 0
    SAFETY = 1, "all-clears and check prompts"
    NORMAL = 5, "invitations and notices"
    BULK = 9, "digests"


class Channel(models.TextChoices):
    """How a message reaches somebody."""

    SMS = "sms", "text"
    VOICE = "voice", "call"
    PUSH = "push"


class DeliveryStatus(models.TextChoices):
    """Where a delivery stands. `accepted` is the carrier's word, `delivered` the phone's."""

    HELD = "held"  # written, but not released: its incident is not complete yet (databases without transactions)
    QUEUED = "queued"
    SENDING = "sending"  # a dispatcher holds the lease, an attempt is open
    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    DEAD = "dead", "dead letter"
    CANCELLED = "cancelled"


INVITATIONS = Q(kind="invitation")
ORDINARY = Q(priority__gte=Priority.NORMAL)


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    """The words that queries about the outbox are made of."""

    def due(self, now: datetime, *, urgent: bool) -> Self:
        """Queued, with its time come: those of an SOS, or all the others, the most important first."""
        rank = Q(priority=Priority.SOS) if urgent else Q(priority__gt=Priority.SOS)
        return self.filter(rank, status=DeliveryStatus.QUEUED, next_attempt_at__lte=now).order_by(
            "priority", "next_attempt_at"
        )

    def jobs(self) -> Self:
        """Invitations, notices, digests. What belongs to an incident is evidence, however low its priority."""
        return self.filter(ORDINARY, incident_id=None)

    def lease_expired(self, now: datetime) -> Self:
        """Taken by a dispatcher that has not finished in time: it is dead, or frozen."""
        return self.filter(status=DeliveryStatus.SENDING, lease_until__lt=now)


class Delivery(models.Model):
    """One message to one address on one channel. The row is the job: no broker stands behind it."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    kind = models.CharField(max_length=20)
    channel = models.CharField(max_length=10, choices=Channel.choices, default=Channel.SMS)
    priority = models.PositiveSmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    address = models.CharField(max_length=64, help_text="E.164 for texts and calls, a subscription's id for pushes.")
    recipient_id = models.UUIDField(null=True, blank=True, help_text="Whose address it is.")
    recipient_name = models.CharField(max_length=80, blank=True)
    language = models.CharField(max_length=2, default="en")
    link = models.CharField(max_length=120, blank=True)
    facts = models.JSONField(help_text="What the text says; composed when it is sent.")
    incident_id = models.UUIDField(null=True, blank=True, db_index=True)
    person_id = models.UUIDField(null=True, blank=True, help_text="Whom it is about.")
    follows_id = models.UUIDField(
        null=True, blank=True, help_text="Sent only after that delivery went out; dropped if it never did."
    )
    wave = models.PositiveSmallIntegerField(default=1)
    status = models.CharField(max_length=10, choices=DeliveryStatus.choices, default=DeliveryStatus.QUEUED)
    cancel_requested = models.BooleanField(default=False, help_text="Cancelled while an attempt was open.")
    created_at = models.DateTimeField()
    next_attempt_at = models.DateTimeField()
    send_before = models.DateTimeField(
        null=True, blank=True, help_text="From then on it is of no use and is dropped; empty: it always is of use."
    )
    attempt_count = models.PositiveSmallIntegerField(default=0)
    repeat = models.PositiveSmallIntegerField(default=0, help_text="How many earlier sends may have arrived.")
    carrier = models.CharField(max_length=20, blank=True, help_text="The carrier that is next, or that took it.")
    pinned = models.BooleanField(
        default=False, db_default=False, help_text="By this carrier or not at all: a test of it."
    )
    simulated = models.BooleanField(default=False)
    lease_token = models.UUIDField(null=True, blank=True, editable=False, db_index=True)
    lease_until = models.DateTimeField(null=True, blank=True, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)
    delivered_at = models.DateTimeField(null=True, blank=True, help_text="When it is known to have reached the phone.")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(
                fields=["priority", "next_attempt_at"], name="delivery_queue", condition=Q(status=DeliveryStatus.QUEUED)
            ),
            models.Index(
                fields=["lease_until"],
                name="delivery_leases",
                condition=Q(status=DeliveryStatus.SENDING),
            ),
            # What went wrong just now.
            models.Index(fields=["finished_at"], name="delivery_dead", condition=Q(status=DeliveryStatus.DEAD)),
            # What the limits on invitations count.
            models.Index(fields=["person_id", "created_at"], name="invitations_by_person", condition=INVITATIONS),
            models.Index(fields=["address", "created_at"], name="invitations_by_number", condition=INVITATIONS),
            # Which jobs are old enough to go.
            models.Index(fields=["finished_at", "id"], name="finished_jobs", condition=ORDINARY),
            # Which check prompts and replies are.
            models.Index(fields=["finished_at"], name="finished_prompts", condition=Q(priority=Priority.SAFETY)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=DeliveryStatus.values), name="delivery_status_known")
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.recipient_name or 'somebody'}"


class AttemptOutcome(models.TextChoices):
    """How a call to a carrier ended."""

    OPEN = "open"
    ACCEPTED = "accepted"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


# What a carrier calls a message that it accepted and gave up on (Twilio docs, "Messages resource").
FAILED_RECEIPTS = ("failed", "undelivered")


class DeliveryAttempt(models.Model):
    """One call to one carrier, written down before it is made."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    carrier = models.CharField(max_length=20)
    text = models.TextField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=AttemptOutcome.choices, default=AttemptOutcome.OPEN)
    carrier_message_id = models.CharField(max_length=80, blank=True)
    http_status = models.PositiveSmallIntegerField(null=True, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    error_class = models.CharField(max_length=20, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    raw = models.TextField(blank=True, help_text="The carrier's answer as it came, cut at 4,000 characters.")
    receipt = models.CharField(
        max_length=20, blank=True, default="", db_default="", help_text="The carrier's latest word on what it accepted."
    )
    receipt_rank = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Receipts only ever go up in rank."
    )
    receipt_code = models.CharField(max_length=40, blank=True, default="", db_default="")
    receipt_at = models.DateTimeField(null=True, blank=True)
    poll_at = models.DateTimeField(
        null=True, blank=True, help_text="When the carrier is asked, should no receipt come."
    )

    class Meta:
        ordering = ["started_at"]
        indexes = [
            models.Index(fields=["carrier_message_id"], name="attempt_message_id"),
            models.Index(fields=["poll_at"], name="attempt_poll_at"),
        ]

    def __str__(self) -> str:
        return f"{self.carrier} #{self.number}: {self.outcome}"


class FirstAcceptance(models.Model):
    """That the first acceptance of an incident's messages was measured: the row, of which there is one, decides by whom."""

    incident_id = models.UUIDField(primary_key=True)
    attempt_id = models.UUIDField(help_text="The attempt that was accepted first.")
    accepted_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"accepted at {self.accepted_at}"


class CarrierHealth(models.Model):
    """What all processes know of a carrier: its circuit breaker, and its balance where it has one."""

    name = models.CharField(primary_key=True, max_length=20)
    failures = models.PositiveSmallIntegerField(default=0, help_text="Since `failing_since`, without a success.")
    failing_since = models.DateTimeField(null=True, blank=True)
    open_until = models.DateTimeField(null=True, blank=True, help_text="Passed over until then, except for an SOS.")
    balance = models.FloatField(null=True, blank=True)
    balance_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "carrier health"

    def __str__(self) -> str:
        return self.name


class OptOut(models.Model):
    """A number that sent STOP: it gets no texts until it sends START. Calls are another matter."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    phone = models.CharField(max_length=16, unique=True, help_text="E.164.")
    stopped_at = models.DateTimeField()
    source = models.CharField(max_length=20, help_text="`reply` when they wrote it, else the carrier that told us.")
    told_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="When those who rely on the number were told; empty: not yet."
    )

    def __str__(self) -> str:
        return f"opted out at {self.stopped_at}"


class InboundText(models.Model):
    """That a text came in, so that it counts once. What it said is not kept: it may hold a PIN."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    carrier_message_id = models.CharField(max_length=80, unique=True)
    sender = models.CharField(max_length=16, help_text="E.164.")
    received_at = models.DateTimeField()
    handled_at = models.DateTimeField(
        null=True, blank=True, help_text="Empty: a crash came between; it may come again."
    )
    replied = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["sender", "received_at"], name="inbound_by_sender"),
            models.Index(fields=["received_at"], name="inbound_by_age"),
        ]

    def __str__(self) -> str:
        return f"text received at {self.received_at}"


class PushSubscription(models.Model):
    """A browser or an app that takes pushes for a person or a contact."""

    class Kind(models.TextChoices):
        """By which service."""

        WEB_PUSH = "webpush", "Web Push"
        FCM = "fcm", "FCM"

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    owner_id = models.UUIDField(db_index=True, help_text="The person or the trusted contact.")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    endpoint = models.TextField(help_text="The push service's URL, or the FCM token.")
    endpoint_digest = models.CharField(max_length=64, db_index=True, help_text="SHA-256 of the endpoint, hexadecimal.")
    p256dh = models.CharField(max_length=120, blank=True)
    auth = models.CharField(max_length=60, blank=True)
    created_at = models.DateTimeField()
    refusals = models.PositiveSmallIntegerField(default=0, help_text="In a row, for reasons that may be ours.")
    disabled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            # A browser has one endpoint, whoever uses it: a contact of two people, or a person who is a contact too.
            models.UniqueConstraint(fields=["owner_id", "endpoint_digest"], name="push_once_per_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} subscription"


class Notification(models.Model):
    """Something the person is told inside the app."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    recipient = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=30)
    title = models.CharField(max_length=120)
    body = models.CharField(max_length=300, blank=True)
    incident_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True, db_index=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.title
