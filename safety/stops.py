"""Numbers that stop our texts: whom that concerns is told in the app, since a text can't tell them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from notifications import inbox, live, optouts
from notifications.models import Notification, OptOut
from safety import timers
from safety.models import TrustedContact, User

SOURCE: Final = "reply"
LIMIT: Final = 200


def stop(phone: str, *, word: str, key: str, now: datetime) -> None:
    """The number sent one of the STOP words. The same `key` again tells nobody twice."""
    optouts.stop(phone, SOURCE, now)
    for row in OptOut.objects.filter(phone=phone, told_at__isnull=True):
        _tell(row, now=now)
    people = User.objects.filter(phone=phone, is_active=True)
    _post([_own_notice(person, word=word, key=key, now=now) for person in people])


def start(phone: str, *, key: str, now: datetime) -> None:
    """The number sent START: it gets our texts again."""
    if not optouts.start(phone):
        return
    _post(
        [
            inbox.notice(
                key=f"start:{key}:{contact.pk}",
                recipient_id=contact.person_id,
                kind="notification",
                title=f"{contact.name} gets our texts again",
                now=now,
            )
            for contact in _verified(phone)
        ]
    )


def tell_due(now: datetime) -> int:
    """Tell everybody who relies on a number that stopped our texts; returns at how many numbers something was told.

    A STOP that a carrier tells us of is written down in a room below, which can't tell people itself. Call it in each
    cycle of a worker.
    """
    rows = list(OptOut.objects.filter(told_at__isnull=True)[:LIMIT])
    for row in rows:
        _tell(row, now=now)
    return len(rows)


def next_at() -> datetime | None:
    """When somebody is to be told; None while nobody is."""
    earliest: datetime | None = (
        OptOut.objects.filter(told_at__isnull=True).order_by("stopped_at").values_list("stopped_at", flat=True).first()
    )
    return earliest


def _tell(stopped: OptOut, *, now: datetime) -> None:
    """Those who have the number as a verified contact, once for each time it stopped."""
    _post([_contact_notice(contact, stopped) for contact in _verified(stopped.phone)])
    OptOut.objects.filter(pk=stopped.pk, told_at__isnull=True).update(told_at=now)


def _verified(phone: str) -> list[TrustedContact]:
    return list(TrustedContact.objects.filter(phone=phone, status=TrustedContact.Status.VERIFIED))


def _contact_notice(contact: TrustedContact, stopped: OptOut) -> Notification:
    return inbox.notice(
        key=f"stopped:{contact.pk}:{stopped.stopped_at.isoformat()}",
        recipient_id=contact.person_id,
        kind="sms_stopped",
        title=f"{contact.name} stopped our texts",
        body=(
            "An alarm would not reach them by text. Ask them to send START to the number that our texts come from, "
            "or add another contact."
        ),
        now=stopped.stopped_at,
    )


def _own_notice(person: User, *, word: str, key: str, now: datetime) -> Notification:
    timer = timers.live_timer(person)
    if word == "CANCEL" and timer is not None:
        title = "CANCEL stopped our texts, not your timer"
        body = "Your timer is still running: end it here. To get texts from us again, send START to the same number."
    else:
        title = "You stopped our texts"
        body = (
            "You get no texts from us, also none before a deadline. To get them again, send START to the same number."
        )
    return inbox.notice(
        key=f"stop:{key}:{person.pk}", recipient_id=person.pk, kind="sms_stopped", title=title, body=body, now=now
    )


def _post(notices: Sequence[Notification]) -> None:
    inbox.post(notices)
    people: set[UUID] = {notice.recipient_id for notice in notices}
    live.publish(*map(live.person_group, people))
