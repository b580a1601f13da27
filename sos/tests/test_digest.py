"""The daily digest: whose it is, that its numbers are right, that it comes once, and that nobody is named in it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Permission

from casualmeet import clock
from notifications import optouts
from notifications.models import CarrierHealth, Delivery, DeliveryAttempt, Notification
from notifications.tests.deliveries import delivery
from ops.tests.runs import Lost, TestRun
from safety.models import User
from safety.tests.people import Clock, people
from sos import digest, incidents
from sos.jobs import daily_digest
from sos.models import AlertedContact, SosEvent, Source
from sos.tests.test_console import JoinlessBackend, on_mongodb
from sos.triggers import Recipient, Trigger, person_of

pytestmark = pytest.mark.django_db

SLOT = datetime(2026, 11, 29, 7, 0, tzinfo=UTC)
YESTERDAY = datetime(2026, 11, 28, tzinfo=UTC)
INDIA = ZoneInfo("Asia/Kolkata")


@pytest.fixture(autouse=True)
def _joinless_permissions_on_mongodb(settings: Any) -> None:
    if on_mongodb:
        settings.AUTHENTICATION_BACKENDS = [f"{JoinlessBackend.__module__}.{JoinlessBackend.__name__}"]


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still, at the time of the digest."""
    standing = Clock(SLOT)
    monkeypatch.setattr(clock, "now", standing)
    return standing


def staff(name: str, *codenames: str, **changes: Any) -> User:
    given = {"full_name": name.title(), "is_staff": True, "phone": f"+9198{len(name):08d}", **changes}
    user = User.objects.create(username=name, **given)
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    return user


@pytest.fixture
def meera() -> User:
    """A supervisor."""
    return staff("meera", "view_sosevent", "receive_digest")


def incident(wall: Clock, at: datetime, *, source: Source = Source.MANUAL, **changes: Any) -> SosEvent:
    """Opened then, with a contact whose alert was accepted `accepted` seconds later, and who helps after `helps`."""
    accepted, helps = changes.pop("accepted", None), changes.pop("helps", None)
    wall.now, before = at, wall.now
    person = people(1, contacts=0)[0]
    recipient = Recipient(uuid4(), "Ravi Iyer", "+919812300009", "en")
    trigger = Trigger(
        key=uuid4(), person=person_of(person), source=source, happened_at=at, recipients=(recipient,), place_name="Cafe"
    )
    opened, _ = incidents.raise_alarm(trigger)
    wall.now = before
    alert = Delivery.objects.get(incident_id=opened.pk)
    if accepted is not None:
        for number, seconds in enumerate((accepted + 60, accepted), start=1):
            moment = at + timedelta(seconds=seconds)
            DeliveryAttempt.objects.create(
                delivery=alert, number=number, carrier="twilio", text="…", started_at=at, finished_at=moment,
                outcome="accepted",
            )  # fmt: skip
    if helps is not None:
        AlertedContact.objects.filter(incident=opened).update(acknowledged_at=at + timedelta(seconds=helps))
    SosEvent.objects.filter(pk=opened.pk).update(**changes)
    return opened


