"""The contact's alert page."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from casualmeet import clock
from notifications.models import Notification
from safety import panic
from safety.models import User
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos import contact_answers, incidents
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


def test_a_contact_may_say_that_they_cant_help_and_change_their_mind(client: Client, contact: AlertedContact) -> None:
    link = f"/i/{contact.token}"
    for _ in range(2):
        assert client.post(link, {"answer": "declined"}).status_code == 302
    shown = text_of(client.get(link))
    assert "that you can't help" in shown
    assert "I'm helping" in shown
    client.post(link)
    contact.refresh_from_db()
    assert (contact.declined_at, bool(contact.acknowledged_at)) == (None, True)
    kinds = contact.incident.timeline.exclude(kind="opened").order_by("at").values_list("kind", flat=True)
    assert list(kinds) == ["declined", "acknowledged"]


def test_reaching_the_person_is_helping_and_told_to_everybody(client: Client, contact: AlertedContact) -> None:
    link = f"/i/{contact.token}"
    for _ in range(2):
        assert client.post(link, {"answer": "reached"}).status_code == 302
    contact.refresh_from_db()
    assert contact.reached_person_at == contact.acknowledged_at
    assert TimelineEntry.objects.get(kind="reached").text == "Ravi has reached the person."
    assert Notification.objects.get(kind="reached").title == "Ravi says they reached you"
    shown = text_of(client.get(link))
    assert "that you reached Priya Sharma" in shown
    assert "I reached them" not in shown
    assert SosEvent.objects.get().active


def test_helping_first_and_reaching_later_keeps_both_times(contact: AlertedContact) -> None:
    contact_answers.acknowledge(contact)
    helping_since = AlertedContact.objects.get(pk=contact.pk).acknowledged_at
    assert contact_answers.report_reached(contact)
    assert not contact_answers.report_reached(contact)
    contact.refresh_from_db()
    assert contact.acknowledged_at == helping_since
    assert contact.reached_person_at


def test_an_answer_that_there_is_not_changes_nothing(client: Client, contact: AlertedContact) -> None:
    assert client.post(f"/i/{contact.token}", {"answer": "gone"}).status_code == 400
    contact.refresh_from_db()
    assert (contact.acknowledged_at, contact.declined_at, contact.reached_person_at) == (None, None, None)


def test_a_crash_between_the_word_and_its_timeline_entry_is_mended_by_the_same_word(contact: AlertedContact) -> None:
    """Where there are no transactions: the entry's key follows from when it was said."""
    said_at = clock.now() - timedelta(seconds=5)
    AlertedContact.objects.filter(pk=contact.pk).update(declined_at=said_at)
    for _ in range(2):
        assert not contact_answers.decline(contact)
    assert [entry.at for entry in TimelineEntry.objects.filter(kind="declined")] == [said_at]


def test_that_the_page_was_opened_is_recorded_once(client: Client, contact: AlertedContact) -> None:
    link = f"/i/{contact.token}"
    page = text_of(client.get(link))
    assert f'data-opened="{link}/opened"' in page
    contact.refresh_from_db()
    assert contact.opened_at is None
    answer = client.post(f"{link}/opened")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "no-store" in answer["Cache-Control"]
    first = AlertedContact.objects.get(pk=contact.pk).opened_at
    assert first
    client.post(f"{link}/opened")
    assert AlertedContact.objects.get(pk=contact.pk).opened_at == first
    assert not TimelineEntry.objects.exclude(kind="opened").exists()


def test_p9_only_a_post_from_the_page_itself_says_that_it_was_opened(contact: AlertedContact) -> None:
    link = f"/i/{contact.token}/opened"
    strict = Client(enforce_csrf_checks=True)
    assert strict.get(link).status_code == strict.head(link).status_code == 405
    assert strict.post(link).status_code == 403
    page = text_of(strict.get(f"/i/{contact.token}"))
    token = page.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
    contact.refresh_from_db()
    assert contact.opened_at is None
    assert strict.post(link, headers={"X-CSRFToken": token}).status_code == 204
    assert strict.post("/i/nobodyknowsthis/opened", headers={"X-CSRFToken": token}).status_code == 404


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


def test_it_speaks_the_language_of_the_contacts_texts(client: Client, contact: AlertedContact) -> None:
    in_english = text_of(client.get(f"/i/{contact.token}"))
    AlertedContact.objects.update(language="hi")
    shown = text_of(client.get(f"/i/{contact.token}"))
    assert '<html lang="en">' in in_english
    assert '<html lang="hi">' in shown
    for said in ("Priya Sharma को मदद की ज़रूरत हो सकती है", "12 मिनट पहले", "112 मिलाएँ", "मैं मदद कर रहा/रही हूँ", "25 मी"):
        assert said in shown
    for fact in ("28.61390,77.20900", "IST", contact.incident.reference):
        assert fact in shown
    for english in ("helping", "Pressed", "Where", "Skip to content", "In danger"):
        assert english not in shown
    incidents.resolve(contact.incident, with_pin=True)
    assert "सब ठीक: Priya Sharma सुरक्षित हैं" in text_of(client.get(f"/i/{contact.token}"))
    # The next one to look at anything reads their own language.
    assert '<html lang="en">' in text_of(client.get("/login/"))
