"""Chores: one that fails stops none of the others, and all give way to what is more urgent."""

from datetime import UTC, datetime, timedelta

import pytest

from casualmeet import clock
from ops.chores import Chore, Chores

NOW = datetime(2026, 3, 14, 21, tzinfo=UTC)


def never() -> None:
    return None


def broken() -> None:
    raise ZeroDivisionError


def test_a_chore_that_fails_stops_none_of_the_others_and_is_left_out_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moment = 1000.0
    monkeypatch.setattr("ops.chores.time.monotonic", lambda: moment)
    monkeypatch.setattr(clock, "now", lambda: NOW)
    done: list[str] = []
    chores = Chores(
        [
            Chore("first", lambda: done.append("first"), never),
            Chore("broken", broken, lambda: NOW),
            Chore("last", lambda: done.append("last"), lambda: NOW + timedelta(minutes=1)),
        ]
    )
    chores.run(give_way=lambda: False)
    assert done == ["first", "last"]
    assert caplog.text.count("The chore 'broken' failed") == 1
    moment += 1
    chores.run(give_way=lambda: False)
    assert done == ["first", "last"] * 2
    assert caplog.text.count("The chore 'broken' failed") == 1
    # Else the worker would not sleep, but try the broken one as fast as it can.
    assert chores.next_at() == NOW + timedelta(minutes=1)
    moment += 6
    assert chores.next_at() == NOW
    chores.run(give_way=lambda: False)
    assert caplog.text.count("The chore 'broken' failed") == 2


def test_chores_rest_after_a_run_and_are_due_again_when_the_first_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr("ops.chores.time.monotonic", lambda: moment)
    monkeypatch.setattr(clock, "now", lambda: NOW)
    done: list[str] = []
    coming: list[datetime | None] = [NOW]
    chores = Chores([Chore("one", lambda: done.append("one"), lambda: coming[0])])
    assert chores.next_at() == NOW
    chores.run(give_way=lambda: False)
    chores.run(give_way=lambda: False)
    assert done == ["one"]
    # More of it is due, but not at once: else a worker with much to expire would look after each cycle.
    assert chores.next_at() == NOW + timedelta(seconds=0.5)
    moment += 0.5
    chores.run(give_way=lambda: False)
    assert done == ["one", "one"]
    coming[0] = None
    moment += 0.5
    chores.run(give_way=lambda: False)
    assert chores.next_at() is None


def test_several_workers_share_the_looks_while_nothing_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr("ops.chores.time.monotonic", lambda: moment)
    monkeypatch.setattr(clock, "now", lambda: NOW)
    done: list[float] = []
    coming = [NOW + timedelta(seconds=1)]
    chores = Chores([Chore("one", lambda: done.append(moment), lambda: coming[0])])
    for step in range(12):
        if step == 6:
            coming = [NOW]  # more is due than one look deals with
        chores.run(give_way=lambda: False, workers=4)
        moment += 0.5
    assert done == [1000.0, 1002.0, 1004.0, 1004.5, 1005.0, 1005.5]
    done.clear()
    coming = [NOW + timedelta(minutes=1)]
    for _ in range(30):
        chores.run(give_way=lambda: False, workers=1_000)
        moment += 0.5
    assert done == [1006.0, 1011.0, 1016.0]


def test_chores_that_always_give_way_have_their_turn_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred timers due a second some are due whenever one looks: the last chore must not wait for ever."""
    moment = 1000.0
    monkeypatch.setattr("ops.chores.time.monotonic", lambda: moment)
    done: list[str] = []
    chores = Chores([Chore(name, lambda name=name: done.append(name), never) for name in "abc"])  # type: ignore[misc]
    for _ in range(5):
        chores.run(give_way=lambda: True)
    assert done == ["a", "b", "c"]  # and only then do they rest
    moment += 0.5
    chores.run(give_way=lambda: True)
    assert done == ["a", "b", "c", "a"]


def test_a_chore_whose_time_can_t_be_told_is_left_out_too() -> None:
    chores = Chores([Chore("broken", lambda: None, broken), Chore("fine", lambda: None, lambda: NOW)])
    assert chores.next_at() == NOW


def test_chores_give_way() -> None:
    done: list[str] = []
    chores = Chores([Chore(name, lambda name=name: done.append(name), never) for name in "abc"])  # type: ignore[misc]
    chores.run(give_way=lambda: len(done) == 2)
    assert done == ["a", "b"]


def test_finishing_does_all_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    left = [3]

    def work() -> bool:
        left[0] -= 1
        return True

    stuck: list[int] = []
    chores = Chores(
        [
            Chore("due", work, lambda: NOW if left[0] else None),
            Chore("later", broken, lambda: NOW + timedelta(seconds=1)),
            Chore("stuck", lambda: stuck.append(1), lambda: NOW),
        ]
    )
    chores.finish()
    assert (left, stuck) == ([0], [1])
