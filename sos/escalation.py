"""The escalation ladder: rounds of messages to an incident's contacts until one of them says that they are helping.

The first round, texts and pushes, goes out with the opening. Each later one begins with one compare-and-swap on the
incident's wave and on the time it was due, so that however many workers run, each round goes out once. The due time
stays on the row until all of the round is written: a crash leaves an incident that is still due, and the next look
completes its round under the same keys. Driven by reach, not by what carriers accepted (P13).
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Protocol
from uuid import UUID

from django.db import transaction

from casualmeet import logs
from casualmeet.db import has_transactions, insert_missing, is_transient, retry_transient, unheld
from notifications import inbox, live, outbox, subscriptions, wake
from notifications.models import Channel, Delivery, DeliveryStatus, Priority, PushSubscription
from sos import alerts, timeline
from sos.models import AlertedContact, SosEvent, TimelineEntry, TimelineKind
from sos.reach import Addresses, Standing, addresses_of, standings
from sos.rounds import Move, first_look_at, next_move
from sos.triggers import Person, Recipient

logger = logging.getLogger(__name__)

LIMIT = 200
# An incident whose round failed is looked at again after this long.
POSTPONED = timedelta(seconds=30)
# How far back a look for dead letters goes; older ones are met when the next round is due.
FRESH_DEAD_LETTERS = timedelta(seconds=30)
# The key of the line in the timeline with which a ladder ends that reached somebody, but found nobody who helps.
OVER = "rounds-over"


class Opening(Protocol):
    """An incident just opened, or joined, with those who are alerted."""

    @property
    def incident(self) -> SosEvent:
        """The incident."""

    @property
    def person(self) -> Person:
        """The person in danger."""

    @property
    def recipients(self) -> tuple[Recipient, ...]:
        """Their contacts."""


class Overtaken(Exception):
    """Somebody else changed the incident first."""


def pushes(openings: Sequence[Opening], *, now: datetime) -> list[Delivery]:
    """The first round's pushes, one to each subscription of the contacts; one query, however many openings there are.

    An extra that never costs a text: what fails here is logged and left out.
    """
    contacts = {recipient.contact_id for opening in openings for recipient in opening.recipients}
    subscribed = subscriptions.of(contacts)
    found: list[Delivery] = []
    for opening in openings if subscribed else ():
        try:
            found += _pushes(opening, subscribed, now=now)
        except Exception:
            logger.exception("The pushes of incident %s can't be made", opening.incident.pk)
    return found


def advance_due(now: datetime, limit: int = LIMIT) -> int:
    """Begin the rounds that are due, of up to `limit` incidents; returns at how many something happened.

    A broken incident is put off and holds up no other (P14). Call it in each cycle of a worker, in no transaction.
    """
    incidents = _to_look_at(now, limit)
    if not incidents:
        return 0
    known = standings(incident.pk for incident in incidents)
    addresses = addresses_of(known)
    moves: list[Move] = []
    touched: list[SosEvent] = []
    for incident in incidents:
        try:
            move, done = _look(incident, known.get(incident.pk, []), addresses, now=now)
        except Exception as error:
            if is_transient(error):
                raise
            with logs.about(incident=incident.pk):
                logger.exception("The ladder of incident %s failed; trying again in %s", incident.pk, POSTPONED)
            _put_off(incident, error, now=now)
            continue
        moves += [move] if move else []
        touched += [incident] if done else []
    for _, group in groupby(sorted(moves, key=_alike), key=_alike):
        touched += _begin_all(list(group), now=now)
    if touched:
        _announce(touched)
    return len({incident.pk for incident in touched})


def next_wave() -> datetime | None:
    """When the next incident is due, or was; None while no ladder is under way."""
    earliest: datetime | None = _under_way().order_by("next_wave_at").values_list("next_wave_at", flat=True).first()
    return earliest


def stop(incident_id: UUID, *, now: datetime) -> None:
    """Somebody is helping: no more rounds, and what later rounds have queued is cancelled.

    What is left of the first round still goes out: those contacts have not heard yet, and one helper may not be enough.
    """
    # The incident first: a round that is just beginning holds its row, or finds it changed.
    SosEvent.objects.filter(pk=incident_id, next_wave_at__isnull=False).update(next_wave_at=None)
    outbox.cancel([incident_id], kinds=alerts.ALERTS, now=now, from_wave=2)


def resume(incident_id: UUID, *, now: datetime) -> None:
    """Somebody can't help: where they were the only one who did, the ladder goes on where it stopped."""
    if not AlertedContact.objects.filter(incident_id=incident_id, acknowledged_at__isnull=False).exists():
        SosEvent.objects.active().filter(pk=incident_id, next_wave_at__isnull=True, alerted_at__isnull=False).update(
            next_wave_at=now
        )


