"""The person's pages and the invitation page: what they show, what they refuse, and that looking changes nothing."""

import json
import re
import struct
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from casualmeet import clock
from casualmeet.db import insert_one
from notifications.models import Delivery, Notification
from safety import panic, pins
from safety.models import MeetingTimer, TimerStatus, TrustedContact, User
from safety.tests.factories import PASSWORD, ContactFactory, PersonFactory, TimerFactory
from sos.models import AlertedContact, SosEvent, TimelineEntry

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

MARKUP = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


@pytest.fixture
def person() -> User:
    """Somebody without contacts."""
    return PersonFactory.create()


@pytest.fixture
def page(client: Client, person: User) -> Client:
    """Their browser."""
    client.force_login(person)
    return client


def text_of(response: Any) -> str:
    """The page as it was sent."""
    return str(response.content.decode())


def arm(client: Client, **typed: Any) -> Any:
    """Send the arm form."""
    return client.post(reverse("timer-arm"), {"location_name": "Cafe Blue", "duration_minutes": "30", **typed})


class TestAccounts:
    """Sign-up, log-in, settings, PIN."""

    SIGN_UP = {
        "full_name": "Asha Rao",
        "username": "asha",
        "phone": "98123 45678",
        "time_zone": "Asia/Calcutta",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }

    def test_sign_up_signs_in_and_stores_the_number_as_e164(self, client: Client) -> None:
        response = client.post(reverse("signup"), self.SIGN_UP)
        assert response.status_code == 302
        made = User.objects.get(username="asha")
        assert (made.phone, made.time_zone, made.full_name) == ("+919812345678", "Asia/Calcutta", "Asha Rao")
        assert "Asha" in text_of(client.get(reverse("settings")))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("phone", "123"),
            ("phone", "112"),
            ("phone", "x" * 41),
            ("full_name", "\u202e"),
            ("full_name", "x" * 81),
            ("time_zone", "Mars/Olympus"),
            ("time_zone", "../../etc/passwd"),
            ("password2", "another"),
            ("username", "two words"),
        ],
    )
    def test_a_bad_value_is_said_beside_its_field_and_the_rest_is_kept(
        self, client: Client, field: str, value: str
    ) -> None:
        response = client.post(reverse("signup"), {**self.SIGN_UP, field: value})
        assert response.status_code == 422
        assert f'id="id_{field}_error"' in text_of(response)
        kept = "username" if field != "username" else "phone"
        assert f'value="{self.SIGN_UP[kept]}"' in text_of(response)
        assert not User.objects.exists()

    def test_a_name_that_is_taken_is_refused(self, client: Client) -> None:
        PersonFactory.create(username="asha")
        assert client.post(reverse("signup"), self.SIGN_UP).status_code == 422

    def test_log_in_and_out(self, client: Client, person: User) -> None:
        answer = client.post(reverse("login"), {"username": person.username, "password": "wrong"})
        assert "Please look at this again" in text_of(answer)
        answer = client.post(reverse("login"), {"username": person.username, "password": PASSWORD})
        assert answer["Location"] == reverse("home")
        client.post(reverse("logout"))
        assert "Sign up" in text_of(client.get(reverse("home")))

    def test_settings_are_saved(self, page: Client, person: User) -> None:
        typed = {
            "full_name": "New Name",
            "phone": "+44 7700 900123",
            "time_zone": "Europe/London",
            "language": "hi",
            "grace_minutes": "7",
        }
        assert page.post(reverse("settings"), typed).status_code == 302
        person.refresh_from_db()
        assert (person.full_name, person.phone, person.grace_minutes) == ("New Name", "+447700900123", 7)

    def test_a_bad_setting_changes_nothing_and_is_kept_in_the_form(self, page: Client, person: User) -> None:
        typed = {"full_name": MARKUP, "phone": "nonsense", "time_zone": "UTC", "language": "en", "grace_minutes": "99"}
        response = page.post(reverse("settings"), typed)
        assert response.status_code == 422
        assert ESCAPED in text_of(response)
        assert MARKUP not in text_of(response)
        assert User.objects.get(pk=person.pk).full_name == person.full_name

    def test_the_pin_is_set_changed_and_removed(self, page: Client, person: User) -> None:
        url = reverse("settings-pin")
        assert page.post(url, {"new_pin": "1234", "repeat_pin": "1234"}).status_code == 302
        assert page.post(url, {"current_pin": "9999", "new_pin": "5678", "repeat_pin": "5678"}).status_code == 403
        assert page.post(url, {"current_pin": "1234", "new_pin": "5678", "repeat_pin": "5678"}).status_code == 302
        person.refresh_from_db()
        assert pins.check(person, "5678")
        assert page.post(url, {"current_pin": "5678", "remove": "1"}).status_code == 302
        person.refresh_from_db()
        assert not person.safe_pin

    @pytest.mark.parametrize(
        "typed", [{"new_pin": "12", "repeat_pin": "12"}, {"new_pin": "1234", "repeat_pin": "1"}, {}]
    )
    def test_a_bad_pin_is_refused(self, page: Client, person: User, typed: dict[str, str]) -> None:
        assert page.post(reverse("settings-pin"), typed).status_code == 422
        assert not User.objects.get(pk=person.pk).safe_pin


