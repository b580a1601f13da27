"""In-app notifications: posted once, read once, and seen only by their person."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from casualmeet import clock
from notifications import inbox
from notifications.models import Notification
from safety.models import User
from safety.tests.factories import PersonFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def asha() -> User:
    return PersonFactory.create(username="asha")


def notice(person: User, *, key: str = "k", title: str = "Ravi is helping you", body: str = "") -> Notification:
    return inbox.notice(key=key, recipient_id=person.pk, kind="acknowledged", title=title, body=body, now=clock.now())


def test_the_same_key_is_posted_once(asha: User) -> None:
    inbox.post([notice(asha)])
    inbox.post([notice(asha), notice(asha, key="other")])
    assert Notification.objects.count() == 2


def test_long_texts_are_cut_to_what_the_database_takes(asha: User) -> None:
    inbox.post([notice(asha, title="t" * 500, body="b" * 5000)])
    row = Notification.objects.get()
    assert (len(row.title), len(row.body)) == (120, 300)


def test_marking_read_keeps_the_first_time_and_says_whether_it_changed(asha: User) -> None:
    inbox.post([notice(asha)])
    row = Notification.objects.get()
    assert inbox.mark_read(row)
    first = Notification.objects.get().read_at
    assert first is not None
    assert row.read_at == first
    assert not inbox.mark_read(row)
    assert Notification.objects.get().read_at == first


def test_somebody_elses_notification_is_as_missing_as_an_unknown_one(asha: User) -> None:
    inbox.post([notice(asha)])
    row = Notification.objects.get()
    assert inbox.access_notification(asha.pk, row.pk) == row
    for person_id, notification_id in ((PersonFactory.create().pk, row.pk), (asha.pk, uuid4())):
        with pytest.raises(Notification.DoesNotExist):
            inbox.access_notification(person_id, notification_id)


def test_an_alarm_reaches_every_active_moderator_once(asha: User) -> None:
    first, second = (PersonFactory.create(is_staff=True) for _ in range(2))
    PersonFactory.create(is_staff=True, is_active=False)
    for _ in range(2):
        inbox.alarm_moderators(key="poison:1", title="A row is broken", body="Look at the log.")
    alarms = Notification.objects.filter(kind="alarm")
    assert {alarm.recipient_id for alarm in alarms} == {first.pk, second.pk}
    assert alarms.count() == 2


def test_the_newest_comes_first(asha: User) -> None:
    old, new = notice(asha, key="old"), notice(asha, key="new")
    old.created_at = clock.now() - timedelta(hours=1)
    inbox.post([old, new])
    assert list(Notification.objects.values_list("pk", flat=True)) == [new.pk, old.pk]
