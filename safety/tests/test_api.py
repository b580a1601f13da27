"""The JSON API, as a client sees it: every address of the interface, what bad input gets, and what changes nothing."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, cast
from uuid import uuid4

import pytest
from django.apps import apps
from django.core.cache import cache
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from casualmeet import clock
from notifications import inbox
from notifications.models import Delivery, Notification
from safety import expiry, pins, timers, tokens
from safety.models import MeetingTimer, Position, TrustedContact, User
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos.models import SosEvent
from testing.database import sample

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

JSON: Final = "application/json"
UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"
UTC_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
CSRF: Final = "a" * 32
PLACE: Final = {"type": "Point", "coordinates": [77.59456, 12.97162]}
ARM: Final[dict[str, Any]] = {"location_name": "Cafe Blue", "duration_minutes": 30}
INVITE: Final[dict[str, Any]] = {"name": "Meera Nair", "phone": "+919812399999"}
TIMER_FIELDS: Final = {
    *("id", "status", "location_name", "meetup_location", "meet_with", "note", "duration_minutes", "grace_minutes"),
    *("moderators_only", "started_at", "expires_at", "escalates_at", "check_sent_at", "resolved_at", "incident"),
}
SOS_FIELDS: Final = {
    *("id", "person", "source", "status", "reference", "triggered_timer", "happened_at", "late_by", "place_name"),
    *("meet_with", "location", "location_accuracy_m", "location_at", "opened_at", "resolved_at"),
    *("wave", "next_wave_at", "nobody_reached_at"),
    *(
        "contacts_notified",
        "sms_sent",
        "last_dispatch_at",
        "dead_letters",
        "helping",
        "reached_by",
        "declined_by",
        "opened_by",
        "contacts",
        "timeline",
    ),
}
NASTY: Final = {
    "markup": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "template": "{{ settings.SECRET_KEY }}{% debug %}",
    "sql": "'; DROP TABLE safety_user; --",
    "mongo": '{"$gt": ""}',
    "dollar": "$where",
    "format": "%s%n{0}{}",
    "nul": "a\x00b",
    "only nul": "\x00\x00",
    "controls": "\x01\x02\x1b[31m\x7f\x85",
    "lines": "one\r\ntwo\u2028three\tfour",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 10,
    "right to left": "\u202eevil\u202c \u2067שלום\u2069",
    "combining": "e" + "\u0301" * 60,
    "lone surrogate": "\ud800",
    "reversed pair": "\udc00\ud83d",
    "noncharacter": "\uffff\ufdd0",
    "empty": "",
    "spaces": " \u00a0\u3000 ",
    "zero width": "\u200b\u200d\ufeff",
    "exactly full": "x" * 120,
    "one too many": "x" * 121,
    "ten thousand": "y" * 10_000,
    "path": "../../etc/passwd",
    "devanagari": "प्रिया शर्मा",
}
WRONG_TEXTS: Final = [1, 1.5, True, None, [], ["a"], {}, {"a": "b"}]
WRONG_WHOLES: Final = ["30", 30.5, 30.0, True, None, [], [30], {}, "", "NaN"]
WRONG_NUMBERS: Final = ["12.9", True, [], [1.5], {}, ""]


class Api:
    """A client that speaks JSON, as `person` if one is given, and sees a 500 rather than an exception."""

    def __init__(self, person: User | None = None) -> None:
        headers = {"authorization": f"Bearer {tokens.issue(person)}"} if person else {}
        self.client = Client(headers=headers, raise_request_exception=False)

    def send(self, method: str, path: str, body: Any = ..., *, raw: str | bytes | None = None) -> Any:
        """`body` as JSON, `raw` as it is, or no body at all."""
        data = raw if raw is not None else b"" if body is ... else json.dumps(body)
        return self.client.generic(method, f"/api/{path}", data, content_type=JSON)

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def post(self, path: str, body: Any = ..., **more: Any) -> Any:
        return self.send("POST", path, body, **more)

    def put(self, path: str, body: Any = ..., **more: Any) -> Any:
        return self.send("PUT", path, body, **more)

    def delete(self, path: str) -> Any:
        return self.send("DELETE", path)


@pytest.fixture(autouse=True)
def _cheap_and_fresh(settings: Any) -> Iterator[None]:
    """Hashing that costs nothing, and throttles that remember nothing."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def asha() -> User:
    person = PersonFactory.create(username="asha", full_name="Asha Rao")
    ContactFactory.create(person=person, name="Ravi Iyer")
    return person


@pytest.fixture
def outsider() -> User:
    person = PersonFactory.create(username="outsider")
    ContactFactory.create(person=person)
    return person


@pytest.fixture
def api(asha: User) -> Api:
    return Api(asha)


@pytest.fixture
def timer(asha: User) -> MeetingTimer:
    return TimerFactory.create(person=asha)


def assert_error(response: Any, status: int, code: str = "") -> dict[str, Any]:
    """A failure in the one form that all have, without a word about our insides."""
    assert response.status_code == status, response.content
    assert response["Content-Type"].startswith(JSON)
    body: dict[str, Any] = response.json()
    assert set(body) - {"current"} == {"detail", "code"}
    assert isinstance(body["detail"], str)
    assert body["detail"]
    assert re.fullmatch(r"[a-z_]+", body["code"])
    if code:
        assert body["code"] == code
    for inside in ("Traceback", 'File "', "django", "pydantic", "psycopg", "sqlite", "site-packages"):
        assert inside not in response.content.decode()
    return body


def rows() -> dict[str, list[Any]]:
    """Every row of the product's own tables, to see whether anything was written."""
    models = [
        model for label in ("safety", "sos", "notifications") for model in apps.get_app_config(label).get_models()
    ]
    return {
        model.__name__: sorted(model._default_manager.values_list(), key=str)
        for model in models
        if not model._meta.auto_created
    }


