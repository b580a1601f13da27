"""The promises P1 to P8, checked over everything that happened: what the people were told, what the database holds, and
what the carriers were asked.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import UUID

from bench.chaos_people import Act
from casualmeet.db import storable
from notifications.models import FAILED_RECEIPTS, AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus, TrustedContact, User
from sos.alerts import ALERTS
from sos.models import AlertedContact, SosEvent, SosStatus, Source, TimelineEntry, TimelineKind
from sos.triggers import incident_id_for, joined_id_for

CALLBACK = re.compile(r"/hooks/twilio/status/([0-9a-f-]{36})")
# How every text and call says that it is not the first.
REPEAT_MARK = re.compile(r"\b\d+(st|nd|rd|th)\b|This is call number \d")
WAITING = {DeliveryStatus.HELD, DeliveryStatus.QUEUED, DeliveryStatus.SENDING}
# The database's clock and the carriers' are one machine's, read by different ways.
CLOCK_SLACK = 0.1
# A bulk message that was claimed this long after an SOS was there, and before it, has overtaken it.
OVERTAKEN_SLACK = 1.0
# The longest that a worker is frozen.
OVERLAP_SECONDS = 60.0
TRIES_SOS = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a carrier for a text or a call; `at` in seconds since 1970."""

    carrier: str
    phone: str
    text: str
    at: float
    taken: bool
    attempt_id: UUID | None


@dataclass
class Findings:
    """What was found. `broken` are sentences, by promise; `checked` says over how many things each was looked at."""

    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    checked: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    sos_seconds: list[float] = field(default_factory=list)
    after_all_clear: list[float] = field(default_factory=list)


class Evidence:
    """Everything that is known, read once."""

    def __init__(self, acts: Sequence[Act], journal: Mapping[str, Any]) -> None:
        self.acts = acts
        self.timers = {row.pk: row for row in MeetingTimer.objects.all()}
        self.incidents = {row.pk: row for row in SosEvent.objects.all()}
        joined = TimelineEntry.objects.filter(kind=TimelineKind.JOINED)
        self.joined = {row.pk: row.incident_id for row in joined}
        self.alerted = list(AlertedContact.objects.all())
        self.numbers = {pk: int(name.removeprefix("person")) for pk, name in User.objects.values_list("pk", "username")}
        self.contacts = list(TrustedContact.objects.filter(status=TrustedContact.Status.VERIFIED))
        self.deliveries = {row.pk: row for row in Delivery.objects.all()}
        self.attempts = {row.pk: row for row in DeliveryAttempt.objects.all()}
        self.messages = sum(entry["author"] == "site" for entry in journal["messages"])
        asked = (r for r in journal["requests"] if r["operation"] == "create")
        self.requests = [_asked(request) for request in asked]

    @cached_property
    def attempts_of(self) -> dict[UUID, list[DeliveryAttempt]]:
        """By delivery, in order."""
        found: dict[UUID, list[DeliveryAttempt]] = defaultdict(list)
        for attempt in sorted(self.attempts.values(), key=lambda a: (a.started_at, a.number)):
            found[attempt.delivery_id].append(attempt)
        return found

    @cached_property
    def matched(self) -> list[tuple[Asked, DeliveryAttempt | None]]:
        """Each request with its attempt. Fast2SMS is not told the attempt's id: there the words and the time tell."""
        by_words: dict[tuple[str, str], list[DeliveryAttempt]] = defaultdict(list)
        for attempt in sorted(self.attempts.values(), key=lambda a: a.started_at):
            delivery = self.deliveries.get(attempt.delivery_id)
            if attempt.carrier == "fast2sms" and delivery is not None:
                by_words[delivery.address, storable(attempt.text)].append(attempt)
        found: list[tuple[Asked, DeliveryAttempt | None]] = []
        for asked in sorted(self.requests, key=lambda r: r.at):
            if asked.attempt_id is not None:
                found.append((asked, self.attempts.get(asked.attempt_id)))
                continue
            candidates = by_words[asked.phone, asked.text]
            fitting = [a for a in candidates if a.started_at.timestamp() <= asked.at + CLOCK_SLACK]
            if fitting:
                candidates.remove(fitting[-1])
            found.append((asked, fitting[-1] if fitting else None))
        return found

    @cached_property
    def requests_of(self) -> dict[UUID, list[tuple[Asked, DeliveryAttempt]]]:
        """By delivery, in order, with their attempts."""
        found: dict[UUID, list[tuple[Asked, DeliveryAttempt]]] = defaultdict(list)
        for asked, attempt in self.matched:
            if attempt is not None:
                found[attempt.delivery_id].append((asked, attempt))
        return found

    def incidents_of(self, timer_id: UUID) -> list[UUID]:
        """The incidents that a timer opened or joined."""
        opened = [incident_id_for(timer_id)] if incident_id_for(timer_id) in self.incidents else []
        joined = self.joined.get(joined_id_for(timer_id))
        return [*opened, *([joined] if joined else [])]


