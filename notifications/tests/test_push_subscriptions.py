"""Who takes pushes: subscribing with and without a login, what refusals lead to, and receipts."""

import hashlib
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.urls import reverse

from casualmeet import clock
from casualmeet.refusal import Refusal
from notifications import subscriptions
from notifications.carriers.base import Answer, Outcome
from notifications.models import (
    AttemptOutcome,
    Channel,
    Delivery,
    DeliveryAttempt,
    DeliveryStatus,
    Notification,
    PushSubscription,
)
from notifications.tests.pushing import SUBJECT, TOKEN, VAPID_PRIVATE_KEY, VAPID_PUBLIC_KEY, Browser
from safety import contacts, panic
from safety.models import TrustedContact, User
from safety.tests.factories import ContactFactory, PersonFactory
from safety.tests.people import Clock
from sos import incidents
from sos.models import AlertedContact

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

ENDPOINT = "https://fcm.googleapis.com/fcm/send/abc"
BROWSER = Browser()


@pytest.fixture(autouse=True)
def offered(settings: Any) -> None:
    """A site that sends pushes to browsers."""
    settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = VAPID_PRIVATE_KEY, SUBJECT


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    moved = Clock(clock.now())
    monkeypatch.setattr(clock, "now", moved)
    return moved


@pytest.fixture
def person() -> User:
    return PersonFactory.create()


@pytest.fixture
def page(client: Client, person: User) -> Client:
    """Their browser."""
    client.force_login(person)
    return client


def subscribe(owner_id: UUID, endpoint: str = ENDPOINT) -> PushSubscription:
    return subscriptions.subscribe(
        owner_id, kind="webpush", endpoint=endpoint, p256dh=BROWSER.p256dh, auth=BROWSER.auth
    )


def body(endpoint: str = ENDPOINT) -> dict[str, Any]:
    """What push.js sends."""
    keys = {"p256dh": BROWSER.p256dh, "auth": BROWSER.auth}
    return {"kind": "webpush", "endpoint": endpoint, "keys": keys}


def post(client: Client, address: str, sent: object) -> Any:
    text = sent if isinstance(sent, str) else json.dumps(sent)
    return client.post(address, text, content_type="application/json")


class TestSubscribing:
    """The verbs."""

    def test_twice_is_once_and_renews_it(self, person: User, ticking: Clock) -> None:
        first = subscribe(person.pk)
        PushSubscription.objects.update(refusals=4, disabled_at=clock.now())
        ticking.move(minutes=1)
        again = subscribe(person.pk)
        assert again.pk == first.pk
        (row,) = PushSubscription.objects.all()
        assert (row.refusals, row.disabled_at, row.created_at) == (0, None, ticking.now)
        assert subscriptions.targets([str(row.pk)]) == {row.pk: BROWSER.target(ENDPOINT)}

    def test_the_eleventh_drops_the_oldest_and_nobody_elses(self, person: User, ticking: Clock) -> None:
        other = subscribe(uuid4(), f"{ENDPOINT}-other")
        rows = []
        for number in range(12):
            ticking.move(seconds=1)
            rows.append(subscribe(person.pk, f"{ENDPOINT}{number}").pk)
        mine = subscriptions.of([person.pk])[person.pk]
        assert [row.pk for row in mine] == rows[:1:-1]
        assert PushSubscription.objects.filter(pk=other.pk).exists()

    def test_one_phone_may_be_the_contact_of_many(self, person: User) -> None:
        owners = [uuid4(), uuid4(), person.pk]
        for owner in owners:
            subscribe(owner)
        assert set(subscriptions.of(owners)) == set(owners)

    def test_p10_a_browser_is_one_persons_at_a_time(self, person: User) -> None:
        before, contact = PersonFactory.create(), uuid4()
        subscribe(before.pk)
        subscribe(contact)
        subscribe(person.pk)
        assert set(subscriptions.of([before.pk, contact, person.pk])) == {contact, person.pk}

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            ({"endpoint": "https://127.0.0.1/x"}, "bad_endpoint"),
            ({"endpoint": "http://fcm.googleapis.com/x"}, "bad_endpoint"),
            ({"p256dh": "AAAA"}, "bad_keys"),
            ({"auth": ""}, "bad_keys"),
            ({"kind": "apns"}, "bad_kind"),
            ({"kind": "fcm"}, "no_push"),
        ],
    )
    def test_what_is_refused(self, person: User, changed: dict[str, str], code: str) -> None:
        given = {"kind": "webpush", "endpoint": ENDPOINT, "p256dh": BROWSER.p256dh, "auth": BROWSER.auth, **changed}
        with pytest.raises(Refusal) as refused:
            subscriptions.subscribe(person.pk, **given)
        assert refused.value.code == code
        assert not PushSubscription.objects.exists()

    @pytest.mark.parametrize(
        "token", ["", "short", "x" * 1001, "with space " * 3, "with/slash" * 3, "\n" * 30, "é" * 30]
    )
    def test_what_is_no_fcm_token(self, person: User, settings: Any, token: str) -> None:
        settings.FCM_SERVICE_ACCOUNT = "var/key.json"
        with pytest.raises(Refusal, match="FCM token"):
            subscriptions.subscribe(person.pk, kind="fcm", endpoint=token)

    def test_no_push_without_keys(self, person: User, settings: Any) -> None:
        settings.VAPID_PRIVATE_KEY = ""
        with pytest.raises(Refusal) as refused:
            subscribe(person.pk)
        assert (refused.value.status, refused.value.code) == (404, "no_push")


