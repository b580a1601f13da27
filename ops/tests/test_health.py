"""Health: 200 while the process serves and the database answers, 503 while it does not, and back again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.utils import DatabaseError, InterfaceError, OperationalError
from django.test import Client

from casualmeet.tests.test_live import Site, serving
from testing.processes import BASE_DIR, ManagedProcess, wait_until
from testing.servers import Mongo, Postgres

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]


def test_it_is_200_while_the_database_answers() -> None:
    response = Client().get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert "no-store" in response["Cache-Control"]


def test_head_is_answered_and_other_methods_are_not() -> None:
    client = Client()
    assert client.head("/healthz").status_code == 200
    for method in ("post", "put", "delete", "patch"):
        assert getattr(client, method)("/healthz").status_code == 405


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, DatabaseError])
def test_it_is_503_while_the_database_does_not_answer(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail(*_: object) -> None:
        raise error("connection to secret-host failed")

    monkeypatch.setattr(type(Session.objects), "exists", fail)
    response = Client().get("/healthz")
    assert (response.status_code, response.json()) == (503, {"status": "database unavailable"})
    assert "no-store" in response["Cache-Control"]


def test_it_needs_no_login_no_https_and_no_session(django_assert_max_num_queries: Any, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    with django_assert_max_num_queries(1):
        assert Client().get("/healthz").status_code == 200


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
        for command in ("migrate", "seed_demo"):
            with ManagedProcess([command], env=env) as process:
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

        assert ask("/healthz").status_code == 200
        assert ask("/api/timers", headers=bearer).status_code == 200
        database_server.kill()

        started = time.monotonic()
        assert ask("/healthz").status_code == 503
        assert time.monotonic() - started < 15
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
        wait_until(lambda: ask("/healthz").status_code == 200, timeout=30)
        assert ask("/api/timers", headers=bearer).status_code == 200
