"""Backup alerts in the admin: seen by whoever may, changed by nobody, and the ones in trouble found at once."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from casualmeet import clock
from safety.models import FailSafeAlert
from safety.tests.factories import PersonFactory, TimerFactory
from sos.tests.test_console import (  # noqa: F401 - a fixture is used by being there
    _joinless_permissions_on_mongodb,
    allow,
    make_user,
    signed_in,
)

pytestmark = pytest.mark.django_db

LIST = "/admin/safety/failsafealert/"
PHONE = "+919812345678"
SOON = timedelta(minutes=5)


def make(name: str, **state: Any) -> FailSafeAlert:
    """One for a timer of a person of this name."""
    timer = TimerFactory.create(person=PersonFactory.create(full_name=name))
    given = {"wanted_at": clock.now() + timedelta(hours=1), "next_try_at": clock.now() + SOON, **state}
    return FailSafeAlert.objects.create(timer=timer, contact_id=uuid4(), phone=PHONE, language="en", **given)


@pytest.fixture
def client() -> Client:
    """Of staff who may look."""
    staff = make_user("mod", is_staff=True)
    allow(staff, "view_sosevent", "view_failsafealert")
    client: Client = signed_in(staff)
    return client


def test_the_ones_that_need_a_look(client: Client) -> None:
    now = clock.now()
    make("Asha Fine", settled=True)
    make("Bela Working", tries=4)
    make("Chitra Cleared", settled=True, sent_at=now, next_try_at=None)
    make("Devi Done", settled=True, wanted_at=None, next_try_at=None)
    make("Esha Failing", tries=5)
    make("Farah Near", next_try_at=None)
    make("Gita Sent", settled=True, sent_at=now)
    every = client.get(LIST).content.decode()
    found = client.get(LIST, {"look": "yes"}).content.decode()
    for name, state, needs in (
        ("Asha Fine", "as wanted", False),
        ("Bela Working", "in work", False),
        ("Chitra Cleared", "sent by the carrier", False),
        ("Devi Done", "not wanted, nothing stands", False),
        ("Esha Failing", "failing", True),
        ("Farah Near", "given up", True),
        ("Gita Sent", "sent by the carrier", True),
    ):
        assert name in every
        assert state in every
        assert (name in found) is needs
    assert PHONE not in every


def test_it_is_there_to_look_at_and_no_more(client: Client) -> None:
    row = make("Asha")
    page = client.get(f"{LIST}{row.pk}/change/")
    assert page.status_code == 200
    assert PHONE not in page.content.decode()
    assert client.post(f"{LIST}{row.pk}/change/", {"tries": 0}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert FailSafeAlert.objects.get().phone == PHONE


def test_staff_without_the_permission_see_nothing() -> None:
    make("Asha")
    staff = make_user("clerk", is_staff=True)
    allow(staff, "view_sosevent")
    assert signed_in(staff).get(LIST).status_code == 403


def test_the_list_needs_no_query_per_row(client: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(6):
        make(f"Person {number}")
    with django_assert_max_num_queries(8):
        assert client.get(LIST).content.decode().count("Person ") == 6
