"""The person's live socket: their timer, their incident, their notifications."""

from datetime import timedelta
from typing import Any

from casualmeet import clock
from notifications.api import NotificationOut
from notifications.live import Event, State, StateConsumer, changed_rows, person_group
from notifications.models import Notification
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus
from safety.schemas import timer_data
from sos.consumers import incident_events
from sos.models import SosEvent, with_dispatch
from sos.schemas import incident_data

# What ended stays in the state this long, so that its last event is sent even after a gap.
RECENT = timedelta(minutes=10)
UNREAD = 20


class PersonConsumer(StateConsumer):
    """/ws/person/"""

    kind = "person"

    def may_watch(self, user: Any) -> bool:
        """Everybody may watch themselves."""
        return True

    def group_of(self, user: Any) -> str:
        """Their own."""
        return person_group(user.pk)

    def read_state(self, user: Any) -> State:
        """The newest timers and incidents, and what is unread."""
        since = clock.now() - RECENT
        timers = list(MeetingTimer.objects.filter(person_id=user.pk, status__in=LIVE_STATUSES)[:1])
        timers += MeetingTimer.objects.filter(person_id=user.pk, resolved_at__gt=since).order_by("-resolved_at")[:5]
        incidents = list(SosEvent.objects.filter(open_key=user.pk))
        incidents += SosEvent.objects.filter(person_id=user.pk, resolved_at__gt=since).order_by("-resolved_at")[:5]
        unread = Notification.objects.filter(recipient_id=user.pk, read_at__isnull=True)[:UNREAD]
        return {
            "timers": [timer_data(timer) for timer in timers],
            "incidents": [incident_data(incident) for incident in with_dispatch(incidents)],
            "notifications": [NotificationOut.from_orm(row).model_dump() for row in unread],
        }

    def events(self, before: State, after: State) -> list[Event]:
        """timer_updated, timer_expired, the incident events, notification."""
        found: list[Event] = []
        for _old, new in changed_rows(before, after, "timers"):
            if new is not None:
                found.append(("timer_expired" if new["status"] == TimerStatus.EXPIRED else "timer_updated", new))
        found += incident_events(before, after)
        found += [("notification", new) for old, new in changed_rows(before, after, "notifications") if new and not old]
        return found