def answer(outcome: Outcome, error_class: Any = "") -> Answer:
    return Answer(outcome, error_class=error_class)


ACCEPTED = answer(Outcome.ACCEPTED)
REFUSED = answer(Outcome.PERMANENT, "auth")


class TestAnswers:
    """What push services say, and what becomes of the subscription."""

    def test_gone_is_removed_and_only_that(self, person: User) -> None:
        gone, kept = subscribe(person.pk), subscribe(person.pk, f"{ENDPOINT}2")
        others: list[Any] = ["", "config", "content", "throttled", "transient", "expired"]
        subscriptions.note_answers([(kept.pk, answer(Outcome.PERMANENT, other)) for other in others])
        subscriptions.note_answers([(gone.pk, answer(Outcome.PERMANENT, "gone"))])
        assert list(PushSubscription.objects.values_list("pk", "refusals", "disabled_at")) == [(kept.pk, 0, None)]

    def test_five_refusals_in_a_row_disable_it_and_the_person_is_asked_once(self, person: User) -> None:
        row = subscribe(person.pk)
        for _ in range(4):
            subscriptions.note_answers([(row.pk, REFUSED)])
        assert subscriptions.of([person.pk])
        assert not Notification.objects.exists()
        for _ in range(3):
            subscriptions.note_answers([(row.pk, REFUSED)])
        assert not subscriptions.of([person.pk])
        assert not subscriptions.targets([str(row.pk)])
        assert subscriptions.standing(person.pk) == ([], True)
        assert "Turn them on again" in Notification.objects.get(recipient=person).body

    def test_a_success_between_starts_the_count_again(self, person: User) -> None:
        row = subscribe(person.pk)
        for answered in [REFUSED] * 4 + [ACCEPTED] + [REFUSED] * 4:
            subscriptions.note_answers([(row.pk, answered)])
        assert subscriptions.of([person.pk])

    def test_another_projects_token_is_disabled_at_once(self, person: User) -> None:
        row = subscribe(person.pk)
        subscriptions.note_answers([(row.pk, answer(Outcome.PERMANENT, "bad_recipient"))])
        assert not subscriptions.of([person.pk])
        assert Notification.objects.count() == 1

    def test_an_apps_token_does_not_pay_for_our_credentials(self, person: User, settings: Any) -> None:
        settings.FCM_SERVICE_ACCOUNT = "var/key.json"
        row = subscriptions.subscribe(person.pk, kind="fcm", endpoint=TOKEN)
        for _ in range(9):
            subscriptions.note_refusal(row.pk)
        assert subscriptions.of([person.pk])

    def test_answers_about_what_is_not_there_do_no_harm(self) -> None:
        for error_class in ("gone", "auth", "bad_recipient"):
            subscriptions.note_answers([(uuid4(), answer(Outcome.PERMANENT, error_class))])
        subscriptions.note_answers([(uuid4(), ACCEPTED)])
        subscriptions.note_answers([])

    def test_a_contact_is_asked_on_their_own_page(self, client: Client) -> None:
        contact = ContactFactory.create()
        row = subscribe(contact.pk)
        assert "stopped" not in client.get(f"/c/{contact.token}").content.decode()
        for _ in range(5):
            subscriptions.note_refusal(row.pk)
        assert "Notifications here stopped" in client.get(f"/c/{contact.token}").content.decode()
        assert not Notification.objects.exists()


