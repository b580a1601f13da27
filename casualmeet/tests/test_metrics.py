"""/metrics: who may read it, what it tells of every room, what it costs, and that nothing it meets breaks it."""

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.utils import OperationalError
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from casualmeet import clock
from casualmeet.logs import mask
from casualmeet.tests.test_live import PERSON, Login, log_in, opened
from notifications.models import CarrierHealth, Delivery, FirstAcceptance
from notifications.tests.deliveries import delivery
from ops import metrics
from ops.beats import Beat
from ops.models import AuditFinding, JobRun, WorkerBeat
from safety.models import User
from safety.tests.factories import PersonFactory, TimerFactory
from sos.models import AlertedContact, SosEvent
from testing import measured

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

TOKEN = "é-long-and-random"
BEARER = {"authorization": f"Bearer {TOKEN}"}
# Whatever is added here must have few values, known beforehand, and say nothing about anybody.
LABELS = {"le", "role", "carrier", "outcome", "code", "kind", "result", "reading", "priority", "job_name", "status"} | {
    *("check", "generation", "implementation", "major", "minor", "patchlevel", "version"),
}


@pytest.fixture(autouse=True)
def _token(settings: Any) -> Iterator[None]:
    settings.METRICS_TOKEN = TOKEN
    metrics.from_database.forget()
    yield
    metrics.from_database.forget()


def scrape() -> dict[tuple[str, str], float]:
    """The samples, by name and the values of their labels."""
    response = Client().get("/metrics", headers=BEARER)
    assert response.status_code == 200
    families = text_string_to_metric_families(response.content.decode())
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, ",".join(sample.labels.values())): sample.value for sample in samples}


def failed_readings(found: dict[tuple[str, str], float]) -> set[str]:
    return {reading for (name, reading), value in found.items() if name == "casualmeet_scrape_errors" and value}


def incident(person: User | None = None, **changes: Any) -> SosEvent:
    person = person or PersonFactory.create()
    now = clock.now()
    given = {"open_key": person.pk, "source": "manual", "reference": "K7Q", "happened_at": now, "opened_at": now}
    return SosEvent.objects.create(person=person, **{**given, **changes})


def alerted(row: SosEvent, **changes: Any) -> AlertedContact:
    given = {"contact_id": uuid4(), "name": "Ravi Iyer", "phone": "+447700900123", "language": "en"}
    return AlertedContact.objects.create(incident=row, token=uuid4().hex, **{**given, **changes})