class TestTokens:
    def test_name_and_password_become_a_token_that_opens_the_api(self, asha: User) -> None:
        response = Api().post("tokens", {"username": "asha", "password": "correct horse 7"})
        assert response.status_code == 201
        assert set(response.json()) == {"token"}
        bearer = Client(headers={"authorization": f"Bearer {response.json()['token']}"})
        assert bearer.get("/api/timers").status_code == 200

    @pytest.mark.parametrize(
        "typed",
        [
            {"username": "asha", "password": "wrong"},
            {"username": "nobody", "password": "correct horse 7"},
            {"username": "ASHA ", "password": "correct horse 7"},
            {"username": "", "password": ""},
        ],
    )
    def test_wrong_credentials_are_401_and_do_not_say_what_was_wrong(self, asha: User, typed: dict[str, str]) -> None:
        body = assert_error(Api().post("tokens", typed), 401, "wrong_credentials")
        assert body["detail"] == "The user name or the password is wrong."

    def test_a_deactivated_person_gets_no_token_and_their_old_one_stops_working(self, asha: User, api: Api) -> None:
        User.objects.filter(pk=asha.pk).update(is_active=False)
        typed = {"username": "asha", "password": "correct horse 7"}
        assert_error(Api().post("tokens", typed), 401, "wrong_credentials")
        assert_error(api.get("timers"), 401, "unauthorized")

    def test_guessing_a_password_is_stopped_after_ten_tries_even_with_the_right_one(self, asha: User) -> None:
        for _ in range(10):
            assert_error(Api().post("tokens", {"username": "asha", "password": "guess"}), 401)
        response = Api().post("tokens", {"username": "asha", "password": "correct horse 7"})
        assert_error(response, 429, "too_many_requests")
        assert int(response["Retry-After"]) >= 1

    def test_guessing_at_one_name_does_not_lock_out_another(self, asha: User, outsider: User) -> None:
        for _ in range(11):
            Api().post("tokens", {"username": "asha", "password": "guess"})
        response = Api().post("tokens", {"username": "outsider", "password": "correct horse 7"})
        assert response.status_code == 201

    def test_a_made_up_forwarding_address_does_not_give_new_tries(self, asha: User) -> None:
        typed = {"username": "asha", "password": "guess"}
        answers = [
            Client(headers={"x-forwarded-for": f"10.0.0.{number}"}).post("/api/tokens", typed, content_type=JSON)
            for number in range(11)
        ]
        assert answers[-1].status_code == 429

    def test_only_the_digest_of_a_token_is_stored(self, asha: User) -> None:
        token = tokens.issue(asha)
        assert token not in str(rows())
        assert tokens.owner(token) == asha

    @pytest.mark.parametrize("field", ["username", "password"])
    def test_any_text_as_name_or_password_is_a_plain_refusal(self, field: str) -> None:
        for number, nasty in enumerate(NASTY.values()):
            typed = {"username": f"asha{number}", "password": "x", field: nasty}
            response = Api().post("tokens", typed)
            assert response.status_code in {401, 422}, (nasty, response.content)

    @pytest.mark.parametrize("raw", ["[" * 100_000, '{"username":' + "[" * 5000 + "]" * 5000 + "}", "[]", "null", "3"])
    def test_nested_or_bare_json_is_a_plain_refusal(self, raw: str) -> None:
        response = Api().post("tokens", raw=raw)
        assert response.status_code in {400, 422}, response.content


class TestWhoMayCall:
    GUARDED: Final = [
        *[("GET", path) for path in ("timers", f"timers/{UNKNOWN}", f"sos/{UNKNOWN}", "contacts", "notifications")],
        *[("POST", path) for path in ("timers", f"timers/{UNKNOWN}/positions", "sos", "contacts")],
        *[("PUT", f"timers/{UNKNOWN}/{verb}") for verb in ("safe", "cancel", "extend")],
        *[("PUT", path) for path in (f"sos/{UNKNOWN}/safe", f"notifications/{UNKNOWN}/read")],
        ("DELETE", f"contacts/{UNKNOWN}"),
    ]

    def test_every_address_is_401_without_anything(self) -> None:
        for method, path in self.GUARDED:
            assert_error(Api().send(method, path, {}), 401, "unauthorized")

    def test_a_bad_bearer_header_is_401(self, asha: User) -> None:
        for header in ("Bearer", "Bearer ", "Bearer nonsense", "Basic YTpi", "bearer", "Bearer é\xff", "Bearer a b c"):
            assert_error(Client(headers={"authorization": header}).get("/api/timers"), 401, "unauthorized")

    def test_the_pages_session_with_its_csrf_token_may_write(self, asha: User) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(asha)
        client.cookies["csrftoken"] = CSRF
        response = client.post("/api/timers", ARM, content_type=JSON, headers={"x-csrftoken": CSRF})
        assert response.status_code == 201

    @pytest.mark.parametrize("token", ["", "b" * 32, "short"])
    def test_a_session_without_the_right_csrf_token_is_403_and_writes_nothing(self, asha: User, token: str) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(asha)
        client.cookies["csrftoken"] = CSRF
        before = rows()
        response = client.post("/api/timers", ARM, content_type=JSON, headers={"x-csrftoken": token})
        assert_error(response, 403, "forbidden")
        assert rows() == before

    def test_no_session_is_401_rather_than_a_complaint_about_csrf(self) -> None:
        assert_error(Client(enforce_csrf_checks=True).post("/api/timers", ARM, content_type=JSON), 401, "unauthorized")

    def test_a_bearer_needs_no_csrf_token(self, asha: User) -> None:
        headers = {"authorization": f"Bearer {tokens.issue(asha)}"}
        client = Client(enforce_csrf_checks=True, headers=headers)
        assert client.post("/api/timers", ARM, content_type=JSON).status_code == 201


