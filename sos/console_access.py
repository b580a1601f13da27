"""Who may see the moderators' console, and who may try a dead letter again."""

from typing import Any

from casualmeet import clock
from notifications import outbox
from notifications.models import Delivery, DeliveryStatus
from sos.alerts import ALARMS
from sos.models import SosEvent


def may_moderate(user: Any) -> bool:
    """Staff with the permission to view incidents."""
    return bool(user.is_active and user.is_staff and user.has_perm("sos.view_sosevent"))


def may_requeue(user: Any) -> bool:
    """Staff with the permission to change deliveries."""
    return bool(user.is_active and user.is_staff and user.has_perm("notifications.change_delivery"))


def worth_requeueing(delivery: Delivery, *, incident_active: bool) -> bool:
    """A dead letter that is still true: nobody is alarmed about a person who is safe, or again once somebody helps."""
    wanted = (incident_active or delivery.kind not in ALARMS) and not delivery.cancel_requested
    return delivery.status == DeliveryStatus.DEAD and wanted


def requeue(delivery: Delivery) -> bool:
    """Try a dead letter again; False when it is none any more, or when its incident is over."""
    if not worth_requeueing(delivery, incident_active=_incident_active(delivery)):
        return False
    done = outbox.requeue_dead(delivery.pk, now=clock.now())
    if delivery.incident_id and delivery.kind in ALARMS and not _incident_active(delivery):
        # Resolved between the two looks: its alarms were cancelled then, but not this one, which was dead.
        outbox.cancel([delivery.incident_id], kinds=ALARMS, now=clock.now())
        return False
    return done


def _incident_active(delivery: Delivery) -> bool:
    return delivery.incident_id is not None and SosEvent.objects.active().filter(pk=delivery.incident_id).exists()
