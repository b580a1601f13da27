"""What carriers say later about what they accepted, and what follows from it.

Receipts come twice, late, early (before the answer to the call itself is stored) and in any order. So each attempt
keeps only the receipt of the highest rank, by one conditional update, and what follows for its delivery is written by
conditional updates that bear being done again.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Q, Value, When

from casualmeet import logs
from casualmeet.db import has_transactions, retry_transient, storable
from notifications import live, optouts, wake
from notifications.carriers.base import ErrorClass
from notifications.carriers.errors import twilio_error
from notifications.models import FAILED_RECEIPTS, Delivery, DeliveryAttempt, DeliveryStatus
from notifications.retrying import open_carriers, route_of

logger = logging.getLogger(__name__)

# Twilio docs, "Messages resource" (status values) and "Calls resource" (status values); the words of Fast2SMS are
# translated to the first of these. A higher rank replaces a lower one.
MESSAGE_RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("queued", "accepted", "scheduled"), 1),
    "sending": 2,
    "sent": 3,
    **dict.fromkeys(("delivered", "undelivered", "failed", "canceled"), 4),
    "read": 5,
}
# "voicemail" is ours: a call that was completed with a machine.
CALL_RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("queued", "initiated"), 1),
    "ringing": 2,
    "in-progress": 3,
    **dict.fromkeys(("completed", "voicemail", "busy", "no-answer", "failed", "canceled"), 4),
}
FINAL: Final = 4
REACHED: Final = ("delivered", "read")
FAILED: Final = FAILED_RECEIPTS
CALLS: Final = "twilio-voice"

# Where word from the phone ends a delivery. One that is just being sent ends when that call has its answer.
_ENDS: Final = (DeliveryStatus.ACCEPTED, DeliveryStatus.QUEUED, DeliveryStatus.DEAD)


def record(attempt_id: UUID, status: str, *, code: str, carrier: str, now: datetime, message_id: str = "") -> bool:
    """Write down the carrier's word on an attempt, and what follows; False when it changed nothing.

    Nothing changes for an attempt that is not there or is another carrier's, for a word that is not known, and for
    one that does not outrank what is known already; only `delivered` may correct an end of the same rank. `code`
    counts with a failure only: earlier receipts carry stale ones. `message_id` fills in an id that was lost.
    """
    return bool(record_all([attempt_id], status, code=code, carrier=carrier, now=now, message_id=message_id))


@retry_transient
def record_all(
    attempt_ids: Sequence[UUID], status: str, *, code: str, carrier: str, now: datetime, message_id: str = ""
) -> int:
    """The same word on several attempts, as `record`; returns how many it changed."""
    status = status.strip().lower()
    rank = (CALL_RANKS if carrier == CALLS else MESSAGE_RANKS).get(status, 0)
    if not rank:
        logger.warning("A receipt of %s with an unknown status: %.30r", carrier, status)
        return 0
    queued = False
    with transaction.atomic():
        higher = Q(receipt_rank__lt=rank)
        if status == "delivered":
            higher |= Q(receipt__in=[*FAILED, "canceled"])
        changes: dict[str, Any] = {
            "receipt": status,
            "receipt_rank": rank,
            "receipt_code": storable(code)[:40] if status in FAILED else "",
            "receipt_at": now,
            "carrier_message_id": Case(
                When(carrier_message_id="", then=Value(storable(message_id)[:80])), default=F("carrier_message_id")
            ),
        }
        if rank >= FINAL and has_transactions():
            # Where all rolls back together it need not wait until the rest is written: one version less of each row.
            changes["poll_at"] = None
        outranked = DeliveryAttempt.objects.filter(higher, pk__in=attempt_ids, carrier=carrier)
        updated = outranked.update(**changes)
        if not updated:
            return 0
        # What follows bears being done again, so it does no harm that this also finds what had the same word before.
        told = DeliveryAttempt.objects.filter(pk__in=attempt_ids, carrier=carrier, receipt=status)
        attempts = list(told.prefetch_related("delivery"))
        if rank >= FINAL:
            queued = _follow_all(attempts, now=now)
    if queued:
        wake.dispatcher()
    persons = {attempt.delivery.person_id for attempt in attempts}
    live.publish(live.MODERATION, *(live.person_group(person_id) for person_id in persons if person_id))
    return updated


def settle(attempt_ids: Iterable[UUID], *, now: datetime) -> None:
    """Do again what follows from final receipts; call it when an answer was stored that a receipt may have overtaken.

    Also repairs what a crash left half done where there are no transactions. Publishes nothing.
    """
    ids = list(attempt_ids)
    if not ids:
        return
    final = DeliveryAttempt.objects.filter(pk__in=ids, receipt_rank__gte=FINAL)
    _follow_all(list(final.prefetch_related("delivery")), now=now)


def _follow_all(attempts: Sequence[DeliveryAttempt], *, now: datetime) -> bool:
    """What follows from final receipts; True when a delivery waits for another try. May be done again."""
    queued = False
    arrived: dict[str, list[DeliveryAttempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.receipt in REACHED:
            arrived[attempt.carrier].append(attempt)
        elif attempt.receipt in FAILED:
            queued |= _follow_failure(attempt, now=now)
    for carrier, some in arrived.items():
        reached([attempt.delivery_id for attempt in some], carrier=carrier, now=now)
    # Last: until then a crash leaves the attempts to the poll.
    keys = [attempt.pk for attempt in attempts]
    DeliveryAttempt.objects.filter(pk__in=keys, receipt_rank__gte=FINAL, poll_at__isnull=False).update(poll_at=None)
    return queued


def _follow_failure(attempt: DeliveryAttempt, *, now: datetime) -> bool:
    error_class = _error_class(attempt)
    if error_class == "opt_out":
        optouts.stop(attempt.delivery.address, attempt.carrier, now)
    return fail_after_acceptance(attempt.delivery, attempt, error_class, now)


def reached(delivery_ids: Sequence[UUID], *, carrier: str, now: datetime) -> None:
    """They are on the phone, or were heard, whatever else was thought of them: dead, or waiting for another try."""
    Delivery.objects.filter(pk__in=delivery_ids).update(
        status=Case(When(status__in=_ENDS, then=Value(DeliveryStatus.DELIVERED.value)), default=F("status")),
        carrier=Case(When(status__in=_ENDS, then=Value(carrier)), default=F("carrier")),
        finished_at=Case(When(status=DeliveryStatus.QUEUED, then=Value(now)), default=F("finished_at")),
        delivered_at=Case(When(delivered_at__isnull=True, then=Value(now)), default=F("delivered_at")),
    )


def fail_after_acceptance(delivery: Delivery, attempt: DeliveryAttempt, error_class: ErrorClass, now: datetime) -> bool:
    """The carrier gave up on what it had accepted: on to the next one, else it is a dead letter.

    True when it waits for the next carrier. A clean failure: the next text is no repeat (P7). Only for the newest
    attempt, while the delivery, as read before, still counts as accepted through it and was never delivered.
    """
    newest = DeliveryAttempt.objects.filter(delivery=delivery).order_by("-started_at", "-number")
    if newest.values_list("pk", flat=True).first() != attempt.pk:
        return False
    route = [name for name in route_of(delivery, tried=attempt.carrier) if name != attempt.carrier]
    carriers = open_carriers(delivery, route, tries=attempt.number)
    current = Delivery.objects.filter(
        pk=delivery.pk,
        status=DeliveryStatus.ACCEPTED,
        finished_at=delivery.finished_at,
        delivered_at__isnull=True,
    )
    wanted = current.filter(cancel_requested=False)
    # Another carrier has not heard the STOP, but the person who wrote it meant us.
    if carriers and error_class != "opt_out":
        updated = wanted.update(
            status=DeliveryStatus.QUEUED,
            carrier=carriers[0],
            next_attempt_at=now,
            attempt_count=attempt.number,
            finished_at=None,
        )
        if updated:
            return True
    elif wanted.update(status=DeliveryStatus.DEAD, finished_at=now):
        with logs.about(incident=delivery.incident_id, delivery=delivery.pk):
            logger.error("Delivery %s is a dead letter: %s %s", delivery.pk, attempt.receipt, attempt.receipt_code)
        return False
    current.filter(cancel_requested=True).update(status=DeliveryStatus.CANCELLED)
    return False


def _error_class(attempt: DeliveryAttempt) -> ErrorClass:
    code = attempt.receipt_code
    if not attempt.carrier.startswith("twilio") or not (code.isascii() and code.isdigit()):
        return ""
    known = twilio_error(int(code))
    return known[1] if known else ""