class TestTimers:
    def test_arming_answers_201_with_the_whole_timer(self, api: Api) -> None:
        asked = {**ARM, "meetup_location": PLACE, "meet_with": "Rahul K", "note": "Table 4", "grace_minutes": 5}
        response = api.post("timers", asked)
        assert response.status_code == 201
        body = response.json()
        assert set(body) == TIMER_FIELDS
        assert {name: body[name] for name in asked} == asked
        assert (body["status"], body["incident"], body["moderators_only"]) == ("active", None, False)
        for name in ("started_at", "expires_at", "escalates_at"):
            assert UTC_TIME.fullmatch(body[name]), body[name]
        stored = MeetingTimer.objects.get(pk=body["id"])
        assert stored.expires_at - stored.started_at == timedelta(minutes=30)
        assert stored.escalates_at - stored.expires_at == timedelta(minutes=5)

    def test_the_list_is_the_newest_first_and_only_ones_own(self, api: Api, asha: User, outsider: User) -> None:
        now = clock.now()
        old = TimerFactory.create(person=asha, status="safe", started_at=now - timedelta(hours=2), resolved_at=now)
        new = TimerFactory.create(person=asha)
        TimerFactory.create(person=outsider)
        response = api.get("timers")
        assert response.status_code == 200
        assert [row["id"] for row in response.json()] == [str(new.pk), str(old.pk)]

    def test_one_timer_is_shown_like_in_the_list(self, api: Api, timer: MeetingTimer) -> None:
        response = api.get(f"timers/{timer.pk}")
        assert response.status_code == 200
        assert response.json() == api.get("timers").json()[0]

    @pytest.mark.parametrize(("verb", "status"), [("safe", "safe"), ("cancel", "cancelled")])
    @pytest.mark.parametrize("body", [..., {}, {"pin": ""}])
    def test_safe_and_cancel_end_the_timer(
        self, api: Api, timer: MeetingTimer, verb: str, status: str, body: Any
    ) -> None:
        response = api.put(f"timers/{timer.pk}/{verb}", body)
        assert response.status_code == 200
        assert set(response.json()) == TIMER_FIELDS
        assert response.json()["status"] == status
        assert UTC_TIME.fullmatch(response.json()["resolved_at"])

    @pytest.mark.parametrize(("body", "minutes"), [(..., 15), ({}, 15), ({"minutes": 1}, 1), ({"minutes": 60}, 60)])
    def test_extending_moves_the_deadline(self, api: Api, timer: MeetingTimer, body: Any, minutes: int) -> None:
        response = api.put(f"timers/{timer.pk}/extend", body)
        assert response.status_code == 200
        assert response.json()["status"] == "extended"
        changed = MeetingTimer.objects.get(pk=timer.pk)
        assert changed.expires_at - timer.expires_at == timedelta(minutes=minutes)

    def test_extending_by_too_little_or_too_much_is_422(self, api: Api, timer: MeetingTimer) -> None:
        for minutes in (0, -1, 61, 10**9, 10**300):
            assert_error(api.put(f"timers/{timer.pk}/extend", {"minutes": minutes}), 422, "bad_minutes")

    def test_a_timer_runs_for_at_most_twelve_hours_in_all(self, api: Api, asha: User) -> None:
        timer = TimerFactory.create(person=asha, duration_minutes=700)
        assert_error(api.put(f"timers/{timer.pk}/extend", {"minutes": 21}), 422, "too_long")
        assert api.put(f"timers/{timer.pk}/extend", {"minutes": 20}).status_code == 200

    def test_a_duration_or_a_grace_out_of_range_is_422(self, api: Api) -> None:
        for minutes in (14, 0, -30, 721, 10**6, 2**63, 10**100):
            assert_error(api.post("timers", {**ARM, "duration_minutes": minutes}), 422, "bad_duration")
        for minutes in (-1, 16, 10**20):
            assert_error(api.post("timers", {**ARM, "grace_minutes": minutes}), 422, "bad_grace")

    def test_without_grace_the_persons_own_applies(self, api: Api, asha: User) -> None:
        User.objects.filter(pk=asha.pk).update(grace_minutes=10)
        assert api.post("timers", ARM).json()["grace_minutes"] == 10

    def test_nobody_to_alert_is_422_unless_only_the_moderators_are_wanted(self) -> None:
        person = PersonFactory.create()
        ContactFactory.create(person=person, status="pending")
        api = Api(person)
        assert_error(api.post("timers", ARM), 422, "no_verified_contact")
        assert api.post("timers", {**ARM, "moderators_only": True}).status_code == 201

    def test_a_second_timer_is_409_and_carries_the_first(self, api: Api, timer: MeetingTimer) -> None:
        body = assert_error(api.post("timers", ARM), 409, "timer_already_live")
        assert body["current"] == api.get(f"timers/{timer.pk}").json()

    @pytest.mark.parametrize("status", ["safe", "cancelled", "expired"])
    def test_a_verb_on_an_ended_timer_is_409_and_carries_the_timer(self, api: Api, asha: User, status: str) -> None:
        timer = TimerFactory.create(person=asha, status=status, resolved_at=clock.now())
        before = rows()
        for verb in ("safe", "cancel", "extend"):
            body = assert_error(api.put(f"timers/{timer.pk}/{verb}"), 409, "not_live")
            assert body["current"] == api.get(f"timers/{timer.pk}").json()
        assert rows() == before

    def test_an_expired_timer_names_its_incident(self, api: Api, asha: User) -> None:
        start = clock.now() - timedelta(hours=2)
        timer = TimerFactory.create(person=asha, started_at=start)
        expiry.cycle()
        incident = SosEvent.objects.get(triggered_timer=timer)
        body = assert_error(api.put(f"timers/{timer.pk}/safe"), 409, "not_live")
        assert body["current"]["incident"] == str(incident.pk)
        assert body["current"]["status"] == "expired"
        assert api.get(f"sos/{incident.pk}").json()["triggered_timer"] == str(timer.pk)

    NO_PLACES: Final[list[Any]] = [
        {"type": "Point", "coordinates": [0, 0]},
        {"type": "Point", "coordinates": [181, 0]},
        {"type": "Point", "coordinates": [0, 90.0001]},
        {"type": "Point", "coordinates": [float("nan"), 1]},
        {"type": "Point", "coordinates": [1, float("inf")]},
        {"type": "Point", "coordinates": [1]},
        {"type": "Point", "coordinates": [1, 2, 3]},
        {"type": "Point", "coordinates": ["1", "2"]},
        {"type": "Point", "coordinates": [True, False]},
        {"type": "Point", "coordinates": None},
        {"type": "Polygon", "coordinates": [1, 2]},
        {"type": "\ud800", "coordinates": [1, 2]},
        {"coordinates": [1, 2]},
        [77.5, 12.9],
        "77.5,12.9",
    ]

    def test_a_place_that_is_no_place_is_422(self, api: Api) -> None:
        for point in self.NO_PLACES:
            assert_error(api.post("timers", {**ARM, "meetup_location": point}), 422)
        assert not MeetingTimer.objects.exists()


