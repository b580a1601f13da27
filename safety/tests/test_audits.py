"""The auditor among timers: each fault is made, what is safe is repaired, and the rest is found."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from casualmeet import clock
from notifications.models import Delivery
from ops import audit, beats
from ops import audits as ops_audits
from ops.audit import Check, Finding
from ops.beats import Beat
from ops.models import WorkerBeat
from safety import audits, expiry
from safety.models import MeetingTimer, TimerStatus
from safety.tests.people import assert_one_incident_each, people, timers_for
from sos import incidents
from sos.models import SosEvent
from testing.processes import ManagedProcess, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MINUTES = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_quarantine", expiry.Quarantine())


def look(check: Check) -> list[Finding]:
    return list(check(clock.now()))


def break_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(incidents, "open_or_join", fail)


class TestOverdueTimers:
    def test_p2_without_a_timer_worker_the_auditor_expires_them(self) -> None:
        armed = timers_for(people(3), escalates_at=clock.now() - 2 * MINUTES)
        assert look(audits.overdue_timers) == []
        assert_one_incident_each(armed)

    def test_with_one_they_are_left_to_it_and_found(self) -> None:
        Beat(beats.TIMER).cycle_finished(0)
        timers_for(people(2), escalates_at=clock.now() - 5 * MINUTES)
        (found,) = look(audits.overdue_timers)
        assert found.key == "overdue-timers"
        assert "2, the oldest 5 min ago. The timer worker runs" in found.body
        assert MeetingTimer.objects.live().count() == 2

    def test_within_a_minute_they_are_none_of_its_business(self) -> None:
        timers_for(people(1), escalates_at=clock.now() - timedelta(seconds=55))
        assert look(audits.overdue_timers) == []
        assert MeetingTimer.objects.live().exists()


class TestHalfDone:
    def test_p3_a_timer_and_incidents_that_a_crash_left_are_completed(self) -> None:
        ago = clock.now() - 5 * MINUTES
        (stamped, handed) = timers_for(people(2), escalates_at=ago)
        MeetingTimer.objects.filter(pk=stamped.pk).update(
            status=TimerStatus.EXPIRED, resolved_at=ago, expiry_token=uuid4()
        )
        expiry.expire([handed.pk])
        SosEvent.objects.filter(triggered_timer_id=handed.pk).update(alerted_at=None, opened_at=ago)
        assert look(audits.half_done) == []
        assert_one_incident_each([stamped, handed])
        assert not MeetingTimer.objects.half_done().exists()

    def test_an_ending_that_a_crash_left_is_completed(self) -> None:
        (timer,) = timers_for(people(1), escalates_at=clock.now())
        expiry.cycle()
        incident = SosEvent.objects.get(triggered_timer_id=timer.pk)
        incidents.resolve(incident, with_pin=False)
        SosEvent.objects.update(all_clear_at=None, resolved_at=clock.now() - 5 * MINUTES)
        assert look(audits.half_done) == []
        assert SosEvent.objects.get().all_clear_at is not None

    def test_p14_what_can_t_be_completed_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ago = clock.now() - 5 * MINUTES
        timers_for(people(1), escalates_at=ago)
        MeetingTimer.objects.update(status=TimerStatus.EXPIRED, resolved_at=ago, expiry_token=uuid4())
        break_expiry(monkeypatch)
        (found,) = look(audits.half_done)
        assert (found.key, found.title) == ("half-done:expired-timers", "Expired timers are left half-done")

    def test_what_a_worker_is_just_doing_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        timers_for(people(1), escalates_at=clock.now())
        MeetingTimer.objects.update(status=TimerStatus.EXPIRED, resolved_at=clock.now(), expiry_token=uuid4())
        break_expiry(monkeypatch)
        assert look(audits.half_done) == []


class TestLostIncidents:
    def expired(self, count: int) -> list[MeetingTimer]:
        armed = timers_for(people(count), escalates_at=clock.now() - 5 * MINUTES)
        expiry.cycle()
        MeetingTimer.objects.update(resolved_at=clock.now() - 4 * MINUTES)
        return armed

    def test_p2_an_expired_timer_without_its_incident_gets_one(self) -> None:
        armed = self.expired(3)
        lost = SosEvent.objects.get(triggered_timer_id=armed[1].pk)
        Delivery.objects.filter(incident_id=lost.pk).delete()
        lost.delete()
        assert look(audits.half_done) == []
        assert SosEvent.objects.count() == 3
        assert_one_incident_each(armed)

    def test_one_that_joined_another_incident_has_lost_none(self, django_assert_max_num_queries: Any) -> None:
        (person,) = people(1)
        for minutes in (9, 5):
            timers_for([person], escalates_at=clock.now() - minutes * MINUTES)
            expiry.cycle()
        MeetingTimer.objects.update(resolved_at=clock.now() - 4 * MINUTES)
        with django_assert_max_num_queries(6):
            assert look(audits.half_done) == []
        assert SosEvent.objects.count() == 1

    def test_what_can_t_be_handed_over_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (timer,) = self.expired(1)
        SosEvent.objects.all().delete()
        break_expiry(monkeypatch)
        assert [found.key for found in look(audits.half_done)] == ["half-done:expired-timers"]
        assert MeetingTimer.objects.half_done().get().pk == timer.pk


@pytest.mark.processes
def test_p2_a_killed_worker_is_missed_and_its_timers_expired_until_another_takes_its_place(
    database_url: str, settings: Any
) -> None:
    """A real process and SIGKILL: its beats go stale; those of one that ends in good order are removed."""
    settings.AUDIT_WORKER_SECONDS = 6
    with ManagedProcess(["run_timer_worker"], {"DATABASE_URL": database_url}) as worker:
        wait_until(lambda: WorkerBeat.objects.count() == 2, timeout=30)
        assert look(ops_audits.workers) == []
        worker.kill()
        killed = set(WorkerBeat.objects.values_list("pk", flat=True))
        armed = timers_for(people(3), escalates_at=clock.now() - 2 * MINUTES)
        wait_until(lambda: len(look(ops_audits.workers)) == 2, timeout=20)
        outcome = audit.run(clock.now())
        assert {"no-worker:timer", "no-worker:dispatch"} <= {finding.key for finding in outcome.findings}
        assert not outcome.well
        assert_one_incident_each(armed)
        worker.start()
        wait_until(lambda: look(ops_audits.workers) == [], timeout=30)
        assert worker.terminate() == 0
    assert set(WorkerBeat.objects.exclude(role=beats.AUDIT).values_list("pk", flat=True)) == killed