class TestApi:
    """The JSON API."""

    def test_subscribe_and_unsubscribe(self, page: Client, person: User) -> None:
        answered = post(page, "/api/push-subscriptions", body())
        assert answered.status_code == 201
        assert set(answered.json()) == {"id", "kind", "created_at"}
        row = PushSubscription.objects.get(owner_id=person.pk)
        assert page.delete(f"/api/push-subscriptions/{row.pk}").status_code == 204
        assert not PushSubscription.objects.exists()
        assert page.delete(f"/api/push-subscriptions/{row.pk}").status_code == 404

    def test_an_app(self, page: Client, person: User, settings: Any) -> None:
        settings.FCM_SERVICE_ACCOUNT = "var/key.json"
        assert post(page, "/api/push-subscriptions", {"kind": "fcm", "token": TOKEN}).status_code == 201
        assert PushSubscription.objects.get(owner_id=person.pk).endpoint == TOKEN

    @pytest.mark.parametrize(
        "sent",
        [
            "{",
            [],
            {},
            {"kind": "webpush"},
            {"kind": "sms", "endpoint": ENDPOINT},
            {"kind": "webpush", "endpoint": 7, "keys": {}},
            {"kind": "webpush", "endpoint": ENDPOINT, "keys": {"p256dh": "x"}},
            {"kind": "webpush", "endpoint": "https://169.254.169.254/latest", "keys": body()["keys"]},
            {"kind": "webpush", "endpoint": "https://fcm.googleapis.com/" + "x" * 3000, "keys": body()["keys"]},
            {"kind": "webpush", "endpoint": "https://fcm.googleapis.com/\x00", "keys": body()["keys"]},
            {"kind": "webpush", "endpoint": "https://fcm.googleapis.com/\ud800", "keys": body()["keys"]},
        ],
    )
    def test_bad_input_changes_nothing(self, page: Client, sent: object) -> None:
        assert post(page, "/api/push-subscriptions", sent).status_code in {400, 422}
        assert not PushSubscription.objects.exists()

    def test_somebody_elses_is_not_there(self, page: Client) -> None:
        row = subscribe(uuid4())
        assert page.delete(f"/api/push-subscriptions/{row.pk}").status_code == 404
        assert PushSubscription.objects.exists()

    def test_it_takes_a_login(self, client: Client) -> None:
        assert post(client, "/api/push-subscriptions", body()).status_code == 401
        assert client.delete(f"/api/push-subscriptions/{uuid4()}").status_code == 401

    def test_the_key_is_public(self, client: Client, settings: Any) -> None:
        assert client.get("/api/push-key").json() == {"public_key": VAPID_PUBLIC_KEY}
        settings.VAPID_PRIVATE_KEY = ""
        assert client.get("/api/push-key").status_code == 404


class TestContacts:
    """By their secret link, without a login."""

    @pytest.fixture
    def contact(self) -> TrustedContact:
        return ContactFactory.create(name="Ravi")

    @pytest.fixture
    def alerted(self, contact: TrustedContact) -> AlertedContact:
        panic.press(contact.person)
        return AlertedContact.objects.get(contact_id=contact.pk)

    @pytest.fixture
    def strict(self) -> Client:
        """As a browser without cookies: the secret in the address is all there is."""
        return Client(enforce_csrf_checks=True)

    def test_on_their_own_page(self, strict: Client, contact: TrustedContact) -> None:
        assert post(strict, f"/c/{contact.token}/push", body()).status_code == 201
        assert [row.endpoint for row in subscriptions.of([contact.pk])[contact.pk]] == [ENDPOINT]

    def test_on_the_alert_page(self, strict: Client, contact: TrustedContact, alerted: AlertedContact) -> None:
        assert post(strict, f"/i/{alerted.token}/push", body()).status_code == 201
        assert subscriptions.of([contact.pk])

    def test_p11_not_by_the_link_of_an_old_alert(
        self, strict: Client, contact: TrustedContact, alerted: AlertedContact
    ) -> None:
        incidents.resolve(alerted.incident, with_pin=False)
        alerted.incident.refresh_from_db()
        type(alerted.incident).objects.update(resolved_at=clock.now() - timedelta(hours=25))
        assert post(strict, f"/i/{alerted.token}/push", body()).status_code == 404
        assert not PushSubscription.objects.exists()

    def test_only_who_accepted(self, strict: Client, contact: TrustedContact) -> None:
        TrustedContact.objects.update(status=TrustedContact.Status.PENDING)
        answered = post(strict, f"/c/{contact.token}/push", body())
        assert (answered.status_code, answered.json()["code"]) == (409, "not_accepted")
        assert "data-push" not in strict.get(f"/c/{contact.token}").content.decode()

    @pytest.mark.parametrize(
        "sent",
        [
            "{",
            "[" * 9999,
            [],
            {"endpoint": ENDPOINT, "keys": 7},
            {"endpoint": ENDPOINT, "keys": {"p256dh": 1, "auth": 2}},
            body("https://10.0.0.1/x"),
        ],
    )
    def test_bad_input(self, strict: Client, contact: TrustedContact, sent: object) -> None:
        answered = post(strict, f"/c/{contact.token}/push", sent)
        assert answered.status_code == 422
        assert answered.json()["detail"]
        assert not PushSubscription.objects.exists()

    def test_a_wrong_link_is_no_link(self, strict: Client) -> None:
        for address in ("/c/wrong/push", "/i/wrong/push"):
            assert post(strict, address, body()).status_code == 404
            assert strict.get(address).status_code == 405

    def test_who_leaves_or_is_removed_is_forgotten(self, contact: TrustedContact) -> None:
        subscribe(contact.pk)
        contacts.answer(contact, accept=False)
        assert not PushSubscription.objects.exists()
        subscribe(contact.pk)
        contacts.remove(contact)
        assert not PushSubscription.objects.exists()


