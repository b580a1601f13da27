"""Deleting what is kept no longer: positions soon after a timer ended well, incidents in two steps, timers.

Each deletion leaves the person a receipt. It is written first, under a key that follows from what is deleted and with
the count of what is there; then the rows go; then the receipt is completed, and only now shown. Where there are
transactions this is one step. Where there are none, a crash in between leaves a receipt that nobody sees, and the next
run completes both: the rows that are left go, and the receipt says what there was at first.

Any number of processes may do it at the same time, broken off anywhere. A row that can't be deleted is left out (P14).
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid5

from django.conf import settings
from django.db import transaction

from casualmeet.db import count_by, delete_in_batches, in_batches, insert_missing, is_transient, retry_transient
from ops.jobs import Run
from safety.models import Deleted, DeletionReceipt, FailSafeAlert, MeetingTimer, Position, TimerStatus, User
from sos import purging
from sos.models import SosEvent

logger = logging.getLogger(__name__)

NAMESPACE = UUID("3b0e6a54-7d0e-4f5a-9d0b-5a7a2f0f6c11")
BATCH = 100
BATCH_INCIDENTS = 20


@dataclass(slots=True)
class Done:
    """What a run did: subjects dealt with, receipts written, subjects left out because they failed."""

    subjects: int = 0
    receipts: int = 0
    failed: int = 0

    def __str__(self) -> str:
        left_out = f", {self.failed} left out (see the log)" if self.failed else ""
        return f"{self.subjects} purged, {self.receipts} receipts{left_out}"


def purge_positions(run: Run, *, now: datetime) -> Done:
    """The positions of timers that ended safe or cancelled, PURGE_POSITIONS_HOURS after the end.

    Those of an expired timer go with the details of its incident. While the person has an active incident, all stay.
    """
    done = _complete(now, Deleted.POSITIONS)
    due = MeetingTimer.objects.ended_by_person().filter(
        traces_gone_at__isnull=True, resolved_at__lte=now - timedelta(hours=settings.PURGE_POSITIONS_HOURS)
    )
    for batch in in_batches(due, by="resolved_at", size=BATCH):
        run.still_mine()
        busy = purging.busy(timer.person_id for timer in batch)
        _purge(Deleted.POSITIONS, [timer for timer in batch if timer.person_id not in busy], done, now=now)
    return done


def purge_timers(run: Run, *, now: datetime) -> Done:
    """Timers, PURGE_TIMERS_DAYS after they ended; an expired one goes with its incident, or here when it has none."""
    done = _complete(now, Deleted.TIMER)
    edge = now - timedelta(days=settings.PURGE_TIMERS_DAYS)
    ended = MeetingTimer.objects.filter(resolved_at__lte=edge)
    # Two look-ups that the index serves: a timer's traces go after its end.
    for due, by in (
        (ended.filter(traces_gone_at__lte=now), "traces_gone_at"),
        (ended.filter(traces_gone_at__isnull=True, status=TimerStatus.EXPIRED), "resolved_at"),
    ):
        for batch in in_batches(due, by=by, size=BATCH):
            run.still_mine()
            busy = purging.busy(timer.person_id for timer in batch)
            expired = [timer.pk for timer in batch if timer.status == TimerStatus.EXPIRED]
            kept = purging.incidents_of(expired)
            _purge(Deleted.TIMER, [t for t in batch if t.person_id not in busy and t.pk not in kept], done, now=now)
    return done


def purge_incidents(run: Run, *, now: datetime) -> Done:
    """What is personal in incidents PURGE_INCIDENT_DETAILS_DAYS after they were resolved; all of them after
    PURGE_INCIDENTS_DAYS, with their timers. Never an active one.
    """
    done = _complete(now, Deleted.INCIDENT_DETAILS, Deleted.INCIDENT)
    closed = SosEvent.objects.closed_before(now - timedelta(days=settings.PURGE_INCIDENT_DETAILS_DAYS))
    over = SosEvent.objects.closed_before(now - timedelta(days=settings.PURGE_INCIDENTS_DAYS))
    for what, due, by in (
        (Deleted.INCIDENT_DETAILS, closed.filter(details_gone_at__isnull=True), "resolved_at"),
        (Deleted.INCIDENT, over.filter(details_gone_at__lte=now), "details_gone_at"),
    ):
        for batch in in_batches(due, by=by, size=BATCH_INCIDENTS):
            run.still_mine()
            _purge(what, batch, done, now=now)
    return done


def purge_receipts(run: Run, *, now: datetime) -> int:
    """The receipts themselves, PURGE_RECEIPTS_DAYS later; returns how many."""
    run.still_mine()
    edge = now - timedelta(days=settings.PURGE_RECEIPTS_DAYS)
    return delete_in_batches(DeletionReceipt.objects.filter(deleted_at__lt=edge))


def receipts_of(person: User, *, most: int) -> list[DeletionReceipt]:
    """What was deleted about the person, the newest first."""
    return list(DeletionReceipt.objects.filter(person=person, deleted_at__isnull=False)[:most])


def receipt_id(what: Deleted, subject_id: UUID) -> UUID:
    """The key of the receipt for deleting this of this subject."""
    return uuid5(NAMESPACE, f"{what.value}:{subject_id}")


def _complete(now: datetime, *kinds: Deleted) -> Done:
    """Finish what a crash broke off; on SQL there is nothing to find."""
    done = Done()
    begun = DeletionReceipt.objects.filter(what__in=kinds, deleted_at__isnull=True)
    for batch in in_batches(begun, by="begun_at", size=BATCH_INCIDENTS):
        for what in kinds:
            rows = [receipt for receipt in batch if receipt.what == what]
            _each(rows, what, partial(_finish, what, now=now), done)
    return done


def _finish(what: Deleted, receipts: Sequence[DeletionReceipt], *, now: datetime) -> int:
    _delete_with_receipts(what, [receipt.subject_id for receipt in receipts], receipts, now=now)
    return len(receipts)


def _purge(what: Deleted, subjects: Sequence[Any], done: Done, *, now: datetime) -> None:
    """A batch of timers or incidents, each with its receipt."""
    _each(subjects, what, partial(_begin, what, now=now), done)


def _begin(what: Deleted, subjects: Sequence[Any], *, now: datetime) -> int:
    receipts = _receipts(what, subjects, now=now)
    _delete_with_receipts(what, [row.pk for row in subjects], receipts, now=now)
    return len(receipts)


def _each(rows: Sequence[Any], what: Deleted, work: Callable[[Sequence[Any]], int], done: Done) -> None:
    """All rows at once; where that fails one by one, so that a broken one stands alone (P14)."""
    if not rows:
        return
    try:
        done.receipts += work(rows)
    except Exception as error:
        if is_transient(error):
            raise
        if len(rows) > 1:
            logger.exception("%d rows could not be purged (%s); taking them one by one", len(rows), what.value)
            for row in rows:
                _each([row], what, work, done)
            return
        logger.exception("%s could not be purged (%s); leaving it out", rows[0].pk, what.value)
        done.failed += 1
    else:
        done.subjects += len(rows)


@retry_transient
def _delete_with_receipts(
    what: Deleted, ids: Sequence[UUID], receipts: Sequence[DeletionReceipt], *, now: datetime
) -> None:
    """In this order; why, see above."""
    with transaction.atomic():
        insert_missing(DeletionReceipt, receipts)
        _DELETE[what](ids, now)
        begun = DeletionReceipt.objects.filter(pk__in=[receipt.pk for receipt in receipts], deleted_at__isnull=True)
        begun.update(deleted_at=now)


def _receipts(what: Deleted, subjects: Sequence[Any], *, now: datetime) -> list[DeletionReceipt]:
    """One for each subject that has something to delete, as it is now."""
    counts = _COUNT[what]([row.pk for row in subjects])
    return [
        DeletionReceipt(
            id=receipt_id(what, row.pk),
            person_id=row.person_id,
            what=what.value,
            subject_id=row.pk,
            count=counts[row.pk],
            period_from=row.started_at if isinstance(row, MeetingTimer) else row.opened_at,
            period_to=row.resolved_at,
            policy=_policy(what),
            begun_at=now,
        )
        for row in subjects
        if counts[row.pk]
    ]


def _policy(what: Deleted) -> str:
    return {
        Deleted.POSITIONS: f"{settings.PURGE_POSITIONS_HOURS} hours after the timer ended",
        Deleted.TIMER: f"{settings.PURGE_TIMERS_DAYS} days after the timer ended",
        Deleted.INCIDENT_DETAILS: f"{settings.PURGE_INCIDENT_DETAILS_DAYS} days after the alarm was closed",
        Deleted.INCIDENT: f"{settings.PURGE_INCIDENTS_DAYS} days after the alarm was closed",
    }[what]


# Counting and deleting, by the ids of timers or incidents


def _count_positions(timer_ids: Sequence[UUID]) -> Counter[UUID]:
    return count_by(Position.objects.filter(timer_id__in=timer_ids), "timer_id")


def _count_timers(timer_ids: Sequence[UUID]) -> Counter[UUID]:
    return Counter(timer_ids) + _count_positions(timer_ids)


def _count_details(incident_ids: Sequence[UUID]) -> Counter[UUID]:
    return purging.count_details(incident_ids) + _count_with(incident_ids, _count_positions)


def _count_incidents(incident_ids: Sequence[UUID]) -> Counter[UUID]:
    return purging.count_all(incident_ids) + _count_with(incident_ids, _count_timers)


def _count_with(incident_ids: Sequence[UUID], count: Callable[[Sequence[UUID]], Counter[UUID]]) -> Counter[UUID]:
    """What the incidents' timers have, summed up for each incident."""
    timers = _timers_of(incident_ids)
    found: Counter[UUID] = Counter()
    for timer_id, number in count(list(timers)).items():
        found[timers[timer_id]] += number
    return found


