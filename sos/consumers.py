"""The moderators' live socket: all active incidents."""

from datetime import timedelta
from typing import Any

from casualmeet import clock
from notifications.live import MODERATION, Event, State, StateConsumer, changed_rows
from notifications.models import Notification
from ops import audit
from ops.models import AuditFinding
from sos.console_access import may_moderate
from sos.models import SosEvent, SosStatus, with_dispatch
from sos.schemas import incident_data

# A resolved incident stays in the state this long, so that its last event is sent even after a gap.
RECENT = timedelta(minutes=2)
MOST = 200


class ModerationConsumer(StateConsumer):
    """/ws/moderation/"""

    kind = "moderation"

    def may_watch(self, user: Any) -> bool:
        """Moderators only."""
        return may_moderate(user)

    def group_of(self, user: Any) -> str:
        """All moderators see the same."""
        return MODERATION

    def read_state(self, user: Any) -> State:
        """The active incidents, those resolved just now, the moderator's own alarms, and what the auditor found."""
        incidents = list(SosEvent.objects.active().select_related("person").order_by("-opened_at")[:MOST])
        since = clock.now() - RECENT
        incidents += SosEvent.objects.filter(status=SosStatus.RESOLVED, all_clear_at__gt=since).select_related(
            "person"
        )[:MOST]
        alarms = Notification.objects.filter(recipient_id=user.pk, kind="alarm", read_at__isnull=True)[:20]
        findings = AuditFinding.objects.open(since=clock.now() - audit.FRESH)
        return {
            "incidents": [
                {**incident_data(incident), "person_name": incident.person.get_full_name()}
                for incident in with_dispatch(incidents)
            ],
            "notifications": [{"id": str(alarm.pk), "title": alarm.title, "body": alarm.body} for alarm in alarms],
            "findings": [{"id": row.key, "title": row.title, "body": row.body} for row in findings],
        }

    def events(self, before: State, after: State) -> list[Event]:
        """The incident events, notification for alarms, and finding or finding_gone for what the auditor found."""
        alarms = [("notification", new) for old, new in changed_rows(before, after, "notifications") if new and not old]
        findings = [
            ("finding", new) if new else ("finding_gone", old or {})
            for old, new in changed_rows(before, after, "findings")
        ]
        return [*incident_events(before, after), *alarms, *findings]


def incident_events(before: State, after: State) -> list[Event]:
    """sos_triggered, sos_updated, sos_resolved."""
    found: list[Event] = []
    for old, new in changed_rows(before, after, "incidents"):
        if new is None:
            continue
        if new["status"] == SosStatus.RESOLVED:
            if old is not None and old["status"] != SosStatus.RESOLVED:
                found.append(("sos_resolved", new))
        else:
            found.append(("sos_updated" if old else "sos_triggered", new))
    return found