class TestPages:
    """The button is offered where it works."""

    def test_where(self, page: Client) -> None:
        contact = ContactFactory.create()
        panic.press(contact.person)
        alerted = AlertedContact.objects.get()
        for address in (reverse("settings"), f"/c/{contact.token}", f"/i/{alerted.token}"):
            shown = page.get(address)
            assert f'data-push="{VAPID_PUBLIC_KEY}"' in shown.content.decode()
            assert "js/push.js" in shown.content.decode()
            assert "worker-src 'self'" in shown["Content-Security-Policy"]

    def test_the_page_knows_which_endpoints_are_on(self, page: Client, person: User) -> None:
        subscribe(person.pk)
        digest = hashlib.sha256(ENDPOINT.encode()).hexdigest()
        assert f'data-push-known="{digest}"' in page.get(reverse("settings")).content.decode()

    def test_nowhere_without_keys(self, page: Client, settings: Any) -> None:
        settings.VAPID_PRIVATE_KEY = ""
        contact = ContactFactory.create()
        for address in (reverse("settings"), f"/c/{contact.token}"):
            shown = page.get(address).content.decode()
            assert "data-push" not in shown
            assert "push.js" not in shown

    def test_the_service_worker_is_at_the_root(self, client: Client) -> None:
        response = client.get("/sw.js")
        assert response["Content-Type"].startswith("text/javascript")
        assert "no-store" in response["Cache-Control"]
        assert b"showNotification" in response.content
        assert client.post("/sw.js").status_code == 405


def attempt(*, channel: str = Channel.PUSH, status: str = DeliveryStatus.ACCEPTED) -> DeliveryAttempt:
    """A push that a service took."""
    now = clock.now()
    delivery = Delivery.objects.create(
        kind="sos", channel=channel, address=str(uuid4()), facts={}, created_at=now, next_attempt_at=now, status=status
    )
    return DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="webpush", text="SOS", started_at=now, outcome=AttemptOutcome.ACCEPTED
    )


