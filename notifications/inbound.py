"""What comes in from phones, texts and pressed keys: each counts once, and is answered only so often."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from casualmeet.db import insert_one, retry_transient
from notifications import outbox, wake
from notifications.models import InboundText, Priority
from notifications.texts import AlertFacts, Kind

REPLIES: Final = (5, timedelta(hours=1))
"""Most automatic replies to one number, and in which time."""


@retry_transient
def take(key: str, *, sender: str, now: datetime) -> InboundText | None:
    """Note that it came in; None when it has been handled: then it is a replay.

    One that was noted but not handled (a crash came between) is to be handled now.
    """
    row = InboundText(carrier_message_id=key, sender=sender, received_at=now)
    if insert_one(row):
        return row
    return InboundText.objects.filter(carrier_message_id=key, handled_at__isnull=True).first()


@retry_transient
def finish(row: InboundText, *, now: datetime, replied: bool = False) -> None:
    """It is handled; the same again is a replay."""
    InboundText.objects.filter(pk=row.pk, handled_at__isnull=True).update(handled_at=now, replied=replied)


def may_reply(sender: str, *, now: datetime) -> bool:
    """Whether this number has had fewer automatic replies than the limit."""
    most, period = REPLIES
    return InboundText.objects.filter(sender=sender, received_at__gt=now - period, replied=True).count() < most


def reply(to: outbox.Addressee, said: str, *, key: str, now: datetime, person_id: UUID | None = None) -> None:
    """Queue an automatic reply; the same `key` again queues none."""
    facts = AlertFacts(kind=Kind.REPLY, person_name=to.name, happened_at=now, said=said)
    outbox.queue(
        [
            outbox.text_to(
                to,
                key=f"reply:{key}",
                kind=Kind.REPLY,
                facts=facts.to_json(),
                now=now,
                priority=Priority.SAFETY,
                person_id=person_id,
            )
        ]
    )
    wake.dispatcher()