class TestTimerPages:
    """Home and the timer's buttons."""

    def test_the_landing_page_offers_sign_up(self, client: Client) -> None:
        assert reverse("signup") in text_of(client.get(reverse("home")))

    def test_without_a_contact_the_moderators_only_choice_is_shown_and_must_be_made(self, page: Client) -> None:
        assert 'name="moderators_only"' in text_of(page.get(reverse("home")))
        response = arm(page, note="my note")
        assert response.status_code == 422
        assert 'id="id_moderators_only_error"' in text_of(response)
        assert "my note" in text_of(response)
        assert arm(page, moderators_only="on").status_code == 302

    def test_arm_shows_the_countdown_and_whom_it_alerts(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person, name="Ravi")
        assert arm(page, meet_with="Rahul", grace_minutes="5").status_code == 302
        timer = MeetingTimer.objects.get()
        assert (timer.duration_minutes, timer.grace_minutes) == (30, 5)
        home = text_of(page.get(reverse("home")))
        for shown in (
            "data-countdown",
            "Cafe Blue",
            "Rahul",
            "Ravi",
            "5 min grace",
            "IST",
            reverse("timer-safe", args=[timer.pk]),
        ):
            assert shown in home

    @pytest.mark.parametrize(
        "typed",
        [
            {"location_name": ""},
            {"location_name": "x" * 121},
            {"location_name": "\u200b"},
            {"duration_minutes": ""},
            {"duration_minutes": "soon"},
            {"duration_minutes": "721"},
            {"duration_minutes": "-5"},
            {"duration_minutes": "1e400"},
            {"grace_minutes": "16"},
            {"note": "x" * 501},
            {"meet_with": "a\x00b"},
        ],
    )
    def test_bad_input_arms_nothing_and_keeps_the_rest(self, page: Client, person: User, typed: dict[str, str]) -> None:
        ContactFactory.create(person=person)
        response = arm(page, **{"meet_with": "Rahul Kept", "note": "Kept note", **typed})
        assert response.status_code == 422
        assert "Please look at this again" in text_of(response)
        assert ("Rahul Kept" in text_of(response)) is ("meet_with" not in typed)
        assert not MeetingTimer.objects.exists()

    def test_a_second_timer_is_refused_and_what_was_typed_is_kept(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person)
        TimerFactory.create(person=person)
        response = arm(page, location_name="Somewhere else")
        assert response.status_code == 409
        assert "Somewhere else" in text_of(response)
        assert MeetingTimer.objects.count() == 1

    def test_safe_extend_and_cancel(self, page: Client, person: User) -> None:
        timer = TimerFactory.create(person=person)
        page.post(reverse("timer-extend", args=[timer.pk]), {"minutes": "30"})
        assert MeetingTimer.objects.get().expires_at == timer.expires_at + timedelta(minutes=30)
        page.post(reverse("timer-safe", args=[timer.pk]))
        assert MeetingTimer.objects.get().status == TimerStatus.SAFE
        response = page.post(reverse("timer-cancel", args=[timer.pk]), follow=True)
        assert "already ended" in text_of(response)
        other = TimerFactory.create(person=person)
        page.post(reverse("timer-cancel", args=[other.pk]))
        assert MeetingTimer.objects.get(pk=other.pk).status == TimerStatus.CANCELLED

    @pytest.mark.parametrize("minutes", ["0", "61", "-5", "x", "", "9" * 5000, "٣"])
    def test_bad_extensions_change_nothing(self, page: Client, person: User, minutes: str) -> None:
        timer = TimerFactory.create(person=person)
        response = page.post(reverse("timer-extend", args=[timer.pk]), {"minutes": minutes}, follow=True)
        assert "note error" in text_of(response)
        assert MeetingTimer.objects.get().expires_at == timer.expires_at

    @pytest.mark.parametrize("verb", ["timer-safe", "timer-cancel"])
    def test_with_a_pin_it_is_asked_for(self, page: Client, person: User, verb: str) -> None:
        pins.set_pin(person, new="1234")
        timer = TimerFactory.create(person=person)
        assert 'name="pin"' in text_of(page.get(reverse("home")))
        for wrong in ("", "9999", "1" * 500):
            response = page.post(reverse(verb, args=[timer.pk]), {"pin": wrong})
            assert response.status_code == 403
            assert "9999" not in text_of(response)
            assert MeetingTimer.objects.get().live
        assert page.post(reverse(verb, args=[timer.pk]), {"pin": "1234"}).status_code == 302
        assert not MeetingTimer.objects.get().live

    @pytest.mark.parametrize("verb", ["timer-safe", "timer-extend", "timer-cancel"])
    def test_somebody_elses_timer_is_404(self, page: Client, verb: str) -> None:
        timer = TimerFactory.create()
        assert page.post(reverse(verb, args=[timer.pk])).status_code == 404
        assert page.post(reverse(verb, args=[uuid4()])).status_code == 404
        assert MeetingTimer.objects.get().live

    def test_markup_is_shown_as_text(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person, name=MARKUP)
        TimerFactory.create(person=person, location_name=MARKUP, meet_with=MARKUP, note=MARKUP)
        shown = text_of(page.get(reverse("home")))
        assert MARKUP not in shown
        assert shown.count(ESCAPED) == 4

    def test_the_time_is_that_of_the_persons_zone(self, page: Client, person: User) -> None:
        User.objects.filter(pk=person.pk).update(time_zone="Asia/Kathmandu")
        TimerFactory.create(person=person)
        assert "+0545" in text_of(page.get(reverse("home")))

    def test_a_live_look_leaves_the_messages_for_the_page_itself(self, page: Client, person: User) -> None:
        timer = TimerFactory.create(person=person)
        page.post(reverse("timer-safe", args=[timer.pk]))
        assert "nobody is alerted" not in text_of(page.get(reverse("home"), headers={"X-Live": "1"}))
        assert "nobody is alerted" in text_of(page.get(reverse("home")))


