"""Whom an incident's messages go to and what they are made of: alerts, updates and all-clears, as unsaved rows.

Every row's key follows from the incident, so that making them again is the same as once.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from django.conf import settings

from notifications import outbox
from notifications.models import Channel, Delivery, Priority
from notifications.texts import AlertFacts, Kind
from sos.models import AlertedContact, SosEvent, Source
from sos.triggers import NAMESPACE, Person, Recipient, fix_of, person_of

ALERTS = [Kind.MISSED_CHECK_IN.value, Kind.SOS.value, Kind.DURESS.value]
ALARMS = [*ALERTS, Kind.UPDATE.value]
KIND_BY_SOURCE = {
    Source.TIMER_EXPIRED.value: Kind.MISSED_CHECK_IN,
    Source.MANUAL.value: Kind.SOS,
    Source.DURESS.value: Kind.DURESS,
}
TOKEN_BYTES = 15


def alerted_contact(incident: SosEvent, recipient: Recipient) -> AlertedContact:
    """The contact as they are alerted about this incident, with the secret of their link."""
    contact_id = uuid5(NAMESPACE, f"alerted:{incident.pk}:{recipient.contact_id}")
    return AlertedContact(
        id=contact_id,
        incident=incident,
        contact_id=recipient.contact_id,
        name=recipient.name,
        phone=recipient.phone,
        language=recipient.language,
        token=_secret(contact_id),
    )


def alerts(incident: SosEvent, *, person: Person, contacts: Sequence[AlertedContact], now: datetime) -> list[Delivery]:
    """One alert to each contact."""
    facts = alert_facts(incident, person=person)
    return [
        alert_by(incident, contact, channel=Channel.SMS, address=contact.phone, facts=facts, now=now)
        for contact in contacts
    ]


def updates(incident: SosEvent, *, key: UUID, contacts: Sequence[AlertedContact], now: datetime) -> list[Delivery]:
    """One update to each contact, about the trigger `key` that joined the incident."""
    facts = replace(facts_of(incident, person=person_of(incident.person), kind=Kind.UPDATE), happened_at=now).to_json()
    return [
        outbox.text_to(
            _addressee(contact),
            key=f"update:{key}:{incident.pk}",
            kind=Kind.UPDATE,
            facts=facts,
            now=now,
            priority=Priority.SOS,
            incident_id=incident.pk,
            person_id=incident.person_id,
        )
        for contact in contacts
    ]


def all_clears(incident: SosEvent, *, now: datetime) -> list[Delivery]:
    """One to exactly those whose alert went out, or may have; each waits for its alert and falls with it."""
    facts = replace(
        facts_of(incident, person=person_of(incident.person), kind=Kind.ALL_CLEAR),
        happened_at=incident.resolved_at or now,
        confirmed_with_pin=incident.resolution == "pin",
    ).to_json()
    # By text also where the alert was a push, whose address is a subscription.
    phones: dict[UUID | None, str] = dict(AlertedContact.objects.filter(incident=incident).values_list("pk", "phone"))
    return [
        outbox.text_to(
            outbox.Addressee(
                alert.recipient_id or alert.pk,
                alert.recipient_name,
                phones.get(alert.recipient_id, alert.address),
                alert.language,
            ),
            key=f"all-clear:{incident.pk}",
            kind=Kind.ALL_CLEAR,
            facts=facts,
            now=now,
            priority=Priority.SAFETY,
            incident_id=incident.pk,
            person_id=incident.person_id,
            follows_id=alert.pk,
        )
        for alert in outbox.possibly_sent(incident.pk, kinds=ALERTS)
    ]


def alert_by(
    incident: SosEvent,
    contact: AlertedContact,
    *,
    channel: Channel,
    address: str,
    facts: dict[str, Any],
    now: datetime,
    wave: int = 1,
    repeat: int = 0,
) -> Delivery:
    """The alert on this channel, in this wave of the escalation ladder. `facts` as of `facts_of`, in JSON types."""
    return outbox.message_to(
        _addressee(contact),
        channel=channel,
        address=address,
        key=f"alert:{incident.pk}",
        kind=KIND_BY_SOURCE[incident.source],
        facts=facts,
        now=now,
        priority=Priority.SOS,
        incident_id=incident.pk,
        person_id=incident.person_id,
        wave=wave,
        repeat=repeat,
    )


def alert_facts(incident: SosEvent, *, person: Person) -> dict[str, Any]:
    """What an alert about the incident says, in JSON types."""
    return facts_of(incident, person=person, kind=KIND_BY_SOURCE[incident.source]).to_json()


def facts_of(incident: SosEvent, *, person: Person, kind: Kind) -> AlertFacts:
    """What a text about the incident can say."""
    fix = fix_of(incident)
    return AlertFacts(
        kind=kind,
        person_name=person.name,
        person_phone=person.phone,
        reference=incident.reference,
        happened_at=incident.happened_at,
        opened_at=incident.opened_at,
        latitude=fix.latitude if fix else None,
        longitude=fix.longitude if fix else None,
        accuracy_m=fix.accuracy_m if fix else None,
        located_at=fix.captured_at if fix else None,
        meet_with=incident.meet_with,
        place_name=incident.place_name,
        time_zone=person.time_zone,
        late_seconds=incident.late_by,
    )


def _addressee(contact: AlertedContact) -> outbox.Addressee:
    link = f"{settings.PUBLIC_BASE_URL}/i/{contact.token}"
    return outbox.Addressee(contact.pk, contact.name, contact.phone, contact.language, link)


def _secret(contact_id: UUID) -> str:
    """120 bits that nobody can guess, the same each time, in letters and digits that no SMS app cuts a link at."""
    digest = hmac.digest(settings.SECRET_KEY.encode(), b"alert page " + contact_id.bytes, hashlib.sha256)
    return base64.b32encode(digest[:TOKEN_BYTES]).decode().lower()
