"""When and through which carrier a failed delivery is tried again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome
from notifications.models import FAILED_RECEIPTS, AttemptOutcome, Channel, Delivery, DeliveryAttempt, Priority

# In seconds; the last one repeats. What is about somebody's safety waits a random part of it (full jitter), so that it
# is out as soon as it can be; a job waits all of it: how many calls run at once keeps them from returning together.
BACKOFF_SECONDS = (2, 4, 8, 16, 30, 60, 120)
TRIES_SOS = 10
TRIES_OTHER = 4
RETRY_AFTER_CAP_SOS_SECONDS = 60.0
RETRY_AFTER_CAP_SECONDS = 3600.0
# After an answer was lost and no other carrier is left: gives a late text the time to arrive.
UNKNOWN_DELAY = timedelta(seconds=10)
# Transient failures on one carrier before the other one gets a turn.
TRIES_PER_CARRIER = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The next try: its carrier, its time, and how many earlier sends may have arrived by then."""

    carrier: str
    at: datetime
    repeat: int


def plan(delivery: Delivery, *, carrier: str, answer: Answer, now: datetime) -> Plan | None:
    """What follows the answer of `carrier`; None when nothing is left to try.

    The answer's own attempt must be stored already: carriers that refused are read from the attempts.
    """
    tries = delivery.attempt_count + 1
    left = open_carriers(delivery, route_of(delivery, tried=carrier), tries=tries)
    others = [name for name in left if name != carrier]
    if answer.outcome is Outcome.PERMANENT:
        return Plan(others[0], now, delivery.repeat) if others else None
    if tries >= _tries(delivery) or not left:
        return None
    if answer.outcome is Outcome.UNKNOWN:
        at = now if others else now + UNKNOWN_DELAY
        return Plan(others[0] if others else carrier, at, delivery.repeat + _may_have_arrived(delivery))
    if delivery.priority == Priority.SOS and others and tries < len(left):
        # An SOS does not wait for a carrier while there is one that was not asked yet.
        return Plan(others[0], now, delivery.repeat)
    return Plan(
        _carrier_after_transient(left, carrier=carrier, tries=tries),
        now + _backoff(delivery, tries=tries, retry_after=answer.retry_after),
        delivery.repeat,
    )


def route_of(delivery: Delivery, *, tried: str) -> tuple[str, ...]:
    """The carriers for a delivery that `tried` was tried for: a push goes by its subscription's own service."""
    address = tried if delivery.channel == Channel.PUSH else delivery.address
    return allowed(delivery, routing.route(address, channel=delivery.channel))


def allowed(delivery: Delivery, route: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the route that may take this delivery: all of them, or for a test of one carrier only that one."""
    return tuple(name for name in route if name == delivery.carrier) if delivery.pinned else route


def open_carriers(delivery: Delivery, route: Sequence[str], *, tries: int | None = None) -> list[str]:
    """Those of the route that have not refused this delivery for good, nor accepted it and given up on it."""
    newest = DeliveryAttempt.objects.filter(delivery=delivery).order_by("-started_at", "-number")
    # As many as count: what was refused before a moderator tried a dead letter again does not.
    attempts = newest.values_list("carrier", "outcome", "receipt")[: tries or delivery.attempt_count]
    refused = {
        name for name, outcome, receipt in attempts if outcome == AttemptOutcome.PERMANENT or receipt in FAILED_RECEIPTS
    }
    return [name for name in route if name not in refused]


def _may_have_arrived(delivery: Delivery) -> bool:
    """Not where a receipt that overtook the lost answer says that the carrier gave up: that is a clean failure (P7)."""
    newest = DeliveryAttempt.objects.filter(delivery=delivery).order_by("-started_at", "-number")
    return newest.values_list("receipt", flat=True).first() not in FAILED_RECEIPTS


def _tries(delivery: Delivery) -> int:
    # An all-clear ends a fright: it is as stubborn as the alert was.
    return TRIES_SOS if delivery.priority <= Priority.SAFETY else TRIES_OTHER


def _carrier_after_transient(open_carriers: list[str], *, carrier: str, tries: int) -> str:
    """The same one, except that every third failure gives the next one a turn."""
    if carrier not in open_carriers:
        return open_carriers[0]
    step = 1 if tries % TRIES_PER_CARRIER == 0 else 0
    return open_carriers[(open_carriers.index(carrier) + step) % len(open_carriers)]


def _backoff(delivery: Delivery, *, tries: int, retry_after: float | None) -> timedelta:
    if retry_after is not None:
        cap = RETRY_AFTER_CAP_SOS_SECONDS if delivery.priority == Priority.SOS else RETRY_AFTER_CAP_SECONDS
        return timedelta(seconds=min(max(retry_after, 0.0), cap))
    cap = BACKOFF_SECONDS[min(tries, len(BACKOFF_SECONDS)) - 1]
    if delivery.priority >= Priority.NORMAL:
        return timedelta(seconds=cap)
    return timedelta(seconds=random.uniform(0, cap))
