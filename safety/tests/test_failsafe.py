"""The fail-safe: a site that dies still alerts, and one that lives never lets a backup alert go out after a check-in."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks
from django.db import connections

from casualmeet import clock
from notifications.models import Delivery, DeliveryStatus, Notification, OptOut
from safety import contacts, expiry, failsafe, failsafe_alerts, failsafe_carrier, timers
from safety.models import FailSafeAlert, MeetingTimer, TimerStatus, TrustedContact, User
from safety.tests.keeping_carrier import SETTINGS, KeepingCarrier, Kept
from safety.tests.people import Clock, people
from safety.tests.steps import FAIL_SAFE_STEPS
from simulator import Simulator, reset
from sos import incidents
from sos.models import SosEvent
from testing.processes import PYTHON_MODULE, ManagedProcess

MARGIN = timedelta(seconds=600)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now().replace(microsecond=0))
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def carrier(wall: Clock, settings: LazySettings) -> Iterator[KeepingCarrier]:
    with KeepingCarrier(wall) as keeping:
        for name, value in SETTINGS.items():
            setattr(settings, name, value)
        settings.TWILIO_API_BASE_URL = keeping.url
        yield keeping


def arm(person: User | None = None, *, minutes: int = 60, **more: Any) -> MeetingTimer:
    return timers.arm(person or people(1)[0], location_name="Cafe Blue", duration_minutes=minutes, **more)


def again(timer: MeetingTimer) -> MeetingTimer:
    return MeetingTimer.objects.select_related("person").get(pk=timer.pk)


def work(wall: Clock, *, minutes: float = 30) -> None:
    """A worker that goes on for so long, from one look to the next."""
    until = wall.now + timedelta(minutes=minutes)
    for _ in range(300):
        failsafe.work(wall.now)
        coming = FailSafeAlert.objects.filter(next_try_at__lte=until).order_by("next_try_at").first()
        if coming is None or coming.next_try_at is None:
            break
        wall.now = max(wall.now, coming.next_try_at)
    wall.now = max(wall.now, until)


def only(kept: list[Kept]) -> Kept:
    assert len(kept) == 1
    return kept[0]


class TestArming:
    @pytest.mark.django_db
    def test_each_verified_contact_gets_a_backup_alert_kept_by_the_carrier(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        asha = people(1, contacts=2)[0]
        TrustedContact.objects.filter(person=asha, slot=1).update(status=TrustedContact.Status.PENDING)
        timer = arm(asha, grace_minutes=5)
        assert failsafe.work(wall.now) == 1
        message, row = only(carrier.scheduled()), FailSafeAlert.objects.get()
        assert message.send_at == timer.escalates_at + MARGIN == row.wanted_at == row.scheduled_at
        assert (message.sid, message.to, row.settled) == (row.carrier_message_id, row.phone, True)
        assert message.body.startswith("CasualMeet backup alert: Asha 0 did not check in by")
        assert failsafe_alerts.marker(row.pk) in message.body
        assert failsafe.work(wall.now) == 0

    @pytest.mark.django_db
    def test_nothing_is_wanted_while_it_is_off_or_for_the_moderators_only(
        self, carrier: KeepingCarrier, wall: Clock, settings: LazySettings
    ) -> None:
        arm(moderators_only=True)
        settings.FAIL_SAFE = False
        arm()
        assert not FailSafeAlert.objects.exists()
        assert failsafe.work(wall.now) == 0

    @pytest.mark.django_db
    def test_what_is_too_near_to_be_scheduled_is_left_and_said(
        self, carrier: KeepingCarrier, wall: Clock, settings: LazySettings, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.FAIL_SAFE_MARGIN_SECONDS = 60
        settings.MIN_TIMER_MINUTES = 1
        timer = arm(minutes=4)
        failsafe.work(wall.now)
        assert "too near to be scheduled" in caplog.text
        row = FailSafeAlert.objects.get()
        assert (row.settled, row.next_try_at, carrier.log) == (False, None, [])
        timers.extend(timer, minutes=15)
        failsafe.work(wall.now)
        assert only(carrier.scheduled()).send_at == timer.escalates_at + timedelta(minutes=16)


class TestVerbs:
    @pytest.mark.django_db
    @pytest.mark.parametrize("verb", [timers.check_in, timers.cancel])
    def test_p1_a_check_in_or_cancellation_cancels_it(self, verb: Any, carrier: KeepingCarrier, wall: Clock) -> None:
        """P1: and nothing is left to do."""
        timer = arm()
        failsafe.work(wall.now)
        verb(timer)
        failsafe.work(wall.now)
        assert carrier.scheduled() == []
        row = FailSafeAlert.objects.get()
        assert (row.settled, row.next_try_at, row.scheduled_at) == (True, None, None)
        work(wall, minutes=120)
        assert (carrier.sent(), carrier.log) == ([], ["create", "cancel"])

    @pytest.mark.django_db
    @pytest.mark.parametrize("faults", [[503, 503], ["broken", 401, 429], ["lost"], ["lost", "broken"], [500] * 8])
    def test_p1_a_cancellation_is_tried_until_the_carrier_confirms_it(
        self, faults: list[str | int], carrier: KeepingCarrier, wall: Clock
    ) -> None:
        timer = arm()
        failsafe.work(wall.now)
        timers.check_in(timer)
        carrier.faults["cancel"] = list(faults)
        failsafe.work(wall.now)
        assert not FailSafeAlert.objects.get().settled
        work(wall, minutes=9)
        assert (carrier.scheduled(), carrier.faults["cancel"]) == ([], [])
        assert FailSafeAlert.objects.get().settled
        assert carrier.log.count("cancel") == len(faults) + 1

    @pytest.mark.django_db
    def test_an_extension_cancels_the_old_one_before_it_schedules_the_new_one(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        timer = arm()
        failsafe.work(wall.now)
        longer = timers.extend(timer, minutes=30)
        carrier.faults["cancel"] = [503]
        failsafe.work(wall.now)
        assert carrier.log == ["create", "cancel"]
        work(wall, minutes=1)
        assert carrier.log == ["create", "cancel", "cancel", "create"]
        assert only(carrier.scheduled()).send_at == longer.escalates_at + MARGIN

    @pytest.mark.django_db
    def test_a_removed_contact_and_one_who_sent_stop_get_none(self, carrier: KeepingCarrier, wall: Clock) -> None:
        asha = people(1, contacts=3)[0]
        arm(asha)
        failsafe.work(wall.now)
        removed, stopped, kept = TrustedContact.objects.filter(person=asha)
        contacts.remove(removed)
        OptOut.objects.create(phone=stopped.phone, stopped_at=wall.now, source="reply")
        work(wall, minutes=11)
        assert [message.to for message in carrier.scheduled()] == [kept.phone]

    @pytest.mark.django_db
    def test_turned_off_everything_that_stands_is_cancelled(
        self, carrier: KeepingCarrier, wall: Clock, settings: LazySettings
    ) -> None:
        arm()
        failsafe.work(wall.now)
        settings.FAIL_SAFE = False
        assert failsafe.needed()
        work(wall, minutes=11)
        assert carrier.scheduled() == []


class TestExpiry:
    def expired(self, carrier: KeepingCarrier, wall: Clock) -> MeetingTimer:
        """A timer that ran out, with its backup alert kept by the carrier and its incident opened."""
        timer = arm()
        work(wall, minutes=60)
        expiry.cycle()
        assert len(carrier.scheduled()) == 1
        return again(timer)

    @pytest.mark.django_db
    def test_a_site_that_dies_before_the_deadline_still_alerts(self, carrier: KeepingCarrier, wall: Clock) -> None:
        """The whole point: nothing of ours runs any more."""
        timer = arm()
        failsafe.work(wall.now)
        wall.now = timer.escalates_at + MARGIN
        assert only(carrier.sent()).body.startswith("CasualMeet backup alert")

    @pytest.mark.django_db
    def test_it_stands_until_our_own_alert_was_accepted(self, carrier: KeepingCarrier, wall: Clock) -> None:
        self.expired(carrier, wall)
        work(wall, minutes=1)
        assert len(carrier.scheduled()) == 1
        Delivery.objects.filter(kind="missed_check_in").update(status=DeliveryStatus.ACCEPTED)
        asked = len(carrier.log)
        work(wall, minutes=0.2)
        assert (carrier.scheduled(), carrier.log[asked:]) == ([], ["cancel"])

    @pytest.mark.django_db
    def test_an_accepted_push_is_not_enough(self, carrier: KeepingCarrier, wall: Clock) -> None:
        self.expired(carrier, wall)
        Delivery.objects.filter(kind="missed_check_in").update(status=DeliveryStatus.ACCEPTED, channel="push")
        work(wall, minutes=1)
        assert len(carrier.scheduled()) == 1

    @pytest.mark.django_db
    def test_p1_it_is_cancelled_once_the_person_is_safe_although_no_alert_of_ours_went_out(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        self.expired(carrier, wall)
        incidents.resolve(SosEvent.objects.get(), with_pin=False)
        work(wall, minutes=60)
        assert carrier.sent() == []

    @pytest.mark.django_db
    def test_one_that_went_out_is_told_to_the_moderators_and_cleared_once_the_person_is_safe(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        """None of our own alerts reached a carrier: then no all-clear of the incident goes to that contact."""
        User.objects.create(username="moderator", is_staff=True)
        self.expired(carrier, wall)
        wall.move(minutes=10)
        work(wall, minutes=2)
        row = FailSafeAlert.objects.get()
        assert row.sent_at is not None
        assert Notification.objects.filter(title="A backup alert went out").count() == 1
        assert not Delivery.objects.filter(kind="all_clear").exists()
        incidents.resolve(SosEvent.objects.get(), with_pin=False)
        work(wall, minutes=5)
        clear = Delivery.objects.get(kind="all_clear")
        assert (clear.address, clear.facts["reference"]) == (row.phone, failsafe_alerts.marker(row.pk))
        assert FailSafeAlert.objects.get().next_try_at is None

    @pytest.mark.django_db
    def test_where_our_own_alert_went_out_too_the_incidents_all_clear_is_the_only_one(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        self.expired(carrier, wall)
        wall.move(minutes=11)
        failsafe.work(wall.now)
        assert FailSafeAlert.objects.get().sent_at
        Delivery.objects.filter(kind="missed_check_in").update(status=DeliveryStatus.ACCEPTED)
        incidents.resolve(SosEvent.objects.get(), with_pin=False)
        work(wall, minutes=5)
        assert Delivery.objects.filter(kind="all_clear").count() == 1


class TestLostAnswers:
    @pytest.mark.django_db
    def test_p1_what_a_lost_answer_left_at_the_carrier_is_found_and_cancelled_after_a_check_in(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        timer = arm()
        carrier.faults["create"] = ["lost"]
        failsafe.work(wall.now)
        row = FailSafeAlert.objects.get()
        assert (row.carrier_message_id, row.asked_at, len(carrier.scheduled())) == ("", wall.now, 1)
        timers.check_in(timer)
        failsafe.work(wall.now)
        assert (carrier.scheduled(), carrier.log) == ([], ["create", "list", "cancel"])
        work(wall)
        assert FailSafeAlert.objects.get().next_try_at is None
        assert carrier.log.count("create") == carrier.log.count("cancel") == 1

    @pytest.mark.django_db
    @pytest.mark.parametrize("fault", ["lost", "broken", 500])
    def test_after_a_lost_answer_exactly_one_stands_in_the_end(
        self, fault: str | int, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        timer = arm()
        carrier.faults["create"] = [fault, fault]
        carrier.faults["list"] = ["broken", 503]
        work(wall, minutes=20)
        assert only(carrier.scheduled()).send_at == timer.escalates_at + MARGIN
        assert FailSafeAlert.objects.get().settled

    @pytest.mark.django_db
    def test_p1_a_message_that_shows_up_late_in_the_list_is_waited_for(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        """An empty list right after the request proves nothing."""
        timer = arm()
        carrier.faults["create"] = ["lost"]
        carrier.surfaces_after = timedelta(seconds=40)
        failsafe.work(wall.now)
        timers.check_in(timer)
        failsafe.work(wall.now)
        assert (len(carrier.scheduled()), FailSafeAlert.objects.get().settled) == (1, False)
        work(wall, minutes=2)
        assert (carrier.scheduled(), FailSafeAlert.objects.get().settled) == ([], True)

    @pytest.mark.django_db
    def test_p1_an_older_one_in_the_list_does_not_hide_one_that_shows_up_late(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        """Scheduled, moved by an extension, and then the answer lost: the list has the cancelled one at first."""
        timer = arm()
        failsafe.work(wall.now)
        timer = timers.extend(timer, minutes=5)
        carrier.faults["create"] = ["lost"]
        carrier.surfaces_after = timedelta(seconds=40)
        failsafe.work(wall.now)
        timers.check_in(timer)
        work(wall, minutes=2)
        assert (carrier.scheduled(), FailSafeAlert.objects.get().settled) == ([], True)

    @pytest.mark.django_db
    def test_it_is_found_among_the_many_texts_that_the_number_got(self, carrier: KeepingCarrier, wall: Clock) -> None:
        timer = arm()
        carrier.faults["create"] = ["lost"]
        failsafe.work(wall.now)
        number = carrier.scheduled()[0].to
        for n in range(90):
            when = wall.now + timedelta(seconds=n // 2 - 10)
            noise = Kept(f"SM{uuid4().hex}", number, "Another alert, ref ABCDEFGH.", when, when, "delivered")
            carrier.kept[noise.sid] = noise
        wall.move(minutes=1)
        timers.check_in(timer)
        failsafe.work(wall.now)
        assert carrier.scheduled() == []
        assert carrier.log.count("list") == 5

    @pytest.mark.processes
    def test_p1_sigkill_at_any_step_leaves_no_alert_at_the_carrier_after_a_check_in(
        self, database_url: str, settings: LazySettings
    ) -> None:
        """P1: real processes die while they schedule; one timer per step. Half of the persons check in, half don't."""
        for name, value in SETTINGS.items():
            setattr(settings, name, value)
        with KeepingCarrier(lambda: datetime.now(UTC)) as carrier:
            settings.TWILIO_API_BASE_URL = carrier.url
            env = {"DATABASE_URL": database_url, "TWILIO_API_BASE_URL": carrier.url}
            env |= {name: str(value) for name, value in SETTINGS.items()}
            armed = [arm(person) for _ in (0, 1) for person in people(len(FAIL_SAFE_STEPS))]
            self.die(armed, env)
            assert 0 < len(carrier.scheduled()) < len(armed)
            home = armed[: len(FAIL_SAFE_STEPS)]
            for timer in home:
                timers.check_in(timer)
            # As if the leases, and the time in which a request may surface, had run out.
            FailSafeAlert.objects.update(next_try_at=clock.now())
            FailSafeAlert.objects.filter(asked_at__isnull=False).update(asked_at=clock.now() - timedelta(minutes=2))
            failsafe.work(clock.now())
            out = FailSafeAlert.objects.filter(timer__in=armed[len(home) :])
            kept = {message.sid: message.send_at.timestamp() for message in carrier.scheduled()}
            assert kept == {
                row.carrier_message_id: row.scheduled_at.timestamp() // 1 for row in out if row.scheduled_at
            }
            assert len(kept) == len(FAIL_SAFE_STEPS)
            # And now they die while they cancel.
            for timer in armed[len(home) :]:
                timers.check_in(timer)
            self.die(armed[len(home) :], env, cancelling=True)
            FailSafeAlert.objects.update(next_try_at=clock.now())
            failsafe.work(clock.now())
            assert carrier.scheduled() == []
            assert set(FailSafeAlert.objects.values_list("settled", "scheduled_at")) == {(True, None)}

    def die(self, armed: list[MeetingTimer], env: dict[str, str], *, cancelling: bool = False) -> None:
        """A worker dies for each of these timers, each at another step."""
        steps = [*FAIL_SAFE_STEPS, *FAIL_SAFE_STEPS]
        alerts = dict(FailSafeAlert.objects.values_list("timer_id", "pk"))
        plan = [("fail-safe", step, str(alerts[timer.pk])) for step, timer in zip(steps, armed, strict=False)]
        if cancelling:  # nothing is asked for, so nothing is written down before
            plan = [line for line in plan if line[1] in CANCELLING_STEPS]
        command = ["safety.tests.doomed", json.dumps(plan)]
        with ManagedProcess(command, env, program=PYTHON_MODULE) as process:
            assert process.wait(60) == 0, process.output
            for kind, step, _ in plan:
                process.wait_for_line(f"^{kind}, {step}: signal 9$")


