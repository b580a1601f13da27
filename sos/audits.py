"""What the auditor looks for among incidents: that contacts are told, and told again."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from casualmeet import clock
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.outbox import TAKEN
from ops.audit import COUNTED, STAND_IN_SECONDS, Finding, at_most, check, several, timer_worker_lives
from ops.models import Severity
from sos import escalation, rounds, timeline
from sos.models import AlertedContact, SosEvent, TimelineEntry

logger = logging.getLogger(__name__)

CHUNK = 500
# Not the contact's number, but our account: every further message will fail as well.
OUR_FAULT = ("auth", "config")


@check("nobody-told")
def nobody_told(now: datetime) -> Iterator[Finding]:
    """Incidents with messages of which no carrier has taken one. Once the ladder has said so itself, it is known."""
    late = now - timedelta(seconds=settings.AUDIT_UNACCEPTED_SECONDS)
    untold = SosEvent.objects.active().filter(opened_at__lt=late, alerted_at__isnull=False)
    silent: list[tuple[UUID, str]] = []
    for part in _parts(untold.filter(nobody_reached_at__isnull=True)):
        silent += _without_taken(part)
    yield from several(
        [
            Finding(
                f"nobody-told:{pk}",
                f"No carrier has taken a message of incident {reference}",
                "Its contacts know nothing yet: call them. Is a dispatcher running, does a carrier work?",
            )
            for pk, reference in silent
        ],
        key="nobody-told",
        title="No carrier has taken a message of {} more incidents",
    )


@check("ladders")
def ladders(now: datetime) -> Iterator[Finding]:
    """Escalations that stand still. One that lost its next round gets it back; without a timer worker, they move here."""
    late = now - timedelta(seconds=settings.AUDIT_OVERDUE_SECONDS)
    for pk in _stopped(late):
        logger.error("The escalation of incident %s had stopped; it goes on", pk)
        escalation.resume(pk, now=now)
    if not _overdue(late):
        return
    running = timer_worker_lives(now)
    until = time.monotonic() + STAND_IN_SECONDS
    while not running and escalation.advance_due(clock.now()) and time.monotonic() < until:
        logger.error("No timer worker is running: the auditor alerts contacts again")
    left = _overdue(late)
    if left:
        yield Finding(
            "ladders-overdue",
            "Contacts are not alerted again when they should be",
            f"{at_most(left)} incidents wait for their next round. "
            + ("The timer worker does not get to them." if running else "No timer worker is running."),
        )


@check("dead-letters")
def dead_letters(now: datetime) -> Iterator[Finding]:
    """Contacts of active incidents to whom nothing got through, and never will by itself."""
    late = now - timedelta(seconds=settings.AUDIT_UNACCEPTED_SECONDS)
    lost: list[Finding] = []
    for part in _parts(SosEvent.objects.active().filter(opened_at__lt=late)):
        lost += _not_told(part)
    yield from several(lost, key="dead-letters", title="Contacts of {} more incidents could not be told")


def _parts(incidents: QuerySet[SosEvent]) -> Iterator[dict[UUID, str]]:
    """The newest of them with their references, so many at a time that one query can name them."""
    rows = list(incidents.order_by("-opened_at").values_list("pk", "reference")[: 2 * COUNTED])
    for start in range(0, len(rows), CHUNK):
        yield dict(rows[start : start + CHUNK])


def _without_taken(references: dict[UUID, str]) -> list[tuple[UUID, str]]:
    """Those that have messages of which no carrier took any."""
    statuses: dict[UUID | None, set[str]] = defaultdict(set)
    rows = Delivery.objects.filter(incident_id__in=list(references), priority=Priority.SOS)
    for pk, status in rows.order_by().values_list("incident_id", "status").distinct():
        statuses[pk].add(status)
    silent = [
        (pk, reference)
        for pk, reference in references.items()
        if statuses[pk] - {DeliveryStatus.CANCELLED} and statuses[pk].isdisjoint(TAKEN)
    ]
    # A carrier may have taken one and given up on it later: then it was tried.
    taken = _once_taken([pk for pk, _ in silent])
    return [(pk, reference) for pk, reference in silent if pk not in taken]


def _once_taken(incident_ids: Sequence[UUID]) -> set[UUID | None]:
    """Those of them of which a carrier took a message, whatever became of it."""
    rows = Delivery.objects.filter(incident_id__in=incident_ids, attempts__outcome=AttemptOutcome.ACCEPTED)
    return set(rows.order_by().values_list("incident_id", flat=True)) if incident_ids else set()


def _stopped(late: datetime) -> list[UUID]:
    """Active incidents without a next round, though rounds remain and nobody is helping."""
    last = rounds.rounds()[-1].wave
    idle = SosEvent.objects.active().filter(
        next_wave_at__isnull=True, nobody_reached_at__isnull=True, alerted_at__lt=late, wave__lt=last
    )
    ids = list(idle.order_by("-opened_at").values_list("pk", flat=True)[:CHUNK])
    if not ids:
        return []
    helped = AlertedContact.objects.filter(incident__in=ids, acknowledged_at__isnull=False)
    left = set(ids) - set(helped.values_list("incident_id", flat=True))
    # Rounds that were added to the settings since it came to its end are no rounds of its own.
    ends = {timeline.entry_id(pk, escalation.OVER): pk for pk in left}
    over = TimelineEntry.objects.filter(pk__in=list(ends)).values_list("pk", flat=True)
    return sorted(left - {ends[pk] for pk in over})


def _overdue(late: datetime) -> int:
    """How many rounds were due by then."""
    due = SosEvent.objects.active().filter(next_wave_at__lt=late, alerted_at__isnull=False)
    return len(due.order_by().values_list("pk", flat=True)[:COUNTED])


def _not_told(references: dict[UUID, str]) -> list[Finding]:
    """A finding for each of these incidents with contacts of whom every message came to nothing."""
    rows = Delivery.objects.filter(incident_id__in=list(references), priority=Priority.SOS).order_by()
    dead = {pk for pk in rows.filter(status=DeliveryStatus.DEAD).values_list("incident_id", flat=True) if pk}
    standing: dict[UUID, dict[UUID | None, set[str]]] = {pk: defaultdict(set) for pk in sorted(dead)}
    letters: dict[UUID, list[UUID]] = defaultdict(list)
    for pk, incident_id, recipient_id, status in (
        rows.filter(incident_id__in=list(dead)).values_list("pk", "incident_id", "recipient_id", "status")
        if dead
        else ()
    ):
        if incident_id:
            standing[incident_id][recipient_id].add(status)
            letters[incident_id] += [pk] if status == DeliveryStatus.DEAD else []
    over = {DeliveryStatus.DEAD.value, DeliveryStatus.CANCELLED.value}
    found = []
    for pk, contacts in standing.items():
        count = sum(statuses <= over and DeliveryStatus.DEAD in statuses for statuses in contacts.values())
        if count:
            found.append(_undelivered(pk, references[pk], count, letters[pk]))
    return found


def _undelivered(incident_id: UUID, reference: str, count: int, letters: Sequence[UUID]) -> Finding:
    ours = DeliveryAttempt.objects.filter(delivery__in=list(letters), error_class__in=OUR_FAULT).exists()
    return Finding(
        f"dead-letters:{incident_id}",
        f"{count} contact{'s' if count > 1 else ''} of incident {reference} could not be told",
        "Our own account or settings are refused: put that right, then try again."
        if ours
        else "No carrier takes a message to them: call them. The incident's page says why.",
        Severity.CRITICAL if ours else Severity.WARNING,
    )