class TestSosPages:
    """The SOS button and the incident's page."""

    def test_a_double_submit_makes_one_incident_and_one_alert(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person)
        typed = {"key": str(uuid4()), "latitude": "28.6139", "longitude": "77.209", "accuracy_m": "25"}
        first, second = page.post(reverse("sos-press"), typed), page.post(reverse("sos-press"), typed)
        incident = SosEvent.objects.get()
        assert first["Location"] == second["Location"] == reverse("incident", args=[incident.pk])
        assert incident.location == {"type": "Point", "coordinates": [77.209, 28.6139]}
        assert Delivery.objects.count() == 1
        assert TimelineEntry.objects.count() == 1

    @pytest.mark.parametrize(
        "typed",
        [
            {},
            {"key": "no-uuid"},
            {"latitude": "0", "longitude": "0"},
            {"latitude": "NaN", "longitude": "NaN"},
            {"latitude": "999", "longitude": "1"},
            {"latitude": "28.6"},
            {"latitude": "28.6", "longitude": "77.2", "accuracy_m": "-1"},
            {"latitude": "x", "longitude": "y"},
        ],
    )
    def test_nothing_in_the_form_can_stop_the_alarm(self, page: Client, typed: dict[str, str]) -> None:
        assert page.post(reverse("sos-press"), typed).status_code == 302
        assert SosEvent.objects.get().location is None

    def test_a_press_with_the_key_of_an_alarm_that_is_over_is_a_new_alarm(self, page: Client) -> None:
        typed = {"key": str(uuid4())}
        page.post(reverse("sos-press"), typed)
        page.post(reverse("incident-safe", args=[SosEvent.objects.get().pk]))
        page.post(reverse("sos-press"), typed)
        assert SosEvent.objects.active().count() == 1
        assert SosEvent.objects.count() == 2

    def test_somebody_elses_key_does_not_reach_their_alarm(self, client: Client) -> None:
        key = str(uuid4())
        for person in (PersonFactory.create(), PersonFactory.create()):
            client.force_login(person)
            client.post(reverse("sos-press"), {"key": key})
        assert SosEvent.objects.active().count() == 2

    def test_home_shows_the_alarm(self, page: Client, person: User) -> None:
        incident, _ = panic.press(person)
        home = text_of(page.get(reverse("home")))
        assert "Your alarm is on" in home
        assert reverse("incident", args=[incident.pk]) in home

    @pytest.mark.parametrize(
        ("status", "said"),
        [
            ("queued", "waiting to be sent"),
            ("sending", "being sent"),
            ("accepted", "accepted by the carrier"),
            ("delivered", "delivered to the phone"),
            ("dead", "could not be sent"),
            ("cancelled", "cancelled before it was sent"),
        ],
    )
    def test_p13_the_page_says_what_the_carrier_said(self, page: Client, person: User, status: str, said: str) -> None:
        ContactFactory.create(person=person, name=MARKUP)
        incident, _ = panic.press(person)
        Delivery.objects.update(status=status)
        shown = text_of(page.get(reverse("incident", args=[incident.pk])))
        assert said in shown
        assert ("delivered" in shown) is (status == "delivered")
        assert ESCAPED in shown
        assert MARKUP not in shown

    def test_the_page_says_who_is_helping(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person)
        incident, _ = panic.press(person)
        AlertedContact.objects.update(acknowledged_at=clock.now())
        assert "is helping since" in text_of(page.get(reverse("incident", args=[incident.pk])))

    def test_safe_ends_it_once_with_the_pin(self, page: Client, person: User) -> None:
        pins.set_pin(person, new="1234")
        incident, _ = panic.press(person)
        url = reverse("incident-safe", args=[incident.pk])
        assert page.post(url, {"pin": "4321"}).status_code == 403
        assert SosEvent.objects.get().active
        assert page.post(url, {"pin": "1234"}).status_code == 302
        assert not SosEvent.objects.get().active
        assert "already closed" in text_of(page.post(url, {"pin": "1234"}, follow=True))

    def test_somebody_elses_incident_is_404(self, page: Client) -> None:
        incident, _ = panic.press(PersonFactory.create())
        assert page.get(reverse("incident", args=[incident.pk])).status_code == 404
        assert page.post(reverse("incident-safe", args=[incident.pk])).status_code == 404
        assert SosEvent.objects.get().active


