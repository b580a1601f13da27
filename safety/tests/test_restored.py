"""Backups that are taken while people use the site, and what a restored database does and does not do by itself."""

import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections
from psycopg import sql

from casualmeet import clock
from notifications import outbox
from notifications.models import Delivery, DeliveryStatus, Notification
from safety import panic, restored
from safety.models import MeetingTimer
from safety.tests.people import people, timers_for
from sos import escalation
from sos.models import SosEvent
from testing.processes import ManagedProcess
from testing.servers import postgres_program

COUNTS = {
    "timers": "SELECT status, count(*) FROM safety_meetingtimer GROUP BY status",
    "incidents": "SELECT status, count(*) FROM sos_sosevent GROUP BY status",
    "deliveries": "SELECT status, count(*) FROM notifications_delivery GROUP BY status",
}
Query = Callable[[str], list[Any]]


@pytest.fixture
def night(transactional_db: None) -> None:
    """An evening: one timer is overdue, one runs, one ended in an incident whose first text is out and second waits."""
    overdue, running, alarmed = people(3, contacts=2)
    timers_for([overdue], escalates_at=clock.now() - timedelta(minutes=40))
    timers_for([running], escalates_at=clock.now() + timedelta(hours=1))
    panic.press(alarmed)
    first = Delivery.objects.order_by("pk").values_list("pk", flat=True)[:1]
    sent = {"status": DeliveryStatus.ACCEPTED, "finished_at": clock.now()}
    assert Delivery.objects.filter(pk__in=list(first)).update(**sent) == 1
    (moderator,) = people(1, name="moderator", contacts=0)
    moderator.is_staff = True
    moderator.save()


def test_after_a_restore_moderators_decide_about_all_that_may_be_over_or_told(night: None) -> None:
    before = set(Delivery.objects.values_list("pk", flat=True))
    out = StringIO()
    call_command("hold_after_restore", stdout=out)
    assert "1 overdue timers, 1 open incidents, 1 messages" in out.getvalue()
    assert Notification.objects.filter(title__contains="restored from a backup").count() == 1

    call_command("run_timer_worker", "--once", stdout=StringIO())
    # The overdue timer is on the board, and nobody else was told.
    assert SosEvent.objects.active().count() == 2
    assert set(Delivery.objects.values_list("pk", flat=True)) == before
    assert sorted(Delivery.objects.values_list("status", flat=True)) == [DeliveryStatus.ACCEPTED, DeliveryStatus.DEAD]
    # Nor later, by the ladder of the incident that was open; the timer that runs is as it was.
    escalation.advance_due(clock.now() + timedelta(hours=1))
    assert set(Delivery.objects.values_list("pk", flat=True)) == before
    assert MeetingTimer.objects.live().filter(moderators_only=False).count() == 1

    # What still counts is sent by a moderator.
    dead = Delivery.objects.get(status=DeliveryStatus.DEAD)
    assert outbox.requeue_dead(dead.pk, now=clock.now())


def test_holding_twice_is_as_holding_once(night: None) -> None:
    assert restored.hold(clock.now()) == restored.Held(timers=1, incidents=1, deliveries=1)
    assert restored.hold(clock.now()) == restored.Held(timers=0, incidents=0, deliveries=0)
    assert Notification.objects.filter(title__contains="restored from a backup").count() == 1


@pytest.mark.processes
@pytest.mark.skipif("connection.vendor == 'mongodb'", reason="mongodump is in no wheel")
def test_a_backup_of_a_database_in_use_has_all_and_a_worker_goes_on_with_its_copy(
    night: None, database_url: str, tmp_path: Path
) -> None:
    busy = threading.Event()
    writer = threading.Thread(target=write_until, args=(busy,))
    writer.start()
    try:
        url, query = (on_sqlite if connection.vendor == "sqlite" else on_postgres)(database_url, tmp_path)
    finally:
        busy.set()
        writer.join()
    expected = {name: counts_here(statement) for name, statement in COUNTS.items()}
    assert {name: dict(query(statement)) for name, statement in COUNTS.items()} == expected

    for command in (["hold_after_restore"], ["run_timer_worker", "--once"]):
        with ManagedProcess(command, {"DATABASE_URL": url}) as process:
            assert process.wait(60) == 0, process.output
    assert "processed=1 incidents_opened=1" in process.output
    assert dict(query(COUNTS["timers"])) == {"active": 1, "expired": 1}
    assert dict(query(COUNTS["incidents"])) == {"active": 2}
    assert dict(query(COUNTS["deliveries"])) == {"accepted": 1, "dead": 1}
    # The original knows nothing of it.
    assert {name: counts_here(statement) for name, statement in COUNTS.items()} == expected


def write_until(stop: threading.Event) -> None:
    """People use the site meanwhile."""
    try:
        while not stop.is_set():
            MeetingTimer.objects.filter(note__lt="~").update(note=uuid4().hex)
            stop.wait(0.01)
    finally:
        connections.close_all()


def counts_here(statement: str) -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return dict(cursor.fetchall())


def on_sqlite(url: str, directory: Path) -> tuple[str, Query]:
    """As `sqlite3 FILE ".backup COPY"` does, which uses the same function."""
    copy = directory / "copy.sqlite3"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as live, closing(sqlite3.connect(copy)) as target:
        live.backup(target)

    def query(statement: str) -> list[Any]:
        with closing(sqlite3.connect(copy)) as reading:
            return reading.execute(statement).fetchall()

    return f"sqlite:///{copy}", query


def on_postgres(url: str, directory: Path) -> tuple[str, Query]:
    """The commands of docs/operators.md."""
    dump, name = directory / "casualmeet.dump", f"restored_{uuid4().hex}"
    server, _, _ = url.rpartition("/")
    run("pg_dump", "--format=custom", f"--file={dump}", url)
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={server}/{name}", str(dump))

    def query(statement: str) -> list[Any]:
        with psycopg.connect(f"{server}/{name}") as reading:
            return reading.execute(statement.encode()).fetchall()

    return f"{server}/{name}", query


def run(program: str, *args: str) -> None:
    done = subprocess.run([str(postgres_program(program)), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
