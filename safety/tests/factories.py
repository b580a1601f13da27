"""Rows for tests: a person, their contacts, their timers. Unsaved verbs are not called: nothing is sent."""

import functools
from datetime import timedelta

from django.contrib.auth.hashers import make_password
from factory.declarations import LazyAttribute, LazyFunction, Sequence, SubFactory
from factory.django import DjangoModelFactory

from casualmeet import clock
from safety.models import MeetingTimer, TrustedContact, User

PASSWORD = "correct horse 7"


@functools.cache
def _hashed(password: str) -> str:
    """Hashed as at sign-up, which takes long: once per run."""
    return make_password(password)


class PersonFactory(DjangoModelFactory[User]):
    """A person with an Indian mobile number and no PIN; their password is PASSWORD."""

    class Meta:
        model = User

    username = Sequence(lambda n: f"person{n}")
    full_name = Sequence(lambda n: f"Priya Sharma {n}")
    phone = Sequence(lambda n: f"+9198123{n % 100000:05d}")
    time_zone = "Asia/Kolkata"
    password = LazyFunction(lambda: _hashed(PASSWORD))


class ContactFactory(DjangoModelFactory[TrustedContact]):
    """A contact who has accepted."""

    class Meta:
        model = TrustedContact

    person = SubFactory(PersonFactory)
    slot = LazyAttribute(lambda made: made.person.contacts.count())
    name = Sequence(lambda n: f"Ravi Iyer {n}")
    phone = Sequence(lambda n: f"+9199887{n % 100000:05d}")
    status = TrustedContact.Status.VERIFIED
    token = Sequence(lambda n: f"token{n:019d}")
    invited_at = LazyFunction(clock.now)


class TimerFactory(DjangoModelFactory[MeetingTimer]):
    """A live timer that started just now and runs for an hour."""

    class Meta:
        model = MeetingTimer

    person = SubFactory(PersonFactory)
    location_name = "Cafe Blue"
    meet_with = "Rahul K"
    duration_minutes = 60
    started_at = LazyFunction(clock.now)
    expires_at = LazyAttribute(lambda made: made.started_at + timedelta(minutes=made.duration_minutes))
    escalates_at = LazyAttribute(lambda made: made.expires_at + timedelta(minutes=made.grace_minutes))
    grace_minutes = 0