class TestContactPages:
    """The list of contacts, and the page that invites one."""

    def test_a_contact_is_invited_and_removed(self, page: Client) -> None:
        page.post(reverse("contacts"), {"name": "Ravi", "phone": "+91 99887 12345", "language": "hi"})
        contact = TrustedContact.objects.get()
        assert (contact.phone, contact.language, contact.status) == ("+919988712345", "hi", "pending")
        assert "no answer yet" in text_of(page.get(reverse("contacts")))
        page.post(reverse("contact-remove", args=[contact.pk]))
        assert not TrustedContact.objects.exists()

    @pytest.mark.parametrize(
        ("typed", "field"),
        [
            ({"phone": "12"}, "phone"),
            ({"phone": "112"}, "phone"),
            ({"name": ""}, "name"),
            ({"name": "x" * 81}, "name"),
            ({"language": "xx"}, "language"),
        ],
    )
    def test_bad_input_invites_nobody_and_keeps_what_was_typed(
        self, page: Client, typed: dict[str, str], field: str
    ) -> None:
        response = page.post(reverse("contacts"), {"name": "Ravi", "phone": "+919988712345", "language": "en", **typed})
        assert response.status_code == 422
        assert f'id="id_{field}_error"' in text_of(response)
        assert not TrustedContact.objects.exists()

    def test_the_own_number_and_a_duplicate_are_refused(self, page: Client, person: User) -> None:
        other = ContactFactory.create(person=person)
        for phone, status in ((person.phone, 422), (other.phone, 409)):
            answer = page.post(reverse("contacts"), {"name": "R", "phone": phone, "language": "en"})
            assert answer.status_code == status

    def test_somebody_elses_contact_is_404(self, page: Client) -> None:
        contact = ContactFactory.create()
        assert page.post(reverse("contact-remove", args=[contact.pk])).status_code == 404
        assert TrustedContact.objects.exists()

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_the_invitation_is_shown_accepted_and_left(self, client: Client, slash: str) -> None:
        contact = ContactFactory.create(status="pending", person__full_name=MARKUP)
        url = f"/c/{contact.token}{slash}"
        shown = client.get(url)
        assert shown.status_code == 200
        assert ESCAPED in text_of(shown)
        assert MARKUP not in text_of(shown)
        assert "no-store" in shown["Cache-Control"]
        assert "noindex" in shown["X-Robots-Tag"]
        for answer, status in (
            ("decline", "declined"),
            ("accept", "verified"),
            ("accept", "verified"),
            ("leave", "left"),
        ):
            assert client.post(url, {"answer": answer}).status_code == 302
            contact.refresh_from_db()
            assert contact.status == status

    def test_p9_looking_at_the_invitation_changes_nothing(self, client: Client) -> None:
        contact = ContactFactory.create(status="pending")
        url = reverse("invitation", args=[contact.token])
        client.get(url, {"answer": "accept"})
        client.head(url)
        assert client.post(url, {"answer": "maybe"}).status_code == 400
        contact.refresh_from_db()
        assert contact.status == "pending"

    def test_the_invitation_speaks_the_language_of_the_contacts_texts(self, client: Client) -> None:
        contact = ContactFactory.create(status="pending", language="hi", person__full_name="Priya Sharma")
        for status in ("pending", "verified", "declined", "left"):
            TrustedContact.objects.update(status=status)
            shown = text_of(client.get(f"/c/{contact.token}"))
            assert '<html lang="hi">' in shown
            assert "Priya Sharma" in shown
            visible = re.sub(
                r"<[^>]*>|Priya Sharma|CasualMeet Safety|SMS|SOS",
                "",
                shown.split('tabindex="-1">')[1].split("</main>")[0],
            )
            assert not re.findall(r"[A-Za-z]{4,}", visible.replace(contact.name, ""))

    def test_an_unknown_invitation_is_404(self, client: Client) -> None:
        assert client.get("/c/nobody").status_code == 404


