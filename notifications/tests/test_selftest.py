"""The self-test: through the one carrier and no other, once for each slot, and an alarm when it does not arrive."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from casualmeet import clock
from notifications import jobs, polling, selftest
from notifications.carriers import routing
from notifications.models import Delivery, DeliveryAttempt, Notification
from notifications.tests.deliveries import INDIAN
from notifications.tests.sending import Hands, alone, drain, outcomes
from ops.tests.runs import TestRun
from safety.models import User
from simulator import rules
from simulator.server import Simulator
from testing.carrier import FOREVER, LocalCarrier, Reply

pytestmark = pytest.mark.django_db

SLOT = datetime(2026, 11, 28, 6, 0, tzinfo=UTC)


@pytest.fixture
def meera() -> User:
    """A moderator."""
    return User.objects.create(username="meera", full_name="Meera", is_staff=True)


@pytest.fixture(autouse=True)
def ours(settings: Any, at: Hands) -> None:
    """Six o'clock, and a number of our own."""
    settings.SELFTEST_PHONE = INDIAN
    at.time = SLOT


def texts() -> dict[str, Delivery]:
    return {row.carrier: row for row in Delivery.objects.filter(kind="self_test")}


def send_due(at: Hands) -> None:
    """All that is due, also what a busy machine made too late for its first try."""
    for seconds in (0, 2, 4, 8):
        at.forward(seconds)
        drain()


def arrived(carrier: str) -> None:
    Delivery.objects.filter(carrier=carrier).update(status="delivered", delivered_at=clock.now())


@pytest.mark.usefixtures("carrier")
class TestSending:
    def test_one_real_text_through_each_carrier(self, carrier: LocalCarrier, at: Hands) -> None:
        assert jobs.self_test(TestRun(SLOT)) == "sent by fast2sms, twilio"
        send_due(at)
        assert sorted((sent.carrier, sent.body) for sent in carrier.accepted()) == [
            ("fast2sms", "CasualMeet: fast2sms works, 28 Nov 06:00 UTC. Test, nothing to do."),
            ("twilio", "CasualMeet: twilio works, 28 Nov 06:00 UTC. Test, nothing to do."),
        ]

    def test_the_same_slot_again_sends_nothing_the_next_one_does(self, carrier: LocalCarrier, at: Hands) -> None:
        for _ in range(2):
            jobs.self_test(TestRun(SLOT))
            send_due(at)
        assert len(carrier.accepted()) == 2
        at.forward(86_400)
        jobs.self_test(TestRun(at.now()))
        send_due(at)
        assert len(carrier.accepted()) == 4

    @pytest.mark.parametrize("reply", [Reply.refuse(503, times=FOREVER), Reply.refuse(400, 21211, times=FOREVER)])
    def test_no_other_carrier_takes_its_place(self, carrier: LocalCarrier, at: Hands, reply: Reply) -> None:
        carrier.script(None, reply, carrier="fast2sms")
        jobs.self_test(TestRun(SLOT))
        send_due(at)
        assert [sent.carrier for sent in carrier.accepted()] == ["twilio"]
        found = texts()
        assert (found["fast2sms"].status, found["twilio"].status) == ("dead", "accepted")
        assert {name for name, _ in outcomes(found["fast2sms"])} == {"fast2sms"}

    def test_only_a_carrier_that_serves_our_number(self, settings: Any) -> None:
        settings.SELFTEST_PHONE = "+447700900123"
        assert jobs.self_test(TestRun(SLOT)) == "sent by twilio"

    def test_off_without_a_number(self, settings: Any, at: Hands) -> None:
        settings.SELFTEST_PHONE = ""
        assert jobs.self_test(TestRun(SLOT)) == "off: SELFTEST_PHONE is not set"
        at.forward(3600)
        assert jobs.check_self_test(TestRun()) == "nothing failed"
        assert not Delivery.objects.exists()


def test_a_simulated_carrier_is_not_tested() -> None:
    routing.reset()
    assert jobs.self_test(TestRun(SLOT)) == "sent by no carrier: none is real"
    assert not Delivery.objects.exists()


@pytest.mark.usefixtures("carrier")
class TestChecking:
    def test_ten_minutes_later_what_has_not_arrived_alarms_the_moderators_once(self, at: Hands, meera: User) -> None:
        at.forward(2)
        jobs.self_test(TestRun(SLOT))
        send_due(at)
        arrived("twilio")
        at.forward(599 - 14)
        assert jobs.check_self_test(TestRun()) == "nothing failed"
        at.forward(1)
        for _ in range(2):
            assert jobs.check_self_test(TestRun()) == "failed: fast2sms"
            at.forward(300)
        alarm = Notification.objects.get()
        assert (alarm.recipient_id, alarm.kind) == (meera.pk, "alarm")
        assert alarm.title == "The self-test of the carrier fast2sms failed"
        assert alarm.body == "The text of 06:00 UTC to our own number has not arrived. Latest: Accepted."

    def test_nothing_is_said_when_all_arrived(self, at: Hands, meera: User) -> None:
        jobs.self_test(TestRun(SLOT))
        for name in ("twilio", "fast2sms"):
            arrived(name)
        at.forward(900)
        assert jobs.check_self_test(TestRun()) == "nothing failed"
        assert not Notification.objects.exists()

    def test_one_that_no_dispatcher_took_is_told_of_too(self, at: Hands, meera: User) -> None:
        jobs.self_test(TestRun(SLOT))
        at.forward(600)
        at.forward(1)
        assert jobs.check_self_test(TestRun()) == "failed: fast2sms, twilio"
        assert "not even tried" in Notification.objects.all()[0].body

    def test_before_the_first_one_there_is_nothing_to_check(self) -> None:
        assert selftest.check(clock.now()) == []


def test_what_the_carriers_say_when_asked_is_what_counts(
    sim: Simulator, at: Hands, meera: User, wait_until: Callable[..., Any]
) -> None:
    """No receipt can come in here, so the carriers are asked. "Accepted" alone would be an alarm (P13)."""
    sim.rules.on(INDIAN, carrier="twilio").then(rules.undelivered(30003))
    jobs.self_test(TestRun(SLOT))
    send_due(at)

    def both_are_over() -> bool:
        DeliveryAttempt.objects.update(poll_at=at.now())
        polling.run_once(at.now(), run=alone)
        return {name: row.status for name, row in texts().items()} == {"fast2sms": "delivered", "twilio": "dead"}

    wait_until(both_are_over, timeout=20)
    at.forward(600)
    assert jobs.check_self_test(TestRun()) == "failed: twilio"
    assert Notification.objects.get().body.endswith("Latest: Accepted, undelivered, 30003.")