class TestPositions:
    def test_a_position_of_a_live_timer_is_stored(self, api: Api, timer: MeetingTimer) -> None:
        taken = (clock.now() - timedelta(seconds=3)).isoformat()
        sent = {"latitude": 12.97162, "longitude": 77.59456, "accuracy_m": 17.5, "captured_at": taken}
        response = api.post(f"timers/{timer.pk}/positions", {**sent, "battery_percent": 42})
        assert response.status_code == 201
        body = response.json()
        assert set(body) == {
            *("id", "latitude", "longitude", "accuracy_m", "battery_percent", "captured_at", "received_at"),
        }
        assert (body["latitude"], body["longitude"], body["accuracy_m"]) == (12.97162, 77.59456, 17.5)
        assert UTC_TIME.fullmatch(body["captured_at"])
        assert UTC_TIME.fullmatch(body["received_at"])

    def test_the_same_position_sent_twice_is_stored_once(self, api: Api, timer: MeetingTimer) -> None:
        sent = {"latitude": 12.9, "longitude": 77.5, "accuracy_m": 5, "captured_at": clock.now().isoformat()}
        first, second = (api.post(f"timers/{timer.pk}/positions", sent) for _ in range(2))
        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json()["id"] == second.json()["id"]
        assert Position.objects.count() == 1

    NO_POSITIONS: Final[list[tuple[dict[str, Any], str]]] = [
        ({"latitude": 0, "longitude": 0}, "bad_coordinates"),
        ({"latitude": 90.5}, "bad_coordinates"),
        ({"longitude": -180.5}, "bad_coordinates"),
        ({"latitude": float("nan")}, "bad_coordinates"),
        ({"longitude": float("-inf")}, "bad_coordinates"),
        ({"latitude": 10**308}, "bad_coordinates"),
        ({"latitude": 10**400}, "invalid"),
        ({"accuracy_m": -1}, "bad_accuracy"),
        ({"accuracy_m": float("nan")}, "bad_accuracy"),
        ({"accuracy_m": float("inf")}, "bad_accuracy"),
        ({"battery_percent": 101}, "invalid"),
        ({"battery_percent": -1}, "invalid"),
        ({"battery_percent": 50.0}, "invalid"),
        ({"captured_at": "2199-01-01T00:00:00Z"}, "bad_time"),
        ({"captured_at": "2001-01-01T00:00:00Z"}, "bad_time"),
        ({"captured_at": "0001-01-01T00:00:00+14:00"}, "bad_time"),
        ({"captured_at": "9999-12-31T23:59:59-14:00"}, "bad_time"),
        ({"captured_at": "2026-11-29T10:00:00"}, "bad_time"),
        ({"captured_at": "yesterday"}, "invalid"),
        ({"captured_at": 1e300}, "invalid"),
        ({"captured_at": True}, "invalid"),
        ({"captured_at": "\ud800"}, "invalid"),
    ]

    def test_what_cannot_be_a_position_is_422(self, api: Api, timer: MeetingTimer) -> None:
        good = {"latitude": 12.9, "longitude": 77.5, "accuracy_m": 5, "captured_at": clock.now().isoformat()}
        for change, code in self.NO_POSITIONS:
            assert_error(api.post(f"timers/{timer.pk}/positions", {**good, **change}), 422, code)
        assert not Position.objects.exists()

    def test_a_position_of_an_ended_timer_is_409(self, api: Api, asha: User) -> None:
        timer = TimerFactory.create(person=asha, status="safe", resolved_at=clock.now())
        body = assert_error(api.post(f"timers/{timer.pk}/positions", {"latitude": 1, "longitude": 2}), 409, "not_live")
        assert body["current"]["status"] == "safe"

    def test_a_position_after_the_deadline_reaches_the_incident(self, api: Api, asha: User) -> None:
        timer = TimerFactory.create(person=asha, started_at=clock.now() - timedelta(hours=2))
        expiry.cycle()
        sent = {"latitude": 12.97162, "longitude": 77.59456, "accuracy_m": 9, "captured_at": clock.now().isoformat()}
        assert api.post(f"timers/{timer.pk}/positions", sent).status_code == 201
        incident = api.get(f"timers/{timer.pk}").json()["incident"]
        assert api.get(f"sos/{incident}").json()["location"] == PLACE


