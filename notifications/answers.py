"""Writing down what the carriers answered, and what follows for each delivery.

Every step is a conditional update on the lease; an answer that comes after its lease ran out changes no more than
the history.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from casualmeet import bulk, logs
from casualmeet.db import has_transactions, retry_transient, update_rows
from notifications import live, measuring, optouts, receipts, retrying, subscriptions
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome
from notifications.claims import LEASE_OVER, Job, mine, put_back
from notifications.models import AttemptOutcome, Channel, Delivery, DeliveryAttempt, DeliveryStatus
from notifications.polling import first_poll

logger = logging.getLogger(__name__)

RECORDED = ("finished_at", "outcome", "http_status", "error_code", "error_class", "detail", "raw", "poll_at")


@retry_transient
def finish(answered: Sequence[tuple[Job, Answer]], *, now: datetime) -> None:
    """Write down what the carriers answered, and what follows for each delivery."""
    with transaction.atomic():
        overtaken = _record_attempts(answered, now=now)
        accepted = [(job, answer) for job, answer in answered if answer.outcome is Outcome.ACCEPTED]
        for carrier in {job.attempt.carrier for job, _ in accepted}:
            _accept([job for job, _ in accepted if job.attempt.carrier == carrier], carrier=carrier, now=now)
        for job, answer in answered:
            if answer.outcome is not Outcome.ACCEPTED:
                with logs.about(incident=job.delivery.incident_id, delivery=job.delivery.pk):
                    _retry_or_end(job, answer, now=now)
        # Without a transaction, which keeps them out, receipts may have come since too.
        receipts.settle(overtaken if has_transactions() else [job.attempt.pk for job, _ in answered], now=now)
        _learn(answered, now=now)
    measuring.answered(answered, now=now)
    people = {job.delivery.person_id for job, _ in answered if job.delivery.person_id}
    live.publish(live.MODERATION, *map(live.person_group, people))


@retry_transient
def finish_found(job: Job, message_id: str, *, now: datetime) -> None:
    """The attempt whose answer was lost had gone out after all: the delivery stands on it, and nothing is sent again."""
    doubt = job.doubt
    if doubt is None:
        raise ValueError("There was no doubt.")
    with transaction.atomic():
        DeliveryAttempt.objects.filter(pk=doubt.pk, outcome=AttemptOutcome.UNKNOWN).update(
            outcome=AttemptOutcome.ACCEPTED,
            carrier_message_id=message_id or doubt.carrier_message_id,
            detail="Its answer was lost; the carrier, asked later, had accepted it.",
            poll_at=first_poll(doubt.carrier, now),
        )
        _accept([job], carrier=doubt.carrier, now=now)
        DeliveryAttempt.objects.filter(pk=job.attempt.pk, outcome=AttemptOutcome.OPEN).delete()
        receipts.settle([doubt.pk], now=now)
    measuring.accepted([(job.delivery, doubt)], now=now)


def _record_attempts(answered: Sequence[tuple[Job, Answer]], *, now: datetime) -> list[UUID]:
    """Attempts are history: recorded even where the lease was lost meanwhile. Returns those with a final receipt."""
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
        attempt.poll_at = first_poll(attempt.carrier, now) if answer.outcome is Outcome.ACCEPTED else None
    named = [job.attempt for job, _ in answered if job.attempt.carrier_message_id]
    nameless = [job.attempt for job, _ in answered if not job.attempt.carrier_message_id]
    ranks = update_rows(DeliveryAttempt, named, [*RECORDED, "carrier_message_id"], tell="receipt_rank")
    # A receipt that overtook the answer may have brought the id: an answer without one leaves it.
    ranks |= update_rows(DeliveryAttempt, nameless, RECORDED, tell="receipt_rank")
    return [pk for pk, rank in ranks.items() if rank >= receipts.FINAL]


def _learn(answered: Sequence[tuple[Job, Answer]], *, now: datetime) -> None:
    """What an answer says about the address, beyond this delivery."""
    for job, answer in answered:
        if answer.error_class == "opt_out" and job.delivery.channel == Channel.SMS:
            optouts.stop(job.delivery.address, job.attempt.carrier, now)
    # Only where there is a target was there an answer, so the address is a subscription's id.
    pushes = [(UUID(job.delivery.address), one) for job, one in answered if job.message.target]
    subscriptions.note_answers(pushes)


def acceptance(carrier: str, *, now: datetime) -> dict[str, Any]:
    """What changes on a delivery that this carrier took."""
    known = routing.get(carrier)
    return {
        "status": DeliveryStatus.ACCEPTED,
        "carrier": carrier,
        "simulated": known is not None and known.simulated,
        "finished_at": now,
        **LEASE_OVER,
    }


def _accept(jobs: list[Job], *, carrier: str, now: datetime) -> None:
    """Accepted by the carrier, which is not yet delivered (P13)."""
    changes = acceptance(carrier, now=now)
    ids = [job.delivery.pk for job in jobs]
    tokens = {job.delivery.lease_token for job in jobs}
    updated = Delivery.objects.filter(pk__in=bulk.keys(ids), lease_token__in=tokens).update(**changes)
    if updated < len(ids):
        # The lease ran out before the answer came. Where nobody took the delivery yet, there is no need to.
        Delivery.objects.filter(pk__in=bulk.keys(ids), status=DeliveryStatus.QUEUED).update(**changes)


def _retry_or_end(job: Job, answer: Answer, *, now: datetime) -> None:
    plan = retrying.plan(job.delivery, carrier=job.attempt.carrier, answer=answer, now=now)
    held = mine(job.delivery)
    if held.filter(cancel_requested=True).update(status=DeliveryStatus.CANCELLED, finished_at=now, **LEASE_OVER):
        return
    if plan is None:
        updated = held.filter(cancel_requested=False).update(status=DeliveryStatus.DEAD, finished_at=now, **LEASE_OVER)
        logger.error("Delivery %s is a dead letter: %s %s", job.delivery.pk, answer.error_class, answer.error_code)
    else:
        updated = put_back(held, plan, number=job.attempt.number)
    if not updated:
        # Cancelled between the two updates, or the lease was lost; the first look decides again.
        held.filter(cancel_requested=True).update(status=DeliveryStatus.CANCELLED, finished_at=now, **LEASE_OVER)
