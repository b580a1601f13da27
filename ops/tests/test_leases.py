"""Locks on a real Redis, what they can't do alone, and that nothing depends on them."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis as Client
from redis.lock import Lock

from casualmeet import clock
from ops import leases, runs
from ops.leases import Leases, RedisLocks
from ops.models import JobStatus, Lease
from ops.tests.fleet import NOW, Endless, Work, at, minutely, rows, scheduler
from testing.servers import Redis

pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("redis")]


@pytest.fixture
def redis(redis_server: Redis) -> Iterator[Client]:
    with Client.from_url(redis_server.url()) as client:
        client.flushall()
        yield client


def test_a_lock_is_taken_once_and_only_its_owner_releases_and_renews_it(redis: Client, redis_server: Redis) -> None:
    one, two = RedisLocks(redis_server.url()), RedisLocks(redis_server.url())
    lock = one.take("x")
    assert isinstance(lock, Lock)
    assert two.take("x") == "busy"
    [key] = redis.keys()
    assert 29_000 < redis.pttl(key) <= 30_000
    redis.pexpire(key, 5_000)
    # Renewed from another thread than took it.
    thread = threading.Thread(target=lambda: one.renew(lock, "x"))
    thread.start()
    thread.join()
    assert redis.pttl(key) > 29_000
    # It expired, and another has it: the first can neither drop it nor make it last.
    redis.delete(key)
    others = two.take("x")
    assert isinstance(others, Lock)
    redis.pexpire(key, 5_000)
    one.release(lock)
    assert one.renew(lock, "x") is None
    assert redis.pttl(key) <= 5_000
    two.release(others)
    assert redis.keys() == []
    one.close()
    two.close()


def test_a_lock_alone_lets_a_late_node_run_the_slot_again_and_the_row_does_not(
    redis: Client, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first classic fault: a fast job releases its lock before a node whose clock is late asks for it."""
    by_lock_alone: list[str] = []
    for node in ("in time", "a few seconds late"):
        locks = RedisLocks(redis_server.url())
        lock = locks.take("slot")
        assert isinstance(lock, Lock)
        by_lock_alone.append(node)
        locks.release(lock)
        locks.close()
    assert by_lock_alone == ["in time", "a few seconds late"]

    work = Work()
    fleet = [scheduler(minutely(work), redis_url=redis_server.url()) for _ in range(2)]
    # The late one's clock shows each moment a few seconds after the other's.
    for second in (-30, -27, 0, 3):
        for late, one in zip((0, 3), fleet, strict=True):
            moment = at(1) + timedelta(seconds=second - late)
            monkeypatch.setattr(clock, "now", lambda moment=moment: moment)
            one.tick()
            one.tick()
    assert work.slots == [at(1)]
    # Whatever lock or lease it comes with, the row is there.
    assert runs.claim(minutely(work), at(1), fence=99) is None
    for one in fleet:
        one.stop()


def test_an_expired_lock_lets_two_run_at_once_and_the_fence_stops_the_first_from_finishing(
    redis: Client, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second classic fault: a process that sleeps longer than its lock lives."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    job = minutely(Work())
    leases.know(["job:count"])
    sleeper, other = Leases(redis_server.url()), Leases(redis_server.url())
    first = sleeper.take("job:count")
    assert first is not None
    old = runs.claim(job, at(-1), fence=first.fence)
    assert old is not None
    assert other.take("job:count") is None
    # It sleeps; both locks run out.
    redis.flushall()
    monkeypatch.setattr(clock, "now", lambda: at(0.6))
    second = other.take("job:count")
    assert second is not None
    new = runs.claim(job, at(-1), fence=second.fence)
    assert new is not None
    # Both think that they run it. It wakes:
    assert (second.fence, new.fence) > (first.fence, old.fence)
    with pytest.raises(runs.LostRun):
        old.still_mine()
    assert not runs.finish(old, "by the one that slept")
    assert not sleeper.renew(first)
    sleeper.release(first)
    assert redis.keys(), "It released the other's lock."
    new.still_mine()
    assert runs.finish(new, "by the other")
    assert [(row.status, row.summary) for row in rows()] == [(JobStatus.DONE, "by the other")]
    for one in (sleeper, other):
        one.close()


def test_redis_gone_during_a_run_leaves_the_database_s_lease_and_is_told_once(
    redis: Client, redis_server: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "REDIS_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(clock, "now", lambda: NOW)
    children: list[Endless] = []

    def long(_job: Any, _claim: runs.Claim) -> Endless:
        children.append(Endless())
        return children[-1]

    work = Work()
    one = scheduler(minutely(work), redis_url=redis_server.url(), launch=long)
    other = scheduler(minutely(work), redis_url=redis_server.url())
    one.tick()
    monkeypatch.setattr(clock, "now", lambda: at(1))
    one.tick()
    assert len(children) == 1
    redis_server.kill()
    try:
        running = one._running["count"]
        # As if ten seconds had gone by: time to renew.
        running._renewed -= 11
        monkeypatch.setattr(clock, "now", lambda: at(1.4))
        one.tick()
        assert [child.killed for child in children] == [False]
        assert caplog.text.count("Redis does not answer") == 1
        assert [row.lease_until for row in rows()] == [at(1.9)]
        assert Lease.objects.get(name="job:count").until == at(1.9)
        # Nobody else may run it, Redis or not.
        monkeypatch.setattr(clock, "now", lambda: at(1.8))
        other.tick()
        assert work.slots == []
    finally:
        redis_server.start()
    running._renewed -= 11
    one.tick()
    assert "Redis no longer holds the lock of 'job:count'; its lease in the database goes on" in caplog.text
    with Client.from_url(redis_server.url()) as client:
        assert client.keys() == [b"cm-safety:lease:job:count"]
    # The database's lease can't be renewed in time: the run ends, whatever Redis says.
    running._renewed -= 31
    one.tick()
    assert [child.killed for child in children] == [True]
    one.stop(0)
    other.stop(0)


def test_a_process_without_redis_and_one_with_it_exclude_each_other(
    redis: Client, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    leases.know(["x"])
    takers: list[Callable[[], Leases]] = [lambda: Leases(redis_server.url()), Leases]
    for first, second in (takers, takers[::-1]):
        one, two = first(), second()
        held = one.take("x")
        assert held is not None
        assert two.take("x") is None
        one.release(held)
        # Its refused try left no lock behind.
        assert redis.keys() == []
        one.close()
        two.close()
