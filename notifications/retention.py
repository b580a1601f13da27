"""How long things stay after they are over: jobs (invitations, notices, digests), check prompts, replies, what came in,
what was read. What belongs to an incident stays as long as its incident: `forget` and `delete` are for the rooms above.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from casualmeet.db import count_by, delete_in_batches, has_transactions, retry_transient
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus, InboundText, Notification, Priority
from notifications.outbox import PENDING, TAKEN

KEEP_FINISHED: Final = 1_000
KEEP_FAILED: Final = 5_000
FAILED: Final = [DeliveryStatus.DEAD, DeliveryStatus.CANCELLED]
# Until then the key of a delivery keeps it from being queued twice, and the limits on invitations count it.
YOUNG: Final = timedelta(days=1)
KEEP_PROMPTS: Final = timedelta(days=7)
KEEP_INBOUND: Final = timedelta(days=30)
KEEP_READ: Final = timedelta(days=90)
BATCH: Final = 500


def trim(now: datetime) -> int:
    """Delete the jobs that ended more than a day ago, but the last 1,000 that went out and the last 5,000 that did not.

    Their attempts go with them. Returns how many deliveries went. Any number of processes may do it at the same time,
    and it may be broken off anywhere: the next call goes on.
    """
    return _trim(TAKEN, keep=KEEP_FINISHED, now=now) + _trim(FAILED, keep=KEEP_FAILED, now=now)


def trim_prompts(now: datetime) -> int:
    """Delete the check prompts, and the replies to texts, that ended a week ago; returns how many."""
    prompts = Delivery.objects.filter(priority=Priority.SAFETY, incident_id=None)
    deleted = 0
    for statuses in (TAKEN, FAILED):
        old = prompts.filter(status__in=statuses, finished_at__lt=now - KEEP_PROMPTS)
        deleted += _delete_all(old, statuses)
    if not has_transactions():
        # What a crash left behind, or a person who acted just then: it was never let go.
        held = prompts.filter(status=DeliveryStatus.HELD, created_at__lt=now - KEEP_PROMPTS)
        deleted += delete_in_batches(held)
    return deleted


def trim_inbound(now: datetime) -> int:
    """Delete what came in 30 days ago: no carrier repeats a text so late. Returns how many."""
    return delete_in_batches(InboundText.objects.filter(received_at__lt=now - KEEP_INBOUND))


def trim_read(now: datetime) -> int:
    """Delete the in-app notifications that were read 90 days ago; returns how many."""
    return delete_in_batches(Notification.objects.filter(read_at__lt=now - KEEP_READ))


def count(incident_ids: Iterable[UUID]) -> Counter[UUID]:
    """How many messages each of these incidents has."""
    return count_by(Delivery.objects.filter(incident_id__in=list(incident_ids)), "incident_id")


def forget(incident_ids: Iterable[UUID], *, now: datetime) -> None:
    """Empty the messages of these incidents, which are over: what they said, to which number, what carriers answered.

    What became of each stays. None of them can be sent any more.
    """
    rows = Delivery.objects.filter(incident_id__in=list(incident_ids))
    rows.filter(status__in=PENDING).update(status=DeliveryStatus.CANCELLED, finished_at=now)
    rows.update(cancel_requested=True, facts={}, address="", link="")
    ids = list(rows.order_by().values_list("pk", flat=True))
    for start in range(0, len(ids), BATCH):
        attempts = DeliveryAttempt.objects.filter(delivery_id__in=ids[start : start + BATCH])
        attempts.update(text="", raw="", detail="")


def delete(incident_ids: Iterable[UUID]) -> None:
    """Delete the messages of these incidents with their attempts, and what was said about them in the app."""
    ids = list(incident_ids)
    delete_in_batches(Delivery.objects.filter(incident_id__in=ids))
    delete_in_batches(Notification.objects.filter(incident_id__in=ids))


def _trim(statuses: list[DeliveryStatus], *, keep: int, now: datetime) -> int:
    newest = Delivery.objects.jobs().filter(status__in=statuses, finished_at__isnull=False)
    # One look decides what goes, so that two who trim at once don't take the same excess off twice.
    edge = newest.order_by("-finished_at", "-id").values_list("finished_at", "id")[keep : keep + 1].first()
    if edge is None:
        return 0
    beyond = Q(finished_at__lt=edge[0]) | Q(finished_at=edge[0], id__lte=edge[1])
    old = Delivery.objects.jobs().filter(beyond, status__in=statuses, finished_at__lt=now - YOUNG)
    return _delete_all(old, statuses)


def _delete_all(old: QuerySet[Delivery], statuses: list[DeliveryStatus]) -> int:
    deleted = 0
    while ids := list(old.order_by().values_list("id", flat=True)[:BATCH]):
        deleted += _delete(ids, statuses)
    return deleted


@retry_transient
def _delete(ids: list[UUID], statuses: list[DeliveryStatus]) -> int:
    """Delete those that are still over, and keep a moderator from trying one again while it goes."""
    rows = Delivery.objects.filter(id__in=ids, status__in=statuses)
    with transaction.atomic():
        rows.update(cancel_requested=True)
        _, deleted = rows.delete()
    return deleted.get(Delivery._meta.label, 0)
