"""Calls and texts both ways, between the site and the simulated phones over real HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from casualmeet import clock
from notifications import optouts
from notifications.carriers import twilio_voice
from notifications.carriers.base import Outcome, OutgoingMessage
from notifications.models import Channel, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.texts import compose_call
from safety import panic
from safety.models import MeetingTimer, TimerStatus
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from simulator import Simulator
from sos import alerts
from sos.models import AlertedContact, SosEvent
from sos.triggers import person_of

RAVI = "+447700900123"
MINE = "+447700900456"


@pytest.fixture
def sim(live_server: Any, settings: Any) -> Iterator[Simulator]:
    """The site on a port of its own, with the simulator as its only carrier."""
    settings.PUBLIC_BASE_URL = live_server.url
    with Simulator(site=live_server.url) as sim:
        for name, value in sim.environment(simulated=True).items():
            setattr(settings, name, value)
        yield sim


@pytest.fixture
def incident(sim: Simulator) -> SosEvent:
    """Priya's, which Ravi is alerted about."""
    person = PersonFactory.create(full_name="Priya Sharma", phone=MINE)
    ContactFactory.create(person=person, name="Ravi", phone=RAVI)
    return panic.press(person, location_name="Cafe Blue")[0]


def call(incident: SosEvent) -> Delivery:
    """Ravi is called, as the dispatcher does it."""
    contact, now = AlertedContact.objects.get(incident=incident), clock.now()
    delivery = Delivery.objects.create(
        kind="sos",
        channel=Channel.VOICE,
        priority=Priority.SOS,
        address=contact.phone,
        recipient_id=contact.pk,
        facts={},
        created_at=now,
        next_attempt_at=now,
        status=DeliveryStatus.ACCEPTED,
    )
    kind = alerts.KIND_BY_SOURCE[incident.source]
    facts = alerts.facts_of(incident, person=person_of(incident.person), kind=kind)
    said = compose_call(facts, contact.language, now)
    attempt = DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="twilio-voice", text=said, started_at=now
    )
    carrier = twilio_voice.configured()
    assert carrier is not None
    message = OutgoingMessage(
        to=contact.phone, text=said, kind="sos", variables=(), language=contact.language, attempt_id=attempt.pk
    )

    async def send() -> Any:
        answer = await carrier.send(message)
        await carrier.close()
        return answer

    assert asyncio.run(send()).outcome is Outcome.ACCEPTED
    return delivery


def test_the_contact_hears_the_alert_again_and_then_says_that_they_help(sim: Simulator, incident: SosEvent) -> None:
    delivery = call(incident)
    phone = sim.ringing(RAVI).answer()
    assert len(phone.heard) == 1
    assert "Priya Sharma pressed SOS at " in phone.heard[0]
    assert "The place they named: Cafe Blue." in phone.heard[0]
    phone.press("*")
    assert phone.heard[1] == phone.heard[0]
    phone.press("1")
    assert phone.heard[2:] == ["Thank you. Priya Sharma and the moderators see that you are helping. Goodbye."]
    sim.settle()
    assert AlertedContact.objects.get().acknowledged_at
    delivery.refresh_from_db()
    assert delivery.status == DeliveryStatus.DELIVERED


def test_p13_voicemail_was_not_reached(sim: Simulator, incident: SosEvent) -> None:
    delivery = call(incident)
    sim.ringing(RAVI).answer("machine_start")
    sim.settle()
    delivery.refresh_from_db()
    assert (delivery.status, delivery.delivered_at) == (DeliveryStatus.ACCEPTED, None)
    assert AlertedContact.objects.get().acknowledged_at is None


def test_texts_come_in_and_are_counted_once(sim: Simulator, incident: SosEvent) -> None:
    TimerFactory.create(person=incident.person)
    sent = sim.text_from(RAVI, "1.")
    assert AlertedContact.objects.get().acknowledged_at
    assert sim.replay(sent).status == 403
    sim.text_from(MINE, "safe")
    assert SosEvent.objects.get().status == "resolved"
    assert MeetingTimer.objects.get().status == TimerStatus.SAFE
    sim.text_from(RAVI, "Stop")
    assert optouts.stopped([RAVI]) == {RAVI}
    sim.text_from(RAVI, "start")
    assert optouts.stopped([RAVI]) == set()
