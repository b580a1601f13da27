"""Taking deliveries out of the queue: under a lease, each with a committed attempt and the words to send.

Every step is one conditional update, so that any number of dispatchers share the queue.
"""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import uuid4

from django.db import models, transaction

from casualmeet import bulk, logs
from casualmeet.db import has_transactions, insert_missing, retry_transient
from notifications import composing, health, optouts, outbox, retrying, subscriptions
from notifications.carriers import routing
from notifications.carriers.base import ErrorClass, OutgoingMessage, PushTarget
from notifications.health import Circuits
from notifications.models import AttemptOutcome, Channel, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.retrying import Plan

logger = logging.getLogger(__name__)

# A carrier call takes at most 25 s: 9 to look up and connect, 8 to the first byte, 8 for a trickling answer; asking
# about an earlier one, 5. One that is not begun in the rest of the lease is not begun at all.
LEASE = timedelta(seconds=45)
LONGEST_ASKING = timedelta(seconds=5)
LONGEST_CALL = LONGEST_ASKING + timedelta(seconds=26)
FOLLOW_DELAY = timedelta(seconds=1)
LEASE_OVER = {"lease_token": None, "lease_until": None}
NEVER = (DeliveryStatus.DEAD, DeliveryStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class Job:
    """A delivery that this dispatcher holds, with its open attempt and what to send.

    `start_by` is on this machine's monotonic clock, in seconds: a call begun later could outlive the lease.
    `doubt` is the attempt before this one, where nobody knows whether it went out: its carrier is asked first.
    """

    delivery: Delivery
    attempt: DeliveryAttempt
    message: OutgoingMessage
    start_by: float
    doubt: DeliveryAttempt | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is read once for all deliveries of a claim."""

    circuits: Circuits
    targets: dict[str, PushTarget]
    start_by: float


@retry_transient
def first_due(now: datetime) -> int | None:
    """The priority of what is to go next; None when nothing is due. A look costs less than a claim in vain."""
    due = Delivery.objects.filter(status=DeliveryStatus.QUEUED, next_attempt_at__lte=now)
    return due.order_by("priority", "next_attempt_at").values_list("priority", flat=True).first()


@retry_transient
def others_due(now: datetime) -> bool:
    """Whether anything but an SOS is to go now; asked beside an SOS, for the same reason."""
    return Delivery.objects.due(now, urgent=False).order_by().exists()


@retry_transient
def claim_jobs(limit: int, *, urgent: bool, now: datetime) -> list[Job]:
    """Take up to `limit` due deliveries under a lease, each with a committed open attempt (P5, P6).

    `urgent` takes those of an SOS, else all the others; so neither look-up wades through the other's rows.
    """
    if limit <= 0:
        return []
    start_by = time.monotonic() + (LEASE - LONGEST_CALL).total_seconds()
    with transaction.atomic():
        ready = _ready(_take(limit, urgent=urgent, now=now), now=now)
        if not ready:
            return []
        surroundings = Surroundings(health.circuits(now), _push_targets(ready), start_by)
        jobs = [job for delivery in ready if (job := _open_attempt(delivery, surroundings, now=now))]
        # Later none of the calls will be begun; all are handed back, and without a transaction a crash before would leave
        # attempts that stay open.
        if time.monotonic() <= start_by:
            insert_missing(DeliveryAttempt, [job.attempt for job in jobs])
    return _with_doubts(jobs)


@retry_transient
def hand_back(jobs: Sequence[Job], *, now: datetime) -> None:
    """Give up the leases of jobs whose call was never begun: any dispatcher may take them at once.

    They are as they were before the claim: no try is counted and nothing is in doubt. The attempts go first, so that a
    crash in between leaves a lease that runs out over a delivery without one.
    """
    if not jobs:
        return
    with transaction.atomic():
        DeliveryAttempt.objects.filter(
            pk__in=bulk.keys([job.attempt.pk for job in jobs]), outcome=AttemptOutcome.OPEN
        ).delete()
        held = _ours([job.delivery for job in jobs])
        for cancelled, changes in (
            (True, {"status": DeliveryStatus.CANCELLED, "finished_at": now}),
            (False, {"status": DeliveryStatus.QUEUED}),
            # Cancelled between the two.
            (True, {"status": DeliveryStatus.CANCELLED, "finished_at": now}),
        ):
            held.filter(cancel_requested=cancelled).update(**changes, **LEASE_OVER)


def mine(delivery: Delivery) -> models.QuerySet[Delivery]:
    """The delivery, as long as its lease is still the one it was taken under."""
    return Delivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.SENDING, lease_token=delivery.lease_token)


def _ours(deliveries: Collection[Delivery]) -> models.QuerySet[Delivery]:
    """Those whose lease is still the one they were taken under."""
    tokens = {delivery.lease_token for delivery in deliveries}
    ids = bulk.keys([delivery.pk for delivery in deliveries])
    return Delivery.objects.filter(pk__in=ids, status=DeliveryStatus.SENDING, lease_token__in=tokens)


def put_back(held: models.QuerySet[Delivery], plan: Plan, *, number: int) -> int:
    """Queue a held delivery for the try after attempt `number`, unless it was cancelled meanwhile."""
    return held.filter(cancel_requested=False).update(
        status=DeliveryStatus.QUEUED,
        carrier=plan.carrier,
        next_attempt_at=plan.at,
        repeat=plan.repeat,
        attempt_count=number,
        **LEASE_OVER,
    )


def _take(limit: int, *, urgent: bool, now: datetime) -> list[Delivery]:
    """Up to `limit` deliveries that are ours now, the most important first."""
    token = uuid4()
    changes = {"status": DeliveryStatus.SENDING, "lease_token": token, "lease_until": now + LEASE}
    due = Delivery.objects.due(now, urgent=urgent)[:limit]
    if has_transactions():
        return sorted(bulk.take(due, changes), key=attrgetter("priority", "next_attempt_at"))
    ids = list(due.values_list("pk", flat=True))
    if not ids:
        return []
    Delivery.objects.filter(pk__in=ids, status=DeliveryStatus.QUEUED, next_attempt_at__lte=now).update(**changes)
    taken = Delivery.objects.filter(lease_token=token, status=DeliveryStatus.SENDING)
    return list(taken.order_by("priority", "next_attempt_at"))


def _ready(deliveries: list[Delivery], *, now: datetime) -> list[Delivery]:
    """Those that may go now. Who sent STOP gets no text, and what follows another message waits for it."""
    numbers = [delivery.address for delivery in deliveries if delivery.channel == Channel.SMS]
    stopped = optouts.stopped(numbers) if numbers else set()
    ready = []
    for delivery in deliveries:
        if delivery.channel == Channel.SMS and delivery.address in stopped:
            _bury(delivery, error_class="opt_out", detail="This number sent STOP.", now=now)
        elif delivery.send_before and delivery.send_before <= now:
            _end([delivery], DeliveryStatus.CANCELLED, now=now)
        else:
            ready.append(delivery)
    return _without_early(ready, now=now) if any(delivery.follows_id for delivery in ready) else ready


def _without_early(deliveries: list[Delivery], *, now: datetime) -> list[Delivery]:
    """Those whose predecessor went out, or that have none; where it is still open they wait, where it never will they are
    dropped.
    """
    leaders = {delivery.follows_id for delivery in deliveries if delivery.follows_id}
    known = dict(Delivery.objects.filter(pk__in=bulk.keys(leaders)).values_list("pk", "status"))
    gone = outbox.went_out(known)
    dropped = {pk for pk, status in known.items() if status in NEVER} - gone
    _end([delivery for delivery in deliveries if delivery.follows_id in dropped], DeliveryStatus.CANCELLED, now=now)
    waiting = [delivery for delivery in deliveries if delivery.follows_id in leaders - gone - dropped]
    _ours(waiting).update(status=DeliveryStatus.QUEUED, next_attempt_at=now + FOLLOW_DELAY, **LEASE_OVER)
    return [delivery for delivery in deliveries if delivery.follows_id is None or delivery.follows_id in gone]


def _with_doubts(jobs: list[Job]) -> list[Job]:
    """The jobs, each with the attempt before it where that one's answer was lost."""
    repeats = [job.delivery.pk for job in jobs if job.delivery.repeat]
    if not repeats:
        return jobs
    lost = DeliveryAttempt.objects.filter(delivery__in=repeats, outcome=AttemptOutcome.UNKNOWN)
    latest = {(attempt.delivery_id, attempt.number): attempt for attempt in lost}
    return [replace(job, doubt=latest.get((job.delivery.pk, job.attempt.number - 1))) for job in jobs]


def _push_targets(deliveries: list[Delivery]) -> dict[str, PushTarget]:
    """Where the pushes among them go, by address."""
    addresses = [delivery.address for delivery in deliveries if delivery.channel == Channel.PUSH]
    return {str(pk): target for pk, target in subscriptions.targets(addresses).items()} if addresses else {}


def _open_attempt(delivery: Delivery, around: Surroundings, *, now: datetime) -> Job | None:
    """The attempt and the message for a delivery; None when it waits for a carrier, or can never be sent, which ends
    it alone (P14).
    """
    target = around.targets.get(delivery.address)
    if delivery.channel == Channel.PUSH and target is None:
        _bury(delivery, error_class="gone", detail="This browser or app takes no pushes any more.", now=now)
        return None
    served = routing.route(target.kind if target else delivery.address, channel=delivery.channel)
    route: Sequence[str] = retrying.allowed(delivery, served)
    if delivery.attempt_count and around.circuits.open:
        route = retrying.open_carriers(delivery, route)
    carrier = around.circuits.choose(route, preferred=delivery.carrier)
    if carrier is None and route and delivery.priority != Priority.SOS:
        mine(delivery).update(status=DeliveryStatus.QUEUED, next_attempt_at=now + health.OPEN_FOR)
        return None
    # An SOS is tried even so (P8).
    carrier = carrier or (delivery.carrier if delivery.carrier in route else next(iter(route), ""))
    attempt_id = uuid4()
    try:
        if not carrier:
            raise LookupError("No configured carrier serves this address.")
        message = composing.message_for(delivery, carrier=carrier, attempt_id=attempt_id, now=now, target=target)
    except Exception as error:
        with logs.about(incident=delivery.incident_id, delivery=delivery.pk):
            logger.exception("Delivery %s can't be sent", delivery.pk)
        error_class: ErrorClass = "content" if carrier else "config"
        _bury(delivery, carrier=carrier, error_class=error_class, detail=f"{type(error).__name__}: {error}", now=now)
        return None
    attempt = DeliveryAttempt(
        id=attempt_id,
        delivery_id=delivery.pk,
        number=delivery.attempt_count + 1,
        carrier=carrier,
        text=message.text,
        started_at=now,
    )
    return Job(delivery=delivery, attempt=attempt, message=message, start_by=around.start_by)


def _bury(delivery: Delivery, *, error_class: ErrorClass, detail: str, now: datetime, carrier: str = "") -> None:
    """A dead letter with the reason, for which no carrier was called."""
    DeliveryAttempt.objects.create(
        delivery=delivery,
        number=delivery.attempt_count + 1,
        carrier=carrier,
        text="",
        started_at=now,
        finished_at=now,
        outcome=AttemptOutcome.PERMANENT,
        error_class=error_class,
        detail=detail[:300],
    )
    _end([delivery], DeliveryStatus.DEAD, now=now)


def _end(deliveries: Collection[Delivery], status: DeliveryStatus, *, now: datetime) -> None:
    if deliveries:
        _ours(deliveries).update(status=status, finished_at=now, **LEASE_OVER)
