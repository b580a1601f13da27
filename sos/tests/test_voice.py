"""Keys pressed in calls: signed, each counted once; machines never count; the contact always hears words."""

from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest
from django.test import Client

from casualmeet import clock
from notifications.carriers import twiml
from notifications.models import Channel, Delivery, DeliveryAttempt, DeliveryStatus, InboundText, Notification, Priority
from safety import panic
from safety.models import User
from safety.tests.factories import ContactFactory, PersonFactory
from sos import contact_answers, incidents, voice
from sos.models import AlertedContact, SosEvent, TimelineEntry
from testing import twilio_hooks

pytestmark = pytest.mark.django_db

PROMPT = "Priya pressed SOS. Press 1 if you are helping."


@pytest.fixture(autouse=True)
def twilio_account(settings: Any) -> None:
    twilio_hooks.configure(settings)


@pytest.fixture
def person() -> User:
    """Somebody whose contact Ravi speaks English."""
    person = PersonFactory.create(full_name="Priya Sharma")
    ContactFactory.create(person=person, name="Ravi")
    return person


@pytest.fixture
def incident(person: User) -> SosEvent:
    return panic.press(person)[0]


@pytest.fixture
def contact(incident: SosEvent) -> AlertedContact:
    return AlertedContact.objects.get(incident=incident)


@pytest.fixture
def attempt(contact: AlertedContact) -> DeliveryAttempt:
    """The call to Ravi, which the carrier has accepted."""
    return call_to(contact)


def call_to(
    contact: AlertedContact, *, status: str = DeliveryStatus.ACCEPTED, channel: str = Channel.VOICE
) -> DeliveryAttempt:
    now = clock.now()
    delivery = Delivery.objects.create(
        kind="sos",
        channel=channel,
        priority=Priority.SOS,
        address=contact.phone,
        recipient_id=contact.pk,
        facts={},
        status=status,
        created_at=now,
        next_attempt_at=now,
    )
    attempt: DeliveryAttempt = DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="twilio-voice", text=PROMPT, started_at=now, outcome="accepted"
    )
    return attempt


def press(attempt: DeliveryAttempt, key: str = "", *, said: int = 1, answered_by: str = "human", **more: str) -> Any:
    """Twilio posts a key, or none, of the `said`-th prompt."""
    fields = {"CallSid": "CA" + "1" * 32, "CallStatus": "in-progress", "AnsweredBy": answered_by, **more}
    if key:
        fields["Digits"] = key
    return twilio_hooks.post(Client(), f"/hooks/twilio/voice/{attempt.pk}?n={said}", fields)


def heard(response: Any) -> str:
    """What the call says, after a look at its form."""
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/xml")
    document = ET.fromstring(response.content)
    return " ".join(node.text or "" for node in document.iter("Say"))


def next_action(response: Any) -> str:
    gather = ET.fromstring(response.content).find("Gather")
    return "" if gather is None else gather.attrib["action"]


def kinds(incident: SosEvent) -> list[str]:
    return list(incident.timeline.exclude(kind="opened").order_by("at").values_list("kind", flat=True))


def test_1_is_an_acknowledgement_that_everybody_sees(attempt: DeliveryAttempt, contact: AlertedContact) -> None:
    assert heard(press(attempt, "1")) == (
        "Thank you. Priya Sharma and the moderators see that you are helping. Goodbye."
    )
    contact.refresh_from_db()
    assert contact.acknowledged_at
    assert kinds(contact.incident) == ["acknowledged"]
    assert Notification.objects.get(kind="acknowledged").title == "Ravi is helping you"


def test_2_is_cant_help(attempt: DeliveryAttempt, contact: AlertedContact) -> None:
    assert "Thank you for telling us." in heard(press(attempt, "2"))
    contact.refresh_from_db()
    assert contact.declined_at
    assert contact.acknowledged_at is None
    assert kinds(contact.incident) == ["declined"]
    assert TimelineEntry.objects.get(kind="declined").text == "Ravi can't help."


def test_the_call_ends_in_the_contacts_language(attempt: DeliveryAttempt) -> None:
    AlertedContact.objects.update(language="hi")
    response = press(attempt, "1")
    assert heard(response).startswith("धन्यवाद।")
    assert ET.fromstring(response.content)[0].attrib["language"] == "hi-IN"


@pytest.mark.parametrize("key", ["*", "3", "#", ""])
def test_another_key_or_none_repeats_three_times_then_says_goodbye(
    attempt: DeliveryAttempt, contact: AlertedContact, key: str
) -> None:
    for said in (1, 2, 3):
        response = press(attempt, key, said=said)
        assert heard(response) == PROMPT
        assert next_action(response).endswith(f"/hooks/twilio/voice/{attempt.pk}?n={said + 1}")
    response = press(attempt, key, said=4)
    assert heard(response).startswith("We got no answer.")
    assert next_action(response) == ""
    contact.refresh_from_db()
    assert (contact.acknowledged_at, contact.declined_at) == (None, None)