class TestFigures:
    def test_they_count_the_day_and_only_the_day(self, wall: Clock) -> None:
        incident(wall, YESTERDAY, accepted=1, helps=100)
        incident(wall, YESTERDAY + timedelta(hours=5), source=Source.TIMER_EXPIRED, accepted=3, helps=1000)
        incident(wall, YESTERDAY + timedelta(hours=23, minutes=59), source=Source.DURESS, accepted=50)
        incident(wall, YESTERDAY + timedelta(hours=9), nobody_reached_at=SLOT)
        for at in (YESTERDAY - timedelta(milliseconds=1), YESTERDAY + timedelta(days=1)):
            incident(wall, at, accepted=9999, helps=9999, nobody_reached_at=SLOT)
        SosEvent.objects.filter(opened_at=YESTERDAY).update(status="resolved", open_key=None, resolved_at=SLOT)
        for at in (YESTERDAY, SLOT):
            delivery(status="dead", finished_at=at)
        CarrierHealth.objects.create(name="twilio", open_until=SLOT - timedelta(minutes=30))
        CarrierHealth.objects.create(name="fast2sms", open_until=SLOT - timedelta(hours=2))
        found = digest.gather(YESTERDAY.date(), where=UTC, now=SLOT)
        assert (found.figures.incidents, found.figures.unresolved, found.figures.nobody_reached) == (4, 5, 1)
        assert found.figures.dead_letters == 1
        assert found.figures.accepted == (3.0, 50.0)
        assert found.figures.acknowledged == (550.0, 1000.0)
        assert found.figures.failing == ("twilio",)
        assert dict(found.sources) == {"manual": 2, "timer_expired": 1, "duress": 1}

    def test_in_portions_they_are_the_same(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        for n in range(5):
            incident(wall, YESTERDAY + timedelta(hours=n), accepted=n, helps=10 * n)
        whole = digest.gather(YESTERDAY.date(), where=UTC, now=SLOT)
        monkeypatch.setattr(digest, "CHUNK", 2)
        assert digest.gather(YESTERDAY.date(), where=UTC, now=SLOT) == whole
        assert (whole.figures.accepted, whole.figures.acknowledged) == ((2.0, 4.0), (20.0, 40.0))

    def test_the_day_is_that_of_the_zone(self, wall: Clock, meera: User) -> None:
        incident(wall, YESTERDAY - timedelta(hours=3))  # 02:30 of the 28th in India
        incident(wall, YESTERDAY + timedelta(hours=20))  # 01:30 of the 29th there
        assert digest.gather(YESTERDAY.date(), where=INDIA, now=SLOT).figures.incidents == 1
        early = datetime(2026, 11, 28, 20, 0, tzinfo=UTC)  # half past one at night, of the 29th
        digest.send(TestRun(early), where=INDIA, now=SLOT)
        assert Notification.objects.get(kind="digest").title == "28 Nov: 1 alarm, 2 open now"


class TestSending:
    def test_a_notice_and_one_text_of_the_lowest_priority_and_no_name_in_either(self, wall: Clock, meera: User) -> None:
        incident(wall, YESTERDAY, source=Source.DURESS, accepted=2, helps=90)
        assert daily_digest(TestRun(SLOT)) == "sent to 1 supervisors"
        notice = Notification.objects.get(kind="digest")
        assert (notice.recipient_id, notice.title) == (meera.pk, "28 Nov: 1 alarm, 1 open now")
        assert notice.body == (
            "By source: 1 duress. First message accepted: 2 s (median), 2 s (longest). First contact helping: "
            "90 s (median), 90 s (longest). Nobody reached: 0. Dead letters: 0."
        )
        text = Delivery.objects.get(kind="digest")
        assert (text.address, text.priority, text.channel) == (meera.phone, 9, "sms")
        said = text.facts["said"]
        assert (
            said == "CasualMeet 28 Nov: 1 alarm, 1 open. First accepted 2 s/2 s. Answered 90 s/90 s (median/longest)."
        )
        for personal in ("Asha", "Ravi", "Cafe", "+91", "duress"):
            assert personal not in said

    def test_it_comes_once_however_often_the_job_runs(self, meera: User) -> None:
        for _ in range(2):
            daily_digest(TestRun(SLOT))
        assert (Notification.objects.count(), Delivery.objects.count()) == (1, 1)
        daily_digest(TestRun(SLOT + timedelta(days=1)))
        assert (Notification.objects.count(), Delivery.objects.count()) == (2, 2)

    def test_only_for_moderators_with_the_permission(self) -> None:
        staff("viewer", "view_sosevent")
        staff("receiver", "receive_digest")
        staff("gone", "view_sosevent", "receive_digest", is_active=False)
        staff("outside", "view_sosevent", "receive_digest", is_staff=False)
        assert daily_digest(TestRun(SLOT)) == "sent to 0 supervisors"

    def test_who_has_no_phone_or_sent_stop_gets_the_notice_alone(self, wall: Clock, meera: User) -> None:
        optouts.stop(meera.phone, "reply", wall.now)
        staff("phoneless", "view_sosevent", "receive_digest", phone="")
        assert daily_digest(TestRun(SLOT)) == "sent to 2 supervisors"
        assert (Notification.objects.count(), Delivery.objects.count()) == (2, 0)

    def test_p14_one_that_fails_holds_up_no_others_and_the_next_try_completes_it(
        self, meera: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staff("kiran", "view_sosevent", "receive_digest")
        real = digest._notice

        def broken(person: User, *args: Any, **options: Any) -> Notification:
            if person.pk == meera.pk:
                raise ValueError("broken")
            return real(person, *args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(digest, "_notice", broken)
            with pytest.raises(ValueError, match="broken"):
                daily_digest(TestRun(SLOT))
        assert (Notification.objects.count(), Delivery.objects.count()) == (1, 1)
        assert daily_digest(TestRun(SLOT)) == "sent to 2 supervisors"
        assert (Notification.objects.count(), Delivery.objects.count()) == (2, 2)

    def test_a_run_that_was_taken_over_sends_nothing_more(self, meera: User) -> None:
        with pytest.raises(Lost):
            daily_digest(TestRun(SLOT, steps=0))
        assert not Notification.objects.exists()