def take_up(incident: SosEvent, *, now: datetime) -> None:
    """Another trigger joined the incident: begin the ladder anew where it was over, for contacts who never had one."""
    over = SosEvent.objects.active().filter(pk=incident.pk, next_wave_at__isnull=True, alerted_at__isnull=False)
    if not over.exists():
        return
    contacts = standings([incident.pk]).get(incident.pk, [])
    new = [s for s in contacts if not s.reached and all(message.wave == 1 for message in s.messages)]
    if new and not any(standing.helping for standing in contacts):
        over.update(wave=1, next_wave_at=first_look_at(now, contacts=True), nobody_reached_at=None)


def _under_way() -> Any:
    """Active incidents that have a next round. One whose opening is not complete waits for its repair."""
    return SosEvent.objects.active().filter(next_wave_at__isnull=False, alerted_at__isnull=False)


def _to_look_at(now: datetime, limit: int) -> list[SosEvent]:
    """The incidents that are due longest, and those that have just lost a message."""
    due = _under_way().filter(next_wave_at__lte=now).order_by("next_wave_at")
    keys = list(due.values_list("pk", flat=True)[:limit])
    dead = Delivery.objects.filter(
        status=DeliveryStatus.DEAD,
        priority=Priority.SOS,
        finished_at__gt=now - FRESH_DEAD_LETTERS,
        incident_id__isnull=False,
    )
    losers = set(dead.order_by("-finished_at").values_list("incident_id", flat=True)[:limit])
    if losers:
        keys += _under_way().filter(pk__in=losers, nobody_reached_at__isnull=True).values_list("pk", flat=True)
    return list(SosEvent.objects.filter(pk__in=keys).prefetch_related("person")) if keys else []


def _look(
    incident: SosEvent, contacts: list[Standing], addresses: Addresses, *, now: datetime
) -> tuple[Move | None, bool]:
    """The round to begin, if any; and whether something else happened to the incident."""
    due_at = incident.next_wave_at
    if due_at is None:
        return None, False
    if any(standing.helping for standing in contacts):
        # A crash came between the contact's word and the end of the ladder.
        stop(incident.pk, now=now)
        return None, True
    if not contacts:
        return None, _give_up(incident, contacts, now=now)
    told = False
    if incident.nobody_reached_at is None and all(standing.out_of_reach for standing in contacts):
        told = _tell_moderators(incident, contacts, now=now)
    if due_at > now:
        return None, told
    move = next_move(incident, contacts, addresses, due_at=due_at, now=now)
    return (move, told) if move else (None, _give_up(incident, contacts, now=now) or told)


def _alike(move: Move) -> tuple[int, datetime, int, datetime]:
    """Moves that one compare-and-swap can make."""
    return move.incident.wave, move.due_at, move.wave, move.next_at


def _begin_all(moves: list[Move], *, now: datetime) -> list[SosEvent]:
    """Make these moves; where they fail together, one by one (P14). Returns the incidents that were moved."""
    try:
        return _begin(moves, now=now)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("A round of %d incidents failed; taking them one by one", len(moves))
    moved: list[SosEvent] = []
    for move in moves:
        try:
            moved += _begin([move], now=now)
        except Exception as error:
            if is_transient(error):
                raise
            with logs.about(incident=move.incident.pk):
                logger.exception("The ladder of incident %s failed; trying again in %s", move.incident.pk, POSTPONED)
            _put_off(move.incident, error, now=now)
    return moved


@retry_transient
def _begin(moves: Sequence[Move], *, now: datetime) -> list[SosEvent]:
    """The compare-and-swap over moves that are alike, and all that follows for its winners.

    On SQL that is one transaction. On MongoDB the due time goes last, and what was written is held until another
    look at the incident: it may have been resolved, or somebody may be helping, since.
    """
    wave, due_at, next_at = moves[0].wave, moves[0].due_at, moves[0].next_at
    with transaction.atomic():
        ids = [incident.pk for incident in unheld([move.incident for move in moves])]
        due = SosEvent.objects.active().filter(pk__in=ids, next_wave_at=due_at)
        due.filter(wave=moves[0].incident.wave).update(wave=wave)
        begun = due.filter(wave=wave)
        mine = written = set(begun.values_list("pk", flat=True))
        if not mine:
            return []
        outbox.hold([delivery for move in moves if move.incident.pk in written for delivery in move.deliveries])
        if not has_transactions():
            mine = set(begun.filter(pk__in=written).values_list("pk", flat=True))
        won = [move for move in moves if move.incident.pk in mine]
        outbox.release(mine, wave=wave)
        outbox.drop_held(written, waves=range(2, wave + 1), now=now)
        insert_missing(TimelineEntry, [_entry(move, now=now) for move in won if move.note])
        begun.filter(pk__in=mine).update(next_wave_at=next_at)
    return [move.incident for move in won]


