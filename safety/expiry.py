"""The expiry cycle: every timer past its escalation time becomes exactly one incident, however many workers run,
crash or lag (P1, P2, P3, P14).
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from django.db import connection, models, transaction
from django.db.models import QuerySet

from casualmeet import bulk, clock, logs
from casualmeet.db import has_transactions, is_transient, retry_transient
from notifications import inbox
from ops import metrics
from safety import contacts, positions
from safety.models import MeetingTimer, TimerStatus
from sos import incidents
from sos.models import SosEvent, Source
from sos.triggers import Trigger, person_of

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=models.Model)

BATCH = 500
# Committed first, so that the first alerts of a burst don't wait until a whole batch is written.
VANGUARD = 50
# A row that failed even alone is left out this long, so that it can't fill the head of every batch.
QUARANTINE_SECONDS = 30.0


class Detail(IntEnum):
    """How much of a timer its incident takes over; less where something in it is broken."""

    ALL = 2
    CONTACTS = 1
    NONE = 0


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle did; `full` means that there may be more. `late` has the seconds that each timer was late."""

    processed: int = 0
    incidents_opened: int = 0
    joined: int = 0
    full: bool = False
    late: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def __add__(self, other: "CycleResult") -> "CycleResult":
        return CycleResult(
            self.processed + other.processed,
            self.incidents_opened + other.incidents_opened,
            self.joined + other.joined,
            self.full or other.full,
            (*self.late, *other.late),
        )


@dataclass(slots=True)
class Quarantine:
    """Rows that failed alone, with the time from which each is tried again."""

    until: dict[UUID, float] = field(default_factory=dict)

    def add(self, pk: UUID) -> None:
        """Leave this row out for a while."""
        self.until[pk] = time.monotonic() + QUARANTINE_SECONDS

    def current(self) -> list[UUID]:
        """The rows that are left out now."""
        self.until = {pk: until for pk, until in self.until.items() if until > time.monotonic()}
        return list(self.until)


_quarantine = Quarantine()


def cycle(*, batch: int = BATCH, repairing: bool = True) -> CycleResult:
    """Complete what a crash left half-done (if `repairing`), then expire up to `batch` due timers."""
    repaired = repair() if repairing else CycleResult()
    at_once = connection.features.has_select_for_update_skip_locked
    return repaired + (_expire_at_once(batch) if at_once else _look_and_expire(batch))


def _expire_at_once(batch: int) -> CycleResult:
    """Look, lock and stamp in one statement. Timers that another worker, or a verb of the person, has in hand right now are
    passed over: nobody waits for a lock.
    """
    expired = expire(min(batch, VANGUARD))
    if expired.full and batch > VANGUARD:
        expired = replace(expired, full=False) + expire(batch - VANGUARD)
    return expired


def _look_and_expire(batch: int) -> CycleResult:
    """Look first: on SQLite a transaction keeps all writers waiting, and would mostly for nothing."""
    ids = due_ids(batch, now=clock.now())
    return expire(ids[:VANGUARD]) + expire(ids[VANGUARD:]) + CycleResult(full=len(ids) == batch)


def due_ids(batch: int, *, now: datetime) -> list[UUID]:
    """The timers that are longest past their escalation time."""
    return list(_longest_due(now).values_list("pk", flat=True)[:batch])


def _longest_due(now: datetime) -> QuerySet[MeetingTimer]:
    return MeetingTimer.objects.due(now).exclude(pk__in=_quarantine.current()).order_by("escalates_at")


def next_deadline() -> datetime | None:
    """The earliest escalation time still to come, or passed by a row in quarantine."""
    due = MeetingTimer.objects.live().exclude(pk__in=_quarantine.current())
    # With the key: else SQLite reads the index that has the status too, and the timers of the past with it.
    earliest = due.order_by("escalates_at").values_list("escalates_at", "pk").first()
    return earliest[0] if earliest else None


def expire(chosen: Sequence[UUID] | int) -> CycleResult:
    """Expire those of these timers that are still due, or so many of the longest due, and open or join an incident for each.

    A batch that raises is done again row by row, so that a broken row stands alone (P14).
    """
    if not chosen:
        return CycleResult()
    try:
        result = _announced(_stamp_and_hand_over(chosen))
        return replace(result, full=result.processed == chosen)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("A batch of timers failed; taking them one by one")
    ids = due_ids(chosen, now=clock.now()) if isinstance(chosen, int) else chosen
    total = CycleResult(full=len(ids) == chosen)
    for pk in ids:
        total += _with_what_works(pk, partial(_stamp_and_hand_over, [pk]))
    # Where nothing rolls back, the batch may have been stamped already: then its rows are half-done now.
    return total + repair()


def repair() -> CycleResult:
    """Complete what a crash left half-done: on MongoDB any step may be the last one; on SQL there is nothing to find."""
    total = CycleResult()
    for timer in _left(MeetingTimer.objects.half_done()):
        total += _with_what_works(timer.pk, partial(_hand_over, [timer]))
    for incident in _left(SosEvent.objects.half_open()):
        with logs.about(incident=incident.pk):
            _alone(incident.pk, partial(_complete_opening, incident))
    for incident in _left(SosEvent.objects.half_resolved()):
        with logs.about(incident=incident.pk):
            _alone(incident.pk, partial(_complete_resolving, incident))
    return total


def _left(rows: QuerySet[R]) -> list[R]:
    """Up to a batch of the rows, with their persons. Mostly there are none, which a look at the keys tells cheaply."""
    left_out = _quarantine.current()
    looked_at = rows.exclude(pk__in=left_out) if left_out else rows
    keys = list(looked_at.order_by().values_list("pk", flat=True)[:BATCH])
    return list(rows.filter(pk__in=keys).prefetch_related("person")) if keys else []