class TestSos:
    @pytest.mark.parametrize("body", [..., {}, {"latitude": None, "longitude": None}])
    def test_the_button_works_without_a_position(self, api: Api, body: Any) -> None:
        response = api.post("sos", body)
        assert response.status_code == 201
        assert set(response.json()) == SOS_FIELDS
        found = response.json()
        assert (found["status"], found["source"], found["location"]) == ("active", "manual", None)
        assert UTC_TIME.fullmatch(found["opened_at"])
        assert re.fullmatch(r"[A-Z][2-9][A-Z]", found["reference"])
        assert [contact["name"] for contact in found["contacts"]] == ["Ravi Iyer"]
        assert [entry["kind"] for entry in found["timeline"]] == ["opened"]
        assert Delivery.objects.filter(incident_id=found["id"]).count() == 1

    def test_the_timeline_writes_sos_as_people_do(self, api: Api) -> None:
        assert api.post("sos").json()["timeline"][0]["text"].startswith("SOS pressed.")

    def test_p4_a_second_press_joins_with_200_and_moves_the_incident(self, api: Api) -> None:
        first = api.post("sos", {"location_name": "Cafe Blue"})
        second = api.post("sos", {"latitude": 12.97162, "longitude": 77.59456, "accuracy_m": 17})
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.json()["id"] == first.json()["id"]
        assert second.json()["location"] == PLACE
        assert [entry["kind"] for entry in second.json()["timeline"]] == ["opened", "joined"]
        assert SosEvent.objects.count() == 1

    def test_safe_resolves_it_once_and_then_is_409(self, api: Api) -> None:
        incident = api.post("sos").json()["id"]
        response = api.put(f"sos/{incident}/safe")
        assert response.status_code == 200
        assert set(response.json()) == SOS_FIELDS
        assert response.json()["status"] == "resolved"
        assert UTC_TIME.fullmatch(response.json()["resolved_at"])
        body = assert_error(api.put(f"sos/{incident}/safe"), 409, "not_active")
        assert body["current"]["id"] == incident
        assert body["current"]["status"] == "resolved"
        assert api.post("sos").status_code == 201

    BROKEN: Final[list[dict[str, Any]]] = [
        {"latitude": 12.9},
        {"longitude": 77.5},
        {"latitude": 0, "longitude": 0},
        {"latitude": 12.9, "longitude": 277.5},
        {"latitude": float("nan"), "longitude": 1},
        {"latitude": 12.9, "longitude": 77.5, "accuracy_m": -3},
        {"latitude": 12.9, "longitude": 77.5, "captured_at": "2199-01-01T00:00:00Z"},
        {"latitude": "12.9", "longitude": 77.5},
    ]

    def test_a_broken_position_is_told_and_opens_nothing(self, api: Api) -> None:
        for body in self.BROKEN:
            assert_error(api.post("sos", body), 422)
        assert not SosEvent.objects.exists()

    def test_p13_an_incident_whose_texts_no_carrier_took_says_so(self, api: Api) -> None:
        found = api.post("sos").json()
        assert (found["contacts_notified"], found["sms_sent"], found["last_dispatch_at"]) == (0, 0, None)

    def test_hints_that_cannot_be_sent_change_nothing(self, api: Api, settings: Any) -> None:
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        started = clock.now()
        assert api.post("sos").status_code == 201
        assert clock.now() - started < timedelta(seconds=1)


class TestContactsOverTheApi:
    def test_inviting_answers_201_and_lists_a_pending_contact(self, api: Api) -> None:
        response = api.post("contacts", {**INVITE, "language": "hi"})
        assert response.status_code == 201
        body = response.json()
        assert set(body) == {"id", "name", "phone", "language", "status", "invited_at", "answered_at", "sms_stopped"}
        assert (body["name"], body["phone"], body["status"]) == ("Meera Nair", "+919812399999", "pending")
        assert UTC_TIME.fullmatch(body["invited_at"])
        assert body in api.get("contacts").json()

    def test_the_secret_of_a_contacts_link_is_never_shown(self, api: Api, asha: User) -> None:
        api.post("contacts", INVITE)
        shown = api.get("contacts").content.decode()
        for token in TrustedContact.objects.values_list("token", flat=True):
            assert token not in shown

    REFUSED: Final = [
        ({"phone": "112"}, "emergency_number"),
        ({"phone": "+91 112"}, "emergency_number"),
        ({"phone": "+91 80 2222 3333"}, "bad_phone"),
        ({"phone": "12"}, "bad_phone"),
        ({"phone": ""}, "bad_phone"),
        ({"phone": "not a number"}, "bad_phone"),
        ({"phone": "+91981239999" + "9" * 2000}, "invalid"),
        ({"name": " "}, "empty"),
        ({"name": "x" * 81}, "too_long"),
        ({"language": "xx"}, "bad_language"),
        ({"language": ""}, "bad_language"),
    ]

    def test_a_contact_that_cannot_be_is_refused(self, api: Api) -> None:
        before = TrustedContact.objects.count()
        for change, code in self.REFUSED:
            assert_error(api.post("contacts", {**INVITE, **change}), 422, code)
        assert TrustedContact.objects.count() == before

    def test_removing_answers_204_without_a_body_and_then_404(self, api: Api, asha: User) -> None:
        contact = asha.contacts.get()
        response = api.delete(f"contacts/{contact.pk}")
        assert (response.status_code, response.content) == (204, b"")
        assert_error(api.delete(f"contacts/{contact.pk}"), 404, "not_found")


class TestNotifications:
    @pytest.fixture
    def notice(self, asha: User) -> Notification:
        made = inbox.notice(key="x", recipient_id=asha.pk, kind="notification", title="<b>Hi</b>", now=clock.now())
        inbox.post([made])
        return made

    def test_the_list_shows_ones_own(self, api: Api, notice: Notification, outsider: User) -> None:
        response = api.get("notifications")
        assert response.status_code == 200
        (row,) = response.json()
        assert set(row) == {"id", "kind", "title", "body", "incident_id", "created_at", "read_at"}
        assert (row["title"], row["read_at"]) == ("<b>Hi</b>", None)
        assert UTC_TIME.fullmatch(row["created_at"])
        assert Api(outsider).get("notifications").json() == []

    def test_reading_twice_keeps_the_first_time(self, api: Api, notice: Notification) -> None:
        first = api.put(f"notifications/{notice.pk}/read")
        second = api.put(f"notifications/{notice.pk}/read")
        assert (first.status_code, second.status_code) == (200, 200)
        assert UTC_TIME.fullmatch(first.json()["read_at"])
        assert second.json() == first.json()


