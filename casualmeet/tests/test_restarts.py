"""Database and Redis are restarted under a whole installation at work: nothing is lost, sent twice, or left deaf.

On servers of their own, so that no other test is disturbed; each test is one restart in the middle of alerts.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pymongo
import pytest
from websockets.sync.client import connect

from casualmeet.tests.test_live import PERSON, Site, Watcher
from testing.carrier import LocalCarrier
from testing.processes import ManagedProcess, wait_until
from testing.servers import Mongo, Postgres, Redis

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

# Two halves of timers that run, one person with a session and an API token. `print` is how the test learns of them.
SEED = """
from datetime import timedelta
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.test import Client
from casualmeet import clock
from safety import tokens
from safety.models import MeetingTimer
from safety.tests.people import people, timers_for
for half in ("first", "second"):
    made = timers_for(people({half}, name=half), escalates_at=clock.now() + timedelta(hours=1))
    MeetingTimer.objects.filter(pk__in=[timer.pk for timer in made]).update(location_name=half)
(watcher,) = people(1, name="watcher")
client = Client()
client.force_login(watcher)
print("seeded", client.cookies["sessionid"].value, tokens.issue(watcher))
"""
HALF = 12


@dataclass
class OnPostgres:
    """The database, past Django, which is set up for another one here."""

    server: Postgres = field(default_factory=Postgres)
    name: str = "casualmeet"

    def prepare(self) -> str:
        self.server.create_database(self.name)
        return self.server.url(self.name)

    def make_due(self, half: str, at: datetime) -> None:
        statement = "UPDATE safety_meetingtimer SET expires_at = %s, escalates_at = %s WHERE location_name = %s"
        with psycopg.connect(self.server.url(self.name)) as connection:
            assert connection.execute(statement, [at, at, half]).rowcount == HALF

    def rows(self, table: str, column: str) -> list[Any]:
        with psycopg.connect(self.server.url(self.name)) as connection:
            found = connection.execute(f"SELECT {column} FROM {table}".encode()).fetchall()
        return [value for (value,) in found]


@dataclass
class OnMongo:
    server: Mongo = field(default_factory=lambda: Mongo(durable=True))

    def prepare(self) -> str:
        return self.server.url()

    def make_due(self, half: str, at: datetime) -> None:
        changes = {"$set": {"expires_at": at, "escalates_at": at}}
        with self._client() as client:
            done = client["casualmeet"]["safety_meetingtimer"].update_many({"location_name": half}, changes)
            assert done.modified_count == HALF

    def rows(self, table: str, column: str) -> list[Any]:
        with self._client() as client:
            return [row[column] for row in client["casualmeet"][table].find()]

    def _client(self) -> pymongo.MongoClient[dict[str, Any]]:
        return pymongo.MongoClient(self.server.url())


@pytest.mark.parametrize("make", [OnPostgres, OnMongo], ids=["PostgreSQL", "MongoDB"])
def test_a_restart_of_database_and_redis_amid_alerts_costs_seconds_and_no_alert(
    make: Callable[[], OnPostgres | OnMongo],
) -> None:
    database = make()
    with database.server, Redis() as redis, LocalCarrier(latency=0.2) as carrier:
        url = database.prepare()
        env = {"DATABASE_URL": url, "REDIS_URL": redis.url(), "DISPATCH_CONCURRENCY": "3", **carrier.environment()}
        site = Site(url, redis_url=redis.url())
        with ManagedProcess(["shell", "-v0", "-c", SEED.replace("{half}", str(HALF))], env) as seeding:
            _, session, token = seeding.wait_for_line(r"^seeded (\S+) (\S+)$", timeout=90)[0].split()
        with running(site, env) as workers, watching(site, session) as mine:
            mine.until("snapshot")
            database.make_due("first", datetime.now(UTC))
            wait_until(carrier.accepted, timeout=60)
            # These come due while it is away.
            database.make_due("second", datetime.now(UTC) + timedelta(seconds=1))
            for server in (database.server, redis):
                server.halt()
            wait_until(lambda: site.request("GET", "timers", token).status_code == 503, timeout=60)
            for server in (database.server, redis):
                server.start()

            wait_until(lambda: len(carrier.accepted()) == 2 * HALF, timeout=60)
            wait_until(lambda: site.request("GET", "timers", token).status_code == 200, timeout=60)
            armed = site.request("POST", "timers", token, {"location_name": "Cafe", "duration_minutes": 30})
            assert armed.status_code == 201
            shown(mine, armed.json()["id"])
            wait_until(lambda: set(database.rows("notifications_delivery", "status")) == {"accepted"}, timeout=60)
            for worker in workers:
                assert worker.terminate(60) == 0, worker.output
        timers = database.rows("sos_sosevent", "triggered_timer_id")
        assert len(timers) == len(set(timers)) == 2 * HALF
        assert database.rows("notifications_deliveryattempt", "number") == [1] * 2 * HALF
        assert len(carrier.accepted()) == 2 * HALF


@contextmanager
def running(site: Site, env: dict[str, str]) -> Iterator[list[ManagedProcess]]:
    workers = [ManagedProcess([name, *more], env) for name, *more in COMMANDS]
    with ExitStack() as stack:
        for process in (site.process, *workers):
            stack.enter_context(process)
        site.process.wait_for_line("Listening on TCP address", timeout=90)
        for worker, line in zip(workers, ("Expiring timers", "Dispatching"), strict=True):
            worker.wait_for_line(line, timeout=90)
        yield workers


COMMANDS = (("run_timer_worker", "--no-dispatch", "--poll", "0.1"), ("run_dispatch_worker",))


@contextmanager
def watching(site: Site, session: str) -> Iterator[Watcher]:
    given: dict[str, Any] = {"origin": site.url, "additional_headers": {"Cookie": f"sessionid={session}"}}
    with connect(f"ws://127.0.0.1:{site.port}{PERSON}", open_timeout=30, **given) as opened:
        yield Watcher(opened)


def shown(watcher: Watcher, timer_id: str) -> None:
    """The same socket, still open, tells of the timer: by an event, or in a snapshot."""
    seen: list[str] = []
    while timer_id not in seen:
        message = json.loads(watcher.socket.recv(timeout=30))
        rows = message["data"]["timers"] if message["type"] == "snapshot" else [message["data"]]
        seen = [row["id"] for row in rows]
