"""P1 and P2 at the worst moment and under real concurrency: a success is never overwritten, an expiry never doubled."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection, connections

from casualmeet import clock
from casualmeet.db import has_transactions
from casualmeet.refusal import Refusal
from safety import expiry, timers
from safety.models import MeetingTimer, TimerStatus
from safety.tests.people import Clock, assert_no_alarm, assert_one_incident_each, people, timers_for
from sos.models import SosEvent
from testing.database import in_hand
from testing.processes import ManagedProcess, wait_until

Verb = Callable[[MeetingTimer], MeetingTimer]
LOST = 20


def extend(timer: MeetingTimer) -> MeetingTimer:
    return timers.extend(timer, minutes=15)


VERBS: dict[str, tuple[Verb, TimerStatus]] = {
    "check-ins": (timers.check_in, TimerStatus.SAFE),
    "extensions": (extend, TimerStatus.EXTENDED),
    "cancellations": (timers.cancel, TimerStatus.CANCELLED),
}


def just_before_the_update(monkeypatch: pytest.MonkeyPatch, act: Callable[[Sequence[UUID]], object]) -> None:
    """The barrier: a cycle does not update what is due before `act` has happened to it; where it looks first, it has looked."""
    stamp = expiry._stamp

    def barrier(chosen: Sequence[UUID] | int, *, now: datetime) -> list[MeetingTimer]:
        if due := expiry.due_ids(1000, now=now):
            act(due)
        return stamp(chosen, now=now)

    monkeypatch.setattr(expiry, "_stamp", barrier)


def again(armed: Sequence[MeetingTimer]) -> None:
    """Make these timers live and due once more, as they were when they were read; only a test can."""
    first = armed[0]
    MeetingTimer.objects.filter(pk__in=[timer.pk for timer in armed]).update(
        status=first.status, expires_at=first.expires_at, escalates_at=first.escalates_at, resolved_at=None
    )


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_p1_a_thousand_successes_between_lookup_and_update_are_never_overwritten(
    verb: str, monkeypatch: pytest.MonkeyPatch, wall: Clock
) -> None:
    """P1: the worker has found the timers due; the person's verb succeeds; the worker's update must not match."""
    act, status = VERBS[verb]
    # The MongoDB test server takes longer for each row that there is.
    wave = 250 if has_transactions() else 10
    armed = timers_for(people(wave), escalates_at=wall.now - timedelta(seconds=1))
    answers: list[MeetingTimer] = []

    def everybody_acts(ids: Sequence[UUID]) -> None:
        assert set(ids) == {timer.pk for timer in armed}
        answers.extend(act(timer) for timer in armed)

    just_before_the_update(monkeypatch, everybody_acts)
    for _ in range(1000 // wave):
        again(armed)
        assert expiry.cycle(batch=wave + 1) == expiry.CycleResult()
        # Nor that of a worker which had found them before.
        assert expiry.expire([timer.pk for timer in armed]) == expiry.CycleResult()
        rows = MeetingTimer.objects.values_list("status", "expiry_token")
        assert set(rows) == {(status.value, None)}
    assert len(answers) == 1000
    assert {answer.status for answer in answers} == {status}
    assert_no_alarm(armed)


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_p1_once_the_update_has_won_every_verb_is_refused_and_changes_nothing(verb: str, wall: Clock) -> None:
    """P1, the other side: whoever comes after the worker hears 409, with the state that holds now."""
    act, _ = VERBS[verb]
    armed = timers_for(people(20), escalates_at=wall.now)
    expiry.cycle()
    for timer in armed:
        with pytest.raises(Refusal) as refused:
            act(timer)
        assert (refused.value.status, refused.value.code) == (409, "not_live")
        assert refused.value.current.status == TimerStatus.EXPIRED
    assert_one_incident_each(armed)


@pytest.mark.django_db
def test_p1_an_extension_that_would_end_in_the_past_is_refused_and_the_timer_expires(
    monkeypatch: pytest.MonkeyPatch, wall: Clock
) -> None:
    """P1: refused is refused: the alarm for the old deadline follows, once."""
    persons = people(2 * LOST)
    long_ago = timers_for(persons[:LOST], escalates_at=wall.now - timedelta(minutes=15))
    just_now = timers_for(persons[LOST:], escalates_at=wall.now - timedelta(minutes=15) + timedelta(milliseconds=1))
    refusals: list[Refusal] = []

    def everybody_extends(ids: Sequence[UUID]) -> None:
        for timer in just_now:
            extend(timer)
        for timer in long_ago:
            with pytest.raises(Refusal) as refused:
                extend(timer)
            refusals.append(refused.value)

    just_before_the_update(monkeypatch, everybody_extends)
    result = expiry.cycle()

    assert [(refusal.status, refusal.code) for refusal in refusals] == [(409, "changed")] * LOST
    assert result == expiry.CycleResult(processed=LOST, incidents_opened=LOST)
    assert_no_alarm(just_now)
    assert_one_incident_each(long_ago)


@pytest.mark.django_db
def test_p1_a_timer_extended_after_the_lookup_expires_at_its_new_deadline_only(
    monkeypatch: pytest.MonkeyPatch, wall: Clock
) -> None:
    """P1: "the deadline it replaced" raises no alarm; the new one does."""
    armed = timers_for(people(3), escalates_at=wall.now - timedelta(seconds=5))
    with monkeypatch.context() as patched:
        just_before_the_update(patched, lambda _: [extend(timer) for timer in armed])
        expiry.cycle()
    assert_no_alarm(armed)
    wall.move(minutes=15, seconds=-5.001)
    assert expiry.cycle() == expiry.CycleResult()
    wall.move(milliseconds=1)
    assert expiry.cycle() == expiry.CycleResult(processed=3, incidents_opened=3)
    assert_one_incident_each(armed)


@pytest.mark.django_db
@pytest.mark.parametrize("first", VERBS)
def test_p1_of_two_verbs_decided_on_the_same_look_only_one_succeeds(first: str, wall: Clock) -> None:
    """P1: a double tap, or two phones: the second hears 409 with what the first made of the timer."""
    act, status = VERBS[first]
    for second, _ in VERBS.values():
        timer = timers_for(people(1), escalates_at=wall.now + timedelta(minutes=1))[0]
        stale = MeetingTimer.objects.select_related("person").get(pk=timer.pk)
        act(timer)
        with pytest.raises(Refusal) as refused:
            second(stale)
        assert refused.value.status == 409
        assert refused.value.current.status == status
        assert MeetingTimer.objects.get(pk=timer.pk).status == status


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_p1_a_look_from_before_an_extension_is_refused_although_the_status_is_the_same(verb: str, wall: Clock) -> None:
    """P1: the swap compares the deadline too: extended twice is "extended" both times."""
    timer = timers_for(people(1), escalates_at=wall.now + timedelta(minutes=1))[0]
    stale = extend(timer)
    newest = extend(stale)
    with pytest.raises(Refusal) as refused:
        VERBS[verb][0](stale)
    assert (refused.value.status, refused.value.code) == (409, "changed")
    assert refused.value.current.escalates_at == newest.escalates_at
    row = MeetingTimer.objects.get(pk=timer.pk)
    assert (row.status, row.escalates_at) == (TimerStatus.EXTENDED, newest.escalates_at)


class Crowd:
    """Persons who all act on their timers around the deadline, in threads, and what they were answered."""

    def __init__(self, *, seed: int) -> None:
        count, apart = (90, 12) if has_transactions() else (30, 40)
        self.armed = timers_for(
            people(count), escalates_at=clock.now() + timedelta(seconds=0.3), apart=timedelta(milliseconds=apart)
        )
        self.dice = random.Random(seed)
        self.succeeded: dict[UUID, MeetingTimer] = {}
        self.refused: dict[UUID, Refusal] = {}

    def act(self) -> None:
        """Everybody acts once, each as near to their own deadline as a thread can."""
        plans = [(timer, self.dice.choice(list(VERBS)), self.dice.uniform(-0.03, 0.03)) for timer in self.armed]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(self._act_all, [plans[thread::6] for thread in range(6)]))

    def _act_all(self, plans: list[tuple[MeetingTimer, str, float]]) -> None:
        try:
            for plan in plans:
                self._act(*plan)
        finally:
            connections.close_all()

    def _act(self, timer: MeetingTimer, verb: str, lag: float) -> None:
        moment = timer.escalates_at + timedelta(seconds=lag)
        threading.Event().wait(max(0.0, (moment - clock.now()).total_seconds()))
        try:
            self.succeeded[timer.pk] = VERBS[verb][0](timer)
        except Refusal as refusal:
            self.refused[timer.pk] = refusal

    def all_over(self) -> bool:
        """Whether none of the timers is due, or half-done, any more."""
        mine = MeetingTimer.objects.filter(pk__in=[timer.pk for timer in self.armed])
        return not (
            mine.due(clock.now()).exists() or mine.half_done().exists() or SosEvent.objects.half_open().exists()
        )

    def assert_honoured(self) -> None:
        """Each timer ended one way: as its person was told, or else expired with one incident (P1, P2)."""
        assert len(self.succeeded) + len(self.refused) == len(self.armed)
        won = [timer for timer in self.armed if timer.pk in self.succeeded]
        assert_no_alarm(won)
        rows = MeetingTimer.objects.in_bulk(list(self.succeeded))
        for pk, answer in self.succeeded.items():
            assert (rows[pk].status, rows[pk].escalates_at) == (answer.status, answer.escalates_at)
        assert {refusal.status for refusal in self.refused.values()} <= {409}
        assert_one_incident_each([timer for timer in self.armed if timer.pk in self.refused])


def test_p1_p2_threads_at_the_deadline_against_three_workers(transactional_db: None) -> None:
    """P1, P2: real concurrency inside one process; every thread has a connection of its own."""
    crowd, stop = Crowd(seed=1), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                expiry.cycle(batch=7)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)
        finally:
            connections.close_all()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        crowd.act()
        wait_until(lambda: crowd.all_over() or failures, message="all timers are dealt with")
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not failures
    crowd.assert_honoured()


@pytest.mark.processes
def test_p1_p2_persons_at_the_deadline_against_two_worker_processes(database_url: str) -> None:
    """P1, P2: as above with real worker processes, which share nothing with the persons but the database."""
    env = {"DATABASE_URL": database_url}
    command = ["run_timer_worker", "--no-dispatch", "--poll", "0.01", "--batch", "7"]
    with ManagedProcess(command, env) as one, ManagedProcess(command, env) as other:
        one.wait_for_line("Expiring timers")
        other.wait_for_line("Expiring timers")
        crowd = Crowd(seed=2)
        crowd.act()
        wait_until(crowd.all_over, message="all timers are dealt with")
        assert (one.terminate(), other.terminate()) == (0, 0)
    crowd.assert_honoured()
    assert "Traceback" not in one.output + other.output


def test_p2_two_batches_over_the_same_ids_make_one_incident_each(transactional_db: None) -> None:
    """P2: twenty workers that looked up the same timers, released at once, and then all once more."""
    armed = timers_for(people(30), escalates_at=clock.now())
    ids = [timer.pk for timer in armed]
    barrier = threading.Barrier(20)

    def expire(_: int) -> expiry.CycleResult:
        try:
            barrier.wait()
            first = expiry.expire(ids)
            return first + expiry.expire(ids)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(expire, range(20)))
    assert sum(result.processed for result in results) == 30
    assert sum(result.incidents_opened for result in results) == 30
    assert_one_incident_each(armed)


@pytest.mark.parametrize(
    "look", [lambda _ids: expiry.cycle(), expiry.expire], ids=["holds", "held after they were found"]
)
@pytest.mark.parametrize("kept", [True, False])
def test_p1_p14_a_row_that_another_transaction_holds_keeps_nobody_elses_alarm_waiting(
    kept: bool, look: Callable[[Sequence[UUID]], expiry.CycleResult], transactional_db: None
) -> None:
    """P1, P14: a process frozen, or only slow, inside its transaction costs the other timers nothing."""
    held, *others = armed = timers_for(people(4), escalates_at=clock.now())
    ids = [timer.pk for timer in armed]
    later = clock.now() + timedelta(minutes=15)
    with in_hand(MeetingTimer.objects.filter(pk=held.pk), keep=kept, expires_at=later, escalates_at=later):
        assert look(ids) == expiry.CycleResult(processed=3, incidents_opened=3)
    expiry.cycle()
    assert_one_incident_each(others if kept else armed)
    if kept:
        assert_no_alarm([held])


def test_the_tests_above_run_on_a_database_that_others_can_open(transactional_db: None) -> None:
    """A guard: on SQLite in memory the threads would share one connection and prove nothing."""
    assert ":memory:" not in str(connection.settings_dict["NAME"])
    assert "mode=memory" not in str(connection.settings_dict["NAME"])