class TestPins:
    @pytest.fixture
    def guarded(self, asha: User) -> User:
        pins.set_pin(asha, new="2468")
        return asha

    WRONG: Final[list[tuple[Any, str]]] = [
        (..., "pin_required"),
        ({}, "pin_required"),
        ({"pin": ""}, "pin_required"),
        ({"pin": "1111"}, "wrong_pin"),
        ({"pin": " 2468"}, "wrong_pin"),
        ({"pin": "२४६८"}, "wrong_pin"),
        ({"pin": "24680"}, "wrong_pin"),
        ({"pin": "\x00"}, "wrong_pin"),
    ]

    @pytest.mark.parametrize("verb", ["safe", "cancel"])
    def test_a_missing_or_wrong_pin_is_403_and_the_timer_runs_on(
        self, guarded: User, timer: MeetingTimer, verb: str
    ) -> None:
        before = api_state(timer)
        for body, code in self.WRONG:
            assert_error(Api(guarded).put(f"timers/{timer.pk}/{verb}", body), 403, code)
        assert api_state(timer) == before

    @pytest.mark.parametrize(("verb", "status"), [("safe", "safe"), ("cancel", "cancelled")])
    def test_the_right_pin_ends_the_timer(self, guarded: User, timer: MeetingTimer, verb: str, status: str) -> None:
        response = Api(guarded).put(f"timers/{timer.pk}/{verb}", {"pin": "2468"})
        assert (response.status_code, response.json()["status"]) == (200, status)

    def test_an_incident_needs_the_pin_too(self, guarded: User) -> None:
        api = Api(guarded)
        incident = api.post("sos").json()["id"]
        assert_error(api.put(f"sos/{incident}/safe"), 403, "pin_required")
        assert_error(api.put(f"sos/{incident}/safe", {"pin": "0000"}), 403, "wrong_pin")
        assert SosEvent.objects.get().status == "active"
        assert api.put(f"sos/{incident}/safe", {"pin": "2468"}).status_code == 200

    def test_extending_and_sos_need_no_pin(self, guarded: User, timer: MeetingTimer) -> None:
        api = Api(guarded)
        assert api.put(f"timers/{timer.pk}/extend").status_code == 200
        assert api.post("sos").status_code == 201

    def test_guessing_pins_is_paused_after_ten_and_the_right_one_must_wait(
        self, guarded: User, timer: MeetingTimer
    ) -> None:
        api = Api(guarded)
        for _ in range(10):
            assert_error(api.put(f"timers/{timer.pk}/safe", {"pin": "0000"}), 403, "wrong_pin")
        assert_error(api.put(f"timers/{timer.pk}/safe", {"pin": "2468"}), 429, "pin_locked")
        User.objects.filter(pk=guarded.pk).update(pin_locked_until=clock.now() - timedelta(seconds=1))
        assert api.put(f"timers/{timer.pk}/safe", {"pin": "2468"}).status_code == 200

    def test_a_pin_that_is_no_text_is_422(self, guarded: User, timer: MeetingTimer) -> None:
        typed: list[Any] = [2468, True, None, ["2468"], {"$ne": ""}]
        for pin in typed:
            assert_error(Api(guarded).put(f"timers/{timer.pk}/safe", {"pin": pin}), 422, "invalid")

    def test_the_pin_is_nowhere_in_clear(self, guarded: User) -> None:
        assert guarded.safe_pin
        assert "2468" not in guarded.safe_pin.split("$")


def api_state(timer: MeetingTimer) -> list[Any]:
    return list(MeetingTimer.objects.filter(pk=timer.pk).values())


def owned_paths(asha: User) -> dict[str, tuple[str, str]]:
    """Every address with an id, each of an object of Asha's."""
    timer = MeetingTimer.objects.filter(person=asha).first() or TimerFactory.create(person=asha)
    incident, _ = _press(asha)
    notice = Notification.objects.filter(recipient=asha).first()
    contact = asha.contacts.get()
    assert notice is not None
    return {
        "timer": ("GET", f"timers/{timer.pk}"),
        "safe": ("PUT", f"timers/{timer.pk}/safe"),
        "cancel": ("PUT", f"timers/{timer.pk}/cancel"),
        "extend": ("PUT", f"timers/{timer.pk}/extend"),
        "positions": ("POST", f"timers/{timer.pk}/positions"),
        "incident": ("GET", f"sos/{incident.pk}"),
        "incident safe": ("PUT", f"sos/{incident.pk}/safe"),
        "read": ("PUT", f"notifications/{notice.pk}/read"),
        "contact": ("DELETE", f"contacts/{contact.pk}"),
    }


def _press(person: User) -> tuple[SosEvent, bool]:
    from safety import panic

    return panic.press(person)


BODY_OF: Final[dict[str, Any]] = {"positions": {"latitude": 12.9, "longitude": 77.5}}
ID_ADDRESSES: Final = [
    *("timer", "safe", "cancel", "extend", "positions", "incident", "incident safe", "read", "contact"),
]


class TestWhatIsNotThere:
    @pytest.mark.parametrize("name", ID_ADDRESSES)
    def test_somebody_elses_and_unknown_ids_are_the_same_404(self, asha: User, outsider: User, name: str) -> None:
        method, path = owned_paths(asha)[name]
        body = BODY_OF.get(name, ...)
        before = rows()
        theirs = Api(outsider)
        before["ApiToken"] = rows()["ApiToken"]
        not_mine = theirs.send(method, path, body)
        unknown = theirs.send(method, re.sub(r"[0-9a-f-]{36}", str(uuid4()), path), body)
        assert_error(not_mine, 404, "not_found")
        assert not_mine.content == unknown.content
        assert rows() == before

    def test_what_is_no_id_is_404(self, asha: User, api: Api) -> None:
        for name, (method, path) in owned_paths(asha).items():
            for bad in ("1", "x", "None", "0" * 31, "g" * 36, "%00", "%F0%9F%98%80", "..", "a" * 3000):
                address = re.sub(r"[0-9a-f-]{36}", bad, path)
                assert_error(api.send(method, address, BODY_OF.get(name, ...)), 404, "not_found")

    def test_unknown_addresses_are_404_in_json(self, api: Api) -> None:
        for path in ("", "nope", "timers/", "tokens/x", "%00", "timers/x/y/z", "docs/x", "%ff", "a" * 5000):
            assert_error(api.get(path), 404, "not_found")

    WRONG_METHODS: Final = [
        *[(method, "timers") for method in ("PUT", "PATCH", "DELETE", "TRACE", "FOO", "OPTIONS")],
        ("GET", "tokens"),
        ("GET", f"timers/{UNKNOWN}/safe"),
        ("POST", f"timers/{UNKNOWN}/safe"),
        ("PUT", f"timers/{UNKNOWN}/positions"),
        ("PUT", "sos"),
        ("POST", f"sos/{UNKNOWN}/safe"),
        ("PUT", "contacts"),
        ("GET", f"contacts/{UNKNOWN}"),
        ("POST", f"notifications/{UNKNOWN}/read"),
    ]

    def test_a_wrong_method_is_405_in_json_and_names_the_right_ones(self, api: Api) -> None:
        for method, path in self.WRONG_METHODS:
            response = api.send(method, path)
            assert_error(response, 405, "bad_method")
            assert response["Allow"]