def check(evidence: Evidence) -> Findings:
    """Look at each promise."""
    found = Findings()
    _p1(evidence, found)
    _p2(evidence, found)
    _p3(evidence, found)
    _p4(evidence, found)
    _p5(evidence, found)
    _p6(evidence, found)
    _p7(evidence, found)
    _p8(evidence, found)
    return found


def _p1(evidence: Evidence, found: Findings) -> None:
    """No alert for a deadline that a confirmed check-in, cancellation or extension replaced; none out of nothing."""
    acts: dict[UUID, list[Act]] = defaultdict(list)
    for act in evidence.acts:
        if act.timer is not None and act.outcome != "refused":
            acts[act.timer].append(act)
    for timer_id, done in acts.items():
        timer = evidence.timers.get(timer_id)
        ended = [act for act in done if act.verb in {"safe", "cancel"} and act.outcome == "done"]
        found.checked["P1"] += len([act for act in done if act.outcome == "done" and act.verb != "arm"])
        if timer is None:
            found.broken["P1"].append(f"timer {timer_id}, confirmed to a client, is not in the database")
        elif ended and (evidence.incidents_of(timer_id) or timer.status not in {"safe", "cancelled"}):
            found.broken["P1"].append(
                f"timer {timer_id} was confirmed {ended[0].verb} at {ended[0].answered_at:.3f} and is {timer.status}, "
                f"with incidents {evidence.incidents_of(timer_id)}"
            )
        elif timer.status == TimerStatus.EXPIRED and timer.escalates_at not in _possible_deadlines(done):
            found.broken["P1"].append(f"timer {timer_id} ran out at {timer.escalates_at}, which was replaced: {done}")
    missed = {pk for t in evidence.timers.values() if t.status == "expired" for pk in evidence.incidents_of(t.pk)}
    pressed = {act.incident for act in evidence.acts if act.verb == "sos"}
    perhaps = {act.person for act in evidence.acts if act.verb == "sos" and act.outcome == "unknown"}
    for pk, incident in evidence.incidents.items():
        manual = incident.source == Source.MANUAL and (pk in pressed or evidence.numbers[incident.person_id] in perhaps)
        if pk not in missed and not manual:
            found.broken["P1"].append(f"incident {pk} ({incident.source}) has no cause")
    _p1_phones(evidence, found, missed)


def _p1_phones(evidence: Evidence, found: Findings, missed: set[UUID]) -> None:
    """Every alert that a carrier was asked for belongs to an incident, and a missed check-in to a missed timer."""
    for asked, attempt in evidence.matched:
        delivery = evidence.deliveries.get(attempt.delivery_id) if attempt else None
        if delivery is None or delivery.kind not in ALERTS:
            continue
        incident = evidence.incidents.get(delivery.incident_id) if delivery.incident_id else None
        if incident is None or (delivery.kind == "missed_check_in" and incident.pk not in missed):
            found.broken["P1"].append(f"alert at {asked.at:.3f} to {asked.phone} without a missed timer")
        elif incident.resolved_at is not None and asked.at > incident.resolved_at.timestamp():
            found.after_all_clear.append(asked.at - incident.resolved_at.timestamp())


def _possible_deadlines(acts: Iterable[Act]) -> set[datetime]:
    """The last confirmed one, and those that unanswered requests may have set after it."""
    possible: set[datetime] = set()
    for act in sorted(acts, key=lambda act: act.answered_at):
        if act.deadline is None:
            continue
        possible = {act.deadline} if act.outcome == "done" else possible | {act.deadline}
    return possible


def _p2(evidence: Evidence, found: Findings) -> None:
    """Each missed timer has exactly one incident; no live timer is past its time at the end."""
    now = max((act.answered_at for act in evidence.acts), default=0.0)
    for pk, timer in evidence.timers.items():
        incidents = evidence.incidents_of(pk)
        if timer.status == TimerStatus.EXPIRED:
            found.checked["P2"] += 1
            if len(incidents) != 1:
                found.broken["P2"].append(f"missed timer {pk} has {len(incidents)} incidents")
                continue
            own = evidence.incidents[incidents[0]]
            if own.triggered_timer_id == pk:
                found.late.append((own.opened_at - timer.escalates_at).total_seconds())
                if own.opened_at < timer.escalates_at:
                    found.broken["P2"].append(f"timer {pk} was expired {-found.late[-1]:.3f} s early")
        elif incidents:
            found.broken["P2"].append(f"timer {pk} is {timer.status} and has an incident")
        elif timer.status in LIVE_STATUSES and timer.escalates_at.timestamp() < now:
            found.broken["P2"].append(f"timer {pk} is past its time and {timer.status}")


