"""Each slot runs once in the whole fleet; what fails, hangs or dies is tried again and told; nothing runs over itself."""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.utils import OperationalError

from casualmeet import clock
from ops import reporting, runs
from ops.jobs import Job, Run
from ops.leases import Leases
from ops.models import JobRun, JobStatus, Lease
from ops.runs import LostRun
from ops.scheduler import Scheduler
from ops.tests.fleet import NOW, Endless, Work, at, minutely, rows, scheduler, together

pytestmark = pytest.mark.django_db
SetClock = Callable[[datetime], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    def to(moment: datetime) -> None:
        monkeypatch.setattr(clock, "now", lambda: moment)

    to(NOW)
    return to


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the operators were told: key and severity, or "resolved"."""
    heard: list[tuple[str, str]] = []

    def report(_title: str, *, key: str, severity: str, **_details: object) -> None:
        heard.append((key, severity))

    monkeypatch.setattr(reporting, "report", report)
    monkeypatch.setattr(reporting, "resolve", lambda key: heard.append((key, "resolved")))
    return heard


def settle(one: Scheduler, number: int = 3) -> None:
    """A few cycles, so that what ended is noted and what follows is begun."""
    for _ in range(number):
        one.tick()


def test_a_job_that_is_new_begins_from_now_and_each_slot_runs_once(set_clock: SetClock) -> None:
    work = Work()
    one, two = scheduler(minutely(work)), scheduler(minutely(work))
    for minute in (0.5, 0.9, 1, 1.1, 2, 2.5, 3.2):
        set_clock(at(minute))
        settle(one)
        settle(two)
    assert work.slots == [at(1), at(2), at(3)]
    assert [(row.status, row.tries, row.summary) for row in rows()] == [
        (JobStatus.DONE, 1, f"run {number}") for number in (1, 2, 3)
    ]
    assert all(row.lease_until is None and row.finished_at for row in rows())


def test_after_an_outage_the_latest_slot_runs_once_even_that_of_a_rare_job(set_clock: SetClock) -> None:
    often, rarely = Work(), Work()
    jobs = [minutely(often), minutely(rarely, cron="0 3 1 * *", name="monthly")]
    settle(scheduler(*jobs))
    # Restarted often, each time long before the slot of the rare one, and then down when that comes.
    for days in (5, 10, 17):
        set_clock(NOW + timedelta(days=days, seconds=20))
        settle(scheduler(*jobs))
    assert often.slots == [NOW + timedelta(days=days) for days in (5, 10, 17)]
    assert rarely.slots == []
    set_clock(NOW + timedelta(days=20, seconds=20))
    # What is over may be trimmed: it does not run again for that.
    JobRun.objects.all().delete()
    for _ in range(2):
        settle(scheduler(*jobs))
    assert often.slots[3:] == [NOW + timedelta(days=20)]
    assert [f"{slot:%m-%d %H:%M}" for slot in rarely.slots] == ["04-01 03:00"]


def test_a_failed_run_is_tried_again_by_policy_and_the_operators_are_told_at_the_end(
    set_clock: SetClock, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(trouble="no word from +447700900123")
    job = minutely(work, cron="0 * * * *", retry_after=(timedelta(minutes=1), timedelta(minutes=5)))
    one = scheduler(job)
    settle(one)
    tries_at = []
    for minute in (60, 60.5, 61, 62, 65.9, 66, 70, 119):
        set_clock(at(minute))
        before = len(work.slots)
        settle(one)
        tries_at += [minute] * (len(work.slots) - before)
        if minute < 66:
            assert told == []
    assert tries_at == [60, 61, 66]
    assert work.slots == [at(60)] * 3
    [row] = rows()
    assert (row.status, row.tries, row.next_try_at) == (JobStatus.FAILED, 3, None)
    assert "ValueError: no word from [phone]…23" in row.error
    assert "Traceback" in row.error
    assert told == [("job:count", "error")]
    assert "The job 'count' failed (try 3)" in caplog.text
    work.trouble = ""
    set_clock(at(120))
    settle(one)
    assert rows()[-1].status == JobStatus.DONE
    assert told[1:] == [("job:count", "resolved")]


@pytest.mark.parametrize("word", ["a\x00b", "half a pair: \ud83d", "x" * 100_000, "", None, {"rows": 3}])
def test_a_job_whose_word_no_database_takes_is_done_once(word: Any, set_clock: SetClock) -> None:
    returned = []

    def work(run: Run) -> str:
        returned.append(run.slot)
        return word  # type: ignore[no-any-return]

    one = scheduler(minutely(work))
    settle(one)
    for minute in (1, 1.5, 3.4):
        set_clock(at(minute))
        settle(one)
    assert returned == [at(1), at(3)]
    assert [(row.status, row.tries) for row in rows()] == [(JobStatus.DONE, 1)] * 2


@pytest.mark.parametrize("trouble", ["a\x00b", "half a pair: \ud83d", "x" * 100_000])
def test_trouble_that_no_database_takes_is_noted_all_the_same(
    trouble: str, set_clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest's own reports hold no lone surrogates; what our logs make of them is in casualmeet/tests/test_logs.py.
    caplog.set_level(logging.CRITICAL, "ops.runs")
    one = scheduler(minutely(Work(trouble=trouble)))
    settle(one)
    set_clock(at(1))
    settle(one)
    [row] = rows()
    assert (row.status, row.tries) == (JobStatus.FAILED, 1)
    assert "ValueError" in row.error or len(row.error) == runs.ERROR_LENGTH
    assert row.next_try_at is not None


def test_the_next_slot_passes_over_one_that_still_waits_for_its_next_try(set_clock: SetClock, told: list[Any]) -> None:
    work = Work(trouble="broken")
    one = scheduler(minutely(work, retry_after=(timedelta(minutes=5),)))
    settle(one)
    for minute in (1, 2, 8):
        set_clock(at(minute))
        settle(one)
    assert work.slots == [at(1), at(2), at(8)]
    assert [row.next_try_at is None for row in rows()] == [True, True, False]
    # Else a frequent job could fail for ever with nobody told.
    assert told == [("job:count", "error")] * 2


def test_a_run_that_hangs_is_ended_told_and_tried_again(set_clock: SetClock, told: list[Any]) -> None:
    launched: list[Endless] = []

    def endless(job: Job, claim: runs.Claim) -> Endless:
        launched.append(Endless())
        return launched[-1]

    hangs = minutely(Work(), cron="0 * * * *", limit=timedelta(microseconds=1))
    fine = Work()
    one = scheduler(hangs, launch=endless)
    settle(one)
    other = scheduler(minutely(fine, cron="0 * * * *", name="fine"))
    settle(other)
    set_clock(at(60))
    settle(one)
    settle(other)
    assert [child.killed for child in launched] == [True]
    [row] = rows()
    assert (row.status, row.tries, row.next_try_at) == (JobStatus.FAILED, 1, at(61))
    assert "longer than its limit" in row.error
    assert told == [("job:count", "warning")]
    assert fine.slots == [at(60)]
    set_clock(at(61))
    settle(one)
    assert (len(launched), rows()[0].tries) == (2, 2)


def test_a_dead_scheduler_s_run_is_taken_over_and_it_can_finish_nothing_when_it_wakes(
    set_clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The second classic fault: an expired lease lets two run at once. The fence tells them apart."""
    woken: list[runs.Claim] = []

    def freezes(job: Job, claim: runs.Claim) -> Endless:
        woken.append(claim)
        return Endless()

    work = Work()
    job = minutely(work, cron="0 * * * *")
    frozen, other = scheduler(job, launch=freezes), scheduler(job)
    settle(frozen)
    set_clock(at(60))
    settle(frozen)
    settle(other)
    assert work.slots == []
    set_clock(at(60.6))
    settle(other)
    assert work.slots == [at(60)]
    [claim] = woken
    with pytest.raises(LostRun):
        claim.still_mine()
    assert not runs.finish(claim, "by the one that was frozen")
    assert not runs.renew(claim)
    assert not runs.fail(job, claim, "by the one that was frozen")
    [row] = rows()
    assert (row.status, row.summary, row.tries) == (JobStatus.DONE, "run 1", 2)
    assert row.fence > claim.fence


def test_a_run_whose_lease_is_over_is_not_its_own_even_before_anybody_took_it(set_clock: SetClock) -> None:
    claims: list[runs.Claim] = []

    def freezes(_job: Job, claim: runs.Claim) -> Endless:
        claims.append(claim)
        return Endless()

    one = scheduler(minutely(Work()), launch=freezes)
    settle(one)
    set_clock(at(1))
    settle(one)
    claims[0].still_mine()
    set_clock(at(1.6))
    with pytest.raises(LostRun):
        claims[0].still_mine()


def test_a_job_that_kills_its_process_each_time_is_given_up(set_clock: SetClock, told: list[Any]) -> None:
    launched: list[Endless] = []

    def dies(_job: Job, _claim: runs.Claim) -> Endless:
        launched.append(Endless())
        return launched[-1]

    job = minutely(Work(), cron="0 0 * * *", retry_after=(timedelta(0), timedelta(0)))
    settle(scheduler(job))
    for minute in range(180, 200):
        set_clock(at(minute))
        settle(scheduler(job, launch=dies))
    assert len(launched) == 3
    assert rows()[0].status == JobStatus.FAILED
    assert told == [("job:count", "error")]


def test_a_job_never_runs_beside_itself_and_of_the_slots_that_wait_the_latest_runs(
    set_clock: SetClock, settings: Any
) -> None:
    settings.JOB_LEASE_SECONDS = 3600
    launched: list[tuple[datetime, Endless]] = []

    def long(_job: Job, claim: runs.Claim) -> Endless:
        launched.append((claim.slot, Endless()))
        return launched[-1][1]

    job = minutely(Work(), limit=timedelta(hours=1))
    one, two = scheduler(job, launch=long), scheduler(job, launch=long)
    settle(one)
    settle(two)
    for minute in (1, 2, 3, 4.5):
        set_clock(at(minute))
        settle(one)
        settle(two)
    assert [slot for slot, _ in launched] == [at(1)]
    launched[0][1].killed = True
    settle(one)
    assert [slot for slot, _ in launched] == [at(1), at(4)]
    assert [row.slot for row in rows()] == [at(1), at(4)]


def test_a_late_node_neither_runs_a_slot_again_nor_one_older_than_the_last(set_clock: SetClock) -> None:
    work = Work()
    job = minutely(work)
    one, late = scheduler(job), scheduler(job)
    settle(one)
    set_clock(at(2))
    settle(one)
    # It looked before the other began, and asks for the lease only now.
    for slot in (at(2), at(1)):
        late._start(job, slot, newest=True)
    assert work.slots == [at(2)]
    assert not late._running


def test_what_is_handed_back_is_begun_anew_at_once_and_the_try_does_not_count(set_clock: SetClock) -> None:
    work = Work()
    job = minutely(work, cron="0 * * * *")
    one, two = scheduler(job, launch=lambda _job, _claim: Endless()), scheduler(job)
    settle(one)
    set_clock(at(60))
    settle(one)
    one.stop(0)
    settle(two)
    assert work.slots == [at(60)]
    assert (rows()[0].status, rows()[0].tries) == (JobStatus.DONE, 1)


def test_a_failed_run_may_be_asked_for_again(set_clock: SetClock, told: list[Any]) -> None:
    work = Work(trouble="broken")
    one = scheduler(minutely(work, cron="0 * * * *", retry_after=()))
    settle(one)
    set_clock(at(60))
    settle(one)
    work.trouble = ""
    set_clock(at(70))
    settle(one)
    assert len(work.slots) == 1
    assert runs.run_again([row.pk for row in rows()]) == 1
    settle(scheduler(minutely(work, cron="0 * * * *", retry_after=())))
    assert (rows()[0].status, rows()[0].tries) == (JobStatus.DONE, 2)
    assert told == [("job:count", "error"), ("job:count", "resolved")]
    assert runs.run_again([row.pk for row in rows()]) == 0


@pytest.mark.django_db(transaction=True)
def test_schedulers_that_race_for_many_slots_run_each_once(set_clock: SetClock) -> None:
    work, names = Work(), [f"job-{number}" for number in range(4)]
    fleet = [scheduler(*(minutely(work, name=name) for name in names)) for _ in range(3)]
    settle(fleet[0])
    for minute in range(1, 5):
        set_clock(at(minute))
        together(*(lambda one=one: settle(one, 2) for one in fleet))
        # A look that met another's lease comes again after a while.
        set_clock(at(minute + 0.2))
        for one in fleet:
            settle(one)
    assert sorted(work.slots) == sorted(at(minute) for minute in range(1, 5) for _ in names)
    assert JobRun.objects.filter(status=JobStatus.DONE, tries=1).count() == 16


def test_nodes_with_wrong_wall_clocks_fire_by_the_database_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """P12."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite's clock is this machine's.")
    real = time

    class Wrong:
        monotonic = staticmethod(real.monotonic)
        ahead = 0.0

        def time(self) -> float:
            return real.time() + self.ahead

    wrong = Wrong()
    monkeypatch.setattr(clock, "time", wrong)
    work = Work()
    fleet = [(seconds, scheduler(minutely(work, cron="* * * * * *"))) for seconds in (-120.0, 120.0)]
    started, until = real.time(), real.monotonic() + 2.5
    while real.monotonic() < until:
        for wrong.ahead, one in fleet:
            clock.forget()
            one.tick()
    clock.forget()
    assert len(work.slots) in {2, 3}
    assert len({*work.slots}) == len(work.slots)
    for number, slot in enumerate(work.slots):
        assert -0.2 < slot.timestamp() - started - number < 1.2


@pytest.mark.django_db(transaction=True)
def test_a_full_disk_is_told_and_the_slot_runs_once_there_is_room(
    set_clock: SetClock, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("Only SQLite can be made to run out of room within a test.")
    settings.JOB_LEASE_SECONDS = 0.006
    work = Work()
    one = scheduler(minutely(work))
    settle(one)

    def fill() -> None:
        for number in range(10_000):
            Lease.objects.create(name=f"filler {number}", until=NOW)

    with connection.cursor() as cursor:
        # What tests before this one deleted leaves pages that are free.
        cursor.execute("VACUUM")
        usual = cursor.execute("PRAGMA max_page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {cursor.execute('PRAGMA page_count').fetchone()[0]}")
        try:
            with pytest.raises(OperationalError, match="full"):
                fill()
            set_clock(at(1))
            settle(one, 1)
        finally:
            cursor.execute(f"PRAGMA max_page_count = {usual}")
    assert "The database can't serve the job count: database or disk is full; trying again" in caplog.text
    assert "Traceback" not in caplog.text
    assert work.slots == []
    until = at(1.2)
    set_clock(until)
    settle(one, 50)
    assert work.slots == [at(1)]


@pytest.mark.django_db(transaction=True)
def test_a_database_that_does_not_answer_in_time_holds_up_one_cycle_and_nothing_is_lost(
    set_clock: SetClock, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """Another session holds the row, longer than a statement may wait."""
    if connection.vendor == "mongodb":
        pytest.skip("MongoDB has no locks that outlive a statement.")
    settings.JOB_LEASE_SECONDS = 0.006
    work = Work()
    one = scheduler(minutely(work))
    settle(one)
    set_clock(at(1))
    short = "PRAGMA busy_timeout = 100" if connection.vendor == "sqlite" else "SET lock_timeout = '100ms'"
    connection.cursor().execute(short)
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("UPDATE ops_lease SET fence = fence")
        settle(one, 1)
        assert work.slots == []
        assert caplog.text.count("The database can't serve the job count") == 1
        # Else it would spin until the database answers.
        assert one._look_at["count"] > at(1)
    finally:
        holder.rollback()
        holder.close()
    set_clock(at(1.2))
    settle(one, 50)
    assert work.slots == [at(1)]
    connection.close()


def test_leases_of_one_process_are_another_s_only_after_their_time(set_clock: SetClock) -> None:
    from ops import leases

    leases.know(["x"])
    one, two = Leases(), Leases()
    held = one.take("x")
    assert held is not None
    assert two.take("x") is None
    set_clock(at(0.4))
    assert one.renew(held)
    set_clock(at(0.8))
    assert two.take("x") is None
    set_clock(at(0.95))
    taken = two.take("x")
    assert taken is not None
    assert taken.fence == held.fence + 1
    assert not one.renew(held)
    assert not one.mark(held, NOW)
    one.release(held)
    assert one.take("x") is None
    two.release(taken)
    assert one.take("x") is not None
