"""P12: one clock for all, the database server's, in whole milliseconds."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.utils import OperationalError

from casualmeet import clock
from safety import expiry
from safety.tests.people import assert_no_alarm, people, timers_for

pytestmark = pytest.mark.django_db
real_time = time.time


@pytest.fixture(autouse=True)
def measured_anew() -> Iterator[None]:
    """No test inherits another one's offset, and none leaves a wrong one behind."""
    clock.forget()
    yield
    clock.forget()


@pytest.fixture
def wrong_wall(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets this machine's wall clock wrong by so many seconds."""

    class Wrong:
        """`time` as the clock module sees it."""

        monotonic = staticmethod(time.monotonic)
        ahead = 0.0

        def time(self) -> float:
            return real_time() + self.ahead

    wrong = Wrong()
    monkeypatch.setattr(clock, "time", wrong)
    return wrong


def seconds_off(moment: datetime) -> float:
    """From the true time; the database servers of the tests run on this machine."""
    return abs(moment.timestamp() - real_time())


def has_a_server() -> bool:
    """SQLite has none: its clock is this machine's."""
    return connection.vendor != "sqlite"


def test_p12_now_is_in_utc_and_in_whole_milliseconds() -> None:
    """P12: what MongoDB can store, on every database, so that a stored time equals the one in memory."""
    for _ in range(200):
        moment = clock.now()
        assert moment.tzinfo is UTC
        assert moment.microsecond % 1000 == 0
    assert seconds_off(clock.now()) < 1


@pytest.mark.parametrize("timestamp", [0.0009999, 1_771_000_000.9999999, 1_771_000_000.0, 1_771_000_000.0010001])
def test_milliseconds_are_cut_not_rounded(timestamp: float) -> None:
    """Rounding up would tell a time that has not come."""
    moment = clock._in_milliseconds(timestamp)
    assert moment.timestamp() <= timestamp
    assert timestamp - moment.timestamp() < 0.00101


@pytest.mark.parametrize("minutes", [-10, 10])
def test_p12_a_machine_whose_wall_clock_is_minutes_off_tells_the_databases_time(minutes: int, wrong_wall: Any) -> None:
    """P12: on SQLite the machine's clock is the one clock there is."""
    wrong_wall.ahead = minutes * 60
    if has_a_server():
        assert seconds_off(clock.now()) < 1
        assert abs(clock.skew_seconds() - minutes * 60) < 1
    else:
        assert abs(seconds_off(clock.now()) - abs(minutes * 60)) < 1
        assert abs(clock.skew_seconds()) < 1


@pytest.mark.parametrize("minutes", [-10, 10])
def test_p12_a_wall_clock_that_is_set_while_the_process_runs_changes_nothing(minutes: int, wrong_wall: Any) -> None:
    """P12: the offset counts from the monotonic clock, and a jump makes it measure again."""
    clock.now()
    wrong_wall.ahead = minutes * 60
    if has_a_server():
        assert seconds_off(clock.now()) < 1
        assert seconds_off(clock.now()) < 1


def test_p12_a_worker_on_a_machine_ten_minutes_ahead_does_not_fire_early(wrong_wall: Any) -> None:
    """P12: nor does one that is behind fire late."""
    if not has_a_server():
        return
    armed = timers_for(people(2), escalates_at=clock.now() + timedelta(minutes=5))
    wrong_wall.ahead = 600
    clock.forget()
    assert expiry.cycle() == expiry.CycleResult()
    assert_no_alarm(armed)
    due = timers_for(people(1), escalates_at=clock.now())
    wrong_wall.ahead = -600
    clock.forget()
    assert expiry.cycle().processed == len(due)


def test_p12_the_first_use_inside_a_transaction_asks_the_database_too(wrong_wall: Any) -> None:
    """P12: without an offset there is no other way to know the time."""
    wrong_wall.ahead = 600
    with transaction.atomic():
        assert seconds_off(clock.now()) < 1 or not has_a_server()


@pytest.mark.django_db(transaction=True)
def test_the_offset_is_measured_once_and_again_after_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, wrong_wall: Any
) -> None:
    measured = []
    measure = clock._measure

    def counted() -> Any:
        measured.append(True)
        return measure()

    monkeypatch.setattr(clock, "_measure", counted)
    for _ in range(10):
        clock.now()
    expected = clock.SAMPLES if has_a_server() else 0
    assert len(measured) == expected
    wrong_wall.monotonic = lambda: time.monotonic() + clock.REFRESH_SECONDS + 1
    wrong_wall.ahead = clock.REFRESH_SECONDS + 1
    clock.now()
    assert len(measured) == 2 * expected


@pytest.mark.django_db(transaction=True)
def test_while_the_database_is_away_the_old_offset_goes_on(monkeypatch: pytest.MonkeyPatch, wrong_wall: Any) -> None:
    clock.now()

    def away(_connection: Any) -> float:
        raise OperationalError("away")

    monkeypatch.setattr(clock, "_database_time", away)
    wrong_wall.ahead = 600
    if has_a_server():
        assert seconds_off(clock.now()) < 1
    assert clock.refresh() is clock._reading


@pytest.mark.django_db(transaction=True)
def test_threads_that_ask_at_the_same_time_measure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[bool] = []
    measure = clock._measure

    def counted() -> Any:
        measured.append(True)
        return measure()

    monkeypatch.setattr(clock, "_measure", counted)
    told: list[datetime] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        try:
            barrier.wait()
            told.append(clock.now())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measured) == (clock.SAMPLES if has_a_server() else 0)
    assert max(told) - min(told) < timedelta(seconds=2)


def test_the_shortest_round_trip_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer says least about when the database looked at its clock."""
    if not has_a_server():
        return
    true = real_time()
    samples = iter([(0.9, true + 0.4), (0.001, true), (0.5, true - 0.2)])

    def measure() -> Any:
        took, database = next(samples)
        return took, clock.Reading(database=database, monotonic=time.monotonic(), wall=real_time())

    monkeypatch.setattr(clock, "_measure", measure)
    assert seconds_off(clock.now()) < 0.1
