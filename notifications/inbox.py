"""In-app notifications: telling a person something inside the app."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

from django.contrib.auth import get_user_model

from casualmeet import clock
from casualmeet.db import insert_missing
from notifications import live
from notifications.models import Notification
from notifications.outbox import NAMESPACE


def notice(
    *,
    key: str,
    recipient_id: UUID,
    kind: str,
    title: str,
    now: datetime,
    body: str = "",
    incident_id: UUID | None = None,
) -> Notification:
    """An unsaved notification; `key` decides its identity."""
    return Notification(
        id=notice_id(key),
        recipient_id=recipient_id,
        kind=kind,
        title=title[:120],
        body=body[:300],
        incident_id=incident_id,
        created_at=now,
    )


def notice_id(key: str) -> UUID:
    """The identity of a notification: `key` says what it is about."""
    return uuid5(NAMESPACE, f"notice:{key}")


def withdraw(keys: Sequence[str]) -> None:
    """Take notifications back that no longer apply."""
    Notification.objects.filter(pk__in=[notice_id(key) for key in keys]).delete()


def post(notices: Sequence[Notification]) -> None:
    """Write the notifications that are not there yet."""
    insert_missing(Notification, notices)


def alarm_moderators(*, key: str, title: str, body: str) -> None:
    """Tell every moderator about a fault that needs a person; the same key once."""
    now = clock.now()
    staff = get_user_model()._default_manager.filter(is_staff=True, is_active=True)
    post(
        [
            notice(
                key=alarm_key(key, moderator.pk),
                recipient_id=moderator.pk,
                kind="alarm",
                title=title,
                body=body,
                now=now,
            )
            for moderator in staff
        ]
    )
    live.publish(live.MODERATION)


def alarm_key(key: str, moderator_id: UUID) -> str:
    """The key of one moderator's notification of an alarm."""
    return f"{key}:{moderator_id}"


def withdraw_alarm(key: str) -> None:
    """Take an alarm back that no longer holds, from every moderator."""
    staff = get_user_model()._default_manager.filter(is_staff=True).values_list("pk", flat=True)
    withdraw([alarm_key(key, pk) for pk in staff])


def mark_read(notification: Notification) -> bool:
    """Mark it read; False when it was already."""
    now = clock.now()
    updated = Notification.objects.filter(pk=notification.pk, read_at__isnull=True).update(read_at=now)
    if updated:
        notification.read_at = now
        live.publish(live.person_group(notification.recipient_id), live.MODERATION)
    return bool(updated)


def access_notification(person_id: UUID, notification_id: UUID) -> Notification:
    """The person's notification; raises Notification.DoesNotExist when it is missing or somebody else's."""
    return Notification.objects.get(pk=notification_id, recipient_id=person_id)