def _entry(move: Move, *, now: datetime) -> TimelineEntry:
    key = f"wave:{move.wave}"
    return timeline.entry(move.incident.pk, TimelineKind.WAVE, move.note, key=key, at=now)


def _give_up(incident: SosEvent, contacts: list[Standing], *, now: datetime) -> bool:
    """The ladder is over and nobody is helping: it is the moderators' turn. False when somebody changed it first."""
    reached = sum(standing.reached for standing in contacts)
    if not reached:
        return _tell_moderators(incident, contacts, now=now, over=True)
    text = f"All rounds are over: {reached} of {len(contacts)} contacts reached, and nobody says that they are helping."
    return _finish(
        incident,
        timeline.entry(incident.pk, TimelineKind.WAVE, text, key=OVER, at=now),
        title="Nobody is helping",
        changes={"next_wave_at": None},
    )


def _tell_moderators(incident: SosEvent, contacts: list[Standing], *, now: datetime, over: bool = False) -> bool:
    """Nobody could be reached, or nobody can be: a task for the moderators."""
    whom = "There is no contact to alert." if not contacts else "No contact was reached."
    text = (
        f"{whom} The moderators are told." if over else "No message can reach a contact now. The moderators are told."
    )
    return _finish(
        incident,
        timeline.entry(incident.pk, TimelineKind.NOBODY_REACHED, text, key=f"nobody-reached:{incident.wave}", at=now),
        title="Nobody reached",
        changes={"nobody_reached_at": incident.nobody_reached_at or now, **({"next_wave_at": None} if over else {})},
    )


@retry_transient
def _finish(incident: SosEvent, entry: TimelineEntry, *, title: str, changes: dict[str, Any]) -> bool:
    """Tell the moderators, then the compare-and-swap: a crash between has it told again, under the same keys."""
    person = incident.person.get_full_name()
    try:
        with transaction.atomic():
            insert_missing(TimelineEntry, [entry])
            inbox.alarm_moderators(
                key=f"ladder:{entry.pk}",
                title=f"{title}: {incident.reference}",
                body=f"{person}, {incident.get_source_display()}. {entry.text} Call the contacts, or the police.",
            )
            mine = SosEvent.objects.active().filter(
                pk=incident.pk, wave=incident.wave, next_wave_at=incident.next_wave_at
            )
            if not mine.update(**changes):
                raise Overtaken
    except Overtaken:
        return False
    return True


def _put_off(incident: SosEvent, error: Exception, *, now: datetime) -> None:
    """One incident's round failed: shown to the moderators and tried again later, while the others go on (P14)."""
    inbox.alarm_moderators(
        key=f"ladder-broken:{incident.pk}",
        title="The contacts of an incident could not be alerted again",
        body=f"Incident {incident.reference}: {type(error).__name__}. Call them; the worker keeps trying.",
    )
    SosEvent.objects.active().filter(pk=incident.pk, next_wave_at=incident.next_wave_at, next_wave_at__lte=now).update(
        next_wave_at=now + POSTPONED
    )


def _announce(incidents: Iterable[SosEvent]) -> None:
    """After the commit: wake the dispatcher and the live sockets."""
    wake.dispatcher()
    live.publish(live.MODERATION, *{live.person_group(incident.person_id) for incident in incidents})


def _pushes(opening: Opening, subscribed: dict[UUID, tuple[PushSubscription, ...]], *, now: datetime) -> list[Delivery]:
    recipients = [recipient for recipient in opening.recipients if recipient.contact_id in subscribed]
    if not recipients:
        return []
    facts = alerts.alert_facts(opening.incident, person=opening.person)
    return [
        alerts.alert_by(opening.incident, contact, channel=Channel.PUSH, address=str(row.pk), facts=facts, now=now)
        for contact in (alerts.alerted_contact(opening.incident, recipient) for recipient in recipients)
        for row in subscribed[contact.contact_id]
    ]
