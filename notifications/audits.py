"""What the auditor looks for in the outbox."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.conf import settings

from casualmeet import clock
from casualmeet.db import constants
from notifications import wake
from notifications.models import Delivery, DeliveryStatus
from notifications.recovery import recover_leases
from ops.audit import COUNTED, Finding, at_most, check

logger = logging.getLogger(__name__)

# A dispatcher that lives takes over what another left within 2 s of the lease's end.
LEASE_PATIENCE = timedelta(seconds=15)


@check("leases")
def leases(now: datetime) -> Iterator[Finding]:
    """Messages that a dead dispatcher holds and no other has taken over. They are put back into the queue."""
    late = now - LEASE_PATIENCE
    if not Delivery.objects.lease_expired(late).exists():
        return
    while recovered := recover_leases(clock.now()):
        logger.error("The auditor took %d messages back from dispatchers that are gone", recovered)
    left = len(Delivery.objects.lease_expired(late).order_by().values_list("pk", flat=True)[:COUNTED])
    if left:
        yield Finding(
            "leases",
            "Messages are held by dispatchers that are gone",
            f"{at_most(left)}; putting them back failed. Look at the scheduler's log.",
        )


@check("outbox")
def outbox(now: datetime) -> Iterator[Finding]:
    """Messages of an SOS that are due and that no dispatcher takes."""
    late = now - timedelta(seconds=settings.AUDIT_OUTBOX_SECONDS)
    due = Delivery.objects.due(late, urgent=True).filter(status__in=constants([DeliveryStatus.QUEUED.value]))
    waiting = [at for at, _ in due.values_list("next_attempt_at", "pk")[:COUNTED]]
    if waiting:
        wake.dispatcher()
        yield Finding(
            "outbox-sos",
            "Messages of an SOS are not being sent",
            f"{at_most(len(waiting))} wait, the first for {(now - waiting[0]).total_seconds():.0f} s. "
            "Is a dispatcher running, and does it get to the database?",
        )
