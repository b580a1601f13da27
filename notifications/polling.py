"""Asking carriers ourselves: what became of a message when no receipt came, and what is left to pay for the next ones.

Any number of processes may do this: each question is claimed by one conditional update on when it is due.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from casualmeet import bulk
from casualmeet.db import has_transactions, insert_missing, is_transient, retry_transient
from notifications import inbox, receipts
from notifications.carriers import fast2sms_status, routing, twilio_status
from notifications.carriers.fast2sms import Fast2SMSCarrier
from notifications.carriers.receipt import Receipt
from notifications.carriers.twilio import TwilioCarrier
from notifications.models import CarrierHealth, DeliveryAttempt

logger = logging.getLogger(__name__)

# After this time without a final receipt a carrier is asked, and again, and once more.
AGES: Final = (timedelta(seconds=90), timedelta(minutes=5), timedelta(minutes=15))
ASKED: Final = ("twilio", "twilio-voice", "fast2sms")
BATCH: Final = 100
AT_ONCE: Final = 10
# After this many seconds a round begins no more questions: the longest takes 25 s, and a worker that is to stop has 45.
ROUND_SECONDS: Final = 15.0

WALLET_EVERY: Final = timedelta(minutes=5)
# Empty: passed over until the next look at the wallet.
EMPTY_WALLET_PAUSE: Final = timedelta(minutes=5)

# No receipt, or one that may still change.
_OPEN: Final = Q(receipt_rank__lt=receipts.FINAL) | Q(receipt__in=receipts.FAILED)


# Runs what asks a carrier, in an event loop whose connections stay open between rounds.
Runner = Callable[[Coroutine[Any, Any, Any]], Any]


def run_once(now: datetime, *, run: Runner) -> int:
    """Ask all that is due now, at most a batch; returns how many messages were asked for. Call it every second or so."""
    asked = poll_due(now, BATCH, run=run)
    check_wallet(now, run=run)
    return asked


def first_poll(carrier: str, now: datetime) -> datetime | None:
    """When to ask for a message that was accepted now; None where nobody can be asked."""
    return now + AGES[0] if carrier in ASKED else None


@retry_transient
def ask_soon(carrier: str, message_ids: Sequence[str], *, now: datetime) -> int:
    """Ask for these messages at the next round; returns how many there are of them."""
    known = DeliveryAttempt.objects.filter(carrier=carrier, carrier_message_id__in=list(message_ids))
    known.filter(_OPEN).update(poll_at=now)
    return known.count()


def poll_due(now: datetime, limit: int, *, run: Runner) -> int:
    """Ask the carriers for up to `limit` messages whose time has come; returns how many were asked for."""
    mine = _claim(limit, now=now)
    # A crash, or a race with the answer to the call, may have left a receipt without what follows from it.
    receipts.settle([attempt.pk for attempt in mine if attempt.receipt_rank >= receipts.FINAL], now=now)
    to_ask = [
        attempt for attempt in mine if attempt.receipt_rank < receipts.FINAL or attempt.receipt in receipts.FAILED
    ]
    if not to_ask:
        return 0
    said: dict[UUID, Receipt | None] = run(_ask_all(to_ask))
    _leave_due([attempt.pk for attempt in to_ask if attempt.pk not in said], now=now)
    alike: dict[tuple[str, Receipt], list[UUID]] = defaultdict(list)
    for attempt in to_ask:
        if (receipt := said.get(attempt.pk)) is not None:
            alike[attempt.carrier, receipt].append(attempt.pk)
    for (carrier, receipt), ids in alike.items():
        _record(ids, receipt, carrier=carrier, now=now)
    return len(said)


@retry_transient
def check_wallet(now: datetime, *, run: Runner) -> None:
    """Every few minutes look what is left at Fast2SMS; tell the moderators before it is too little."""
    carrier = routing.get("fast2sms")
    if not isinstance(carrier, Fast2SMSCarrier) or not _claim_wallet(carrier.name, now=now):
        return
    balance = run(fast2sms_status.wallet(carrier.transport, carrier.headers))
    if balance is None:
        return
    health = CarrierHealth.objects.filter(name=carrier.name)
    health.update(balance=balance)
    if balance <= 0:
        until = now + EMPTY_WALLET_PAUSE
        health.filter(Q(open_until__isnull=True) | Q(open_until__lt=until)).update(open_until=until)
    if balance < settings.FAST2SMS_LOW_BALANCE:
        inbox.alarm_moderators(
            key=f"wallet:{carrier.name}:{now.date()}",
            title="The Fast2SMS wallet is nearly empty" if balance > 0 else "The Fast2SMS wallet is empty",
            body=f"{balance:.2f} rupees are left. Alerts to Indian numbers need it: top it up now.",
        )


@retry_transient
def _claim(limit: int, *, now: datetime) -> list[DeliveryAttempt]:
    """Up to `limit` attempts that are due longest and are now ours: their next poll was moved on.

    On PostgreSQL those that another process has in hand are passed over, so that several ask about different ones.
    """
    due = DeliveryAttempt.objects.filter(poll_at__lte=now)
    if not due.exists():  # mostly; on SQLite a transaction would keep all writers waiting for nothing
        return []
    due = due.prefetch_related("delivery").order_by("poll_at").select_for_update(skip_locked=True, no_key=True)
    with transaction.atomic():
        groups: dict[timedelta | None, list[DeliveryAttempt]] = defaultdict(list)
        for attempt in due[:limit]:
            # By age, so that an extra poll in between leaves the others in place.
            groups[next((step for step in AGES if step > _age(attempt, now)), None)].append(attempt)
        mine: list[DeliveryAttempt] = []
        for step, some in groups.items():
            # At the time of the youngest of them, for all.
            later = None if step is None else now + step - min(_age(attempt, now) for attempt in some)
            mine += _move_on(some, later)
    return mine


def _age(attempt: DeliveryAttempt, now: datetime) -> timedelta:
    return now - (attempt.finished_at or attempt.started_at)


def _move_on(due: Sequence[DeliveryAttempt], later: datetime | None) -> list[DeliveryAttempt]:
    """Those that nobody else moved on. On SQL we hold them all."""
    rows = DeliveryAttempt.objects
    if not has_transactions():
        return [one for one in due if rows.filter(pk=one.pk, poll_at=one.poll_at).update(poll_at=later)]
    rows.filter(pk__in=bulk.keys([one.pk for one in due])).update(poll_at=later)
    return list(due)


@retry_transient
def _leave_due(attempt_ids: Sequence[UUID], *, now: datetime) -> None:
    """Those that a slow carrier left no time for: the next round asks about them."""
    if attempt_ids:
        DeliveryAttempt.objects.filter(_OPEN, pk__in=bulk.keys(attempt_ids)).update(poll_at=now)


def _claim_wallet(name: str, *, now: datetime) -> bool:
    due = CarrierHealth.objects.filter(Q(balance_at__isnull=True) | Q(balance_at__lte=now - WALLET_EVERY), name=name)
    if due.update(balance_at=now):
        return True
    if CarrierHealth.objects.filter(name=name).exists():
        return False
    insert_missing(CarrierHealth, [CarrierHealth(name=name)])
    return bool(due.update(balance_at=now))


def _record(attempt_ids: Sequence[UUID], receipt: Receipt, *, carrier: str, now: datetime) -> None:
    """All at once; where that fails one by one: one that can't be recorded must not keep the others from it (P14)."""
    try:
        receipts.record_all(attempt_ids, receipt.status, code=receipt.code, carrier=carrier, now=now)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("Storing %d receipts failed; storing them one by one", len(attempt_ids))
        for attempt_id in attempt_ids:
            _record_alone(attempt_id, receipt, carrier=carrier, now=now)


