"""What a contact says about an alert: "I'm helping", "I can't", "I reached them"; and that they looked at it.

Each may be said again after a crash, with the same result, as in `sos.incidents`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Value, When

from casualmeet import clock
from casualmeet.db import retry_transient
from notifications import inbox
from notifications.models import Notification
from sos import escalation, incidents, timeline
from sos.models import AlertedContact, SosEvent, TimelineKind


def acknowledge(contact: AlertedContact) -> bool:
    """A contact says "I'm helping"; False when they had said so before, or the incident is over.

    Their last word counts: somebody who could not help may help after all.
    """
    what = f"{contact.name} is helping."
    changes = {"acknowledged_at": clock.now(), "declined_at": None}
    title = f"{contact.name} is helping you"
    return _hear(contact, TimelineKind.ACKNOWLEDGED, what, changes, title=title, then=escalation.stop)


def decline(contact: AlertedContact) -> bool:
    """A contact says "I can't help"; False when they had said so before, or the incident is over.

    Where they were the only one who helped, the rounds of alerts go on.
    """
    changes = {"declined_at": clock.now(), "acknowledged_at": None}
    return _hear(contact, TimelineKind.DECLINED, f"{contact.name} can't help.", changes, then=escalation.resume)


def report_reached(contact: AlertedContact) -> bool:
    """A contact says "I reached them", and so helps; False when they had said so before, or the incident is over.

    The incident stays active: only the person ends it.
    """
    now = clock.now()
    helping = Case(When(acknowledged_at__isnull=True, then=Value(now)), default=F("acknowledged_at"))
    changes = {"reached_person_at": now, "acknowledged_at": helping, "declined_at": None}
    what = f"{contact.name} has reached the person."
    title = f"{contact.name} says they reached you"
    return _hear(contact, TimelineKind.REACHED, what, changes, title=title, then=escalation.stop)


@retry_transient
def _hear(
    contact: AlertedContact,
    kind: TimelineKind,
    what: str,
    changes: dict[str, Any],
    *,
    then: Callable[..., None],
    title: str = "",
) -> bool:
    """One update, on the first of the fields being empty, decides whether it is news. `title` tells the person.

    After a crash that came between, the same word again completes what follows from it.
    """
    incident = SosEvent.objects.active().filter(pk=contact.incident_id).first()
    if incident is None:
        return False
    said = next(iter(changes))
    mine = AlertedContact.objects.filter(pk=contact.pk)
    with transaction.atomic():
        updated = mine.filter(**{f"{said}__isnull": True}).update(**changes)
        at: datetime | None = mine.values_list(said, flat=True).first()
        if at is not None:
            then(incident.pk, now=clock.now())
            key = f"{kind}:{contact.pk}:{at.isoformat()}"
            timeline.note(incident.pk, kind, what, key=key, at=at)
            if title:
                inbox.post([_word(incident, kind, title, key=key, at=at)])
    if updated:
        incidents.announce([incident])
    return bool(updated)


def _word(incident: SosEvent, kind: TimelineKind, title: str, *, key: str, at: datetime) -> Notification:
    """What a contact said, for the person."""
    return inbox.notice(
        key=key, recipient_id=incident.person_id, kind=kind.value, title=title, now=at, incident_id=incident.pk
    )


@retry_transient
def record_opened(contact: AlertedContact) -> bool:
    """The contact has looked at the alert page, so that the alert reached them; False when that was known."""
    updated = AlertedContact.objects.filter(pk=contact.pk, opened_at__isnull=True).update(opened_at=clock.now())
    if updated:
        incidents.announce([contact.incident])
    return bool(updated)
