"""Texts that come in: from the person (SAFE, MORE, HELP), from a contact who was alerted (1, 2, 3), and STOP and START.

The number says who it is and the words say what is meant. Each text counts once; its body is neither kept nor logged,
since it may hold a PIN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

from casualmeet import clock
from casualmeet.refusal import Refusal
from notifications import inbound, optouts
from notifications.outbox import Addressee
from notifications.texts import Topic, compose_answer
from safety import panic, stops, timers
from safety.models import User
from safety.texted import CONTACT_VERBS, PERSON_VERBS, Texted, Verb, parse
from sos import contact_answers, incidents
from sos.models import AlertedContact

NAMESPACE: Final = UUID("b1b1d6a3-6f5e-4e0e-8b63-55b6a1c7f2d4")
ROUNDS: Final = 3
PIN_TOPICS: Final = {
    "wrong_pin": Topic.WRONG_PIN,
    "pin_required": Topic.PIN_REQUIRED,
    "pin_locked": Topic.PIN_LOCKED,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What is to be answered, and to whom."""

    to: Addressee
    said: str
    person_id: UUID | None = None


def receive(message_id: str, *, sender: str, body: str, opt_out_type: str = "") -> bool:
    """Deal with a text from `sender` (E.164); False when this message was dealt with before, and then nothing changes.

    `opt_out_type` is what the carrier says that it did by itself: STOP, START or HELP.
    """
    now = clock.now()
    row = inbound.take(message_id, sender=sender, now=now)
    if row is None:
        return False
    texted = parse(body)
    if opt_out_type in {"STOP", "START"}:
        texted = Texted(Verb(opt_out_type.lower()), word=texted.word)
    replies = _act(texted, sender=sender, key=message_id, now=now)
    replied = bool(replies) and inbound.may_reply(sender, now=now) and not optouts.stopped([sender])
    if replied:
        for reply in replies:
            inbound.reply(reply.to, reply.said, key=message_id, now=now, person_id=reply.person_id)
    inbound.finish(row, now=clock.now(), replied=replied)
    return True


def _act(texted: Texted, *, sender: str, key: str, now: datetime) -> list[Reply]:
    """Do what the text asks for; what to answer, which is nothing to a number that nobody knows."""
    if texted.verb is Verb.STOP:
        stops.stop(sender, word=texted.word, key=key, now=now)
        return []  # the carrier answers by itself
    if texted.verb is Verb.START:
        stops.start(sender, key=key, now=now)
        return []
    people = list(User.objects.filter(phone=sender, is_active=True).order_by("pk"))
    busy = [person for person in people if timers.live_timer(person) or incidents.active_incident(person.pk)]
    if texted.verb in PERSON_VERBS and people:
        return _from_person(texted, busy or people, live=bool(busy), key=key)
    alerted = incidents.access_alerts(sender, now=now)
    if texted.verb in CONTACT_VERBS.values() or not busy:
        found = _from_contact(texted, alerted)
        if found:
            return found
    return [_to_person(person, Topic.PERSON_USAGE, several=len(busy) > 1) for person in busy]


# The person


def _from_person(texted: Texted, people: Sequence[User], *, live: bool, key: str) -> list[Reply]:
    """Each person with this number who has a timer or an alarm; all of them for HELP when nobody has one."""
    if not live and texted.verb is not Verb.HELP:
        return [_to_person(people[0], Topic.NOTHING_RUNNING)]
    replies = []
    for person in people:
        topic, facts = _do(texted, person, key=key)
        replies.append(_to_person(person, topic, several=len(people) > 1, **facts))
    return replies


def _do(texted: Texted, person: User, *, key: str) -> tuple[Topic, dict[str, Any]]:
    if texted.verb is Verb.SAFE:
        return _safe(person, pin=texted.pin)
    if texted.verb is Verb.MORE:
        return _more(person, minutes=texted.minutes)
    incident, _ = panic.press(person, key=uuid5(NAMESPACE, f"help:{key}:{person.pk}"))
    return Topic.SOS_ON, {"reference": incident.reference}


