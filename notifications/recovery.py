"""Taking over deliveries whose dispatcher died or froze: their lease ran out."""

from datetime import datetime

from django.db import models, transaction

from casualmeet.db import retry_transient
from notifications import receipts, retrying
from notifications.answers import acceptance
from notifications.carriers.base import Answer, Outcome
from notifications.claims import LEASE, LEASE_OVER, mine, put_back
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus
from ops import metrics

RECOVERY_BATCH = 200
DIED = "The dispatcher died before the answer was stored."


@retry_transient
def recover_leases(now: datetime) -> int:
    """Put deliveries back whose dispatcher died or froze. An attempt left open may have arrived: the next is a repeat."""
    recovered = 0
    for delivery in Delivery.objects.lease_expired(now)[:RECOVERY_BATCH]:
        with transaction.atomic():
            taken = _recover(delivery, now=now)
        metrics.LEASE_EXPIRIES.inc(taken)
        recovered += taken
    return recovered


def _recover(delivery: Delivery, *, now: datetime) -> int:
    open_attempts = list(delivery.attempts.filter(outcome=AttemptOutcome.OPEN))
    held = mine(delivery).filter(lease_until__lt=now)
    if not held.exists():
        return 0  # somebody else was quicker, and the attempts may be those of a later lease
    if not open_attempts:
        return _recover_without_open_attempt(delivery, held, now=now)
    # First: a crash after it leaves a lease whose attempt has its outcome, and not an attempt that stays open.
    DeliveryAttempt.objects.filter(
        pk__in=[attempt.pk for attempt in open_attempts], outcome=AttemptOutcome.OPEN
    ).update(outcome=AttemptOutcome.UNKNOWN, finished_at=now, detail=DIED)
    unknown = open_attempts[0]
    taken = _follow(delivery, held, unknown, outcome=Outcome.UNKNOWN, now=now)
    if taken:
        receipts.settle([unknown.pk], now=now)
    return taken


def _follow(
    delivery: Delivery, held: models.QuerySet[Delivery], attempt: DeliveryAttempt, *, outcome: Outcome, now: datetime
) -> int:
    """What follows for the delivery from how its attempt ended."""
    plan = retrying.plan(delivery, carrier=attempt.carrier, answer=Answer(outcome), now=now)
    if plan is None or delivery.cancel_requested:
        end = DeliveryStatus.CANCELLED if delivery.cancel_requested else DeliveryStatus.DEAD
        return held.update(status=end, finished_at=now, **LEASE_OVER)
    return put_back(held, plan, number=attempt.number)


def _recover_without_open_attempt(delivery: Delivery, held: models.QuerySet[Delivery], *, now: datetime) -> int:
    """Where there are no transactions the crash may have come before the attempt was written, or after its answer."""
    taken_in = delivery.attempts.filter(outcome=AttemptOutcome.ACCEPTED)
    accepted = taken_in.exclude(receipt__in=receipts.FAILED).first()
    if accepted is not None:
        taken = held.update(**acceptance(accepted.carrier, now=now))
        receipts.settle([accepted.pk], now=now)
        return taken
    if delivery.cancel_requested:
        return held.update(status=DeliveryStatus.CANCELLED, finished_at=now, **LEASE_OVER)
    answered = _attempt_of_this_lease(delivery)
    held = held.filter(cancel_requested=False)
    if answered is None:
        return held.update(status=DeliveryStatus.QUEUED, **LEASE_OVER)
    return _follow(delivery, held, answered, outcome=Outcome(answered.outcome), now=now)


def _attempt_of_this_lease(delivery: Delivery) -> DeliveryAttempt | None:
    """It begins with the lease. What follows from its answer is not written yet, or there would be no lease any more."""
    if delivery.lease_until is None:
        return None
    answered = delivery.attempts.filter(started_at__gte=delivery.lease_until - LEASE).exclude(
        outcome=AttemptOutcome.OPEN
    )
    return answered.order_by("-number").first()
