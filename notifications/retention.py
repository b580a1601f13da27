"""How long jobs (invitations, notices, digests) stay after they are over. What belongs to an incident is never deleted."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from casualmeet.db import retry_transient
from notifications.models import Delivery, DeliveryStatus
from notifications.outbox import TAKEN

KEEP_FINISHED: Final = 1_000
KEEP_FAILED: Final = 5_000
FAILED: Final = [DeliveryStatus.DEAD, DeliveryStatus.CANCELLED]
# Until then the key of a delivery keeps it from being queued twice, and the limits on invitations count it.
YOUNG: Final = timedelta(days=1)
BATCH: Final = 500


def trim(now: datetime) -> int:
    """Delete the jobs that ended more than a day ago, but the last 1,000 that went out and the last 5,000 that did not.

    Their attempts go with them. Returns how many deliveries went. Any number of processes may do it at the same time,
    and it may be broken off anywhere: the next call goes on.
    """
    return _trim(TAKEN, keep=KEEP_FINISHED, now=now) + _trim(FAILED, keep=KEEP_FAILED, now=now)


def _trim(statuses: list[DeliveryStatus], *, keep: int, now: datetime) -> int:
    newest = Delivery.objects.jobs().filter(status__in=statuses, finished_at__isnull=False)
    # One look decides what goes, so that two who trim at once don't take the same excess off twice.
    edge = newest.order_by("-finished_at", "-id").values_list("finished_at", "id")[keep : keep + 1].first()
    if edge is None:
        return 0
    beyond = Q(finished_at__lt=edge[0]) | Q(finished_at=edge[0], id__lte=edge[1])
    old = Delivery.objects.jobs().filter(beyond, status__in=statuses, finished_at__lt=now - YOUNG)
    deleted = 0
    while ids := list(old.values_list("id", flat=True)[:BATCH]):
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
