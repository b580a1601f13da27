"""The person's live socket: their timer, their incident, their notifications."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q

from casualmeet import clock
from notifications.api import NotificationOut
from notifications.live import StateConsumer, changed_rows, person_group
from notifications.looks import Event, Seen, State
from notifications.models import Notification
from notifications.rows import Row, Table, newest_of_each
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus
from safety.schemas import timer_data
from sos.consumers import incident_events
from sos.models import AlertedContact, SosEvent, with_dispatch
from sos.schemas import incident_data

# What ended stays in the state this long, so that its last event is sent even after a gap.
RECENT = timedelta(minutes=10)
UNREAD = 20
MOST_ENDED = 5

TIMERS = Table(MeetingTimer)
INCIDENTS = Table(SosEvent)
CONTACTS = Table(AlertedContact)
NOTIFICATIONS = Table(Notification)


class PersonConsumer(StateConsumer):
    """/ws/person/"""

    kind = "person"

    def may_watch(self, user: Any) -> bool:
        """Everybody may watch themselves."""
        return True

    def group_of(self, user: Any) -> str:
        """Their own."""
        return person_group(user.pk)

    def read_state(self, users: Sequence[Any]) -> dict[UUID, Seen]:
        """Of each, the newest timers and incidents, and what is unread."""
        since = clock.now() - RECENT
        ids = [user.pk for user in users]
        timers = _timers(ids, since)
        incidents = _incidents(ids, since)
        unread = newest_of_each(_unread, ids, most=UNREAD, whose=NOTIFICATIONS.place("recipient_id"))
        return {pk: _seen(timers.get(pk, []), incidents.get(pk, []), unread.get(pk, [])) for pk in ids}

    def events(self, before: State, after: State) -> list[Event]:
        """timer_updated, timer_expired, the incident events, notification."""
        found: list[Event] = []
        for _old, new in changed_rows(before, after, "timers"):
            if new is not None:
                found.append(("timer_expired" if new["status"] == TimerStatus.EXPIRED else "timer_updated", new))
        found += incident_events(before, after)
        found += [("notification", new) for old, new in changed_rows(before, after, "notifications") if new and not old]
        return found


def _timers(ids: Sequence[UUID], since: datetime) -> dict[UUID, list[Row]]:
    """Of each person the live one, then what ended since."""
    wanted = Q(status__in=LIVE_STATUSES) | Q(resolved_at__gt=since)
    live: dict[UUID, list[Row]] = {}
    ended: dict[UUID, list[Row]] = {}
    for row in TIMERS.read(MeetingTimer.objects.filter(wanted, person_id__in=ids)):
        group = live if TIMERS.value(row, "status") in LIVE_STATUSES else ended
        group.setdefault(TIMERS.value(row, "person_id"), []).append(row)
    for rows in ended.values():
        rows.sort(key=lambda row: TIMERS.value(row, "resolved_at"), reverse=True)
    return {pk: live.get(pk, [])[:1] + ended.get(pk, [])[:MOST_ENDED] for pk in {*live, *ended}}


def _incidents(ids: Sequence[UUID], since: datetime) -> dict[UUID, list[SosEvent]]:
    """Of each person the open one, then what was resolved since."""
    wanted = Q(open_key__isnull=False) | Q(resolved_at__gt=since)
    found: dict[UUID, list[SosEvent]] = {}
    for incident in SosEvent.objects.filter(wanted, person_id__in=ids):
        found.setdefault(incident.person_id, []).append(incident)
    for rows in found.values():
        rows.sort(key=lambda row: (row.open_key is None, -row.resolved_at.timestamp() if row.resolved_at else 0.0))
        del rows[1 + MOST_ENDED :]
    with_dispatch(incident for rows in found.values() for incident in rows)
    return found


def _unread(ids: Sequence[UUID], limit: int) -> list[Row]:
    return NOTIFICATIONS.read(Notification.objects.filter(recipient_id__in=ids, read_at__isnull=True)[:limit])


def _seen(timers: list[Row], incidents: list[SosEvent], unread: list[Row]) -> Seen:
    # Which incident an expired timer led to is written elsewhere: no version of these rows would tell.
    expired = any(TIMERS.value(row, "status") == TimerStatus.EXPIRED for row in timers)
    version = (
        object() if expired else None,
        timers,
        unread,
        [(INCIDENTS.freeze(row), row.dispatch, [CONTACTS.freeze(one) for one in row.contacts]) for row in incidents],
    )
    return Seen(version, lambda: _state(timers, incidents, unread))


def _state(timers: list[Row], incidents: list[SosEvent], unread: list[Row]) -> State:
    return {
        "timers": [timer_data(TIMERS.thaw(row)) for row in timers],
        "incidents": [incident_data(incident) for incident in incidents],
        "notifications": [NotificationOut.from_orm(NOTIFICATIONS.thaw(row)).model_dump() for row in unread],
    }
