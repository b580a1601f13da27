"""Rows for tests: a person, their contacts, their timers. Unsaved verbs are not called: nothing is sent."""

from datetime import timedelta
from typing import Any

import factory
from factory.django import DjangoModelFactory

from casualmeet import clock
from safety.models import MeetingTimer, TrustedContact, User

PASSWORD = "correct horse 7"  # noqa: S105 - of people who exist only in tests


class PersonFactory(DjangoModelFactory[User]):
    """A person with an Indian mobile number and no PIN; their password is PASSWORD."""

    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda n: f"person{n}")
    full_name = factory.Sequence(lambda n: f"Priya Sharma {n}")
    phone = factory.Sequence(lambda n: f"+9198123{n % 100000:05d}")
    time_zone = "Asia/Kolkata"

    @classmethod
    def _create(cls, model_class: type[User], *args: Any, **kwargs: Any) -> User:
        """With a usable password, hashed as at sign-up."""
        kwargs.setdefault("password", PASSWORD)
        return User.objects.create_user(*args, **kwargs)


class ContactFactory(DjangoModelFactory[TrustedContact]):
    """A contact who has accepted."""

    class Meta:
        model = TrustedContact

    person = factory.SubFactory(PersonFactory)
    slot = factory.LazyAttribute(lambda made: made.person.contacts.count())
    name = factory.Sequence(lambda n: f"Ravi Iyer {n}")
    phone = factory.Sequence(lambda n: f"+9199887{n % 100000:05d}")
    status = TrustedContact.Status.VERIFIED
    token = factory.Sequence(lambda n: f"token{n:019d}")
    invited_at = factory.LazyFunction(clock.now)


class TimerFactory(DjangoModelFactory[MeetingTimer]):
    """A live timer that started just now and runs for an hour."""

    class Meta:
        model = MeetingTimer

    person = factory.SubFactory(PersonFactory)
    location_name = "Cafe Blue"
    meet_with = "Rahul K"
    duration_minutes = 60
    started_at = factory.LazyFunction(clock.now)
    expires_at = factory.LazyAttribute(lambda made: made.started_at + timedelta(minutes=made.duration_minutes))
    escalates_at = factory.LazyAttribute(lambda made: made.expires_at + timedelta(minutes=made.grace_minutes))
    grace_minutes = 0
