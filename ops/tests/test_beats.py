"""Heartbeats: a beat means that a cycle has ended well; a worker that hangs or fails goes stale."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from uuid import uuid4

import pytest

from casualmeet import clock
from ops import beats, worker
from ops.beats import Beat
from ops.models import WorkerBeat
from ops.worker import run_cycles

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _at_every_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(worker, "FAILURE_WAIT_SECONDS", 0.0)


def run(*cycles: Callable[[], object], see: Callable[[], object]) -> list[object]:
    """Run these cycles; what `see` saw after each of them, and at the end."""
    stop, left, seen, turns = threading.Event(), list(cycles), [], []

    def cycle() -> object:
        turns.append(1)
        if not left or len(turns) > len(cycles):
            stop.set()
            return None
        seen.append(see())
        return left.pop(0)()

    run_cycles(cycle, stop=stop, wait=lambda *_: None, beat=Beat(beats.TIMER))
    return [*seen[1:], see()]


def fine() -> None:
    return None


def broken() -> None:
    raise ZeroDivisionError


def cycle_times() -> list[object]:
    return list(WorkerBeat.objects.filter(role=beats.TIMER).values_list("cycle_at", flat=True))


def test_a_cycle_that_ends_well_beats_and_one_that_raises_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    start, ticks = clock.now(), iter(range(1, 1_000))
    monkeypatch.setattr(clock, "now", lambda: start + timedelta(seconds=next(ticks)))
    one, two, three, four, end = run(fine, broken, broken, fine, fine, see=cycle_times)
    assert len(one) == 1  # type: ignore[arg-type]
    assert one == two == three
    assert four > three  # type: ignore[operator]
    assert end == [], "the row of a worker that ends in good order is to go"


def test_a_worker_whose_cycles_always_raise_has_no_beat_at_all() -> None:
    assert run(broken, broken, broken, see=cycle_times) == [[]] * 3


def test_a_beat_tells_who_how_long_and_how_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "skew_seconds", lambda: 31.5)
    mine = Beat(beats.DISPATCH)
    before = clock.now()
    mine.cycle_finished(0.0042)
    row = WorkerBeat.objects.get()
    assert (row.role, row.node, row.cycle_ms, row.skew_ms) == ("dispatch", beats.node(), 4.2, 31_500)
    assert before <= row.started_at == row.cycle_at
    mine.cycle_finished(0.002)
    again = WorkerBeat.objects.get()
    assert (again.pk, again.started_at) == (row.pk, row.started_at)
    assert again.cycle_at >= row.cycle_at


def test_a_row_that_was_cleared_away_comes_back() -> None:
    """Such as that of a worker which was frozen for hours."""
    mine = Beat(beats.TIMER)
    mine.cycle_finished(0)
    started_at = WorkerBeat.objects.get().started_at
    WorkerBeat.objects.all().delete()
    mine.cycle_finished(0)
    assert WorkerBeat.objects.get().started_at == started_at


def test_at_most_one_write_in_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "EVERY_SECONDS", 2.0)
    moment = [1_000.0]
    monkeypatch.setattr("ops.beats.time.monotonic", lambda: moment[0])
    writes: list[float] = []
    monkeypatch.setattr(beats, "_write", lambda *_args, **_more: writes.append(moment[0]))
    mine = Beat(beats.TIMER)
    for _ in range(50):
        mine.cycle_finished(0)
        moment[0] += 0.1
    assert len(writes) == 3


def test_a_beat_that_can_t_be_written_stops_no_cycle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beats, "_write", lambda *_args, **_more: broken())
    done: list[int] = []
    run(lambda: done.append(1), lambda: done.append(2), see=fine)
    assert done == [1, 2]
    assert "heartbeat of this timer worker was not written" in caplog.text


@pytest.mark.parametrize(("beside", "rest"), [(0, 0.5), (3, 2.0)])
def test_the_rest_after_a_cycle_grows_with_the_workers_of_the_role(
    beside: int, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, stop, rests = clock.now(), threading.Event(), []
    others = [(beats.TIMER, timedelta())] * beside + [
        (beats.TIMER, timedelta(minutes=1)),
        (beats.DISPATCH, timedelta()),
    ]
    for role, ago in others:
        WorkerBeat.objects.create(id=uuid4(), role=role, node="other:1", started_at=now, cycle_at=now - ago)
    seconds = count()
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: next(seconds)))

    def wait(_: None, advised: float) -> None:
        rests.append(advised)
        stop.set()

    run_cycles(fine, stop=stop, wait=wait, beat=Beat(beats.TIMER))
    assert rests == [rest]