@retry_transient
def _stamp_and_hand_over(
    chosen: Sequence[UUID] | int, *, detail: Detail = Detail.ALL
) -> tuple[CycleResult, list[SosEvent]]:
    """The compare-and-swap over the batch, and all that follows for its winners, in one transaction.

    The update looks at the escalation time again: a timer extended since a look-up does not match (P1). On
    MongoDB, where nothing rolls back, a token stays on the row until all is written; `repair` finds it by that.
    """
    with transaction.atomic():
        winners = _stamp(chosen, now=clock.now())
        return _hand_over(winners, detail=detail) if winners else (CycleResult(), [])


def _stamp(chosen: Sequence[UUID] | int, *, now: datetime) -> list[MeetingTimer]:
    """Make those that are still due expired, and return them with their persons."""
    changes = {"status": TimerStatus.EXPIRED, "resolved_at": now}
    if isinstance(chosen, int):
        due = _longest_due(now)[:chosen]
    else:
        due = MeetingTimer.objects.due(now).filter(pk__in=bulk.keys(chosen))
    if has_transactions():
        winners = bulk.take(due, changes)
        models.prefetch_related_objects(winners, "person")
        return winners
    token = uuid4()
    if not due.update(**changes, expiry_token=token):
        return []
    return list(MeetingTimer.objects.filter(expiry_token=token).prefetch_related("person"))


def _hand_over(timers: Sequence[MeetingTimer], *, detail: Detail = Detail.ALL) -> tuple[CycleResult, list[SosEvent]]:
    """Open or join an incident for each expired timer, then take the token off those that have one."""
    alerted = contacts.recipients([timer.person_id for timer in timers if detail and not timer.moderators_only])
    now = clock.now()
    triggers = [(_trigger if detail is Detail.ALL else _bare_trigger)(timer, now=now) for timer in timers]
    triggers = [replace(trigger, recipients=alerted.get(trigger.person.id, ())) for trigger in triggers]
    outcome = incidents.open_or_join(triggers, now=now)
    stamped = [timer.pk for timer in timers if timer.expiry_token]
    if stamped:
        MeetingTimer.objects.filter(pk__in=stamped).update(expiry_token=None)
    late = tuple(max(0.0, ((timer.resolved_at or now) - timer.escalates_at).total_seconds()) for timer in timers)
    counts = CycleResult(len(timers), len(outcome.opened), len(outcome.joined), late=late)
    return counts, [*outcome.opened, *outcome.joined]


def _trigger(timer: MeetingTimer, *, now: datetime) -> Trigger:
    return replace(
        _bare_trigger(timer, now=now),
        place_name=timer.location_name,
        meet_with=timer.meet_with,
        planned_location=timer.meetup_location,
        fix=positions.last_fix(timer),
    )


def _bare_trigger(timer: MeetingTimer, *, now: datetime) -> Trigger:
    """Only what can't be broken: whose timer it is, and when it ran out."""
    return Trigger(
        key=timer.pk,
        person=person_of(timer.person),
        source=Source.TIMER_EXPIRED,
        happened_at=timer.expires_at,
        late_by=max(0, int((now - timer.escalates_at).total_seconds())),
        timer_id=timer.pk,
    )


def _announced(outcome: tuple[CycleResult, list[SosEvent]]) -> CycleResult:
    """After the commit: wake the dispatcher and the live sockets, and measure."""
    counts, touched = outcome
    metrics.EXPIRATIONS.labels("opened").inc(counts.incidents_opened)
    metrics.EXPIRATIONS.labels("joined").inc(counts.joined)
    for seconds in counts.late:
        metrics.LATENESS_SECONDS.observe(seconds)
    counts = replace(counts, late=())
    if touched:
        incidents.announce(touched)
    return counts


def _alone(pk: UUID, work: Callable[[], tuple[CycleResult, list[SosEvent]]]) -> CycleResult:
    """One row's work; a failure is logged, shown to the moderators, and stops nothing else (P14)."""
    try:
        return _announced(work())
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("Row %s failed alone; trying it again in %d s", pk, QUARANTINE_SECONDS)
        _quarantine.add(pk)
        inbox.alarm_moderators(
            key=f"poison:{pk}",
            title="An expired timer could not become an incident",
            body=f"Timer or incident {pk}: {type(error).__name__}. The worker keeps trying; look at its log.",
        )
        return CycleResult()


def _with_what_works(pk: UUID, work: Callable[..., tuple[CycleResult, list[SosEvent]]]) -> CycleResult:
    """With all the timer's details, else with the contacts only: and an incident for the moderators beats none."""
    for detail in (Detail.ALL, Detail.CONTACTS):
        try:
            return _announced(work(detail=detail))
        except Exception as error:
            if is_transient(error):
                raise
            with logs.about(timer=pk):
                logger.exception("Timer %s failed alone with detail %s; trying it with less", pk, detail.name)
    return _alone(pk, partial(work, detail=Detail.NONE))


def _complete_opening(incident: SosEvent) -> tuple[CycleResult, list[SosEvent]]:
    recipients = contacts.recipients([incident.person_id]).get(incident.person_id, ())
    incidents.complete_opening(incident, person=person_of(incident.person), recipients=recipients, now=clock.now())
    return CycleResult(), [incident]


def _complete_resolving(incident: SosEvent) -> tuple[CycleResult, list[SosEvent]]:
    incidents.complete_resolving(incident, now=clock.now())
    return CycleResult(), [incident]
