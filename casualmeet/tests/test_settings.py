"""Settings come from the environment, are safe by default, and say what is wrong with them."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from casualmeet import databases
from casualmeet.databases import database_settings, is_mongodb, process_role
from testing.processes import BASE_DIR

PRINT = (
    "import json, sys; import casualmeet.settings as s;"
    "print(json.dumps({name: getattr(s, name) for name in sys.argv[1:]}, default=str))"
)
SECRET = "k" * 60


def python(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with nothing of ours in its environment but `env` (an empty value hides what .env says)."""
    given = {"SECRET_KEY": SECRET, "DEBUG": "", "PUBLIC_BASE_URL": "https://safety.example.org", **env}
    surroundings = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(BASE_DIR), "LANG": "C.UTF-8"}
    command = [sys.executable, *args]
    return subprocess.run(
        command, cwd=BASE_DIR, env={**surroundings, **given}, capture_output=True, text=True, check=False
    )


def setting(*names: str, **env: str) -> dict[str, Any]:
    done = python("-c", PRINT, *names, **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of(url: str, role: databases.Role = "worker") -> dict[str, Any]:
    return database_settings(url, role=role, pool_size=7, var=Path("/var/x"))


class TestDatabaseUrl:
    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("sqlite:///relative.sqlite3", "relative.sqlite3"),
            ("sqlite:////srv/data/safety.sqlite3", "/srv/data/safety.sqlite3"),
            ("sqlite:////srv/with%20space/a.sqlite3", "/srv/with space/a.sqlite3"),
            ("sqlite:////srv/question?/a.sqlite3", "/srv/question?/a.sqlite3"),
        ],
    )
    def test_sqlite_names_a_file_and_waits_for_locks(self, url: str, name: str) -> None:
        found = of(url)
        assert (found["ENGINE"], found["NAME"]) == ("django.db.backends.sqlite3", name)
        assert found["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
        assert found["OPTIONS"]["timeout"] >= 5
        assert "journal_mode=WAL" in found["OPTIONS"]["init_command"]
        assert "synchronous=FULL" in found["OPTIONS"]["init_command"]

    @pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
    def test_postgresql_with_everything_in_the_url(self, scheme: str) -> None:
        found = of(f"{scheme}://asha:p%40ss%2Fw@db.example:5433/safety?sslmode=require&connect_timeout=3")
        assert found["ENGINE"] == "django.db.backends.postgresql"
        assert (found["USER"], found["PASSWORD"], found["HOST"]) == ("asha", "p@ss/w", "db.example")
        assert (str(found["PORT"]), found["NAME"]) == ("5433", "safety")
        assert found["OPTIONS"]["sslmode"] == "require"
        assert str(found["OPTIONS"]["connect_timeout"]) == "3"
        assert "statement_timeout" in found["OPTIONS"]["options"]

    def test_a_web_process_pools_and_checks_its_postgresql_connections_and_a_worker_does_not(self) -> None:
        web, worker = (of("postgres://localhost/safety", role) for role in ("web", "worker"))
        assert web["OPTIONS"]["pool"]["max_size"] == 7
        assert web["CONN_HEALTH_CHECKS"] is True
        assert "pool" not in worker["OPTIONS"]
        assert web["CONN_MAX_AGE"] == worker["CONN_MAX_AGE"] == 0
        assert web["OPTIONS"]["application_name"] != worker["OPTIONS"]["application_name"]

    @pytest.mark.parametrize(
        "url",
        [
            "mongodb://localhost/safety",
            "mongodb://asha:p%40ss@one:27017,two:27018,three/safety?replicaSet=rs&authSource=admin",
            "mongodb+srv://cluster.example/safety",
        ],
    )
    def test_mongodb_keeps_all_its_hosts_and_options(self, url: str) -> None:
        found = of(url)
        assert (found["ENGINE"], found["HOST"], found["NAME"]) == ("casualmeet.mongodb", url, "safety")
        assert found["OPTIONS"]["w"] == "majority"
        assert found["OPTIONS"]["journal"] is True
        assert found["OPTIONS"]["serverSelectionTimeoutMS"] <= 5000

    def test_djongo_is_read_as_mongodb_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="djongo"):
            found = of("djongo://one,two/safety?replicaSet=rs")
        assert found["HOST"] == "mongodb://one,two/safety?replicaSet=rs"
        assert found["NAME"] == "safety"

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://asha:hunter2@localhost/safety",
            "asha:hunter2@localhost",
            "localhost",
            "",
            "http://x",
            "MONGODB",
            "sqlite://",
            "sqlite:///",
            "mongodb://asha:hunter2@localhost",
            "mongodb://localhost/",
        ],
    )
    def test_a_url_that_it_cannot_use_is_refused_with_what_to_write_and_without_the_password(self, url: str) -> None:
        with pytest.raises(ImproperlyConfigured, match="DATABASE_URL") as refused:
            of(url)
        assert "write" in str(refused.value)
        assert "://" in str(refused.value)
        assert "hunter2" not in str(refused.value)

    def test_which_urls_are_mongodbs(self) -> None:
        assert [is_mongodb(f"{scheme}://x/y") for scheme in ("mongodb", "mongodb+srv", "djongo")] == [True] * 3
        assert not is_mongodb("postgres://mongodb/x")