def _record_alone(attempt_id: UUID, receipt: Receipt, *, carrier: str, now: datetime) -> None:
    try:
        if not receipts.record(attempt_id, receipt.status, code=receipt.code, carrier=carrier, now=now):
            # Where nothing rolls back, it may be written already, without what follows from it.
            receipts.settle([attempt_id], now=now)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("What the carrier said about attempt %s can't be stored", attempt_id)


async def _ask_all(attempts: Iterable[DeliveryAttempt]) -> dict[UUID, Receipt | None]:
    """What the carriers said, by attempt; those that could not be asked about in time are not in it."""
    slots, time = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop().time
    until = time() + ROUND_SECONDS
    said: dict[UUID, Receipt | None] = {}

    async def ask(attempt: DeliveryAttempt) -> None:
        async with slots:
            if time() < until:
                said[attempt.pk] = await _ask(attempt)

    await asyncio.gather(*map(ask, attempts))
    return said


async def _ask(attempt: DeliveryAttempt) -> Receipt | None:
    # Calls are of the same account as texts.
    carrier = routing.get("twilio" if attempt.carrier.startswith("twilio") else attempt.carrier)
    if isinstance(carrier, TwilioCarrier):
        return await twilio_status.fetch_status(carrier.transport, carrier.auth, attempt.carrier_message_id)
    if isinstance(carrier, Fast2SMSCarrier):
        return await fast2sms_status.fetch_status(
            carrier.transport, carrier.headers, attempt.carrier_message_id, to=attempt.delivery.address
        )
    return None
