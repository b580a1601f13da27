"""Taking incidents apart when their time is over: first what is personal in them, later all of them.

Only for incidents that are closed for good (`SosEventQuerySet.closed_before`); when, and what the person is told of it,
the room above decides. Each step may be broken off anywhere and done again; the incident itself goes last, since the
others are found by it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.db.models import Model

from casualmeet.db import count_by, delete_in_batches
from notifications import retention
from notifications.models import Delivery
from sos.models import AlertedContact, SosEvent, TimelineEntry
from sos.triggers import incident_id_for, joined_id_for


def busy(person_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the persons who have an active incident: nothing of theirs is touched."""
    return set(SosEvent.objects.filter(open_key__in=list(person_ids)).values_list("person_id", flat=True))


def incidents_of(keys: Iterable[UUID]) -> dict[UUID, UUID]:
    """The incident that the trigger with each key opened or joined, by key, as far as it is there."""
    wanted = list(keys)
    opened = {incident_id_for(key): key for key in wanted}
    joined = {joined_id_for(key): key for key in wanted}
    entries = TimelineEntry.objects.filter(pk__in=list(joined)).order_by().values_list("pk", "incident_id")
    found = {joined[pk]: incident_id for pk, incident_id in entries}
    for pk in SosEvent.objects.filter(pk__in=list(opened)).order_by().values_list("pk", flat=True):
        found[opened[pk]] = pk
    return found


def count_details(incident_ids: Sequence[UUID]) -> Counter[UUID]:
    """How many records `forget_details` empties, for each incident: itself, its messages, its alerted contacts."""
    return Counter(incident_ids) + retention.count(incident_ids) + _count(AlertedContact, incident_ids)


def forget_details(incident_ids: Sequence[UUID], *, now: datetime) -> None:
    """Empty what is personal: positions, places, the other person, numbers, the words of the messages.

    What happened when, and whom of the contacts it concerned, stays.
    """
    retention.forget(incident_ids, now=now)
    AlertedContact.objects.filter(incident_id__in=incident_ids).update(phone="")
    SosEvent.objects.filter(pk__in=incident_ids).update(
        place_name="",
        meet_with="",
        planned_location=None,
        location=None,
        location_accuracy_m=None,
        location_at=None,
        details_gone_at=now,
    )


def count_all(incident_ids: Sequence[UUID]) -> Counter[UUID]:
    """How many records `delete` deletes, for each incident."""
    return count_details(incident_ids) + _count(TimelineEntry, incident_ids)


def delete(incident_ids: Sequence[UUID]) -> None:
    """Delete the incidents with all their messages, alerted contacts and timelines.

    That a moderator tried a message again stays in the admin's log, but not whom it was to.
    """
    messages = Delivery.objects.filter(incident_id__in=incident_ids).order_by().values_list("pk", flat=True)
    LogEntry.objects.filter(object_id__in=[str(pk) for pk in messages]).update(object_repr="a message")
    retention.delete(incident_ids)
    for model in (AlertedContact, TimelineEntry):
        delete_in_batches(model.objects.filter(incident_id__in=incident_ids))
    delete_in_batches(SosEvent.objects.filter(pk__in=incident_ids))


def _count(model: type[Model], incident_ids: Sequence[UUID]) -> Counter[UUID]:
    return count_by(model._default_manager.filter(incident_id__in=incident_ids), "incident_id")