def _p3(evidence: Evidence, found: Findings) -> None:
    """Each verified contact of each incident has an alert that a carrier took, or that ended for a reason we can name."""
    contacts = Counter(contact.person_id for contact in evidence.contacts)
    alerted = Counter(contact.incident_id for contact in evidence.alerted)
    alerts: dict[tuple[UUID | None, UUID | None], list[Delivery]] = defaultdict(list)
    for delivery in evidence.deliveries.values():
        if delivery.kind in ALERTS:
            alerts[delivery.incident_id, delivery.recipient_id].append(delivery)
    for incident in evidence.incidents.values():
        if alerted[incident.pk] != contacts[incident.person_id]:
            found.broken["P3"].append(
                f"incident {incident.pk} alerted {alerted[incident.pk]} of {contacts[incident.person_id]}"
            )
    for contact in evidence.alerted:
        found.checked["P3"] += 1
        incident = evidence.incidents[contact.incident_id]
        mine = alerts[contact.incident_id, contact.pk]
        if not mine and incident.status == SosStatus.RESOLVED and incident.alerted_at is None:
            # The person said safe before a crash amid the opening was repaired: then nobody is to be alarmed any more.
            continue
        if not any(_reached_or_explained(evidence, delivery, incident) for delivery in mine):
            states = [(delivery.status, delivery.channel, delivery.wave) for delivery in mine]
            found.broken["P3"].append(f"{contact.phone} in incident {incident.pk}: {states or 'no alert'}")


def _reached_or_explained(evidence: Evidence, delivery: Delivery, incident: SosEvent) -> bool:
    if delivery.status in {DeliveryStatus.ACCEPTED, DeliveryStatus.DELIVERED}:
        return any(asked.taken for asked, _ in evidence.requests_of[delivery.pk])
    if delivery.status == DeliveryStatus.CANCELLED:
        return incident.status == SosStatus.RESOLVED
    return delivery.status == DeliveryStatus.DEAD and _why_dead(evidence, delivery) != "no reason"


def _why_dead(evidence: Evidence, delivery: Delivery) -> str:
    attempts = evidence.attempts_of[delivery.pk]
    if any(attempt.receipt in FAILED_RECEIPTS for attempt in attempts):
        return "the carrier took it and gave up"
    if any(attempt.outcome == AttemptOutcome.PERMANENT for attempt in attempts):
        return "every carrier refused it for good"
    return "all tries used up" if len(attempts) >= TRIES_SOS or delivery.priority >= Priority.NORMAL else "no reason"


def _p4(evidence: Evidence, found: Findings) -> None:
    """A person's incidents follow one another."""
    by_person: dict[UUID, list[SosEvent]] = defaultdict(list)
    for incident in evidence.incidents.values():
        by_person[incident.person_id].append(incident)
    for incidents in by_person.values():
        found.checked["P4"] += len(incidents)
        for earlier, later in pairwise(sorted(incidents, key=lambda incident: incident.opened_at)):
            # The time of an opening is read before the row is written, perhaps by a worker that is then frozen; the
            # unique key decides, not the clock. `Crowd.watch` looks at the rows themselves, each second.
            slack = (later.opened_at - earlier.resolved_at).total_seconds() if earlier.resolved_at else None
            if slack is None or slack < -OVERLAP_SECONDS:
                found.broken["P4"].append(f"incidents {earlier.pk} and {later.pk} of one person were active at once")


def _p5(evidence: Evidence, found: Findings) -> None:
    """Before each request stands an attempt, begun earlier; each is of one request only."""
    used: Counter[UUID] = Counter()
    for asked, attempt in evidence.matched:
        found.checked["P5"] += 1
        if attempt is None:
            found.broken["P5"].append(f"request at {asked.at:.3f} to {asked.phone} by {asked.carrier} has no attempt")
        elif attempt.started_at.timestamp() > asked.at + CLOCK_SLACK:
            found.broken["P5"].append(f"attempt {attempt.pk} was begun after its request")
        else:
            used[attempt.pk] += 1
    for pk, count in used.items():
        if count > 1:
            found.broken["P5"].append(f"attempt {pk} made {count} requests")
    taken = sum(asked.taken for asked in evidence.requests)
    if taken != evidence.messages:
        found.broken["P5"].append(f"the carriers took {taken} requests and have {evidence.messages} messages")


