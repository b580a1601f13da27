"""What the dispatcher benchmarks share: waiting for the outbox, and what the carrier saw."""

import time

from notifications import outbox
from notifications.models import Delivery, DeliveryStatus

LOOK_SECONDS = 0.5


def waiting() -> int:
    """Deliveries that are queued or just being sent."""
    return Delivery.objects.filter(status__in=[DeliveryStatus.QUEUED, DeliveryStatus.SENDING]).count()


def taken() -> int:
    """Deliveries that a carrier has taken; of some it may know already that they arrived."""
    return Delivery.objects.filter(status__in=outbox.TAKEN).count()


def wait_for_accepted(count: int, *, timeout: float) -> None:
    """Wait until carriers have taken this many deliveries in all."""
    deadline = time.monotonic() + timeout
    while (so_far := taken()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{so_far} of {count} deliveries after {timeout:g} s")
        time.sleep(LOOK_SECONDS)
