"""The moderators' live socket: all active incidents."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from casualmeet import clock
from notifications.live import MODERATION, StateConsumer, changed_rows
from notifications.looks import Event, Seen, State
from notifications.models import Notification
from notifications.rows import Row, newest_of_each
from ops import audit
from ops.models import AuditFinding
from sos.console_access import may_moderate
from sos.models import SosEvent, SosStatus, with_dispatch
from sos.schemas import incident_data

# A resolved incident stays in the state this long, so that its last event is sent even after a gap.
RECENT = timedelta(minutes=2)
MOST = 200
ALARMS = 20


class ModerationConsumer(StateConsumer):
    """/ws/moderation/"""

    kind = "moderation"

    def may_watch(self, user: Any) -> bool:
        """Moderators only."""
        return may_moderate(user)

    def group_of(self, user: Any) -> str:
        """All moderators see the same."""
        return MODERATION

    def read_state(self, users: Sequence[Any]) -> dict[UUID, Seen]:
        """The board, read once for all of them, and each one's own alarms."""
        board = _board()
        ids = [user.pk for user in users]
        alarms = newest_of_each(_alarms, ids, most=ALARMS, whose=0)
        return {pk: _seen(board, alarms.get(pk, [])) for pk in ids}

    def events(self, before: State, after: State) -> list[Event]:
        """The incident events, notification for alarms, and finding or finding_gone for what the auditor found."""
        alarms = [("notification", new) for old, new in changed_rows(before, after, "notifications") if new and not old]
        findings = [
            ("finding", new) if new else ("finding_gone", old or {})
            for old, new in changed_rows(before, after, "findings")
        ]
        return [*incident_events(before, after), *alarms, *findings]


def _board() -> State:
    """The active incidents, those resolved just now, and what the auditor found."""
    incidents = list(SosEvent.objects.active().select_related("person").order_by("-opened_at")[:MOST])
    since = clock.now() - RECENT
    incidents += SosEvent.objects.filter(status=SosStatus.RESOLVED, all_clear_at__gt=since).select_related("person")[
        :MOST
    ]
    findings = AuditFinding.objects.open(since=clock.now() - audit.FRESH)
    return {
        "incidents": [
            {**incident_data(incident), "person_name": incident.person.get_full_name()}
            for incident in with_dispatch(incidents)
        ],
        "findings": [{"id": row.key, "title": row.title, "body": row.body} for row in findings],
    }


def _alarms(ids: Sequence[UUID], limit: int) -> list[Row]:
    unread = Notification.objects.filter(recipient_id__in=ids, kind="alarm", read_at__isnull=True)
    return list(unread.values_list("recipient_id", "pk", "title", "body")[:limit])


def _seen(board: State, alarms: list[Row]) -> Seen:
    mine = [{"id": str(pk), "title": title, "body": body} for _, pk, title, body in alarms]
    state = {"incidents": board["incidents"], "notifications": mine, "findings": board["findings"]}
    return Seen(state, lambda: state)


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
