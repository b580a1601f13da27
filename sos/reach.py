"""Whom an incident's messages have reached, read from what the carriers, the phones and the contacts said."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from notifications import optouts, subscriptions
from notifications.carriers import routing
from notifications.models import Channel, Delivery, DeliveryStatus
from sos.alerts import ALARMS
from sos.models import AlertedContact

# Will leave by itself: another one on the same channel would make two at once. Not what is held: a round that a crash
# cut off leaves it, and the next one drops it.
WAITING = {DeliveryStatus.QUEUED, DeliveryStatus.SENDING}
MAY_HAVE_ARRIVED = {DeliveryStatus.SENDING, DeliveryStatus.ACCEPTED, DeliveryStatus.DELIVERED}
# Came to nothing.
ENDED = {DeliveryStatus.DEAD, DeliveryStatus.CANCELLED}


class Message(NamedTuple):
    """What is known of one delivery."""

    id: UUID
    channel: str
    wave: int
    status: str
    repeat: int
    created_at: datetime
    delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A contact with the alarms they were sent, on all channels."""

    contact: AlertedContact
    messages: tuple[Message, ...] = ()

    @property
    def helping(self) -> bool:
        """They said so."""
        return self.contact.acknowledged_at is not None

    @property
    def answered(self) -> bool:
        """They said something, whatever it was."""
        contact = self.contact
        return bool(contact.acknowledged_at or contact.declined_at or contact.reached_person_at)

    @property
    def reached(self) -> bool:
        """They know: a phone confirmed it, they looked, or they answered. A carrier's "accepted" is no proof (P13)."""
        delivered = any(m.delivered_at or m.status == DeliveryStatus.DELIVERED for m in self.messages)
        return delivered or self.answered or self.contact.opened_at is not None

    @property
    def out_of_reach(self) -> bool:
        """Nothing sent so far has reached them or still may, and a call can't either."""
        if self.reached or any(message.status not in ENDED for message in self.messages):
            return False
        no_call = any(m.channel == Channel.VOICE and m.status == DeliveryStatus.DEAD for m in self.messages)
        return no_call or not can_call(self.contact.phone)

    def waiting_on(self, channel: Channel, *, before_wave: int) -> bool:
        """A message of an earlier wave has not left yet."""
        earlier = (m for m in self.messages if m.wave < before_wave)
        return any(m.channel == channel and m.status in WAITING for m in earlier)

    def repeats_on(self, channel: Channel, *, before_wave: int) -> int:
        """How many of earlier waves may have arrived there (P7: only then is the next one a repeat)."""
        earlier = (m for m in self.messages if m.channel == channel and m.wave < before_wave)
        return max((m.repeat + (m.status in MAY_HAVE_ARRIVED) for m in earlier), default=0)


@dataclass(frozen=True, slots=True)
class Addresses:
    """What the contacts of some incidents can be reached by, beside their numbers."""

    pushes: dict[UUID, list[UUID]]
    stopped: frozenset[str]


def standings(incident_ids: Iterable[UUID]) -> dict[UUID, list[Standing]]:
    """The contacts of each incident that has some, by name; in two queries."""
    ids = list(incident_ids)
    messages: dict[UUID | None, list[Message]] = defaultdict(list)
    rows = Delivery.objects.filter(incident_id__in=ids, kind__in=ALARMS).order_by()
    for recipient_id, *known in rows.values_list("recipient_id", *Message._fields):
        messages[recipient_id].append(Message(*known))
    found: dict[UUID, list[Standing]] = defaultdict(list)
    for contact in AlertedContact.objects.filter(incident_id__in=ids).order_by("name", "pk"):
        found[contact.incident_id].append(Standing(contact, tuple(messages[contact.pk])))
    return found


def addresses_of(known: dict[UUID, list[Standing]]) -> Addresses:
    """The contacts' push subscriptions, and those of their numbers that sent STOP; in two queries."""
    contacts = [standing.contact for found in known.values() for standing in found]
    phones = {contact.phone for contact in contacts}
    pushes = subscriptions.of({contact.contact_id for contact in contacts})
    return Addresses(
        {owner_id: [row.pk for row in rows] for owner_id, rows in pushes.items()}, frozenset(optouts.stopped(phones))
    )


def can_call(phone: str) -> bool:
    """Whether a carrier can ring this number."""
    return bool(routing.route(phone, channel=Channel.VOICE))