MALFORMED: Final = {
    "half an object": "{",
    "a word": "hello",
    "a comma too many": '{"a": 1,}',
    "single quotes": "{'a': 1}",
    "not utf-8": b'{"location_name": "\xff\xfe"}',
    "nested": "[" * 100_000,
    "5,000 digits": '{"duration_minutes": 1' + "0" * 5000 + "}",
    "a nul": "\x00",
    "a form": "location_name=Cafe&duration_minutes=30",
}
WRITES: Final = ["timers", "sos", "contacts", "tokens"]


class TestBadBodies:
    @pytest.mark.parametrize("path", WRITES)
    def test_malformed_json_is_400(self, api: Api, path: str) -> None:
        for raw in MALFORMED.values():
            assert_error(api.post(path, raw=raw), 400, "bad_request")

    def test_json_of_another_shape_is_422(self, api: Api) -> None:
        shapes: list[Any] = [[], "text", 1, None, True, [{}], {}]
        for path, body in itertools.product(["timers", "contacts", "tokens"], shapes):
            assert_error(api.post(path, body), 422, "invalid")

    def test_a_body_that_is_too_big_is_told_so(self, api: Api) -> None:
        for path in WRITES:
            assert_error(api.post(path, raw=json.dumps({"note": "x" * 300_000})), 400, "too_big")

    def test_a_timers_text_that_is_no_text_is_422(self, api: Api) -> None:
        for field, value in itertools.product(["location_name", "meet_with", "note"], WRONG_TEXTS):
            body = assert_error(api.post("timers", {**ARM, field: value}), 422, "invalid")
            assert field in body["detail"]

    def test_a_duration_that_is_no_whole_number_is_422(self, api: Api) -> None:
        for value in WRONG_WHOLES:
            body = assert_error(api.post("timers", {**ARM, "duration_minutes": value}), 422, "invalid")
            assert "duration_minutes" in body["detail"]

    def test_minutes_and_grace_that_are_no_whole_numbers_are_422(self, api: Api, timer: MeetingTimer) -> None:
        for value in (value for value in WRONG_WHOLES if value is not None):
            assert_error(api.put(f"timers/{timer.pk}/extend", {"minutes": value}), 422, "invalid")
            assert_error(api.post("timers", {**ARM, "grace_minutes": value}), 422, "invalid")

    def test_moderators_only_is_true_or_false_and_nothing_like_it(self, api: Api) -> None:
        likes: list[Any] = ["true", 1, 0, "", None, []]
        for value in likes:
            assert_error(api.post("timers", {**ARM, "moderators_only": value}), 422, "invalid")

    def test_a_number_that_is_none_is_422(self, api: Api, timer: MeetingTimer) -> None:
        for field, value in itertools.product(["latitude", "longitude", "accuracy_m"], WRONG_NUMBERS):
            sent = {"latitude": 12.9, "longitude": 77.5, field: value}
            assert_error(api.post(f"timers/{timer.pk}/positions", sent), 422, "invalid")
            assert_error(api.post("sos", sent), 422, "invalid")

    def test_a_contacts_text_that_is_no_text_is_422(self, api: Api) -> None:
        for field, value in itertools.product(["name", "phone", "language"], WRONG_TEXTS):
            assert_error(api.post("contacts", {**INVITE, field: value}), 422, "invalid")

    BAD_TEXTS: Final = [
        ("location_name", "", "empty"),
        ("location_name", " \u200b\x00 ", "empty"),
        ("location_name", "x" * 121, "too_long"),
        ("meet_with", "x" * 121, "too_long"),
        ("note", "x" * 501, "too_long"),
        ("note", "x" * 10_000, "invalid"),
    ]

    def test_texts_that_are_empty_or_too_long_are_422(self, api: Api) -> None:
        for field, value, code in self.BAD_TEXTS:
            assert_error(api.post("timers", {**ARM, field: value}), 422, code)
        assert not MeetingTimer.objects.exists()

    def test_unknown_fields_cannot_set_what_is_not_the_callers(self, api: Api, asha: User, outsider: User) -> None:
        asked = {**ARM, "status": "safe", "person": str(outsider.pk), "id": str(uuid4()), "escalates_at": None}
        body = api.post("timers", asked).json()
        assert body["status"] == "active"
        assert body["id"] != asked["id"]
        assert MeetingTimer.objects.get().person == asha


@pytest.mark.slow
class TestNastyTexts:
    """Any text is taken or refused; none breaks anything."""

    def test_in_a_timer(self, api: Api) -> None:
        for nasty in NASTY.values():
            self.in_a_timer(api, nasty)

    def test_in_a_contact(self, api: Api) -> None:
        for nasty in NASTY.values():
            self.in_a_contact(api, nasty)

    def test_in_an_sos_which_still_alerts(self, api: Api) -> None:
        for nasty in NASTY.values():
            self.in_an_sos_which_still_alerts(api, nasty)

    def test_in_a_pin(self, asha: User, api: Api, timer: MeetingTimer, monkeypatch: pytest.MonkeyPatch) -> None:
        pins.set_pin(asha, new="2468")
        monkeypatch.setattr(pins, "MAX_FAILURES", 1000)
        for nasty in NASTY.values():
            response = api.put(f"timers/{timer.pk}/safe", {"pin": nasty})
            assert response.status_code in {403, 422}, response.content

    def in_a_timer(self, api: Api, nasty: str) -> None:
        for field in ("location_name", "meet_with", "note"):
            response = api.post("timers", {**ARM, field: nasty})
            assert response.status_code in {201, 422}, response.content
            if response.status_code == 201:
                shown = api.get(f"timers/{response.json()['id']}").json()
                assert "\x00" not in shown[field]
                assert "\u202e" not in shown[field]
                MeetingTimer.objects.update(status="cancelled")

    def in_an_sos_which_still_alerts(self, api: Api, nasty: str) -> None:
        response = api.post("sos", {"location_name": nasty})
        assert response.status_code in {201, 422}, response.content
        if response.status_code == 201:
            incident = response.json()["id"]
            assert Delivery.objects.filter(incident_id=incident).exists()
            assert api.put(f"sos/{incident}/safe").status_code == 200

    def in_a_contact(self, api: Api, nasty: str) -> None:
        for field in ("name", "phone", "language"):
            response = api.post("contacts", {**INVITE, field: nasty})
            assert response.status_code in {201, 422}, response.content
            TrustedContact.objects.filter(status="pending").delete()
            Delivery.objects.all().delete()

    def test_markup_stays_text(self, api: Api) -> None:
        response = api.post("timers", {**ARM, "location_name": NASTY["markup"]})
        assert response.json()["location_name"] == NASTY["markup"]
        assert response["Content-Type"].startswith(JSON)

    def test_a_lone_surrogate_in_the_name_of_a_field_is_ignored(self, api: Api) -> None:
        assert api.post("timers", {**ARM, "\ud800": "\udfff"}).status_code == 201


SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=30)
    | st.sampled_from(["Point", "12.9", "+919812345678", "en", "2026-11-29T10:00:00Z", "\ud800"])
)
VALUES: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
FIELDS: Final = [
    *("location_name", "duration_minutes", "meetup_location", "meet_with", "note", "grace_minutes", "moderators_only"),
    *("latitude", "longitude", "accuracy_m", "captured_at", "battery_percent"),
    *("name", "phone", "language", "username", "password", "pin", "minutes", "type", "coordinates"),
]


@pytest.mark.slow
@given(
    path=st.sampled_from(["timers", "sos", "contacts", "tokens", "positions", "safe", "extend"]),
    base=st.sampled_from([{}, ARM, INVITE, {"latitude": 12.9, "longitude": 77.5}]),
    change=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
)
@hypothesis_settings(
    max_examples=sample(60, elsewhere=20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_no_body_whatever_breaks_the_api(
    asha: User, api: Api, path: str, base: dict[str, Any], change: dict[str, Any]
) -> None:
    timer = timers.live_timer(asha) or TimerFactory.create(person=asha)
    method = "PUT" if path in {"safe", "extend"} else "POST"
    address = f"timers/{timer.pk}/{path}" if path in {"positions", "safe", "extend"} else path
    response = api.send(method, address, {**base, **change})
    assert response.status_code < 500, response.content
    if response.status_code >= 400:
        assert_error(response, response.status_code)


class TestFailuresOfOurs:
    @pytest.mark.parametrize(
        ("target", "request_"),
        [
            ("safety.timers.arm", ("POST", "timers", ARM)),
            ("safety.panic.press", ("POST", "sos", {})),
            ("safety.contacts.invite", ("POST", "contacts", INVITE)),
            ("safety.tokens.owner", ("GET", "timers", ...)),
        ],
    )
    def test_an_unexpected_exception_is_500_without_a_stack_trace_and_logged(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: Any, target: str, request_: tuple[str, str, Any]
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a secret of the house")

        monkeypatch.setattr(target, fail)
        response = api.send(*request_)
        assert_error(response, 500, "server_error")
        assert "secret" not in response.content.decode()
        assert "a secret of the house" in caplog.text


class TestReadingChangesNothing:
    def test_p9_get_and_head_change_no_row(self, asha: User, outsider: User) -> None:
        paths = [path for _, path in owned_paths(asha).values()]
        paths += ["timers", "sos", "contacts", "notifications", "tokens", "docs", "openapi.json"]
        api = Api(asha)
        api.client.force_login(asha)
        before = rows()
        for path in paths:
            for method in ("GET", "HEAD", "OPTIONS"):
                assert api.send(method, path).status_code < 500
        assert rows() == before

    def test_p9_no_user_agent_checks_in_by_looking(self, api: Api, timer: MeetingTimer) -> None:
        agents = ["WhatsApp/2.23", "facebookexternalhit/1.1", "Googlebot/2.1", ""]
        for agent, verb, method in itertools.product(agents, ["safe", "cancel", "extend"], ["get", "head"]):
            ask: Callable[..., Any] = getattr(api.client, method)
            assert ask(f"/api/timers/{timer.pk}/{verb}", headers={"user-agent": agent}).status_code == 405
        assert MeetingTimer.objects.get(pk=timer.pk).status == "active"


class TestDocumentation:
    def test_the_docs_page_loads_only_from_this_site_and_runs_no_inline_script(self) -> None:
        response = Client().get("/api/docs")
        assert response.status_code == 200
        page = response.content.decode()
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
        for attributes, text in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL):
            assert "src=" in attributes or 'type="application/json"' in attributes, text
        assert "<style" not in page
        assert not re.search(r"\son\w+=|\sstyle=", page)
        assert "script-src 'self'" in response["Content-Security-Policy"]

    def test_the_schema_describes_the_whole_interface(self) -> None:
        response = Client().get("/api/openapi.json")
        assert response.status_code == 200
        described = {
            (method.upper(), path)
            for path, methods in cast("dict[str, dict[str, Any]]", response.json()["paths"]).items()
            for method in methods
        }
        assert described >= {
            ("POST", "/api/tokens"),
            ("POST", "/api/timers"),
            ("GET", "/api/timers"),
            ("GET", "/api/timers/{timer_id}"),
            ("PUT", "/api/timers/{timer_id}/safe"),
            ("PUT", "/api/timers/{timer_id}/cancel"),
            ("PUT", "/api/timers/{timer_id}/extend"),
            ("POST", "/api/timers/{timer_id}/positions"),
            ("POST", "/api/sos"),
            ("GET", "/api/sos/{incident_id}"),
            ("PUT", "/api/sos/{incident_id}/safe"),
            ("GET", "/api/contacts"),
            ("POST", "/api/contacts"),
            ("DELETE", "/api/contacts/{contact_id}"),
            ("GET", "/api/notifications"),
            ("PUT", "/api/notifications/{notification_id}/read"),
        }