def _p6(evidence: Evidence, found: Findings) -> None:
    """Nothing is stuck; what is dead has a reason."""
    for delivery in evidence.deliveries.values():
        found.checked["P6"] += 1
        if delivery.status in WAITING:
            found.broken["P6"].append(f"delivery {delivery.pk} ({delivery.kind}) is still {delivery.status}")
        elif delivery.status == DeliveryStatus.DEAD:
            why = _why_dead(evidence, delivery)
            found.dead[why] += 1
            if why == "no reason":
                found.broken["P6"].append(f"delivery {delivery.pk} is dead for no reason")
    for attempt in evidence.attempts.values():
        if attempt.outcome == AttemptOutcome.OPEN:
            found.broken["P6"].append(f"attempt {attempt.pk} is still open")


def _p7(evidence: Evidence, found: Findings) -> None:
    """A second message of one delivery only after a lost answer (or a "not delivered"), and marked as a repeat."""
    for delivery_id, requests in evidence.requests_of.items():
        found.checked["P7"] += 1
        for (_, before), (asked, after) in pairwise([one for one in requests if one[0].taken]):
            why = _why_again(before, after)
            if why is None:
                found.broken["P7"].append(
                    f"delivery {delivery_id} went out again at {asked.at:.3f} after {before.outcome} ({before.detail})"
                )
            elif why != "the carrier gave up on the first" and not REPEAT_MARK.search(asked.text):
                found.broken["P7"].append(f"delivery {delivery_id} is not marked as a repeat: {asked.text}")
            found.duplicates[why or "no reason"] += 1


def _why_again(before: DeliveryAttempt, after: DeliveryAttempt) -> str | None:
    """Why a message that a carrier took went out again."""
    if before.receipt in FAILED_RECEIPTS:
        return "the carrier gave up on the first"
    if "died" in before.detail:
        return "dispatcher killed, frozen or cut off: its lease ran out"
    if before.outcome == AttemptOutcome.UNKNOWN:
        return "the carrier's answer was lost on the way"
    if before.finished_at is not None and before.finished_at >= after.started_at:
        return "the answer was stored after the lease had run out"
    return None


def _p8(evidence: Evidence, found: Findings) -> None:
    """No bulk message that was claimed after an SOS was there was claimed before it."""
    pressed = {act.incident: act.answered_at for act in evidence.acts if act.verb == "sos" and act.status == 201}
    bulk, claims, requests = _claims(evidence)
    for incident_id, answered_at in pressed.items():
        found.checked["P8"] += 1
        if incident_id in requests:
            found.sos_seconds.append(max(0.0, requests[incident_id] - answered_at))
        claimed = claims.get(incident_id, 0.0)
        overtook = [at for at in bulk if answered_at < at < claimed - OVERTAKEN_SLACK]
        if overtook:
            found.broken["P8"].append(
                f"{len(overtook)} bulk messages were claimed before the SOS of {answered_at:.3f}, "
                f"claimed {claimed - answered_at:.3f} s later"
            )


def _claims(evidence: Evidence) -> tuple[list[float], dict[UUID | None, float], dict[UUID | None, float]]:
    """When bulk messages were claimed; when each SOS first was; when a carrier was first asked for each SOS."""
    bulk: list[float] = []
    claims: dict[UUID | None, float] = {}
    requests: dict[UUID | None, float] = {}
    for delivery in evidence.deliveries.values():
        times = [attempt.started_at.timestamp() for attempt in evidence.attempts_of[delivery.pk]]
        if delivery.priority == Priority.BULK:
            bulk += times
        elif delivery.kind == "sos" and times:
            pk = delivery.incident_id
            claims[pk] = min(times[0], claims.get(pk, times[0]))
            asked = [request.at for request, _ in evidence.requests_of[delivery.pk]]
            requests |= {pk: min(asked[0], requests.get(pk, asked[0]))} if asked else {}
    return bulk, claims, requests


def _asked(request: Mapping[str, Any]) -> Asked:
    fields = request["fields"]
    named = CALLBACK.search(fields.get("StatusCallback", ""))
    return Asked(
        carrier=request["carrier"],
        phone=request["phone"],
        text=fields.get("Body") or fields.get("message") or fields.get("Twiml", ""),
        at=request["at"],
        taken=request["accepted"],
        attempt_id=UUID(named[1]) if named else None,
    )