class TestWhoMayRead:
    def test_without_a_token_there_is_no_such_page(self, settings: Any) -> None:
        settings.METRICS_TOKEN = ""
        for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer"}):
            assert Client().get("/metrics", headers=headers).status_code == 404

    @pytest.mark.parametrize(
        "given",
        ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer é", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
    )
    def test_a_wrong_token_is_refused(self, given: str) -> None:
        response = Client().get("/metrics", headers={"authorization": given})
        assert (response.status_code, response.content) == (401, b"")
        assert response["WWW-Authenticate"] == "Bearer"

    def test_the_token_opens_it_without_https_and_uncached(self, settings: Any) -> None:
        settings.SECURE_SSL_REDIRECT = True
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} {TOKEN}", "host": "10.0.0.7:8000"}  # as scraped past the proxy
            response = Client().get("/metrics", headers=headers)
            assert response.status_code == 200
            assert "no-store" in response["Cache-Control"]
            assert response["Content-Type"].startswith("text/plain; version=")

    def test_prometheus_may_ask_for_openmetrics(self) -> None:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        response = Client().get("/metrics", headers={**BEARER, "accept": accept})
        assert response["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert response.content.endswith(b"# EOF\n")

    def test_it_is_only_read(self) -> None:
        client = Client(headers=BEARER)
        assert client.head("/metrics").status_code == 200
        for method in ("post", "put", "delete", "patch"):
            assert getattr(client, method)("/metrics").status_code == 405


class TestWhatTheDatabaseKnows:
    def test_timers(self) -> None:
        now = clock.now()
        TimerFactory.create_batch(2)
        TimerFactory.create(escalates_at=now - timedelta(seconds=90))
        TimerFactory.create(escalates_at=now - timedelta(seconds=30))
        TimerFactory.create(escalates_at=now - timedelta(hours=3), status="expired")
        found = scrape()
        assert found["casualmeet_timers_live", ""] == 4
        assert found["casualmeet_timers_overdue", ""] == 2
        assert 90 <= found["casualmeet_timers_overdue_oldest_seconds", ""] < 100

    def test_incidents(self) -> None:
        now = clock.now()
        # One has no contacts, in one somebody helps, of one a carrier took a message, of one it did and then it failed.
        incident()
        alerted(incident(opened_at=now - timedelta(seconds=50)), acknowledged_at=now)
        taken, counted, waiting = incident(), incident(), incident(opened_at=now - timedelta(seconds=70))
        for row in (taken, counted, waiting):
            alerted(row)
            alerted(row)
        delivery(incident_id=taken.pk, status="accepted", recipient_id=uuid4())
        delivery(incident_id=waiting.pk, status="dead", recipient_id=uuid4())
        FirstAcceptance.objects.create(incident_id=counted.pk, attempt_id=uuid4(), accepted_at=now)
        alerted(incident(status="resolved", open_key=None))
        alerted(incident(opened_at=now - timedelta(days=2)))
        found = scrape()
        assert found["casualmeet_incidents_active", ""] == 6
        assert found["casualmeet_incidents_unacknowledged", ""] == 5
        assert found["casualmeet_incidents_not_accepted", ""] == 2
        assert 70 <= found["casualmeet_incidents_not_accepted_oldest_seconds", ""] < 80

    def test_the_outbox(self) -> None:
        now = clock.now()
        for seconds in (5, 40):
            delivery(next_attempt_at=now - timedelta(seconds=seconds))
        delivery(next_attempt_at=now + timedelta(seconds=60))
        delivery(status="sending", next_attempt_at=now - timedelta(seconds=60))
        delivery(priority=9, next_attempt_at=now - timedelta(hours=1))
        delivery(status="dead", finished_at=now - timedelta(minutes=1))
        delivery(status="dead", finished_at=now - timedelta(minutes=1), priority=5)
        delivery(status="dead", finished_at=now - timedelta(hours=2))
        found = scrape()
        depth = {label: value for (name, label), value in found.items() if name == "casualmeet_outbox_depth"}
        assert depth == {"sos": 2, "safety": 0, "normal": 0, "bulk": 1}
        assert 40 <= found["casualmeet_outbox_oldest_seconds", "sos"] < 50
        assert found["casualmeet_outbox_oldest_seconds", "safety"] == 0
        dead = {label: value for (name, label), value in found.items() if name == "casualmeet_dead_letters"}
        assert dead == {"sos": 1, "safety": 0, "normal": 1, "bulk": 0}

    def test_carriers(self) -> None:
        now = clock.now()
        CarrierHealth.objects.create(name="twilio", open_until=now + timedelta(seconds=20))
        CarrierHealth.objects.create(name="fast2sms", open_until=now - timedelta(seconds=20), balance=120.5)
        found = scrape()
        assert found["casualmeet_carrier_circuit_open", "twilio"] == 1
        assert found["casualmeet_carrier_circuit_open", "fast2sms"] == 0
        assert found["casualmeet_carrier_balance_rupees", "fast2sms"] == 120.5
        assert ("casualmeet_carrier_balance_rupees", "twilio") not in found

    def test_workers_and_findings(self) -> None:
        now = clock.now()
        for role, age, skew in (
            ("timer", 4, -90_000),
            ("timer", 300, 5_000),
            ("dispatch", 60, 0),
            ("scheduler", 90_000, 0),
        ):
            cycle_at = now - timedelta(seconds=age)
            WorkerBeat.objects.create(role=role, node="h:1", started_at=cycle_at, cycle_at=cycle_at, skew_ms=skew)
        for key, gone, age in (("a", None, 10), ("b", None, 20), ("c", now, 10), ("d", None, 3600)):
            seen = now - timedelta(seconds=age)
            row = {"check_name": "overdue", "title": "x", "first_seen_at": seen, "last_seen_at": seen}
            AuditFinding.objects.create(key=key, gone_at=gone, **row)
        found = scrape()
        assert 4 <= found["casualmeet_worker_last_cycle_age_seconds", "timer"] < 14
        assert 60 <= found["casualmeet_worker_last_cycle_age_seconds", "dispatch"] < 70
        assert ("casualmeet_worker_last_cycle_age_seconds", "scheduler") not in found
        assert found["casualmeet_workers", "timer"] == 1
        assert found["casualmeet_workers", "dispatch"] == 0
        assert found["casualmeet_worker_clock_skew_seconds", "timer"] == 90
        assert abs(found["casualmeet_clock_skew_seconds", ""]) < 60
        assert found["casualmeet_audit_findings", "overdue"] == 2


def nothing(_run: Any) -> str:
    return ""


class TestJobs:
    @pytest.fixture(autouse=True)
    def _jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ops import jobs

        monkeypatch.setattr(jobs, "_jobs", {})
        jobs.job("daily", "0 7 * * *", time_zone="Asia/Kolkata")(nothing)
        jobs.job("often", "*/30 * * * * *")(nothing)
        jobs.job("never", "0 0 1 1 *")(nothing)

    def ran(self, name: str, slot_age: timedelta, status: str) -> None:
        now = clock.now()
        slot = now - slot_age
        finished = None if status == "running" else slot + timedelta(seconds=1)
        JobRun.objects.create(job=name, slot=slot, status=status, node="h:1", started_at=slot, finished_at=finished)

    def test_one_that_is_done_each_time_is_not_late(self) -> None:
        self.ran("often", timedelta(seconds=20), "done")
        found = scrape()
        assert found["casualmeet_job_late_seconds", "often"] < 25
        assert found["casualmeet_job_failed", "often"] == 0
        assert 19 <= found["casualmeet_job_last_success_age_seconds", "often"] < 30
        assert ("casualmeet_job_late_seconds", "never") not in found

    def test_one_that_failed_since_is_late_since_its_next_slot(self) -> None:
        self.ran("often", timedelta(minutes=10), "done")
        self.ran("often", timedelta(minutes=5), "failed")
        found = scrape()
        assert 570 <= found["casualmeet_job_late_seconds", "often"] <= 605
        assert found["casualmeet_job_failed", "often"] == 1

    def test_one_that_was_never_done_is_late_since_its_first_slot(self) -> None:
        self.ran("often", timedelta(minutes=3), "failed")
        self.ran("often", timedelta(minutes=2), "running")
        found = scrape()
        assert 180 <= found["casualmeet_job_late_seconds", "often"] < 190
        assert ("casualmeet_job_last_success_age_seconds", "often") not in found
        assert found["casualmeet_job_failed", "often"] == 0

    def test_a_daily_one_is_late_from_its_time_in_its_zone(self) -> None:
        self.ran("daily", timedelta(days=2), "done")
        late = scrape()["casualmeet_job_late_seconds", "daily"]
        # Its first missed slot was at 01:30 UTC, one to two days ago.
        missed = clock.now() - timedelta(seconds=late)
        assert timedelta(days=1) <= timedelta(seconds=late) <= timedelta(days=2, seconds=5)
        assert abs((missed.hour * 60 + missed.minute) - 90) <= 1

    def test_tries_are_counted(self) -> None:
        before = measured.value(metrics.JOB_RUNS, job_name="daily", status="failed")
        metrics.job_ran("daily", "failed", 2.5)
        assert measured.value(metrics.JOB_RUNS, job_name="daily", status="failed") == before + 1
        assert measured.value(metrics.JOB_SECONDS, "_sum", job_name="daily") >= 2.5


class TestWhatItCosts:
    def fill(self, rows: int) -> None:
        for number in range(rows):
            TimerFactory.create(escalates_at=clock.now() - timedelta(seconds=number))
            alerted(incident())
            delivery()
            delivery(status="dead", finished_at=clock.now())

    def test_its_queries_are_as_many_with_many_rows_as_with_few(self) -> None:
        asked = []
        for rows in (1, 20):
            self.fill(rows)
            metrics.from_database.forget()
            with CaptureQueriesContext(connection) as captured:
                scrape()
            asked.append(len(captured))
        assert asked[0] == asked[1] < 60

    def test_asked_again_within_seconds_it_asks_the_database_nothing(self, django_assert_num_queries: Any) -> None:
        scrape()
        TimerFactory.create()
        with django_assert_num_queries(0):
            assert scrape()["casualmeet_timers_live", ""] == 0
        metrics.from_database.forget()
        assert scrape()["casualmeet_timers_live", ""] == 1

    def test_its_queries_read_indexes(self) -> None:
        if connection.vendor != "sqlite":
            pytest.skip("Others choose by the number of rows, of which there are none here.")
        self.fill(2)
        with CaptureQueriesContext(connection) as captured:
            scrape()
        tables = "|".join(
            model._meta.db_table for model in (Delivery, SosEvent, AlertedContact, JobRun, FirstAcceptance)
        )
        asked = [
            query["sql"] for query in captured if re.search(rf'FROM "({tables}|safety_meetingtimer)"', query["sql"])
        ]
        assert len(asked) >= 12
        with connection.cursor() as cursor:
            for sql in asked:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
                plan = [row[3] for row in cursor.fetchall()]
                # To read all of an index is cheap only where it holds no more than what is live.
                assert not [
                    line for line in plan if re.match(r"SCAN (?!subquery|.* timer_(live_due|next_prompt)$)", line)
                ], (
                    sql,
                    plan,
                )


class TestWhatGoesWrong:
    @pytest.fixture
    def readings(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, metrics.Reading]:
        scrape()  # has found the apps' own
        mine = dict(metrics._readings)
        monkeypatch.setattr(metrics, "_readings", mine)
        metrics.from_database.forget()
        return mine

    def test_a_reading_that_fails_is_left_out_and_named(
        self, readings: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        @metrics.reading("broken")
        def broken(_now: Any) -> Iterator[Any]:
            yield metrics.gauge("half_told", "…", 1)
            raise ZeroDivisionError

        TimerFactory.create()
        found = scrape()
        assert failed_readings(found) == {"broken"}
        assert found["casualmeet_timers_live", ""] == 1
        assert ("casualmeet_half_told", "") not in found
        assert "The reading 'broken' failed: ZeroDivisionError" in caplog.text

    def test_while_the_database_is_gone_the_process_still_tells_of_itself(self) -> None:
        if connection.vendor == "mongodb":
            pytest.skip("Its queries can't be broken off from here.")

        def gone(*_: Any) -> None:
            raise OperationalError("server closed the connection unexpectedly")

        metrics.EXPIRATIONS.labels("opened").inc(0)
        with connection.execute_wrapper(gone):
            found = scrape()
        assert failed_readings(found) >= {
            "timers",
            "overdue",
            "incidents",
            "outbox",
            "dead_letters",
            "carriers",
            "workers",
        }
        assert ("casualmeet_timers_live", "") not in found
        assert ("casualmeet_expirations_total", "opened") in found
        assert failed_readings(scrape()) == set()

    def test_when_the_readings_take_too_long_the_rest_is_left_out(
        self, readings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment = 1000.0
        monkeypatch.setattr("ops.metrics.time.monotonic", lambda: moment)

        @metrics.reading("a-slow-one")
        def slow(_now: Any) -> Iterator[Any]:
            nonlocal moment
            moment += metrics.BUDGET_SECONDS + 1
            yield metrics.gauge("slow", "…", 1)

        found = scrape()
        assert failed_readings(found) == set(readings) - {"a-slow-one"}
        assert found["casualmeet_slow", ""] == 1

    @pytest.mark.django_db(transaction=True)
    def test_a_query_that_takes_too_long_is_broken_off(
        self, readings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("Only PostgreSQL can be told how long a query may take.")
        monkeypatch.setattr(metrics, "STATEMENT_MS", 200)

        @metrics.reading("a-slow-one")
        def slow(_now: Any) -> Iterator[Any]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")
            yield metrics.gauge("slow", "…", 1)

        assert failed_readings(scrape()) == {"a-slow-one"}
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone()[0] == "10s"

    def test_it_says_nothing_about_anybody(self) -> None:
        person = PersonFactory.create(full_name="Asha Rao")
        row = incident(person)
        alerted(row)
        TimerFactory.create(person=person, escalates_at=clock.now() - timedelta(seconds=5))
        delivery(incident_id=row.pk, recipient_id=uuid4())
        text = Client().get("/metrics", headers=BEARER).content.decode()
        for private in ("Asha", "Ravi", "7700900", person.phone[3:], str(row.pk), "K7Q", "Cafe"):
            assert private not in text
        labels = {key for family in text_string_to_metric_families(text) for s in family.samples for key in s.labels}
        assert labels <= LABELS
        ours = "\n".join(re.findall(r"^casualmeet_\w+\{.*?\}", text, re.MULTILINE))
        assert mask(ours) == ours


@pytest.mark.django_db(transaction=True)
async def test_open_sockets_are_counted(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.REDIS_URL = ""
    from channels.db import database_sync_to_async

    login: Login = await database_sync_to_async(lambda: log_in(PersonFactory.create()))()
    before = measured.value(metrics.SOCKETS_OPEN, "", kind="person")
    communicator, _ = await opened(PERSON, login)
    assert measured.value(metrics.SOCKETS_OPEN, "", kind="person") == before + 1
    await communicator.disconnect()
    assert measured.value(metrics.SOCKETS_OPEN, "", kind="person") == before


def test_cycles_are_timed_and_failures_counted() -> None:
    from ops.worker import run_cycles

    stop = threading.Event()
    turns: list[int] = []

    def turn() -> float:
        turns.append(1)
        if len(turns) == 2:
            stop.set()
        return 1 / (2 - len(turns))

    before = measured.value(metrics.CYCLE_FAILURES, role="timer"), measured.value(metrics.CYCLE_SECONDS, "_count")
    run_cycles(turn, beat=Beat("timer"), stop=stop, wait=lambda *_: None)
    after = measured.value(metrics.CYCLE_FAILURES, role="timer"), measured.value(metrics.CYCLE_SECONDS, "_count")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 2)
