"""What the dispatcher benchmarks share: waiting for the outbox, and what the carrier saw."""

import time

from notifications.models import Delivery, DeliveryStatus

LOOK_SECONDS = 0.5


def waiting() -> int:
    """Deliveries that are queued or just being sent."""
    return Delivery.objects.filter(status__in=[DeliveryStatus.QUEUED, DeliveryStatus.SENDING]).count()


def wait_for_accepted(count: int, *, timeout: float) -> None:
    """Wait until carriers have taken this many deliveries in all."""
    deadline = time.monotonic() + timeout
    while (taken := Delivery.objects.filter(status=DeliveryStatus.ACCEPTED).count()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{taken} of {count} deliveries after {timeout:g} s")
        time.sleep(LOOK_SECONDS)