POST_ONLY = ["timer-safe", "timer-extend", "timer-cancel", "incident-safe", "contact-remove", "notification-read"]


class TestAllPages:
    """What holds for each of them."""

    def test_history_shows_timers_and_alarms(self, page: Client, person: User) -> None:
        TimerFactory.create(person=person, status="safe", location_name=MARKUP)
        incident, _ = panic.press(person)
        shown = text_of(page.get(reverse("history")))
        assert ESCAPED in shown
        assert MARKUP not in shown
        assert reverse("incident", args=[incident.pk]) in shown

    def test_notifications_are_listed_and_marked_read(self, page: Client, person: User) -> None:
        panic.press(person)
        assert "Your alarm is on" in text_of(page.get(reverse("notifications")))
        page.post(reverse("notification-read", args=[Notification.objects.get().pk]))
        assert Notification.objects.get().read_at is not None

    def test_somebody_elses_notification_is_404(self, page: Client) -> None:
        panic.press(PersonFactory.create())
        url = reverse("notification-read", args=[Notification.objects.get().pk])
        assert page.post(url).status_code == 404
        assert Notification.objects.get().read_at is None

    @pytest.mark.parametrize("name", POST_ONLY)
    def test_p9_what_changes_something_takes_no_get(self, page: Client, name: str) -> None:
        assert page.get(reverse(name, args=[uuid4()])).status_code == 405
        assert page.head(reverse(name, args=[uuid4()])).status_code == 405

    def test_p9_looking_at_every_page_changes_nothing(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person)
        TimerFactory.create(person=person)
        before = [list(model.objects.values()) for model in (MeetingTimer, TrustedContact, SosEvent, Notification)]
        for name in ("home", "sos-press", "contacts", "history", "notifications", "settings", "login", "signup"):
            for method in (page.get, page.head):
                assert method(reverse(name)).status_code in {200, 302}
        after = [list(model.objects.values()) for model in (MeetingTimer, TrustedContact, SosEvent, Notification)]
        assert before == after

    @pytest.mark.parametrize("name", ["sos-press", "contacts", "history", "notifications", "settings"])
    def test_strangers_are_sent_to_log_in(self, client: Client, name: str) -> None:
        assert client.get(reverse(name))["Location"].startswith(reverse("login"))

    def test_no_page_carries_script_or_style_of_its_own(self, page: Client, person: User) -> None:
        ContactFactory.create(person=person)
        TimerFactory.create(person=person)
        incident, _ = panic.press(person)
        pages = [reverse(name) for name in ("home", "sos-press", "contacts", "history", "notifications", "settings")]
        for url in [*pages, reverse("incident", args=[incident.pk])]:
            shown = text_of(page.get(url))
            assert "<style" not in shown
            assert " style=" not in shown
            assert " onclick" not in shown
            assert "<script>" not in shown

    def test_the_forged_form_of_another_site_is_refused(self, person: User) -> None:
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(person)
        response = strict.post(reverse("sos-press"))
        assert response.status_code == 403
        assert "Please try again" in text_of(response)
        assert not SosEvent.objects.exists()


