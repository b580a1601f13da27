"""Transient conflicts are told from mistakes and retried, on real lock conflicts; inserts may be repeated and raced."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pymongo.errors
import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, connections, transaction

from casualmeet import clock, db
from notifications.models import Notification
from safety.models import User
from safety.tests.people import people

needs_commits = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def asha(transactional_db: None) -> User:
    return people(1)[0]


def caused(cause: BaseException) -> DatabaseError:
    """As Django wraps what the driver raised."""
    error = DatabaseError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OperationalError("database is locked"), True),
        (OperationalError("database table is locked: safety_user"), True),
        (OperationalError("no such table: safety_user"), False),
        (OperationalError("the connection is closed"), True),
        (caused(psycopg.errors.SerializationFailure()), True),
        (caused(psycopg.errors.DeadlockDetected()), True),
        (caused(psycopg.errors.LockNotAvailable()), True),
        (caused(psycopg.errors.AdminShutdown()), True),
        (caused(psycopg.errors.UniqueViolation()), False),
        (caused(psycopg.errors.UndefinedTable()), False),
        (caused(pymongo.errors.AutoReconnect("gone")), True),
        (caused(pymongo.errors.NotPrimaryError("not primary")), True),
        (caused(pymongo.errors.ServerSelectionTimeoutError("nobody")), True),
        (caused(pymongo.errors.NetworkTimeout("slow")), True),
        (caused(pymongo.errors.OperationFailure("WriteConflict", code=112)), True),
        (caused(pymongo.errors.OperationFailure("bad query", code=2)), False),
        (IntegrityError("duplicate"), False),
        (ValueError("database is locked"), False),
        (DatabaseError("any"), False),
    ],
)
def test_transient_errors_are_told_from_mistakes(error: BaseException, transient: bool) -> None:
    assert db.is_transient(error) is transient


def counted(function: Callable[[], Any]) -> tuple[Callable[[], Any], list[int]]:
    """The function under retry, and its calls."""
    calls: list[int] = []

    def call() -> Any:
        calls.append(len(calls))
        return function()

    return db.retry_transient(call), calls


@needs_commits
def test_retry_gives_up_after_six_tries_and_says_why() -> None:
    def locked() -> None:
        raise OperationalError("database is locked")

    call, calls = counted(locked)
    with pytest.raises(OperationalError, match="locked"):
        call()
    assert len(calls) == db.ATTEMPTS == 6


@needs_commits
def test_a_mistake_is_not_tried_again() -> None:
    def mistaken() -> None:
        raise IntegrityError("mine")

    call, calls = counted(mistaken)
    with pytest.raises(IntegrityError):
        call()
    assert len(calls) == 1


@needs_commits
def test_inside_a_transaction_only_the_whole_is_repeated() -> None:
    """After an error the transaction is lost; a part of it can't be done again."""

    def locked() -> None:
        raise OperationalError("database is locked")

    call, calls = counted(locked)
    with pytest.raises(OperationalError), transaction.atomic():
        call()
    assert len(calls) == 1


@pytest.fixture
def sqlite_lock(asha: User) -> Iterator[sqlite3.Connection]:
    """Another connection that holds the write lock of the file."""
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def rename(person: User) -> None:
    with transaction.atomic():
        User.objects.filter(pk=person.pk).update(full_name="Asha Rao")


def test_a_busy_sqlite_file_is_waited_for(
    asha: User, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real SQLITE_BUSY, with the long busy time-out of the settings taken away."""
    if connection.vendor != "sqlite":
        return
    other = request.getfixturevalue("sqlite_lock")
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.01)
    call, calls = counted(lambda: rename(asha))
    waits = iter(range(10))

    def free_on_the_third(_seconds: float) -> None:
        if next(waits) == 1:
            other.execute("ROLLBACK")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("casualmeet.db.time.sleep", free_on_the_third)
        call()
    connection.close()
    assert len(calls) == 3
    assert User.objects.get(pk=asha.pk).full_name == "Asha Rao"


def in_threads(*works: Callable[[], None]) -> list[BaseException]:
    """Run them at once, each with a connection of its own; what they raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told to the test
            raised.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@needs_commits
def test_a_real_deadlock_ends_with_both_done() -> None:
    """PostgreSQL kills one of two transactions that wait for each other (40P01); it is done again."""
    if connection.vendor != "postgresql":
        return
    asha, ravi = people(2)
    barrier, tries = threading.Barrier(2), []

    def swap(first: User, second: User) -> Callable[[], None]:
        @db.retry_transient
        def work() -> None:
            tries.append(first.pk)
            with transaction.atomic():
                User.objects.filter(pk=first.pk).update(full_name=f"by {first.pk}")
                if len(tries) <= 2:
                    barrier.wait(5)
                User.objects.filter(pk=second.pk).update(full_name=f"by {first.pk}")

        return work

    assert in_threads(swap(asha, ravi), swap(ravi, asha)) == []
    assert len(tries) == 3
    assert len(set(User.objects.values_list("full_name", flat=True))) == 1


@needs_commits
def test_a_real_serialization_failure_is_done_again() -> None:
    """PostgreSQL refuses a write that would follow a stale read (40001)."""
    if connection.vendor != "postgresql":
        return
    asha = people(1)[0]
    User.objects.update(grace_minutes=0)
    barrier, tries = threading.Barrier(2), []

    @db.retry_transient
    def count_up() -> None:
        tries.append(1)
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            seen = User.objects.get(pk=asha.pk).grace_minutes
            if len(tries) <= 2:
                barrier.wait(5)
            User.objects.filter(pk=asha.pk).update(grace_minutes=seen + 1)

    assert in_threads(count_up, count_up) == []
    assert len(tries) == 3
    assert User.objects.get(pk=asha.pk).grace_minutes == 2


def test_a_killed_connection_costs_one_try(asha: User) -> None:
    """As when PostgreSQL restarts, or a firewall forgets us: the next try opens a new one."""
    if connection.vendor != "postgresql":
        return
    call, calls = counted(lambda: rename(asha))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]

    def kill() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    assert in_threads(kill) == []
    call()
    assert len(calls) == 2
    assert User.objects.get(pk=asha.pk).full_name == "Asha Rao"


