"""`run_timer_worker` as a process and as a command: several at once, late, stopped in order, with each option."""

import re
import signal
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications.models import Delivery, DeliveryStatus
from ops.chores import Chores
from safety import expiry
from safety.models import MeetingTimer
from safety.tests.people import assert_one_incident_each, people, timers_for
from sos.models import SosEvent
from testing.processes import ManagedProcess, wait_until

ENV_KEY = "DATABASE_URL"


def once(*options: str) -> str:
    """What `run_timer_worker --once` says."""
    out = StringIO()
    call_command("run_timer_worker", "--once", *options, stdout=out)
    return out.getvalue().strip()


@pytest.mark.processes
def test_p2_two_workers_make_one_incident_of_each_of_two_hundred_due_timers_and_stop_in_order(
    database_url: str,
) -> None:
    """P2: two real processes share the work; SIGTERM and SIGINT finish the cycle and exit 0; --poll is the sleep."""
    env = {ENV_KEY: database_url}
    command = ["run_timer_worker", "--no-dispatch", "--poll", "0.05", "--batch", "9"]
    with ManagedProcess(command, env) as one, ManagedProcess(command, env) as other:
        for worker in (one, other):
            worker.wait_for_line(r"Expiring timers every 0\.05 s, 9 at a time")
        armed = timers_for(people(200 if has_transactions() else 60), escalates_at=clock.now())
        wait_until(lambda: SosEvent.objects.filter(alerted_at__isnull=False).count() == len(armed), timeout=60)
        wait_until(lambda: not MeetingTimer.objects.half_done().exists())
        assert one.terminate(with_signal=signal.SIGTERM) == 0
        assert other.terminate(with_signal=signal.SIGINT) == 0
        assert "SIGTERM: finishing the cycle" in one.output
        assert "SIGINT: finishing the cycle" in other.output
        assert "Traceback" not in one.output + other.output
    assert_one_incident_each(armed)
    assert set(Delivery.objects.values_list("status", flat=True)) == {DeliveryStatus.QUEUED}


@pytest.mark.processes
def test_p2_a_worker_started_three_hours_late_expires_and_sends_everything_at_once(database_url: str) -> None:
    """P2: a real process that finds timers three hours overdue; `late_by` says so, and every text leaves."""
    armed = timers_for(people(20, contacts=2), escalates_at=clock.now() - timedelta(hours=3))
    with ManagedProcess(["run_timer_worker", "--once", "--batch", "7"], {ENV_KEY: database_url}) as worker:
        assert worker.wait(60) == 0, worker.output
        assert "processed=20 incidents_opened=20 joined=0" in worker.output
    incidents = assert_one_incident_each(armed, contacts=2)
    assert all(10_800 <= incident.late_by < 10_900 for incident in incidents)
    assert set(Delivery.objects.values_list("status", "simulated")) == {(DeliveryStatus.ACCEPTED.value, True)}


@pytest.mark.processes
def test_a_worker_killed_amid_its_work_leaves_nothing_that_the_next_one_does_not_finish(database_url: str) -> None:
    """P2, P3: SIGKILL from outside, at whatever moment it comes."""
    armed = timers_for(people(120 if has_transactions() else 30), escalates_at=clock.now())
    command = ["run_timer_worker", "--no-dispatch", "--batch", "1"]
    with ManagedProcess(command, {ENV_KEY: database_url}) as worker:
        wait_until(SosEvent.objects.exists, timeout=30)
        worker.kill()
    assert MeetingTimer.objects.live().exists()
    once("--no-dispatch")
    once("--no-dispatch")
    assert_one_incident_each(armed)


def test_once_deals_with_all_that_is_due_in_batches_and_says_what_it_did(transactional_db: None) -> None:
    persons = people(8)
    armed = timers_for(persons[:7], escalates_at=clock.now())
    later = timers_for(persons[7:], escalates_at=clock.now() + timedelta(hours=1))
    assert once("--batch", "3") == "processed=7 incidents_opened=7 joined=0"
    assert_one_incident_each(armed)
    assert MeetingTimer.objects.get(pk=later[0].pk).live
    assert once() == "processed=0 incidents_opened=0 joined=0"


def test_once_sends_what_it_queued_unless_told_not_to(transactional_db: None) -> None:
    persons = people(2)
    timers_for(persons[:1], escalates_at=clock.now())
    once("--no-dispatch")
    assert list(Delivery.objects.values_list("status", flat=True)) == [DeliveryStatus.QUEUED]
    timers_for(persons[1:], escalates_at=clock.now())
    once()
    assert list(Delivery.objects.values_list("status", flat=True)) == [DeliveryStatus.ACCEPTED] * 2


@pytest.mark.parametrize(
    "option", ["--batch=0", "--batch=-1", "--batch=many", "--poll=0", "--poll=-1", "--poll=nan", "--poll=soon"]
)
def test_options_that_make_no_sense_are_refused_at_start(option: str) -> None:
    """A batch of nothing would be "full" for ever."""
    with pytest.raises(CommandError, match=option.partition("=")[0]):
        call_command("run_timer_worker", "--once", option)


def test_the_default_batch_is_five_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def cycle(*, batch: int) -> expiry.CycleResult:
        asked.append(batch)
        return expiry.CycleResult()

    monkeypatch.setattr(expiry, "cycle", cycle)
    assert once("--no-dispatch") == "processed=0 incidents_opened=0 joined=0"
    assert asked == [500]


class Stop:
    """Takes the place of the event that a worker sleeps on, and writes down for how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def wait(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def stop() -> Stop:
    return Stop()


@pytest.mark.django_db
def test_the_worker_sleeps_until_the_earliest_deadline_but_no_longer_than_the_poll(stop: Any) -> None:
    from safety.management.commands.run_timer_worker import _sleep

    none = Chores([])
    _sleep(stop, expiry.CycleResult(), 1.0, none, 0.0)
    asha, ravi = people(2)
    timers_for([asha], escalates_at=clock.now() + timedelta(hours=1))
    _sleep(stop, expiry.CycleResult(), 1.0, none, 0.0)
    timers_for([ravi], escalates_at=clock.now() + timedelta(seconds=30))
    _sleep(stop, expiry.CycleResult(), 60.0, none, 0.0)
    assert stop.slept[:2] == [1.0, 1.0]
    assert 20 < stop.slept[2] <= 30
    _sleep(stop, expiry.CycleResult(full=True), 60.0, none, 9.0)
    assert len(stop.slept) == 3


def test_after_some_timers_the_worker_rests_and_looks_for_more_at_once(stop: Any) -> None:
    """No database: what comes next is found by the next cycle."""
    from safety.management.commands.run_timer_worker import _sleep

    for advised in (0.02, 5.0):
        _sleep(stop, expiry.CycleResult(processed=1), 60.0, Chores([]), advised)
    assert stop.slept == [0.02, 0.25]


@pytest.mark.django_db
@pytest.mark.parametrize(("advised", "rest"), [(0.02, 0.02), (5.0, 0.25)])
def test_the_worker_rests_a_little_before_a_deadline_that_has_come_already(
    stop: Any, advised: float, rest: float
) -> None:
    from safety.management.commands.run_timer_worker import _sleep

    timers_for(people(1), escalates_at=clock.now() - timedelta(seconds=1))
    _sleep(stop, expiry.CycleResult(), 1.0, Chores([]), advised)
    assert stop.slept == [rest]


def test_the_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("run_timer_worker", "--help")
    text = capsys.readouterr().out
    assert all(re.search(rf"{option}\b", text) for option in ("--once", "--batch", "--poll", "--no-dispatch"))