@pytest.mark.parametrize("status", [DeliveryStatus.ACCEPTED, DeliveryStatus.QUEUED, DeliveryStatus.DEAD])
@pytest.mark.parametrize("key", ["1", "2", "*", "7"])
def test_p13_a_key_pressed_by_a_human_counts_as_reached(contact: AlertedContact, key: str, status: str) -> None:
    attempt = call_to(contact, status=status)
    press(attempt, key)
    delivery = Delivery.objects.get(pk=attempt.delivery_id)
    assert delivery.delivered_at
    assert (delivery.status, delivery.carrier) == (DeliveryStatus.DELIVERED, "twilio-voice")


def test_a_call_that_is_just_being_made_keeps_its_lease(contact: AlertedContact) -> None:
    attempt = call_to(contact, status=DeliveryStatus.SENDING)
    press(attempt, "1")
    delivery = Delivery.objects.get(pk=attempt.delivery_id)
    assert delivery.delivered_at
    assert delivery.status == DeliveryStatus.SENDING


def test_p13_no_key_is_not_reached(attempt: DeliveryAttempt) -> None:
    press(attempt)
    delivery = Delivery.objects.get(pk=attempt.delivery_id)
    assert (delivery.status, delivery.delivered_at) == (DeliveryStatus.ACCEPTED, None)


@pytest.mark.parametrize("machine", ["machine_start", "machine_end_beep", "machine_end_other", "fax"])
@pytest.mark.parametrize("key", ["", "1"])
def test_p13_a_machine_is_hung_up_on_and_was_not_reached(
    attempt: DeliveryAttempt, contact: AlertedContact, machine: str, key: str
) -> None:
    response = press(attempt, key, answered_by=machine)
    assert [node.tag for node in ET.fromstring(response.content)] == ["Hangup"]
    contact.refresh_from_db()
    assert contact.acknowledged_at is None
    assert Delivery.objects.get(pk=attempt.delivery_id).delivered_at is None


@pytest.mark.parametrize("key", ["", "1", "2"])
def test_after_the_end_it_says_that_the_person_is_safe(
    attempt: DeliveryAttempt, incident: SosEvent, contact: AlertedContact, key: str
) -> None:
    incidents.resolve(incident, with_pin=True)
    assert heard(press(attempt, key)) == "Good news. Priya Sharma is safe and the alarm is closed. Goodbye."
    contact.refresh_from_db()
    assert (contact.acknowledged_at, contact.declined_at) == (None, None)


def test_an_unknown_call_is_ended_politely(contact: AlertedContact) -> None:
    text = call_to(contact, channel=Channel.SMS)
    gone = call_to(contact)
    Delivery.objects.filter(pk=gone.delivery_id).update(recipient_id=uuid4())
    nobody = call_to(contact)
    Delivery.objects.filter(pk=nobody.delivery_id).update(recipient_id=None)
    for attempt in (DeliveryAttempt(id=uuid4()), text, gone, nobody):
        assert heard(press(attempt, "1")) == "This call is out of date. Goodbye."
    assert not AlertedContact.objects.filter(acknowledged_at__isnull=False).exists()


def test_whatever_fails_the_contact_hears_words(attempt: DeliveryAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> str:
        raise RuntimeError("broken")

    monkeypatch.setattr(voice, "answer", broken)
    assert heard(press(attempt, "1")).startswith("Sorry, your answer could not be saved.")


@pytest.mark.parametrize("query", ["", "?n=", "?n=x", "?n=-1", "?n=99999999999"])
def test_a_strange_count_is_the_first(attempt: DeliveryAttempt, query: str) -> None:
    fields = {"Digits": "*"}
    response = twilio_hooks.post(Client(), f"/hooks/twilio/voice/{attempt.pk}{query}", fields)
    assert heard(response) == PROMPT
    assert next_action(response).endswith("?n=2")


def test_a_key_counts_once(attempt: DeliveryAttempt, contact: AlertedContact) -> None:
    """A replay is 403 and changes nothing, even where the contact has said something else since."""
    press(attempt, "1")
    contact_answers.decline(contact)
    before = list(AlertedContact.objects.values())
    assert press(attempt, "1").status_code == 403
    assert list(AlertedContact.objects.values()) == before
    assert kinds(contact.incident) == ["acknowledged", "declined"]


def test_a_key_that_a_crash_cut_off_counts_when_it_comes_again(
    attempt: DeliveryAttempt, contact: AlertedContact
) -> None:
    InboundText.objects.create(
        carrier_message_id=f"{attempt.pk}:1", sender=contact.phone, received_at=clock.now(), handled_at=None
    )
    assert "you are helping" in heard(press(attempt, "1"))
    assert press(attempt, "1").status_code == 403


def test_forged_keys_change_nothing(attempt: DeliveryAttempt, contact: AlertedContact) -> None:
    path = f"/hooks/twilio/voice/{attempt.pk}?n=1"
    assert twilio_hooks.post(Client(), path, {"Digits": "1"}, token="f" * 32).status_code == 403
    assert twilio_hooks.post(Client(), path, {"Digits": "1", "AccountSid": "AC" + "9" * 32}).status_code == 403
    assert Client().post(path, {"Digits": "1"}).status_code == 403
    assert Client().get(path).status_code == 405
    contact.refresh_from_db()
    assert contact.acknowledged_at is None
    assert not InboundText.objects.exists()


def test_the_longest_prompt_fits(attempt: DeliveryAttempt) -> None:
    DeliveryAttempt.objects.update(text="&" * 4000)
    assert len(press(attempt, "*").content.decode()) <= twiml.MAX_TWIML
