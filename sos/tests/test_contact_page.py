"""The contact's alert page."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from casualmeet import clock
from safety import panic
from safety.models import User
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos import incidents
from sos.models import AlertedContact, SosEvent, Source, TimelineEntry
from sos.triggers import Fix

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def person() -> User:
    """Somebody with two contacts and a timer."""
    person = PersonFactory.create(full_name="Priya Sharma", phone="+919812345678")
    ContactFactory.create(person=person, name="Ravi")
    ContactFactory.create(person=person, name="Meera")
    TimerFactory.create(person=person, location_name="Cafe Blue", meet_with="Rahul K")
    return person


@pytest.fixture
def incident(person: User) -> SosEvent:
    """Opened by SOS, with a position twelve minutes old."""
    fix = Fix(28.6139, 77.209, 25.0, clock.now() - timedelta(minutes=12, seconds=5))
    return panic.press(person, fix=fix)[0]


@pytest.fixture
def contact(incident: SosEvent) -> AlertedContact:
    """The one whose link is opened."""
    return AlertedContact.objects.get(incident=incident, name="Ravi")


def text_of(response: Any) -> str:
    """The page as it was sent."""
    return str(response.content.decode())


@pytest.mark.parametrize("slash", ["", "/"])
def test_it_says_who_what_when_where_and_what_to_do(client: Client, contact: AlertedContact, slash: str) -> None:
    response = client.get(f"/i/{contact.token}{slash}")
    assert response.status_code == 200
    shown = text_of(response)
    for fact in (
        "Priya Sharma",
        "Pressed SOS at",
        "IST",
        "28.61390,77.20900",
        "12 min ago",
        "25 m",
        "Cafe Blue",
        "Rahul K",
        'href="tel:+919812345678"',
        'href="tel:112"',
        'href="geo:28.61390,77.20900',
        "I'm helping",
        contact.incident.reference,
    ):
        assert fact in shown


def test_it_is_kept_nowhere(client: Client, contact: AlertedContact) -> None:
    response = client.get(f"/i/{contact.token}")
    assert "no-store" in response["Cache-Control"]
    assert "noindex" in response["X-Robots-Tag"]
    assert response["Referrer-Policy"] == "same-origin"


def test_helping_is_said_once_and_seen_by_the_others(client: Client, contact: AlertedContact) -> None:
    for _ in range(2):
        assert client.post(f"/i/{contact.token}").status_code == 302
    assert TimelineEntry.objects.filter(kind="acknowledged").count() == 1
    assert "that you are helping" in text_of(client.get(f"/i/{contact.token}"))
    other = AlertedContact.objects.get(name="Meera")
    assert "Also helping: Ravi" in text_of(client.get(f"/i/{other.token}"))


def test_p9_looking_acknowledges_nothing(client: Client, contact: AlertedContact) -> None:
    client.get(f"/i/{contact.token}")
    client.head(f"/i/{contact.token}")
    assert client.put(f"/i/{contact.token}").status_code == 405
    assert not AlertedContact.objects.filter(acknowledged_at__isnull=False).exists()


def test_without_a_position_it_says_so(client: Client, person: User) -> None:
    panic.press(person)
    shown = text_of(client.get(f"/i/{AlertedContact.objects.all()[0].token}"))
    assert "has sent no position" in shown
    assert "data-map" not in shown
    assert "geo:" not in shown


def test_a_position_is_marked_the_same_in_every_locale(client: Client, contact: AlertedContact, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    SosEvent.objects.update(location_accuracy_m=12345.6)
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert 'data-point="28.61390,77.20900"' in shown
    assert 'data-accuracy="12346"' in shown


def test_a_missed_check_in_is_worded_as_such(client: Client, contact: AlertedContact) -> None:
    SosEvent.objects.update(source=Source.TIMER_EXPIRED)
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert "Missed a check-in" in shown
    assert "if there is no answer" in shown


def test_p10_duress_reads_like_sos_but_nobody_is_to_call(client: Client, contact: AlertedContact) -> None:
    SosEvent.objects.update(source=Source.DURESS)
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert "Pressed SOS" in shown
    assert "Do not call or text" in shown
    assert "tel:+91" not in shown
    assert "duress" not in shown.lower()


def test_markup_is_shown_as_text(client: Client, contact: AlertedContact) -> None:
    User.objects.update(full_name=MARKUP)
    AlertedContact.objects.update(name=MARKUP)
    SosEvent.objects.update(place_name=MARKUP, meet_with=MARKUP)
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert MARKUP not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_a_closed_incident_says_all_clear_for_a_day(client: Client, contact: AlertedContact) -> None:
    incidents.resolve(contact.incident, with_pin=True)
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert "All clear" in shown
    assert "with their PIN" in shown
    assert "28.61390" not in shown
    client.post(f"/i/{contact.token}")
    assert not AlertedContact.objects.filter(acknowledged_at__isnull=False).exists()


def test_p11_a_day_after_closing_it_tells_nothing(client: Client, contact: AlertedContact) -> None:
    incidents.resolve(contact.incident, with_pin=False)
    SosEvent.objects.update(resolved_at=clock.now() - timedelta(hours=24))
    gone, unknown = client.get(f"/i/{contact.token}"), client.get("/i/nobodyknowsthis")
    assert gone.status_code == unknown.status_code == 404
    assert gone.content == unknown.content
    assert "no-store" in gone["Cache-Control"]
    assert client.post(f"/i/{contact.token}").status_code == 404


def test_tiles_are_asked_for_only_where_they_are_set(client: Client, contact: AlertedContact, settings: Any) -> None:
    assert 'data-tiles=""' in text_of(client.get(f"/i/{contact.token}"))
    settings.MAP_TILE_URL = "https://tiles.example/{z}/{x}/{y}.png"
    assert "https://tiles.example/{z}/{x}/{y}.png" in text_of(client.get(f"/i/{contact.token}"))
