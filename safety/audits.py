"""What the auditor looks for among timers, and incidents that a crash left half-done."""

import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.conf import settings

from casualmeet import clock
from ops.audit import COUNTED, STAND_IN_SECONDS, Finding, at_most, check, timer_worker_lives
from safety import expiry
from safety.models import MeetingTimer, TimerStatus
from sos.models import SosEvent, TimelineEntry
from sos.triggers import incident_id_for, joined_id_for

logger = logging.getLogger(__name__)

# How far back a lost incident is looked for; and no more than the newest COUNTED of the expired.
LOOK_BACK = timedelta(hours=2)


@check("overdue-timers")
def overdue_timers(now: datetime) -> Iterator[Finding]:
    """Live timers well past their escalation time. Where no timer worker lives, they are expired here."""
    late = now - timedelta(seconds=settings.AUDIT_OVERDUE_SECONDS)
    if not _overdue(late):
        return
    running = timer_worker_lives(now)
    if not running:
        _stand_in()
    left = _overdue(late)
    if left:
        minutes = (clock.now() - left[0]).total_seconds() / 60
        who = "The timer worker runs, but does not get to them" if running else "No timer worker is running"
        yield Finding(
            "overdue-timers",
            "Timers ran out and have raised no alarm",
            f"{at_most(len(left))}, the oldest {minutes:.0f} min ago. {who}: look at its log.",
        )


@check("half-done")
def half_done(now: datetime) -> Iterator[Finding]:
    """Timers and incidents that a crash left half-done, and no worker has completed since. Completed here."""
    since = now - timedelta(seconds=settings.AUDIT_OVERDUE_SECONDS)
    _mark_lost(since)
    if not any(_half_done(since).values()):
        return
    expiry.repair()
    for what, count in _half_done(since).items():
        if count:
            yield Finding(
                f"half-done:{what.replace(' ', '-')}",
                f"{what.capitalize()} are left half-done",
                f"{at_most(count)}; completing them failed. Contacts may not know: look at the incidents, and at the log.",
            )


def _overdue(late: datetime) -> list[datetime]:
    """The escalation times of those that were due by then, the oldest first."""
    due = MeetingTimer.objects.due(late).order_by("escalates_at")
    return [at for at, _ in due.values_list("escalates_at", "pk")[:COUNTED]]


def _stand_in() -> None:
    """What a timer worker would do, for a while: the cycle is made for being run by any number at once (P2)."""
    until = time.monotonic() + STAND_IN_SECONDS
    total = result = expiry.cycle()
    while result.full and time.monotonic() < until:
        result = expiry.cycle()
        total += result
    logger.error("No timer worker is running: the auditor expired %d timers", total.processed)


def _half_done(since: datetime) -> dict[str, int]:
    """How many of each kind have been so since then."""
    rows = {
        "expired timers": MeetingTimer.objects.half_done().filter(resolved_at__lt=since),
        "openings of incidents": SosEvent.objects.half_open().filter(opened_at__lt=since),
        "endings of incidents": SosEvent.objects.half_resolved().filter(resolved_at__lt=since),
    }
    return {what: len(found.order_by().values_list("pk", flat=True)[:COUNTED]) for what, found in rows.items()}


def _mark_lost(since: datetime) -> None:
    """Timers that expired and have no incident (P2), such as after a restored backup, count as half-done again."""
    lost = _without_incident(since)
    if lost:
        logger.error("%d expired timers have no incident; handing them over again", len(lost))
        expired = MeetingTimer.objects.filter(pk__in=lost, status=TimerStatus.EXPIRED, expiry_token__isnull=True)
        expired.update(expiry_token=uuid4())


def _without_incident(since: datetime) -> list[UUID]:
    """The expired that neither opened an incident nor joined one."""
    expired = MeetingTimer.objects.filter(
        status=TimerStatus.EXPIRED,
        escalates_at__gt=since - LOOK_BACK,
        escalates_at__lt=since,
        resolved_at__lt=since,
    )
    newest = expired.order_by("-escalates_at").values_list("pk", "expiry_token")[:COUNTED]
    # Told apart here: a condition on the token would make SQLite read every timer that has none.
    timers = [pk for pk, token in newest if token is None]
    opened = set(SosEvent.objects.filter(pk__in=[incident_id_for(pk) for pk in timers]).values_list("pk", flat=True))
    left = [pk for pk in timers if incident_id_for(pk) not in opened]
    if not left:
        return []
    entries = TimelineEntry.objects.filter(pk__in=[joined_id_for(pk) for pk in left])
    joined = set(entries.values_list("pk", flat=True))
    return [pk for pk in left if joined_id_for(pk) not in joined]
