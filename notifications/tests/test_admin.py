"""The outbox in the moderators' console: who sees it, how it is found, and that only dead letters can be touched."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from casualmeet import clock
from notifications import outbox
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, Priority
from safety.models import User
from sos.tests.test_console import (  # noqa: F401 - a fixture is used by being there
    _joinless_permissions_on_mongodb,
    allow,
    make_incident,
    make_user,
    signed_in,
)

pytestmark = pytest.mark.django_db

LIST = "/admin/notifications/delivery/"
PHONE = "+447700900123"
PERMISSIONS = ["view_sosevent", "view_delivery", "change_delivery"]


@pytest.fixture
def moderator() -> User:
    user: User = make_user("mod", is_staff=True)
    allow(user, *PERMISSIONS)
    return user


@pytest.fixture
def client(moderator: User) -> Client:
    client: Client = signed_in(moderator)
    return client


def make(status: str = "dead", **changes: Any) -> Delivery:
    """A job with one attempt, in this state."""
    now = clock.now()
    given = {"kind": "notice", "priority": Priority.NORMAL, "address": PHONE, "recipient_name": "Ravi", **changes}
    row = Delivery(
        status=status,
        facts={"person_phone": "+919812345670"},
        link="https://safety.example.org/c/secret",
        created_at=now,
        next_attempt_at=now,
        **given,
    )
    outbox.queue([row])
    DeliveryAttempt.objects.create(
        delivery=row,
        number=1,
        carrier="twilio",
        text=f"Asha, {PHONE}: https://safety.example.org/c/secret",
        started_at=now,
        outcome=AttemptOutcome.PERMANENT,
        error_code="21211",
        detail="Not a valid number.",
    )
    return row


def act(client: Client, action: str, *rows: Delivery) -> Any:
    return client.post(LIST, {"action": action, "_selected_action": [row.pk for row in rows]}, follow=True)


def status_of(row: Delivery) -> str:
    return Delivery.objects.get(pk=row.pk).status


def shown(client: Client, query: str = "") -> set[UUID]:
    response = client.get(LIST + query)
    assert response.status_code == 200
    return {row.pk for row in response.context["cl"].result_list}


class TestWhoSeesIt:
    @pytest.mark.parametrize("granted", [["view_sosevent"], ["view_delivery", "change_delivery"]])
    def test_staff_who_lack_a_permission_do_not(self, granted: list[str]) -> None:
        row = make()
        user = make_user("clerk", is_staff=True)
        allow(user, *granted)
        for address in (LIST, f"{LIST}{row.pk}/change/"):
            response = signed_in(user).get(address)
            assert response.status_code == 403
        assert act(signed_in(user), "discard", row).status_code == 403
        assert status_of(row) == "dead"

    def test_who_is_no_staff_does_not(self) -> None:
        user = make_user("asha")
        allow(user, *PERMISSIONS)
        assert signed_in(user).get(LIST)["Location"].startswith("/admin/login/")

    @pytest.mark.parametrize("action", ["try_again", "discard"])
    def test_a_moderator_who_may_not_change_deliveries_only_looks(self, action: str) -> None:
        row = make()
        user = make_user("reader", is_staff=True)
        allow(user, "view_sosevent", "view_delivery")
        client = signed_in(user)
        assert action not in client.get(LIST).text
        act(client, action, row)
        assert status_of(row) == "dead"


class TestLooking:
    def test_numbers_links_and_texts_are_hidden(self, client: Client) -> None:
        row = make()
        for address in (LIST, f"{LIST}{row.pk}/change/"):
            text = client.get(address).text
            assert "…23" in text
            for hidden in (PHONE, PHONE[1:], "9812345670", "/c/secret"):
                assert hidden not in text

    def test_the_page_has_the_attempts_and_nothing_to_edit(self, client: Client) -> None:
        row = make()
        text = client.get(f"{LIST}{row.pk}/change/").text
        assert "21211" in text
        assert "Not a valid number." in text
        assert 'name="_save"' not in text
        assert 'name="attempts-0-outcome"' not in text

    def test_filters(self, client: Client) -> None:
        make("accepted")
        for query, row in {
            "status__exact=dead": make("dead"),
            "kind=digest": make("accepted", kind="digest"),
            "priority__exact=9": make("accepted", priority=Priority.BULK),
            "channel__exact=push": make("accepted", channel="push"),
            "carrier=fcm": make("accepted", carrier="fcm"),
        }.items():
            assert shown(client, f"?{query}") == {row.pk}, query

    def test_found_by_the_reference_of_the_incident_only(self, client: Client) -> None:
        make()
        incident = make_incident(make_user("asha"), names=["Meera"])
        (alert,) = Delivery.objects.filter(incident_id=incident.pk)
        assert shown(client, f"?q={incident.reference.lower()}") == {alert.pk}
        for other in ("Meera", alert.address[1:], "NOSUCH"):
            assert shown(client, f"?q={other}") == set()

    def test_looking_changes_nothing(self, client: Client) -> None:
        row = make()
        before = Delivery.objects.filter(pk=row.pk).values().get()
        for query in ("?action=discard", f"?action=try_again&_selected_action={row.pk}", ""):
            client.get(LIST + query)
        client.get(f"{LIST}{row.pk}/change/")
        assert Delivery.objects.filter(pk=row.pk).values().get() == before


class TestRetryAndDiscard:
    def test_a_dead_job_is_tried_again(self, client: Client) -> None:
        row = make()
        assert "1 being sent again" in act(client, "try_again", row).text
        assert status_of(row) == "queued"

    def test_dead_jobs_are_discarded_and_others_left_alone(self, client: Client) -> None:
        dead, sent = make(), make("accepted")
        text = act(client, "discard", dead, sent).text
        assert "1 discarded" in text
        assert "1 left alone" in text
        assert [status_of(row) for row in (dead, sent)] == ["cancelled", "accepted"]

    def test_the_dead_letter_of_an_incident_is_never_discarded(self, client: Client) -> None:
        row = make(incident_id=uuid4())
        assert "1 left alone" in act(client, "discard", row).text
        assert status_of(row) == "dead"

    @pytest.mark.parametrize(("action", "what"), [("try_again", "Tried again"), ("discard", "Discarded")])
    def test_the_history_says_who_did_it(self, client: Client, moderator: User, action: str, what: str) -> None:
        row, other = make(), make("accepted")
        act(client, action, row, other)
        (entry,) = LogEntry.objects.all()
        assert (entry.user_id, entry.object_id, entry.change_message) == (moderator.pk, str(row.pk), what)

    def test_only_with_a_csrf_token(self, moderator: User) -> None:
        row = make()
        client = Client(enforce_csrf_checks=True)
        client.force_login(moderator)
        assert act(client, "discard", row).status_code == 403
        assert status_of(row) == "dead"

    def test_nothing_is_deleted_not_even_by_a_superuser(self) -> None:
        row = make()
        client = signed_in(make_user("root", is_staff=True, is_superuser=True))
        assert "delete_selected" not in client.get(LIST).text
        client.post(LIST, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
        assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
        assert client.post(f"{LIST}{row.pk}/change/", {"status": "accepted"}).status_code == 403
        assert status_of(row) == "dead"
