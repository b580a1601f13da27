"""Health: whether the process serves, whether it is ready for work, and whether the workers do theirs."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import DatabaseError, InterfaceError, OperationalError
from django.test import Client

from casualmeet import clock, shutdown
from casualmeet.tests.test_live import Site, serving
from ops import beats, health
from ops.health import Health, Probe
from ops.models import WorkerBeat
from testing.processes import BASE_DIR, ManagedProcess, wait_until
from testing.servers import Mongo, Postgres

PREPARE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("seed_demo")
"""

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

ADDRESSES = ("/healthz", "/readyz", "/health/worker")


@pytest.fixture
def _look_anew() -> Iterator[None]:
    for probe in (health.ready, health.working):
        probe.forget()
    yield
    for probe in (health.ready, health.working):
        probe.forget()


def beat(role: str, *, seconds_ago: float = 1, **fields: Any) -> WorkerBeat:
    at = clock.now() - timedelta(seconds=seconds_ago)
    pk = beats.AUDIT_ID if role == beats.AUDIT else uuid4()
    return WorkerBeat.objects.create(id=pk, role=role, node="host:1", started_at=at, cycle_at=at, **fields)


def test_healthz_says_that_the_process_serves_and_asks_no_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        response = Client().get("/healthz", headers={"cookie": "sessionid=" + "x" * 32})
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert "no-store" in response["Cache-Control"]
    assert response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.usefixtures("_look_anew")