def _safe(person: User, *, pin: str) -> tuple[Topic, dict[str, Any]]:
    """Ends the timer and the alarm. One of them may turn into the other meanwhile: then look again."""
    ended, closed = False, None
    for _ in range(ROUNDS):
        try:
            timer = timers.live_timer(person)
            if timer is not None:
                timers.check_in(timer, pin=pin)
                ended = True
            incident = incidents.active_incident(person.pk)
            if incident is not None:
                closed = panic.confirm_safe(person, incident, pin=pin)
        except Refusal as refusal:
            if refusal.code in PIN_TOPICS:
                return PIN_TOPICS[refusal.code], {}
            continue
        break
    else:
        return Topic.CHANGED, {}
    if closed is not None:
        return Topic.ALARM_CLOSED, {"reference": closed.reference}
    return (Topic.TIMER_ENDED if ended else Topic.NOTHING_RUNNING), {}


def _more(person: User, *, minutes: int) -> tuple[Topic, dict[str, Any]]:
    timer = timers.live_timer(person)
    if timer is None:
        return (Topic.DUE if incidents.active_incident(person.pk) else Topic.NOTHING_RUNNING), {}
    try:
        extended = timers.extend(timer, minutes=minutes)
    except Refusal as refusal:
        if refusal.code == "bad_minutes":
            return Topic.BAD_MINUTES, {"minutes": timers.MAX_EXTENSION_MINUTES}
        if refusal.code == "too_long":
            return Topic.TOO_LONG, {}
        due = refusal.current is not None and refusal.current.escalates_at <= clock.now()
        return (Topic.DUE if due else Topic.CHANGED), {}
    return Topic.EXTENDED, {"minutes": minutes, "at": extended.expires_at, "time_zone": person.time_zone}


def _to_person(person: User, topic: Topic, *, several: bool = False, **facts: Any) -> Reply:
    """`several` share the number: then the answer says whom it is about."""
    whose = person.display_name if several else ""
    said = compose_answer(topic, person.language, whose=whose, **facts)
    return Reply(Addressee(person.pk, person.display_name, person.phone, person.language), said, person_id=person.pk)


# The contact

VERBS: Final[dict[Verb, tuple[Callable[[AlertedContact], bool], Topic]]] = {
    Verb.HELPING: (contact_answers.acknowledge, Topic.HELPING),
    Verb.REACHED: (contact_answers.report_reached, Topic.REACHED),
    Verb.CANT_HELP: (contact_answers.decline, Topic.DECLINED),
}


def _from_contact(texted: Texted, alerted: Sequence[AlertedContact]) -> list[Reply]:
    """An answer to an alert that is on. After the end it is told for a day that the person is safe (P11)."""
    active = [contact for contact in alerted if contact.incident.active]
    if not active:
        return [_to_contact(contact, Topic.SAFE) for contact in alerted[:1]]
    fitting = [c for c in active if texted.reference in ("", c.incident.reference)]
    if not fitting or (not texted.reference and len({contact.incident_id for contact in fitting}) > 1):
        by_reference = {c.incident.reference: c.incident.person.get_full_name() for c in active}
        return [_to_contact(active[0], Topic.WHICH, alerts=tuple(by_reference.items()))]
    verb, topic = VERBS.get(texted.verb, (None, Topic.CONTACT_USAGE))
    if verb is not None:
        # More than one where they were removed and added again, or where two incidents share a reference.
        for contact in fitting:
            verb(contact)
    first = fitting[0]
    # Looked at after the verb, which does nothing once the incident is over.
    first.incident.refresh_from_db(fields=["status"])
    return [_to_contact(first, topic if first.incident.active else Topic.SAFE)]


def _to_contact(contact: AlertedContact, topic: Topic, **facts: Any) -> Reply:
    incident = contact.incident
    said = compose_answer(
        topic, contact.language, name=incident.person.get_full_name(), reference=incident.reference, **facts
    )
    return Reply(Addressee(contact.pk, contact.name, contact.phone, contact.language), said)
