"""The words of a delivery, composed at the moment of sending: they tell the age of the position, and what is a repeat."""

from datetime import datetime
from uuid import UUID

from notifications import texts
from notifications.carriers import routing
from notifications.carriers.base import OutgoingMessage, PushTarget
from notifications.models import Channel, Delivery


def message_for(
    delivery: Delivery, *, carrier: str, attempt_id: UUID, now: datetime, target: PushTarget | None = None
) -> OutgoingMessage:
    """What `carrier` is to send for this delivery; a push goes to `target`.

    Raises whatever its facts are broken enough to raise.
    """
    facts = texts.AlertFacts.from_json(delivery.facts)
    text, variables = _words(delivery, facts, carrier=carrier, now=now)
    return OutgoingMessage(
        to=delivery.address,
        text=text,
        kind=delivery.kind,
        variables=variables,
        language=delivery.language,
        attempt_id=attempt_id,
        channel=delivery.channel,
        link=delivery.link,
        reference=facts.reference,
        incident_id=delivery.incident_id,
        target=target,
    )


def _words(delivery: Delivery, facts: texts.AlertFacts, *, carrier: str, now: datetime) -> tuple[str, tuple[str, ...]]:
    """The text as the channel carries it, and the variables where the carrier has registered templates."""
    language, link, repeat = delivery.language, delivery.link, delivery.repeat
    if delivery.channel == Channel.PUSH:
        return texts.compose_push(facts, language=language, now=now, repeat=repeat), ()
    if delivery.channel == Channel.VOICE:
        return texts.compose_call(facts, language, now, repeat), ()
    text = texts.compose(facts, language=language, link=link, now=now, repeat=repeat)
    known = routing.get(carrier)
    if known and known.templated:
        return text, texts.dlt_variables(facts, language=language, link=link, now=now, repeat=repeat)
    return text, ()