class TestProcessRole:
    @pytest.mark.parametrize(
        ("argv", "role"),
        [
            (["/srv/.venv/bin/daphne", "casualmeet.asgi:application"], "web"),
            (["/srv/.venv/lib/python3.11/site-packages/daphne/__main__.py", "casualmeet.asgi:application"], "web"),
            (["manage.py", "runserver"], "web"),
            (["manage.py", "run_timer_worker"], "worker"),
            (["manage.py", "migrate", "runserver"], "worker"),
            (["-c"], "worker"),
            ([""], "worker"),
        ],
    )
    def test_only_servers_of_many_requests_are_web(
        self, monkeypatch: pytest.MonkeyPatch, argv: list[str], role: str
    ) -> None:
        monkeypatch.setattr(sys, "argv", argv)
        assert process_role() == role


@pytest.mark.processes
class TestEnvironment:
    def test_without_a_secret_key_it_says_so_and_what_to_do(self) -> None:
        done = python("manage.py", "check", SECRET_KEY="")
        assert done.returncode != 0
        assert "SECRET_KEY is not set" in done.stderr

    @pytest.mark.parametrize("url", ["safety.example.org", "ftp://x", "https://", "//x"])
    def test_a_public_address_that_is_none_is_refused(self, url: str) -> None:
        done = python("-c", "import casualmeet.settings", PUBLIC_BASE_URL=url)
        assert done.returncode != 0
        assert "PUBLIC_BASE_URL must be like https://" in done.stderr

    def test_the_defaults_are_those_of_production(self) -> None:
        found = setting(
            *("DEBUG", "ALLOWED_HOSTS", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT"),
            *("SECURE_HSTS_SECONDS", "MIN_TIMER_MINUTES", "X_FRAME_OPTIONS", "NINJA_NUM_PROXIES"),
        )
        assert found["DEBUG"] is False
        assert found["ALLOWED_HOSTS"] == ["safety.example.org"]
        assert found["SESSION_COOKIE_SECURE"] is found["CSRF_COOKIE_SECURE"] is found["SECURE_SSL_REDIRECT"] is True
        assert found["SECURE_HSTS_SECONDS"] >= 31_536_000
        assert (found["MIN_TIMER_MINUTES"], found["X_FRAME_OPTIONS"]) == (15, "DENY")
        assert found["NINJA_NUM_PROXIES"] == 0

    def test_on_a_developers_machine_cookies_work_without_https(self) -> None:
        found = setting(
            *("DEBUG", "SESSION_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS", "MIN_TIMER_MINUTES"),
            DEBUG="on",
            PUBLIC_BASE_URL="http://localhost:8000",
        )
        assert found == {
            "DEBUG": True,
            "SESSION_COOKIE_SECURE": False,
            "SECURE_SSL_REDIRECT": False,
            "SECURE_HSTS_SECONDS": 0,
            "MIN_TIMER_MINUTES": 1,
        }

    def test_redis_is_used_through_the_pubsub_layer_and_only_when_it_is_named(self) -> None:
        with_redis = setting("CHANNEL_LAYERS", "LIVE_POLL_SECONDS", REDIS_URL="redis://r:6379/0")
        without = setting("CHANNEL_LAYERS", "LIVE_POLL_SECONDS", REDIS_URL="")
        layer = with_redis["CHANNEL_LAYERS"]["default"]
        assert layer["BACKEND"] == "channels_redis.pubsub.RedisPubSubChannelLayer"
        assert layer["CONFIG"]["hosts"][0]["socket_connect_timeout"] <= 1
        assert without["CHANNEL_LAYERS"]["default"]["BACKEND"] == "channels.layers.InMemoryChannelLayer"
        assert without["LIVE_POLL_SECONDS"] <= 1

    def test_a_number_that_is_none_is_refused(self) -> None:
        assert python("-c", "import casualmeet.settings", PORT="http").returncode != 0


def example() -> dict[str, str]:
    """The settings of .env.example."""
    lines = (BASE_DIR / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class TestProductionExample:
    @pytest.mark.processes
    def test_check_deploy_has_nothing_to_say_about_it(self) -> None:
        filled = {
            **example(),
            "SECRET_KEY": "".join(chr(33 + number * 7 % 90) for number in range(64)),
            "TWILIO_ACCOUNT_SID": "AC" + "0" * 32,
            "TWILIO_AUTH_TOKEN": "x",
            "TWILIO_FROM": "+15005550006",
            "METRICS_TOKEN": "m" * 40,
            "DEADMAN_URL": "https://ping.example.net/1",
        }
        done = python("manage.py", "check", "--deploy", "--fail-level", "WARNING", **filled)
        assert done.returncode == 0, done.stderr
        assert "no issues" in done.stdout

    def test_it_explains_every_setting_that_the_code_reads(self) -> None:
        source = (BASE_DIR / "casualmeet" / "settings.py").read_text()
        read = set(re.findall(r"""env\.\w+\(\s*"([A-Z0-9_]+)\"""", source))
        assert len(read) > 20
        undocumented = read - set(example()) - {"LIVE_POLL_SECONDS"}
        assert not undocumented

    def test_it_holds_no_real_secret(self) -> None:
        given = example()
        assert given["SECRET_KEY"].startswith("change-me")
        for name in ("TWILIO_AUTH_TOKEN", "FAST2SMS_API_KEY", "DEMO_PASSWORD"):
            assert given[name] == ""


def test_the_dead_man_s_switch_is_asked_over_https_only() -> None:
    refused = python("-c", "import casualmeet.settings", DEADMAN_URL="http://ping.example.net/1")
    assert "DEADMAN_URL must start with https://." in refused.stderr
    local = "http://127.0.0.1:8001/1"
    assert setting("DEADMAN_URL", DEADMAN_URL=local) == {"DEADMAN_URL": local}


class TestTimesThingsAreKept:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PURGE_POSITIONS_HOURS", "0"),
            ("PURGE_INCIDENT_DETAILS_DAYS", "0"),
            ("PURGE_TIMERS_DAYS", "-1"),
            ("PURGE_INCIDENTS_DAYS", "29"),
            ("SELFTEST_PHONE", "0981234567"),
        ],
    )
    def test_what_would_delete_too_early_or_text_nobody_is_refused_at_start(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        with pytest.raises(
            ImproperlyConfigured, match=name if name in {"PURGE_INCIDENTS_DAYS", "SELFTEST_PHONE"} else "PURGE_"
        ):
            runpy.run_path(str(BASE_DIR / "casualmeet" / "settings.py"))