def test_factories_make_rows_that_the_database_takes() -> None:
    """Ten contacts fit, in their slots; the one live timer is the person's."""
    person = PersonFactory.create()
    contacts = ContactFactory.create_batch(10, person=person)
    assert [contact.slot for contact in contacts] == list(range(10))
    TimerFactory.create(person=person)
    assert not insert_one(TimerFactory.build(person=person))


def test_a_home_screen_gets_a_name_and_icons_that_are_there(client: Client) -> None:
    """A person's leads to the start page; a contact's, who has no login, to the page it was made from."""
    contact = ContactFactory.create()
    for page, start in (("/login/", "/"), (f"/c/{contact.token}", None)):
        shown = text_of(client.get(page))
        (address,) = re.findall(r'<link rel="manifest" href="([^"]+)"', shown)
        manifest = json.loads((settings.BASE_DIR / address.lstrip("/")).read_text())
        assert (manifest["display"], manifest.get("start_url")) == ("standalone", start)
        touch = re.findall(r'<link rel="apple-touch-icon" href="([^"]+)"', shown)
        icons = [f"/static/{icon['src']}" for icon in manifest["icons"]]
        for icon in (*touch, *icons):
            picture = (settings.BASE_DIR / icon.lstrip("/")).read_bytes()
            width, height = struct.unpack(">II", picture[16:24])
            assert (picture[:4], width) == (b"\x89PNG", height)
        assert {icon["sizes"] for icon in manifest["icons"]} == {"192x192", "512x512"}
