"""Numbers that want no texts: kept until they send START. Calls are another matter."""

from collections.abc import Collection
from datetime import datetime

from casualmeet import bulk
from casualmeet.db import insert_one, retry_transient
from notifications import outbox
from notifications.models import OptOut


@retry_transient
def stop(phone: str, source: str, now: datetime) -> bool:
    """Send this number (E.164) no more texts, also none that are queued; False when it had stopped before.

    `source` is `reply`, or the name of the carrier that told us.
    """
    news = insert_one(OptOut(phone=phone, stopped_at=now, source=source[:20]))
    outbox.cancel_texts_to(phone, now=now)
    return news


@retry_transient
def start(phone: str) -> bool:
    """Text this number again; False when it had not stopped."""
    return bool(OptOut.objects.filter(phone=phone).delete()[0])


def stopped(phones: Collection[str]) -> set[str]:
    """Those of the numbers that want no texts."""
    return set(OptOut.objects.filter(phone__in=bulk.words(phones)).values_list("phone", flat=True))
