"""After a restore from a backup: what happened since it was made is not known any more, so moderators decide.

A timer that is overdue may have ended safe, or its alerts may be out already; a message that was queued may have been
sent. Sending it all would alert people again; dropping it could leave somebody alone.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from notifications import inbox
from notifications.claims import LEASE_OVER
from notifications.models import Delivery, DeliveryStatus
from notifications.outbox import PENDING
from safety.models import MeetingTimer
from sos import timeline
from sos.models import SosEvent, TimelineKind

UNFINISHED = [*PENDING, DeliveryStatus.SENDING]
LADDER = "Restored from a backup: whom to alert again is the moderators' decision."


@dataclass(frozen=True, slots=True)
class Held:
    """How many of each were taken out of the machine's hands."""

    timers: int
    incidents: int
    deliveries: int


def hold(now: datetime) -> Held:
    """Leave to the moderators what the machine would do at once. Only while nothing else runs; twice is as once.

    Overdue timers open incidents on the board that alert no contact. The ladders of open incidents stop. What waited
    in the outbox becomes a dead letter, which moderators can send.
    """
    timers = MeetingTimer.objects.due(now).filter(moderators_only=False).update(moderators_only=True)
    ids = _climbing()
    for pk in ids:
        timeline.note(pk, TimelineKind.NOBODY_REACHED, LADDER, key="restored", at=now)
    incidents = SosEvent.objects.filter(pk__in=ids).update(next_wave_at=None, nobody_reached_at=now)
    unfinished = Delivery.objects.filter(status__in=UNFINISHED)
    deliveries = unfinished.update(status=DeliveryStatus.DEAD, finished_at=now, carrier="", **LEASE_OVER)
    if timers or incidents or deliveries:
        inbox.alarm_moderators(
            key=f"restored:{now:%Y-%m-%dT%H:%M:%S}",
            title="The database was restored from a backup",
            body=f"Overdue timers: {timers}. Open incidents: {incidents}. Messages held back: {deliveries}. Look at each: "
            "it may be over, or told already. Send what still counts from its dead letters.",
        )
    return Held(timers, incidents, deliveries)


def _climbing() -> list[UUID]:
    """Incidents whose contacts would be alerted again by themselves."""
    return list(SosEvent.objects.active().filter(next_wave_at__isnull=False).values_list("pk", flat=True))
