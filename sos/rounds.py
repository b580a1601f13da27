"""What each round of the escalation ladder sends, to whom and when: decisions only, nothing here writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from notifications.models import Channel, Delivery, DeliveryStatus
from sos import alerts
from sos.models import SosEvent
from sos.reach import Addresses, Standing, can_call
from sos.triggers import person_of

# "Sent" without "delivered" for this long is not reached (carriers.md): what the last round gets before we give up.
PATIENCE = timedelta(seconds=90)
ORDINALS = {2: "Second", 3: "Third", 4: "Fourth", 5: "Fifth"}


@dataclass(frozen=True, slots=True)
class Round:
    """A later round: `after` the opening; `everything` for texts, pushes and calls, else calls only."""

    wave: int
    after: timedelta
    everything: bool


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of an incident that is due: the wave it is in then, what that wave sends, and when the next is due."""

    incident: SosEvent
    due_at: datetime
    wave: int
    next_at: datetime
    deliveries: tuple[Delivery, ...] = ()
    note: str = ""


def rounds() -> list[Round]:
    """The rounds after the first one, as the settings want them."""
    calls = [settings.ESCALATION_CALL_SECONDS, settings.ESCALATION_CALL_AGAIN_SECONDS]
    times = [*calls, *settings.ESCALATION_REALERT_SECONDS]
    return [
        Round(wave, timedelta(seconds=seconds), everything=wave >= 2 + len(calls))
        for wave, seconds in enumerate(times, 2)
    ]


def first_look_at(opened_at: datetime, *, contacts: bool) -> datetime:
    """When the ladder looks at an incident first: at once where nobody can be alerted, else when calls are due."""
    return opened_at + timedelta(seconds=settings.ESCALATION_CALL_SECONDS if contacts else 0)


@dataclass(frozen=True, slots=True)
class Coming:
    """What the ladder does next, in words, and when."""

    what: str
    at: datetime


def coming(incident: SosEvent) -> Coming | None:
    """What comes next; None where nothing does."""
    if not incident.active or incident.next_wave_at is None:
        return None
    following = next((r for r in rounds() if r.wave > incident.wave), None)
    if following is None:
        return Coming("the end of the rounds", incident.next_wave_at)
    what = "alerting and calling all who have not answered" if following.everything else "calling all not reached yet"
    return Coming(what, incident.next_wave_at)


def next_move(
    incident: SosEvent, contacts: list[Standing], addresses: Addresses, *, due_at: datetime, now: datetime
) -> Move | None:
    """The round to begin, or to complete, for an incident due since `due_at`; None when the last one had its time.

    Of several that are overdue only the latest is begun: whoever an earlier one would address, it addresses too.
    """
    ladder = rounds()
    started_at = max([incident.opened_at, *_first_message_at(contacts)])
    due = [r for r in ladder if r.wave > incident.wave and started_at + r.after <= now]
    begun = due[-1] if due else next((r for r in ladder if r.wave == incident.wave), None)
    wave = begun.wave if begun else incident.wave
    deliveries = tuple(_messages(incident, begun, contacts, addresses, now=now)) if begun else ()
    following = next((r for r in ladder if r.wave > wave), None)
    if following is not None:
        next_at = started_at + following.after
        if due:
            # After a late round the next one leaves it some time.
            next_at = max(next_at, now + (following.after - due[-1].after) / 2)
    elif due or not _written(deliveries, contacts):
        next_at = max(started_at + ladder[-1].after, now) + PATIENCE
    else:
        next_at = started_at + ladder[-1].after + PATIENCE
        if next_at <= now:
            return None
    note = _note(incident, begun, deliveries, count=len(contacts)) if begun and deliveries else ""
    return Move(incident, due_at, wave, next_at, deliveries, note)


def _first_message_at(contacts: list[Standing]) -> list[datetime]:
    """When the first alert was written: after the opening, where a later trigger brought the contacts."""
    moments = [message.created_at for standing in contacts for message in standing.messages]
    return [min(moments)] if moments else []


def _written(deliveries: Iterable[Delivery], contacts: list[Standing]) -> bool:
    """Whether all of these are in the outbox and released."""
    known = {m.id for s in contacts for m in s.messages if m.status != DeliveryStatus.HELD}
    return all(delivery.pk in known for delivery in deliveries)


def _messages(
    incident: SosEvent, begun: Round, contacts: list[Standing], addresses: Addresses, *, now: datetime
) -> list[Delivery]:
    """What a round sends: calls to those not reached; a re-alert on every channel to those who have not answered."""
    facts = alerts.alert_facts(incident, person=person_of(incident.person))
    found: list[Delivery] = []
    for standing in contacts:
        if standing.answered or (standing.reached and not begun.everything):
            continue
        contact = standing.contact
        channels: list[tuple[Channel, str]] = []
        if begun.everything and contact.phone not in addresses.stopped:
            channels.append((Channel.SMS, contact.phone))
        if begun.everything:
            channels += [(Channel.PUSH, str(pk)) for pk in addresses.pushes.get(contact.contact_id, [])]
        if can_call(contact.phone):
            channels.append((Channel.VOICE, contact.phone))
        for channel, address in channels:
            if standing.waiting_on(channel, before_wave=begun.wave):
                continue
            of_round = {"wave": begun.wave, "repeat": standing.repeats_on(channel, before_wave=begun.wave)}
            found.append(
                alerts.alert_by(incident, contact, channel=channel, address=address, facts=facts, now=now, **of_round)
            )
    return found


def _note(incident: SosEvent, begun: Round, deliveries: Sequence[Delivery], *, count: int) -> str:
    """For the timeline: whom the round addresses."""
    addressed = len({delivery.recipient_id for delivery in deliveries})
    whose = f"{incident.person.get_full_name()}'s {count} contact{'s' if count > 1 else ''}"
    whom = whose if addressed == count else f"{addressed} of {whose}"
    what = f"alerting {whom} again" if begun.everything else f"calling {whom}"
    which = f"{ORDINALS[begun.wave]} round" if begun.wave in ORDINALS else f"Round {begun.wave}"
    return f"{which}: {what}."