def notices(person: User, count: int) -> list[Notification]:
    now = clock.now()
    return [Notification(id=uuid4(), recipient=person, kind="k", title=f"{n}", created_at=now) for n in range(count)]


def copies(rows: list[Notification], title: str) -> list[Notification]:
    return [
        Notification(id=row.pk, recipient_id=row.recipient_id, kind="k", title=title, created_at=row.created_at)
        for row in rows
    ]


def test_insert_missing_leaves_what_is_there_and_adds_the_rest(asha: User) -> None:
    rows = notices(asha, 6)
    db.insert_missing(Notification, rows[:3])
    db.insert_missing(Notification, [*copies(rows[:3], "again"), *rows[3:]])
    db.insert_missing(Notification, copies(rows, "once more"))
    assert sorted(Notification.objects.values_list("title", flat=True)) == ["0", "1", "2", "3", "4", "5"]
    db.insert_missing(Notification, [])


def test_insert_missing_passes_over_a_row_whose_other_key_is_taken(asha: User) -> None:
    """One row's taken key never costs the others theirs."""
    taken = User(username=asha.username, full_name="Somebody else")
    free = [User(username=f"free{n}-{uuid4().hex[:6]}", full_name="Free") for n in range(2)]
    db.insert_missing(User, [free[0], taken, free[1]])
    assert User.objects.count() == 3
    assert User.objects.get(username=asha.username).pk == asha.pk


def test_insert_missing_raced_by_threads_inserts_each_row_once(asha: User) -> None:
    rows = notices(asha, 25)
    barrier = threading.Barrier(8)

    def insert(name: str) -> Callable[[], None]:
        def work() -> None:
            barrier.wait()
            db.insert_missing(Notification, copies(rows, name))

        return db.retry_transient(work) if name == "retried" else work

    assert in_threads(*(insert(f"thread {n}") for n in range(8))) == []
    assert Notification.objects.count() == 25


def test_insert_one_says_whether_the_key_was_free(asha: User) -> None:
    (row,) = notices(asha, 1)
    assert db.insert_one(row)
    assert not db.insert_one(copies([row], "again")[0])
    with transaction.atomic():
        assert not db.insert_one(copies([row], "in a transaction, which goes on")[0])
        assert Notification.objects.get().title == "0"


def test_insert_one_raced_by_threads_is_true_for_exactly_one(asha: User) -> None:
    (row,) = notices(asha, 1)
    won: list[bool] = []
    barrier = threading.Barrier(10)

    def insert() -> None:
        barrier.wait()
        won.append(db.insert_one(copies([row], "mine")[0]))

    assert in_threads(*[insert] * 10) == []
    assert sorted(won) == [False] * 9 + [True]


class TestPortions:
    @pytest.mark.django_db
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_each_row_comes_once_also_where_it_drops_out_or_is_passed_over(self, size: int) -> None:
        rows = people(7, contacts=0)
        now = clock.now()
        # Two at each moment, so that the key decides between them.
        for number, row in enumerate(rows):
            User.objects.filter(pk=row.pk).update(pin_locked_until=now + timedelta(seconds=number // 2))
        waiting = User.objects.filter(pin_locked_until__isnull=False)
        seen = []
        for batch in db.in_batches(waiting, by="pin_locked_until", size=size):
            assert len(batch) <= size
            seen += batch
            User.objects.filter(pk__in=[row.pk for row in batch[::2]]).update(pin_locked_until=None)
        assert sorted(row.pk for row in seen) == sorted(row.pk for row in rows)
        moments = [row.pin_locked_until for row in seen if row.pin_locked_until]
        assert moments == sorted(moments)

    @pytest.mark.django_db
    def test_only_what_still_matches_is_deleted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = people(5, contacts=0)
        real = db._delete

        def changed_first(found: Any, keys: Any) -> int:
            User.objects.filter(pk=rows[0].pk).update(is_active=True)
            return real(found, keys)

        User.objects.update(is_active=False)
        monkeypatch.setattr(db, "_delete", changed_first)
        assert db.delete_in_batches(User.objects.filter(is_active=False), size=2) == 4
        assert list(User.objects.all()) == [rows[0]]
