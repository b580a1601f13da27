"""What the incidents tell Prometheus."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from prometheus_client.metrics_core import Metric

from notifications.models import FirstAcceptance
from notifications.outbox import dispatch_summaries
from ops.metrics import gauge, reading
from sos.models import AlertedContact, SosEvent

MOST: Final = 10_000
# What is looked at closer. In a wave of alarms that is a part of them, which tells as much.
SAMPLE: Final = 1_000
# An alarm that nobody took in a day has rung for a day; the moderators have it.
LOOKED_AT: Final = timedelta(days=1)


@reading("incidents")
def incidents(now: datetime) -> Iterable[Metric]:
    """How many there are, whether somebody helps, and whether a carrier took any of their messages."""
    active = SosEvent.objects.active().order_by()
    yield gauge(
        "incidents_active", "Incidents that are not resolved, up to 10,000.", active.values("pk")[:MOST].count()
    )
    opened = dict(active.values_list("pk", "opened_at")[:SAMPLE])
    contacts = AlertedContact.objects.filter(incident__in=list(opened)).values_list("incident_id", "acknowledged_at")
    alerted: set[UUID] = set()
    helped: set[UUID] = set()
    for pk, acknowledged_at in contacts:
        alerted.add(pk)
        if acknowledged_at is not None:
            helped.add(pk)
    text = "Of 1,000 active incidents, those in which nobody says that they are helping."
    yield gauge("incidents_unacknowledged", text, len(opened) - len(helped))
    waiting = _waiting([pk for pk in alerted if opened[pk] > now - LOOKED_AT])
    ages = [max(0.0, (now - opened[pk]).total_seconds()) for pk in waiting]
    text = "Of 1,000 active incidents with contacts, those of whose messages no carrier took any yet."
    yield gauge("incidents_not_accepted", text, len(ages))
    yield gauge("incidents_not_accepted_oldest_seconds", "Since the first of these was opened.", max(ages, default=0.0))


def _waiting(incident_ids: list[UUID]) -> list[UUID]:
    """Those of which no message was accepted. The outbox is asked too: it knows what was accepted before an upgrade."""
    counted = set(FirstAcceptance.objects.filter(pk__in=incident_ids).values_list("pk", flat=True))
    left = [pk for pk in incident_ids if pk not in counted]
    summaries = dispatch_summaries(left) if left else {}
    return [pk for pk in left if pk not in summaries or not summaries[pk].contacts_notified]
