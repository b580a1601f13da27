"""What a contact answers to a call by pressing a key, and what the call says next."""

import logging
from typing import Final
from uuid import UUID

from django.conf import settings

from casualmeet import clock
from notifications import inbound, receipts
from notifications.carriers import twiml
from notifications.models import Channel, DeliveryAttempt
from notifications.texts import Ending, compose_ending
from sos import contact_answers
from sos.models import AlertedContact

logger = logging.getLogger(__name__)

HELPING: Final = "1"
CANT_HELP: Final = "2"
MACHINES: Final = ("machine", "fax")


class Replayed(Exception):
    """This key of this call has been dealt with."""


class UnknownCall(Exception):
    """There was no such call, or nobody is asked in it."""


def answer(attempt_id: UUID, *, key: str, answered_by: str = "", said: int = 1) -> str:
    """What the call does next, as TwiML, after a `key` (empty: none in time) and `said` times of the prompt.

    `answered_by` is Twilio's AnsweredBy: `human`, `unknown`, `machine_…`, `fax`, or nothing. A machine is hung up on and
    was not reached, whatever tones it makes. Raises Replayed for a key that was dealt with, and UnknownCall; nothing
    changes then.
    """
    attempt = DeliveryAttempt.objects.select_related("delivery").filter(pk=attempt_id).first()
    contact = _contact(attempt)
    if attempt is None or contact is None:
        logger.warning("A key was pressed in a call that is not known")
        raise UnknownCall
    if answered_by.startswith(MACHINES):
        return twiml.hang_up()
    if key:
        ending = _hear_once(attempt, contact, key=key, said=said)
    else:
        ending = None if contact.incident.active else Ending.SAFE
    if ending is not None:
        return end(ending, contact)
    if said > twiml.MAX_REPEATS:
        return end(Ending.NO_ANSWER, contact)
    action = twiml.action_url(settings.PUBLIC_BASE_URL, attempt_id, said=said + 1)
    return twiml.ask(attempt.text, language=contact.language, action=action)


def end(ending: Ending, contact: AlertedContact) -> str:
    """The last words of a call to the contact."""
    name = contact.incident.person.get_full_name()
    return twiml.say(compose_ending(ending, contact.language, person_name=name), language=contact.language)


def _contact(attempt: DeliveryAttempt | None) -> AlertedContact | None:
    if attempt is None or attempt.delivery.channel != Channel.VOICE or attempt.delivery.recipient_id is None:
        return None
    alerted = AlertedContact.objects.select_related("incident__person")
    return alerted.filter(pk=attempt.delivery.recipient_id).first()


def _hear_once(attempt: DeliveryAttempt, contact: AlertedContact, *, key: str, said: int) -> Ending | None:
    """Each prompt of each call takes one key."""
    now = clock.now()
    row = inbound.take(f"{attempt.pk}:{said}", sender=contact.phone, now=now)
    if row is None:
        raise Replayed
    receipts.reached([attempt.delivery_id], carrier=attempt.carrier, now=now)
    ending = _hear(contact, key=key)
    inbound.finish(row, now=clock.now())
    return ending


def _hear(contact: AlertedContact, *, key: str) -> Ending | None:
    """How the call ends after this key; None when the prompt is to be said again."""
    verb, ending = {
        HELPING: (contact_answers.acknowledge, Ending.HELPING),
        CANT_HELP: (contact_answers.decline, Ending.DECLINED),
    }.get(key, (None, None))
    if verb is not None:
        verb(contact)
    # Looked at after the verb, which does nothing once the incident is over.
    contact.incident.refresh_from_db(fields=["status"])
    return ending if contact.incident.active else Ending.SAFE