@pytest.mark.parametrize("address", ADDRESSES)
def test_probes_need_no_https_and_may_call_the_process_by_any_name(
    address: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes calls the pod by its IP, which is in no ALLOWED_HOSTS."""
    settings.SECURE_SSL_REDIRECT = True
    for probe in (health.ready, health.working):
        monkeypatch.setattr(probe, "_look", Health)
    client = Client()
    assert client.get(address, headers={"host": "10.1.2.3:8000"}).status_code == 200
    assert client.head(address).status_code == 200
    for method in ("post", "put", "delete", "patch"):
        assert getattr(client, method)(address).status_code == 405


class TestReady:
    def test_when_the_database_answers_and_is_migrated(self) -> None:
        assert health.readiness() == Health()

    def test_not_before_the_database_is_migrated(self) -> None:
        MigrationRecorder(connection).migration_qs.filter(app="ops").delete()
        (reason,) = health.readiness().reasons
        assert "ops.0" in reason
        assert "manage.py migrate" in reason

    @pytest.mark.usefixtures("_look_anew")
    @pytest.mark.parametrize("error", [OperationalError, InterfaceError, DatabaseError])
    def test_not_while_the_database_does_not_answer(
        self, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        def fail() -> Health:
            raise error("connection to secret-host failed")

        monkeypatch.setattr(health.ready, "_look", fail)
        response = Client().get("/readyz")
        assert (response.status_code, response.json()) == (
            503,
            {"status": "failing", "reasons": ["The database does not answer."]},
        )
        assert "no-store" in response["Cache-Control"]

    @pytest.mark.usefixtures("_look_anew")
    def test_not_while_the_process_is_being_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stopping = threading.Event()
        monkeypatch.setattr(shutdown, "stopping", stopping)
        monkeypatch.setattr(health.ready, "_look", Health)
        assert Client().get("/readyz").status_code == 200
        stopping.set()
        response = Client().get("/readyz")
        assert (response.status_code, response.json()["reasons"]) == (503, ["This process is being stopped."])
        assert Client().get("/healthz").status_code == 200


class TestProbe:
    def test_many_callers_make_one_look_a_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[int] = []

        def look() -> Health:
            looks.append(1)
            return Health()

        probe = Probe(look)
        assert [probe.health() for _ in range(5)] == [Health()] * 5
        assert len(looks) == 1
        monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
        probe.health()
        assert len(looks) == 2

    def test_a_database_that_hangs_keeps_nobody_waiting_and_is_not_asked_twice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health, "LIMIT_SECONDS", 0.05)
        answers, looks = threading.Event(), []

        def look() -> Health:
            looks.append(1)
            answers.wait(20)
            return Health()

        probe = Probe(look)
        for _ in range(3):
            assert probe.health().reasons == ("The database does not answer.",)
        assert len(looks) == 1
        answers.set()
        wait_until(lambda: probe.health() == Health())


class TestWorkers:
    def test_well_while_a_timer_worker_a_dispatcher_and_the_auditor_are(self) -> None:
        beat(beats.TIMER, cycle_ms=3.5)
        beat(beats.TIMER, seconds_ago=8, skew_ms=-40_000)
        beat(beats.DISPATCH)
        beat(beats.AUDIT, seconds_ago=80)
        found = health.workers()
        assert found.reasons == ()
        timer = found.details["roles"]["timer"]
        assert (timer["workers"], timer["last_cycle_ms"], timer["worst_skew_ms"]) == (2, 3.5, -40_000)
        assert 1 <= timer["last_cycle_seconds_ago"] < 5
        assert found.details["roles"]["scheduler"]["workers"] == 0
        assert "host" not in str(found.details)

    @pytest.mark.parametrize(
        ("role", "seconds", "reason"),
        [
            (beats.TIMER, 11, "No cycle of a timer worker in the last 10 s."),
            (beats.DISPATCH, 11, "No cycle of a dispatch worker in the last 10 s."),
            (beats.AUDIT, 91, "No audit in the last 90 s."),
        ],
    )
    def test_not_when_one_of_them_has_gone_stale(self, role: str, seconds: float, reason: str) -> None:
        for one in (beats.TIMER, beats.DISPATCH, beats.AUDIT):
            beat(one, seconds_ago=seconds if one == role else 0)
        assert health.workers().reasons == (reason,)

    def test_not_when_there_never_were_any(self) -> None:
        assert len(health.workers().reasons) == 3

    @pytest.mark.usefixtures("_look_anew")
    @pytest.mark.django_db(transaction=True)
    def test_the_address_gives_the_details(self) -> None:
        beat(beats.TIMER)
        beat(beats.AUDIT)
        response = Client().get("/health/worker")
        assert response.status_code == 503
        assert response.json()["reasons"] == ["No cycle of a dispatch worker in the last 10 s."]
        assert response.json()["roles"]["timer"]["workers"] == 1
        beat(beats.DISPATCH)
        wait_until(lambda: Client().get("/health/worker").status_code == 200)


@pytest.fixture
def database_server(transactional_db: None) -> Iterator[Postgres | Mongo]:
    """A server of this test's own, of the kind that the suite runs on, with the tables in it."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite is no server that could go away.")
    server: Postgres | Mongo = Mongo(durable=True) if connection.vendor == "mongodb" else Postgres()
    with server:
        if isinstance(server, Postgres):
            server.create_database("casualmeet")
        env = {"DATABASE_URL": server.url("casualmeet"), "REDIS_URL": "", "DEMO_PASSWORD": "correct horse 7"}
        with ManagedProcess(["shell", "-v0", "-c", PREPARE], env=env) as process:
            assert process.wait(120) == 0, process.output
        yield server


@pytest.fixture
def production_settings(tmp_path: Path) -> dict[str, str]:
    """The real settings, without DEBUG, except that pages name static files plainly: nothing was collected here."""
    (tmp_path / "uncollected.py").write_text(
        "from casualmeet.settings import *\n"
        'STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}\n'
    )
    return {"DJANGO_SETTINGS_MODULE": "uncollected", "PYTHONPATH": f"{tmp_path}:{BASE_DIR}"}


@pytest.mark.processes
def test_while_the_database_is_gone_everything_says_503_and_recovers_by_itself(
    database_server: Postgres | Mongo, production_settings: dict[str, str]
) -> None:
    site = Site(database_server.url("casualmeet"), **production_settings)
    with serving(site):
        login = {"username": "asha", "password": "correct horse 7"}
        token = requests.post(f"{site.url}/api/tokens", json=login, timeout=20).json()["token"]
        bearer = {"Authorization": f"Bearer {token}"}

        def ask(path: str, **more: Any) -> requests.Response:
            return requests.get(f"{site.url}{path}", timeout=30, **more)

        assert ask("/readyz").status_code == 200
        assert ask("/api/timers", headers=bearer).status_code == 200
        database_server.kill()

        wait_until(lambda: ask("/readyz").status_code == 503, timeout=5)
        started = time.monotonic()
        assert ask("/readyz").json()["reasons"] == ["The database does not answer."]
        assert ask("/health/worker").status_code == 503
        assert ask("/healthz").status_code == 200
        assert time.monotonic() - started < 8
        api = ask("/api/timers", headers=bearer)
        assert (api.status_code, api.json()["code"]) == (503, "database_unavailable")
        assert int(api.headers["Retry-After"]) > 0
        page = ask("/", cookies={"sessionid": "x" * 32})
        assert page.status_code == 503, site.process.output
        assert page.headers["Content-Type"].startswith("text/html")
        assert int(page.headers["Retry-After"]) > 0
        for answer in (api, page):
            assert "Traceback" not in answer.text
            assert str(database_server.port) not in answer.text

        database_server.start()
        wait_until(lambda: ask("/readyz").status_code == 200, timeout=30)
        assert ask("/api/timers", headers=bearer).status_code == 200
