"""Measures what the carriers answer: every call, and how long each incident waited for the first yes.

Called after the commit. What fails here is logged and costs nothing else.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from casualmeet import logs
from casualmeet.db import delete_in_batches, insert_missing
from notifications.carriers import fcm
from notifications.carriers.base import Answer, Outcome
from notifications.carriers.errors import FAST2SMS_ERRORS, TWILIO_ERRORS
from notifications.claims import Job
from notifications.models import Delivery, DeliveryAttempt, FirstAcceptance, Priority
from ops import metrics

logger = logging.getLogger(__name__)

CODES: Final = {
    "twilio": frozenset(map(str, TWILIO_ERRORS)),
    "twilio-voice": frozenset(map(str, TWILIO_ERRORS)),
    "fast2sms": frozenset(map(str, FAST2SMS_ERRORS)),
    "fcm": frozenset(fcm.ERRORS),
}
# An incident that was opened longer ago is not looked at any more: whether it was counted is forgotten by then.
KEEP: Final = timedelta(days=7)
MOST_KNOWN: Final = 5_000

# Incidents of which this process knows that they were counted, so that it asks the database once for each. Most of an
# incident's messages are taken within a minute.
_known: set[UUID] = set()


def answered(answers: Sequence[tuple[Job, Answer]], *, now: datetime) -> None:
    """Count the carriers' answers, and the incidents for which they hold the first acceptance."""
    for job, answer in answers:
        carrier = job.attempt.carrier
        metrics.ATTEMPTS.labels(carrier, answer.outcome.value, code_label(carrier, answer.error_code)).inc()
    accepted([(job.delivery, job.attempt) for job, answer in answers if answer.outcome is Outcome.ACCEPTED], now=now)


def accepted(attempts: Iterable[tuple[Delivery, DeliveryAttempt]], *, now: datetime) -> None:
    """Measure the time to the first acceptance of each incident among these that was not measured yet."""
    try:
        _measure(attempts, now=now)
    except Exception:
        logger.exception("The time to the first acceptance can't be measured")


def code_label(carrier: str, code: str) -> str:
    """The code if it is a known one. Others come from outside, as many as there are."""
    if not code:
        return "none"
    return code if code in CODES.get(carrier, ()) else "other"


def trim(now: datetime) -> int:
    """Forget which incidents were counted long ago; returns how many."""
    return delete_in_batches(FirstAcceptance.objects.filter(accepted_at__lt=now - KEEP))


def _measure(attempts: Iterable[tuple[Delivery, DeliveryAttempt]], *, now: datetime) -> None:
    """Whoever writes the incident's row has the first one: the key decides, however many dispatchers there are."""
    opened: dict[UUID, datetime] = {}
    rows: dict[UUID, FirstAcceptance] = {}
    for delivery, attempt in attempts:
        pk = delivery.incident_id
        if pk is None or delivery.priority != Priority.SOS or pk in rows or pk in _known:
            continue
        opened[pk] = _opened_at(delivery)
        if opened[pk] > now - KEEP:
            rows[pk] = FirstAcceptance(incident_id=pk, attempt_id=attempt.pk, accepted_at=now)
    if not rows:
        return
    all_ours = insert_missing(FirstAcceptance, [rows[pk] for pk in sorted(rows)])
    for pk in rows if all_ours else _ours(rows):
        seconds = max(0.0, (now - opened[pk]).total_seconds())
        metrics.FIRST_ACCEPT_SECONDS.observe(seconds)
        with logs.about(incident=pk):
            logger.info("A carrier took the first message of incident %s %.3f s after it opened", pk, seconds)
    if len(_known) > MOST_KNOWN:
        _known.clear()
    _known.update(rows)


def _ours(rows: Mapping[UUID, FirstAcceptance]) -> list[UUID]:
    """The incidents whose row is the one that this process wrote."""
    attempts = [row.attempt_id for row in rows.values()]
    found = FirstAcceptance.objects.filter(pk__in=list(rows), attempt_id__in=attempts)
    return list(found.values_list("pk", flat=True))


def _opened_at(delivery: Delivery) -> datetime:
    """When its incident was opened; not when the message was made, which may be later, after a crash or in a later round."""
    at = delivery.facts.get("opened_at")
    return datetime.fromisoformat(at) if at else delivery.created_at