CANCELLING_STEPS = {
    "after the claim",
    "before the answer is read",
    "before the answer is stored",
    "amid storing the answer",
}


class TestRaces:
    @pytest.mark.django_db
    @pytest.mark.parametrize("moment", ["make_it_so", "_it_stands"])
    def test_p1_a_check_in_after_the_wish_was_worked_out_keeps_the_carrier_from_being_asked(
        self, moment: str, carrier: KeepingCarrier, wall: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timer = arm()
        module: Any = failsafe if moment == "make_it_so" else failsafe_carrier
        original = getattr(module, moment)

        async def check_in_first(task: Any, *more: Any) -> None:
            from asgiref.sync import sync_to_async

            if again_live():
                await sync_to_async(timers.check_in)(timer)
            await original(task, *more)

        def again_live() -> bool:
            return task_timer.live

        task_timer = timer
        monkeypatch.setattr(module, moment, check_in_first)
        failsafe.work(wall.now)
        task_timer = MeetingTimer(status=TimerStatus.SAFE)
        work(wall)
        assert carrier.log == []
        assert FailSafeAlert.objects.get().settled

    def test_p1_a_check_in_while_the_carrier_is_being_asked_cancels_what_it_then_keeps(
        self, carrier: KeepingCarrier, wall: Clock, transactional_db: None
    ) -> None:
        timer = arm()
        acted: list[str] = []

        def check_in(method: str) -> None:
            if not acted:
                acted.append(method)
                timers.check_in(timer)
                connections.close_all()

        carrier.before = check_in
        failsafe.work(wall.now)
        assert (acted, carrier.log, FailSafeAlert.objects.get().settled) == (["POST"], ["create"], False)
        failsafe.work(wall.now)
        assert carrier.scheduled() == []
        work(wall, minutes=120)
        assert carrier.sent() == []

    def test_p1_a_worker_that_was_frozen_past_its_lease_takes_back_what_it_scheduled(
        self, carrier: KeepingCarrier, wall: Clock, transactional_db: None
    ) -> None:
        """Another worker has looked meanwhile, found nothing, and the person is home."""
        timer = arm()
        others: list[int] = []

        def meanwhile(_: str) -> None:
            if not others:
                others.append(1)
                timers.check_in(timer)
                wall.move(minutes=2)
                FailSafeAlert.objects.update(asked_at=None, lease_token=None, settled=True, next_try_at=None)
                connections.close_all()

        carrier.before = meanwhile
        failsafe.work(wall.now)
        assert carrier.scheduled() == []
        work(wall, minutes=10)
        assert (carrier.scheduled(), FailSafeAlert.objects.get().settled) == ([], True)

    @pytest.mark.django_db
    def test_two_workers_with_the_same_look_schedule_once(self, carrier: KeepingCarrier, wall: Clock) -> None:
        arm()
        due = failsafe._due(wall.now, 10, settled=False)
        failsafe._work_on(due)
        failsafe._work_on(due)
        assert carrier.log == ["create"]

    @pytest.mark.django_db
    def test_p14_an_alert_that_can_t_be_made_holds_up_no_other(
        self, carrier: KeepingCarrier, wall: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arm()
        broken = arm()
        words = failsafe_alerts.text

        def fragile(task: failsafe_alerts.Task) -> str:
            if task.timer.pk == broken.pk:
                raise ValueError("broken")
            return words(task)

        monkeypatch.setattr(failsafe_alerts, "text", fragile)
        assert failsafe.work(wall.now) == 2
        assert len(carrier.scheduled()) == 1


class TestCarrierAnswers:
    @pytest.mark.django_db
    def test_p1_one_that_was_sent_before_it_could_be_cancelled_gets_an_all_clear(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        """30409, and the message is out: a false alarm, which is taken back at once and told to the moderators."""
        User.objects.create(username="moderator", is_staff=True)
        timer = arm()
        failsafe.work(wall.now)
        only(carrier.scheduled()).status = "delivered"
        timers.check_in(timer)
        failsafe.work(wall.now)
        assert carrier.log == ["create", "cancel", "fetch"]
        clear = Delivery.objects.get(kind="all_clear")
        assert (clear.status, clear.address) == ("queued", FailSafeAlert.objects.get().phone)
        assert Notification.objects.filter(title="A backup alert went out").count() == 1
        work(wall, minutes=60)
        assert carrier.log == ["create", "cancel", "fetch"]

    @pytest.mark.django_db
    def test_one_that_was_cancelled_elsewhere_or_is_unknown_there_is_scheduled_again(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        arm()
        failsafe.work(wall.now)
        first = only(carrier.scheduled())
        first.status = "canceled"
        work(wall, minutes=11)
        second = only(carrier.scheduled())
        assert second.sid != first.sid
        del carrier.kept[second.sid]
        work(wall, minutes=11)
        assert len(carrier.scheduled()) == 1

    @pytest.mark.django_db
    @pytest.mark.parametrize("fault", [503, 401, "broken", 429])
    def test_a_fetch_without_an_answer_changes_nothing(
        self, fault: str | int, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        arm()
        failsafe.work(wall.now)
        carrier.faults["fetch"] = [fault] * 3
        work(wall, minutes=25)
        assert set(carrier.log) == {"create", "fetch"}
        assert len(carrier.scheduled()) == 1
        assert FailSafeAlert.objects.get().settled

    @pytest.mark.django_db
    def test_a_number_that_is_none_is_not_tried_again(
        self, carrier: KeepingCarrier, wall: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        arm()
        carrier.faults["create"] = [21211]
        work(wall, minutes=30)
        assert carrier.log == ["create"]
        assert "not scheduled: 21211" in caplog.text

    @pytest.mark.django_db
    @pytest.mark.parametrize("fault", [21703, 401, 429])
    def test_any_other_refusal_is_tried_again_with_growing_pauses(
        self, fault: int, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        arm()
        carrier.faults["create"] = [fault] * 6
        work(wall, minutes=30)
        assert len(carrier.scheduled()) == 1
        assert carrier.log[:7] == ["create"] * 7

    @pytest.mark.django_db
    def test_a_message_that_is_not_kept_but_sent_at_once_is_noticed(self, carrier: KeepingCarrier, wall: Clock) -> None:
        """Twilio drops the time where the sender can't schedule: a false alarm that is cleared after the check-in."""
        timer = arm()
        carrier.taken_as = "accepted"
        failsafe.work(wall.now)
        assert FailSafeAlert.objects.get().sent_at == wall.now
        timers.check_in(timer)
        work(wall, minutes=2)
        assert Delivery.objects.filter(kind="all_clear").count() == 1
        assert carrier.log == ["create"]

    @pytest.mark.django_db
    def test_what_can_never_be_confirmed_ends_a_day_after_it_is_over(
        self, carrier: KeepingCarrier, wall: Clock
    ) -> None:
        timer = arm()
        failsafe.work(wall.now)
        timers.check_in(timer)
        carrier.faults["cancel"] = [401] * 9
        wall.now = timer.escalates_at + timedelta(days=1, hours=1)
        failsafe.work(wall.now)
        assert FailSafeAlert.objects.get().next_try_at is None


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(4))
def test_p1_whatever_the_carrier_and_the_person_do_no_backup_alert_survives_a_check_in(
    seed: int, carrier: KeepingCarrier, wall: Clock
) -> None:
    """P1: faults in every call, extensions, then a check-in while there is time; in the end nothing stands or went out."""
    dice = random.Random(seed)
    timer = arm(people(1, contacts=2)[0])
    carrier.surfaces_after = timedelta(seconds=dice.choice([0, 20]))

    def trouble() -> None:
        for operation in ("create", "cancel", "fetch", "list"):
            kinds: list[str | int] = ["lost", "broken", 503, 500, 429, 401]
            carrier.faults[operation] = [dice.choice(kinds) for _ in range(dice.randint(0, 3))]

    for _ in range(6):
        trouble()
        if dice.random() < 0.4:
            timer = timers.extend(timer, minutes=dice.randint(1, 20))
        for _ in range(dice.randint(1, 4)):
            failsafe.work(wall.now)
            wall.move(seconds=dice.choice([0, 1, 12, 61]))
    if dice.random() < 0.5:
        work(wall, minutes=20)
        rows = FailSafeAlert.objects.all()
        assert {row.carrier_message_id for row in rows} == {message.sid for message in carrier.scheduled()}
        assert {message.send_at for message in carrier.scheduled()} == {timer.escalates_at + MARGIN}
    trouble()
    timers.check_in(timer)
    work(wall, minutes=9)
    assert carrier.scheduled() == []
    work(wall, minutes=200)
    assert carrier.sent() == []
    assert set(FailSafeAlert.objects.values_list("settled", "next_try_at")) == {(True, None)}


@pytest.mark.django_db
def test_the_simulated_twilio_understands_all_that_is_asked(wall: Clock, settings: LazySettings) -> None:
    """Another reading of Twilio's documentation than this file's own carrier."""
    with Simulator(frozen=True, start=wall.now.timestamp()) as sim:
        settings.FAIL_SAFE = True
        for name, value in sim.environment(fast2sms=False).items():
            setattr(settings, name, value)
        asha = people(1)[0]
        phone = TrustedContact.objects.get(person=asha).phone
        sim.on(to=phone).then(reset(accepted=True))
        timer = arm(asha)
        failsafe.work(wall.now)
        wall.move(minutes=2)
        failsafe.work(wall.now)
        assert sorted(row.status for row in sim.twilio.messages.values()) == ["canceled", "scheduled"]
        assert FailSafeAlert.objects.get().settled
        wall.move(minutes=11)
        failsafe.work(wall.now)
        timers.check_in(timer)
        failsafe.work(wall.now)
        assert [row.status for row in sim.twilio.messages.values()] == ["canceled", "canceled"]
        assert FailSafeAlert.objects.get().next_try_at is None


@pytest.mark.processes
def test_the_worker_schedules_and_cancels_by_itself(database_url: str, wait_until: Any, settings: LazySettings) -> None:
    for name, value in SETTINGS.items():
        setattr(settings, name, value)
    with KeepingCarrier(lambda: datetime.now(UTC)) as carrier:
        env = {"DATABASE_URL": database_url, "TWILIO_API_BASE_URL": carrier.url}
        env |= {name: str(value) for name, value in SETTINGS.items()}
        with ManagedProcess(["run_timer_worker"], env) as worker:
            worker.wait_for_line("Expiring timers")
            timer = arm()
            wait_until(carrier.scheduled)
            timers.check_in(timer)
            wait_until(lambda: not carrier.scheduled())
            assert worker.terminate() == 0
            assert "Traceback" not in worker.output


def test_a_half_set_of_settings_is_an_error_at_start(settings: LazySettings) -> None:
    settings.FAIL_SAFE = True
    settings.FAIL_SAFE_MARGIN_SECONDS = 299
    assert {"safety.E001", "safety.W001"} <= {message.id for message in run_checks()}
    settings.FAIL_SAFE = False
    assert not {"safety.E001", "safety.W001"} & {message.id for message in run_checks()}
