"""What happens to a delivery around one call to a carrier: claimed under a lease, an attempt committed before the call,
the answer written down after it, and taken over by another dispatcher when the first one died.

Every step is one conditional update on the lease, so that any number of dispatchers share the queue.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db import models, transaction

from casualmeet.db import retry_transient, update_rows
from notifications import live, retrying, texts
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome, OutgoingMessage
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus
from notifications.outbox import WENT_OUT

logger = logging.getLogger(__name__)

# Longer than a carrier call can take: 3 s to connect, 8 s to the first byte, 8 s for a trickling answer, a margin.
LEASE = timedelta(seconds=30)
FOLLOW_DELAY = timedelta(seconds=1)
RECOVERY_BATCH = 200


@dataclass(frozen=True, slots=True)
class Job:
    """A delivery that this dispatcher holds, with its open attempt and what to send."""

    delivery: Delivery
    attempt: DeliveryAttempt
    message: OutgoingMessage


@retry_transient
def claim_jobs(limit: int, *, urgent: bool, now: datetime) -> list[Job]:
    """Take up to `limit` due deliveries under a lease, each with a committed open attempt (P5, P6).

    `urgent` takes those of an SOS, else all the others; so neither look-up wades through the other's rows.
    """
    if limit <= 0:
        return []
    ids = list(Delivery.objects.due(now, urgent=urgent).values_list("pk", flat=True)[:limit])
    if not ids:
        return []
    token = uuid4()
    with transaction.atomic():
        Delivery.objects.filter(pk__in=ids, status=DeliveryStatus.QUEUED, next_attempt_at__lte=now).update(
            status=DeliveryStatus.SENDING, lease_token=token, lease_until=now + LEASE
        )
        mine = list(Delivery.objects.filter(lease_token=token, status=DeliveryStatus.SENDING))
        jobs = [job for delivery in _ready(mine, now=now) if (job := _open_attempt(delivery, now=now))]
        DeliveryAttempt.objects.bulk_create([job.attempt for job in jobs])
    return jobs


def _ready(deliveries: list[Delivery], *, now: datetime) -> list[Delivery]:
    """Those whose predecessor went out; the others wait for it, or are dropped with it."""
    ready = []
    for delivery in deliveries:
        if delivery.follows_id is None:
            ready.append(delivery)
            continue
        leader = Delivery.objects.filter(pk=delivery.follows_id)
        if leader.filter(WENT_OUT).exists():
            ready.append(delivery)
        elif leader.filter(status__in=[DeliveryStatus.DEAD, DeliveryStatus.CANCELLED]).exists():
            _end(delivery, DeliveryStatus.CANCELLED, now=now)
        else:
            _mine(delivery).update(status=DeliveryStatus.QUEUED, next_attempt_at=now + FOLLOW_DELAY)
    return ready


def _open_attempt(delivery: Delivery, *, now: datetime) -> Job | None:
    """The attempt and the message for a delivery; None when it can never be sent, which ends it alone (P14)."""
    route = routing.route(delivery.address)
    carrier = delivery.carrier if delivery.carrier in route else next(iter(route), "")
    attempt_id = uuid4()
    try:
        if not carrier:
            raise LookupError("No configured carrier serves this number.")
        message = _compose(delivery, carrier=carrier, attempt_id=attempt_id, now=now)
    except Exception as error:
        logger.exception("Delivery %s can't be sent", delivery.pk)
        _bury_unsendable(delivery, carrier=carrier, error=error, now=now)
        return None
    attempt = DeliveryAttempt(
        id=attempt_id,
        delivery=delivery,
        number=delivery.attempt_count + 1,
        carrier=carrier,
        text=message.text,
        started_at=now,
    )
    return Job(delivery=delivery, attempt=attempt, message=message)


def _compose(delivery: Delivery, *, carrier: str, attempt_id: UUID, now: datetime) -> OutgoingMessage:
    """The text, composed at the moment of sending: it tells the age of the position and whether it is a repeat."""
    facts = texts.AlertFacts.from_json(delivery.facts)
    known = routing.get(carrier)
    language, link, repeat = delivery.language, delivery.link, delivery.repeat
    text = texts.compose(facts, language=language, link=link, now=now, repeat=repeat)
    variables: tuple[str, ...] = ()
    if known and known.templated:
        variables = texts.dlt_variables(facts, language=language, link=link, now=now, repeat=repeat)
    return OutgoingMessage(
        to=delivery.address,
        text=text,
        kind=delivery.kind,
        variables=variables,
        language=language,
        attempt_id=attempt_id,
    )


def _bury_unsendable(delivery: Delivery, *, carrier: str, error: Exception, now: datetime) -> None:
    DeliveryAttempt.objects.create(
        delivery=delivery,
        number=delivery.attempt_count + 1,
        carrier=carrier,
        text="",
        started_at=now,
        finished_at=now,
        outcome=AttemptOutcome.PERMANENT,
        error_class="content" if carrier else "config",
        detail=f"{type(error).__name__}: {error}"[:300],
    )
    _end(delivery, DeliveryStatus.DEAD, now=now)


@retry_transient
def finish(answered: Sequence[tuple[Job, Answer]], *, now: datetime) -> None:
    """Write down what the carriers answered, and what follows for each delivery."""
    with transaction.atomic():
        _record_attempts(answered, now=now)
        accepted = [(job, answer) for job, answer in answered if answer.outcome is Outcome.ACCEPTED]
        for carrier in {job.attempt.carrier for job, _ in accepted}:
            _accept([job for job, _ in accepted if job.attempt.carrier == carrier], carrier=carrier, now=now)
        for job, answer in answered:
            if answer.outcome is not Outcome.ACCEPTED:
                _retry_or_end(job, answer, now=now)
    people = {job.delivery.person_id for job, _ in answered if job.delivery.person_id}
    live.publish(live.MODERATION, *map(live.person_group, people))


def _record_attempts(answered: Sequence[tuple[Job, Answer]], *, now: datetime) -> None:
    """Attempts are history: recorded even where the lease was lost meanwhile."""
    for job, answer in answered:
        attempt = job.attempt
        attempt.finished_at = now
        attempt.outcome = answer.outcome.value
        attempt.carrier_message_id = answer.carrier_message_id[:80]
        attempt.http_status = answer.http_status
        attempt.error_code = answer.error_code[:40]
        attempt.error_class = answer.error_class[:20]
        attempt.detail = answer.detail[:300]
        attempt.raw = answer.raw.replace("\x00", "�")
    update_rows(
        DeliveryAttempt,
        [job.attempt for job, _ in answered],
        ["finished_at", "outcome", "carrier_message_id", "http_status", "error_code", "error_class", "detail", "raw"],
    )


def _accept(jobs: list[Job], *, carrier: str, now: datetime) -> None:
    """Accepted by the carrier, which is not yet delivered (P13)."""
    changes = {
        "status": DeliveryStatus.ACCEPTED,
        "carrier": carrier,
        "simulated": bool((known := routing.get(carrier)) and known.simulated),
        "finished_at": now,
        "lease_token": None,
        "lease_until": None,
    }
    ids = [job.delivery.pk for job in jobs]
    tokens = {job.delivery.lease_token for job in jobs}
    updated = Delivery.objects.filter(pk__in=ids, lease_token__in=tokens).update(**changes)
    if updated < len(ids):
        # The lease ran out before the answer came. Where nobody took the delivery yet, there is no need to.
        Delivery.objects.filter(pk__in=ids, status=DeliveryStatus.QUEUED).update(**changes)


def _retry_or_end(job: Job, answer: Answer, *, now: datetime) -> None:
    plan = retrying.plan(job.delivery, carrier=job.attempt.carrier, answer=answer, now=now)
    mine = _mine(job.delivery)
    lease = {"lease_token": None, "lease_until": None}
    if mine.filter(cancel_requested=True).update(status=DeliveryStatus.CANCELLED, finished_at=now, **lease):
        return
    if plan is None:
        updated = mine.filter(cancel_requested=False).update(status=DeliveryStatus.DEAD, finished_at=now, **lease)
        logger.error("Delivery %s is a dead letter: %s %s", job.delivery.pk, answer.error_class, answer.error_code)
    else:
        updated = mine.filter(cancel_requested=False).update(
            status=DeliveryStatus.QUEUED,
            carrier=plan.carrier,
            next_attempt_at=plan.at,
            repeat=plan.repeat,
            attempt_count=job.attempt.number,
            **lease,
        )
    if not updated:
        # Cancelled between the two updates, or the lease was lost; the first look decides again.
        mine.filter(cancel_requested=True).update(status=DeliveryStatus.CANCELLED, finished_at=now, **lease)


@retry_transient
def recover_leases(now: datetime) -> int:
    """Put deliveries back whose dispatcher died or froze. An attempt left open may have arrived: the next is a repeat."""
    recovered = 0
    for delivery in Delivery.objects.lease_expired(now)[:RECOVERY_BATCH]:
        with transaction.atomic():
            recovered += _recover(delivery, now=now)
    return recovered


def _recover(delivery: Delivery, *, now: datetime) -> int:
    open_attempts = DeliveryAttempt.objects.filter(delivery=delivery, outcome=AttemptOutcome.OPEN)
    unknown = open_attempts.first()
    mine = _mine(delivery).filter(lease_until__lt=now)
    if unknown is None:
        return _recover_without_open_attempt(delivery, mine, now=now)
    answer = Answer(outcome=Outcome.UNKNOWN, detail="The dispatcher died before the answer was stored.")
    plan = retrying.plan(delivery, carrier=unknown.carrier, answer=answer, now=now)
    if plan is None or delivery.cancel_requested:
        end = DeliveryStatus.CANCELLED if delivery.cancel_requested else DeliveryStatus.DEAD
        taken = mine.update(status=end, finished_at=now, lease_token=None, lease_until=None)
    else:
        taken = mine.filter(cancel_requested=False).update(
            status=DeliveryStatus.QUEUED,
            carrier=plan.carrier,
            next_attempt_at=plan.at,
            repeat=plan.repeat,
            attempt_count=unknown.number,
            lease_token=None,
            lease_until=None,
        )
    if taken:
        open_attempts.update(outcome=AttemptOutcome.UNKNOWN, finished_at=now, detail=answer.detail)
    return taken


def _recover_without_open_attempt(delivery: Delivery, mine: models.QuerySet[Delivery], *, now: datetime) -> int:
    """Where there are no transactions the crash may have come before the attempt was written, or after its answer."""
    lease = {"lease_token": None, "lease_until": None}
    accepted = delivery.attempts.filter(outcome=AttemptOutcome.ACCEPTED).first()
    if accepted is not None:
        simulated = bool((known := routing.get(accepted.carrier)) and known.simulated)
        return mine.update(
            status=DeliveryStatus.ACCEPTED, carrier=accepted.carrier, simulated=simulated, finished_at=now, **lease
        )
    if delivery.cancel_requested:
        return mine.update(status=DeliveryStatus.CANCELLED, finished_at=now, **lease)
    return mine.filter(cancel_requested=False).update(status=DeliveryStatus.QUEUED, **lease)


def _mine(delivery: Delivery) -> models.QuerySet[Delivery]:
    """The delivery, as long as its lease is still the one it was taken under."""
    return Delivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.SENDING, lease_token=delivery.lease_token)


def _end(delivery: Delivery, status: DeliveryStatus, *, now: datetime) -> None:
    _mine(delivery).update(status=status, finished_at=now, lease_token=None, lease_until=None)
