"""The words of a delivery, composed at the moment of sending: they tell the age of the position, and what is a repeat."""

from datetime import datetime
from uuid import UUID

from notifications import texts
from notifications.carriers import routing
from notifications.carriers.base import OutgoingMessage
from notifications.models import Delivery


def message_for(delivery: Delivery, *, carrier: str, attempt_id: UUID, now: datetime) -> OutgoingMessage:
    """What `carrier` is to send for this delivery. Raises whatever its facts are broken enough to raise."""
    facts = texts.AlertFacts.from_json(delivery.facts)
    known = routing.get(carrier)
    language, link, repeat = delivery.language, delivery.link, delivery.repeat
    text = texts.compose(facts, language=language, link=link, now=now, repeat=repeat)
    variables: tuple[str, ...] = ()
    if known and known.templated:
        variables = texts.dlt_variables(facts, language=language, link=link, now=now, repeat=repeat)
    return OutgoingMessage(
        to=delivery.address,
        text=text,
        kind=delivery.kind,
        variables=variables,
        language=language,
        attempt_id=attempt_id,
        channel=delivery.channel,
        link=link,
        reference=facts.reference,
        incident_id=delivery.incident_id,
    )
