"""The auditor in the outbox, and who hears of what it finds: moderators, operators, the dead man's switch."""

from datetime import timedelta
from typing import Any

import pytest

from casualmeet import clock
from notifications import auditing, audits, inbox, live
from notifications.models import Delivery, DeliveryStatus, Notification
from notifications.tests.deliveries import attempt, delivery, seen
from ops import audit
from ops.audit import Finding
from ops.beats import DISPATCH, TIMER, Beat
from ops.models import AuditFinding, Severity
from ops.tests import test_reporting
from ops.tests.test_deadman import Switch
from ops.tests.test_reporting import OnCall
from safety.tests.factories import PersonFactory
from safety.tests.people import Clock

pytestmark = pytest.mark.django_db(transaction=True)

on_call = test_reporting.on_call

LADDER = Finding("ladder", "A ladder stands still", "Look at it.")


class TestLeases:
    def test_p6_what_a_dead_dispatcher_holds_is_put_back(self) -> None:
        now = clock.now()
        held = delivery(status=DeliveryStatus.SENDING, lease_until=now - timedelta(seconds=20))
        tried = delivery(status=DeliveryStatus.SENDING, lease_until=now - timedelta(seconds=20))
        attempt(tried, outcome="open")
        assert list(audits.leases(now)) == []
        assert seen(held).status == DeliveryStatus.QUEUED
        assert (seen(tried).status, seen(tried).repeat) == (DeliveryStatus.QUEUED, 1)

    def test_what_a_dispatcher_will_take_over_by_itself_is_left_to_it(self) -> None:
        now = clock.now()
        held = delivery(status=DeliveryStatus.SENDING, lease_until=now - timedelta(seconds=5))
        assert list(audits.leases(now)) == []
        assert seen(held).status == DeliveryStatus.SENDING

    def test_what_can_t_be_put_back_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = clock.now()
        delivery(status=DeliveryStatus.SENDING, lease_until=now - timedelta(seconds=20))
        monkeypatch.setattr(audits, "recover_leases", lambda _now: 0)
        assert [found.key for found in audits.leases(now)] == ["leases"]


def test_p8_sos_messages_that_nobody_takes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    delivery(next_attempt_at=now - timedelta(seconds=29))
    delivery(priority=1, next_attempt_at=now - timedelta(minutes=9))
    delivery(status=DeliveryStatus.ACCEPTED, next_attempt_at=now - timedelta(minutes=9))
    assert list(audits.outbox(now)) == []
    for seconds in (31, 50):
        delivery(next_attempt_at=now - timedelta(seconds=seconds))
    (found,) = audits.outbox(now)
    assert found.key == "outbox-sos"
    assert found.body.startswith("2 wait, the first for 50 s.")


def told(on_call: OnCall) -> list[tuple[str, str]]:
    """What whoever is on call was told, in order."""
    return [(event["event_action"], event["dedup_key"]) for event in on_call.events]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the only check there is finds."""
    made: list[Finding] = []
    monkeypatch.setattr(audit, "checks", lambda: {"ladders": lambda _now: list(made)})
    return made


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moment = Clock(clock.now())
    monkeypatch.setattr(clock, "now", moment)
    return moment


class TestTelling:
    @pytest.fixture(autouse=True)
    def _moderators(self, settings: Any) -> None:
        settings.REDIS_URL = ""
        for name in ("mo", "mia"):
            PersonFactory.create(username=name, is_staff=True)

    def alarms(self) -> list[str]:
        return list(Notification.objects.filter(kind="alarm").values_list("title", flat=True))

    def test_people_are_told_once_and_the_alarms_go_when_it_is_gone(
        self, found: list[Finding], on_call: OnCall, moment: Clock
    ) -> None:
        found.append(LADDER)
        for _ in range(3):
            auditing.run()
            moment.move(seconds=30)
        assert self.alarms() == [LADDER.title] * 2
        (event,) = on_call.events
        assert (event["dedup_key"], event["payload"]["severity"]) == ("audit:ladder", "critical")
        assert event["payload"]["summary"] == LADDER.title
        found.clear()
        auditing.run()
        assert self.alarms() == []
        moment.move(minutes=3)
        auditing.run()
        auditing.run()
        assert told(on_call)[1:] == [("resolve", "audit:ladder")]

    def test_what_comes_and_goes_is_told_once_in_a_while(
        self, found: list[Finding], on_call: OnCall, moment: Clock
    ) -> None:
        for _ in range(4):
            found[:] = [LADDER]
            auditing.run()
            moment.move(seconds=30)
            found.clear()
            auditing.run()
            moment.move(seconds=30)
        assert told(on_call) == [("trigger", "audit:ladder")]
        moment.move(minutes=3)
        auditing.run()
        found.append(LADDER)
        auditing.run()
        assert [what for what, _ in told(on_call)] == ["trigger", "resolve", "trigger"]
        assert self.alarms() == [LADDER.title] * 2

    def test_who_was_not_told_because_of_a_crash_is_told_after_the_next_audit(
        self, found: list[Finding], on_call: OnCall, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found.append(LADDER)
        with monkeypatch.context() as crash:
            crash.setattr(auditing, "_tell", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                auditing.run()
        assert AuditFinding.objects.get().told_at is None
        auditing.run()
        assert self.alarms() == [LADDER.title] * 2
        assert len(on_call.events) == 1

    def test_the_boards_are_hinted_at_when_something_changed(
        self, found: list[Finding], on_call: OnCall, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hints: list[str] = []
        monkeypatch.setattr(live, "publish", lambda *groups: hints.extend(groups))
        monkeypatch.setattr(inbox, "alarm_moderators", lambda **_: None)
        auditing.run()
        assert hints == []
        found.append(LADDER)
        auditing.run()
        auditing.run()
        assert hints == [live.MODERATION]


class TestDeadMansSwitch:
    @pytest.fixture
    def switch(self, settings: Any) -> Any:
        switch = Switch()
        with switch.running() as url:
            settings.DEADMAN_URL = url
            yield switch

    def test_with_all_checks_it_hears_of_it_only_while_all_is_well(self, switch: Switch, on_call: OnCall) -> None:
        auditing.run()
        assert switch.asked == [], "no worker is running"
        for role in (TIMER, DISPATCH):
            Beat(role).cycle_finished(0.001)
        outcome = auditing.run()
        assert outcome.checks >= 8
        assert outcome.summary == f"{outcome.checks} checks, 0 failed, all is well"
        assert len(switch.asked) == 1
        delivery(next_attempt_at=clock.now() - timedelta(minutes=1))
        auditing.run()
        assert len(switch.asked) == 1
        Delivery.objects.all().delete()
        auditing.run()
        assert len(switch.asked) == 2

    def test_p14_a_check_that_fails_keeps_it_silent(
        self, switch: Switch, on_call: OnCall, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checks: dict[str, audit.Check] = {"broken": lambda _now: 1 / 0}  # type: ignore[dict-item, return-value]
        monkeypatch.setattr(audit, "checks", lambda: checks)
        auditing.run()
        assert switch.asked == []
        checks["broken"] = lambda _now: [Finding("w", "W", severity=Severity.WARNING)]
        auditing.run()
        assert len(switch.asked) == 1