class TestReceipts:
    """P13: only the phone's word is "delivered"."""

    @pytest.fixture
    def phone(self) -> Client:
        """The service worker, which has no cookies."""
        return Client(enforce_csrf_checks=True)

    def test_it_counts_once(self, phone: Client, ticking: Clock) -> None:
        made = attempt()
        for _ in range(2):
            assert post(phone, "/push/receipt", {"receipt": str(made.pk)}).status_code == 204
            ticking.move(minutes=1)
        made.refresh_from_db()
        made.delivery.refresh_from_db()
        first = ticking.now - timedelta(minutes=2)
        assert (made.receipt, made.receipt_at) == ("delivered", first)
        assert (made.delivery.status, made.delivery.delivered_at) == (DeliveryStatus.DELIVERED, first)

    def test_it_may_come_before_the_services_answer_is_stored(self, phone: Client) -> None:
        made = attempt(status=DeliveryStatus.SENDING)
        post(phone, "/push/receipt", {"receipt": str(made.pk)})
        made.delivery.refresh_from_db()
        assert made.delivery.status == DeliveryStatus.SENDING
        assert made.delivery.delivered_at is not None

    def test_what_was_cancelled_stays_so(self, phone: Client) -> None:
        made = attempt(status=DeliveryStatus.CANCELLED)
        post(phone, "/push/receipt", {"receipt": str(made.pk)})
        made.delivery.refresh_from_db()
        assert made.delivery.status == DeliveryStatus.CANCELLED
        assert made.delivery.delivered_at is not None

    @pytest.mark.parametrize("channel", [Channel.SMS, Channel.VOICE])
    def test_it_says_nothing_about_texts_and_calls(self, phone: Client, channel: Channel) -> None:
        made = attempt(channel=channel)
        assert post(phone, "/push/receipt", {"receipt": str(made.pk)}).status_code == 204
        made.refresh_from_db()
        made.delivery.refresh_from_db()
        assert made.receipt == ""
        assert made.delivery.delivered_at is None

    @pytest.mark.parametrize(
        "sent", ["", "{", "null", "[]", {}, {"receipt": 7}, {"receipt": "x"}, {"receipt": str(uuid4())}, "[" * 9999]
    )
    def test_garbage_and_unknown_ids_change_nothing(self, phone: Client, sent: object) -> None:
        made = attempt()
        assert post(phone, "/push/receipt", sent).status_code == 204
        made.refresh_from_db()
        assert made.receipt == ""

    def test_p9_looking_is_no_receipt(self, phone: Client) -> None:
        made = attempt()
        assert phone.get(f"/push/receipt?receipt={made.pk}").status_code == 405


class TestLeavingABrowser:
    """What the button says that turns notifications off: for one owner, in one browser."""

    def test_the_owners_other_browsers_and_other_owners_of_this_one_stay(self, person: User) -> None:
        contact, elsewhere = uuid4(), f"{ENDPOINT}-elsewhere"
        for owner, endpoint in ((person.pk, ENDPOINT), (person.pk, elsewhere), (contact, ENDPOINT)):
            subscribe(owner, endpoint)
        for _ in range(2):
            subscriptions.leave_browser(person.pk, ENDPOINT)
        left = PushSubscription.objects.values_list("owner_id", "endpoint")
        assert set(left) == {(person.pk, elsewhere), (contact, ENDPOINT)}

    def test_a_person_in_their_own_settings(self, page: Client, person: User) -> None:
        subscribe(person.pk)
        assert "data-push-off" in page.get(reverse("settings")).content.decode()
        for _ in range(2):
            assert post(page, "/api/push-subscriptions/off", {"endpoint": ENDPOINT}).status_code == 204
        assert not PushSubscription.objects.exists()

    def test_a_contact_by_both_links(self) -> None:
        contact = ContactFactory.create(name="Ravi")
        panic.press(contact.person)
        alerted = AlertedContact.objects.get(contact_id=contact.pk)
        strict = Client(enforce_csrf_checks=True)
        for link in (f"/c/{contact.token}/push/off", f"/i/{alerted.token}/push/off"):
            subscribe(contact.pk)
            answered = post(strict, link, {"endpoint": ENDPOINT})
            assert (answered.status_code, answered.content) == (204, b"")
            assert "no-store" in answered["Cache-Control"]
            assert not PushSubscription.objects.exists()
            assert strict.get(link).status_code == strict.head(link).status_code == 405

    @pytest.mark.parametrize("sent", ["{", "[" * 9999, [], {}, {"endpoint": 7}, {"endpoint": None}])
    def test_bad_input_changes_nothing(self, page: Client, person: User, sent: object) -> None:
        contact = ContactFactory.create(name="Ravi")
        subscribe(contact.pk)
        subscribe(person.pk)
        assert post(page, f"/c/{contact.token}/push/off", sent).status_code == 422
        assert post(page, "/api/push-subscriptions/off", sent).status_code in {400, 422}
        assert PushSubscription.objects.count() == 2

    def test_what_is_nobodys_is_left_in_peace(self, client: Client, person: User) -> None:
        contact = ContactFactory.create(name="Ravi")
        subscribe(contact.pk)
        for endpoint in ("", "https://push.example/other", "\x00", "\ud800"):
            assert post(client, f"/c/{contact.token}/push/off", {"endpoint": endpoint}).status_code == 204
        for address in ("/c/wrong/push/off", "/i/wrong/push/off"):
            assert post(client, address, {"endpoint": ENDPOINT}).status_code == 404
        assert post(client, "/api/push-subscriptions/off", {"endpoint": ENDPOINT}).status_code == 401
        assert PushSubscription.objects.count() == 1