def _delete_positions(timer_ids: Sequence[UUID], now: datetime) -> None:
    delete_in_batches(Position.objects.filter(timer_id__in=timer_ids))
    MeetingTimer.objects.filter(pk__in=timer_ids).update(last_fix=None, last_fix_at=None, traces_gone_at=now)


def _delete_details(incident_ids: Sequence[UUID], now: datetime) -> None:
    timer_ids = list(_timers_of(incident_ids))
    # What a carrier may still keep must be called back first; that knows when it is done.
    delete_in_batches(FailSafeAlert.objects.filter(timer_id__in=timer_ids, settled=True, next_try_at__isnull=True))
    _delete_positions(timer_ids, now)
    MeetingTimer.objects.filter(pk__in=timer_ids).update(
        location_name="", meetup_location=None, meet_with="", meet_with_user=None, note=""
    )
    purging.forget_details(incident_ids, now=now)


def _delete_timers(timer_ids: Sequence[UUID], _now: datetime) -> None:
    for model in (Position, FailSafeAlert):
        delete_in_batches(model._default_manager.filter(timer_id__in=timer_ids))
    delete_in_batches(MeetingTimer.objects.filter(pk__in=timer_ids))


def _delete_incidents(incident_ids: Sequence[UUID], now: datetime) -> None:
    # First: they are found by what is deleted after them.
    _delete_timers(list(_timers_of(incident_ids)), now)
    purging.delete(incident_ids)


def _timers_of(incident_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """The timers that led to these incidents, each with its incident."""
    person_ids = list(SosEvent.objects.filter(pk__in=incident_ids).order_by().values_list("person_id", flat=True))
    expired = MeetingTimer.objects.filter(person_id__in=person_ids, status=TimerStatus.EXPIRED)
    found = purging.incidents_of(expired.order_by().values_list("pk", flat=True))
    wanted = set(incident_ids)
    return {timer_id: incident_id for timer_id, incident_id in found.items() if incident_id in wanted}


_COUNT: dict[Deleted, Callable[[Sequence[UUID]], Counter[UUID]]] = {
    Deleted.POSITIONS: _count_positions,
    Deleted.TIMER: _count_timers,
    Deleted.INCIDENT_DETAILS: _count_details,
    Deleted.INCIDENT: _count_incidents,
}
_DELETE: dict[Deleted, Callable[[Sequence[UUID], datetime], None]] = {
    Deleted.POSITIONS: _delete_positions,
    Deleted.TIMER: _delete_timers,
    Deleted.INCIDENT_DETAILS: _delete_details,
    Deleted.INCIDENT: _delete_incidents,
}
