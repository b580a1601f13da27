"""Real databases, a real carrier process and real workers for the benchmarks."""

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import django

from testing.carrier import LocalCarrier
from testing.processes import PYTHON_MODULE, ManagedProcess, free_port
from testing.servers import Mongo, Postgres, Redis

TITLES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "mongo": "MongoDB"}
# What is set here wins over a developer's .env: no benchmark may reach a real carrier through it.
ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "casualmeet.settings",
    "SECRET_KEY": "for-benchmarks-only-" + "x" * 50,
    "DEBUG": "False",
    "PUBLIC_BASE_URL": "http://localhost:8000",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
    "LOG_LEVEL": "WARNING",
    "DATABASE_URL": "sqlite:///unused.sqlite3",
    "TWILIO_ACCOUNT_SID": "",
    "TWILIO_AUTH_TOKEN": "",
    "TWILIO_FROM": "",
    "TWILIO_MESSAGING_SERVICE_SID": "",
    "FAST2SMS_API_KEY": "",
    # The local carrier sends no receipts, so after a minute all contacts would be called: not what is measured here.
    "ESCALATION_CALL_SECONDS": "86400",
    "ESCALATION_CALL_AGAIN_SECONDS": "86401",
    "ESCALATION_REALERT_SECONDS": "86402",
}


@dataclass
class Machines:
    """The servers that run for all benchmarks of this process."""

    redis: Redis | None = None
    mongo: Mongo | None = None
    postgres: Postgres | None = None


machines = Machines()


def set_up_django() -> None:
    """Set the environment, for this process and the workers it starts, and load the settings."""
    redis, mongo = machines.redis, machines.mongo
    os.environ.update(ENVIRONMENT, REDIS_URL=redis.url() if redis else "")
    if mongo is not None:
        # Which apps there are depends on it, so the settings must know from the start.
        os.environ["DATABASE_URL"] = mongo.url("bench")
    django.setup()


@contextmanager
def database(kind: str) -> Iterator[str]:
    """A new, migrated database of this kind (`postgres`, with fsync on, or `sqlite`), in use by Django; its URL.

    PostgreSQL has Redis beside it, as in production; SQLite works without.
    """
    from django.core.management import call_command
    from django.db import connections

    with ExitStack() as stack:
        if kind == "postgres":
            machines.postgres = stack.enter_context(Postgres(durable=True))
            url = machines.postgres.url()
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="casualmeet-bench-"))
            url = f"sqlite:///{directory}/bench.sqlite3"
        use_database(url, redis=kind == "postgres")
        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        yield url


def use_database(url: str, *, redis: bool) -> None:
    """Point Django, which reads its settings once, at another database."""
    from django.conf import settings
    from django.db import connections

    from casualmeet import clock
    from casualmeet.databases import database_settings

    connections.close_all()
    options = database_settings(url, role="worker", pool_size=1, var=Path(tempfile.gettempdir()))
    connections.settings.update(connections.configure_settings({"default": options}))
    if any(connections.all(initialized_only=True)):
        del connections["default"]
    settings.REDIS_URL = os.environ["REDIS_URL"] if redis else ""
    clock.forget()


class CarrierProcess:
    """The local carrier as a process of its own."""

    def __init__(self, *, latency: float) -> None:
        """`latency` is in seconds."""
        port = free_port()
        self._local = LocalCarrier(port=port)
        self._process = ManagedProcess(
            ["testing.carrier", "--port", str(port), "--latency", str(latency)], program=PYTHON_MODULE
        )

    def __enter__(self) -> Self:
        self._process.start().wait_for_line("^http")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.close()

    @property
    def url(self) -> str:
        """Where it is."""
        return self._local.url

    def environment(self) -> dict[str, str]:
        """Settings, or environment variables, that make this the only carrier."""
        return self._local.environment()

    def journal(self) -> list[dict[str, Any]]:
        """What it received so far, as testing.carrier.Entry, in order."""
        with urllib.request.urlopen(f"{self._local.url}/journal", timeout=60) as answer:
            messages: list[dict[str, Any]] = json.load(answer)["messages"]
        return messages

    def clear(self) -> None:
        """Forget what it received."""
        request = urllib.request.Request(f"{self._local.url}/journal", method="DELETE")
        urllib.request.urlopen(request, timeout=60).close()


def worker(command: str, *args: str, database_url: str, carrier: CarrierProcess, **env: str) -> ManagedProcess:
    """A worker process on this database and carrier, not yet started."""
    from django.conf import settings

    own: Mapping[str, str] = {
        "DATABASE_URL": database_url,
        "REDIS_URL": settings.REDIS_URL,
        **carrier.environment(),
        **env,
    }
    return ManagedProcess([command, *args], env=own)


def stop(process: ManagedProcess) -> None:
    """Stop a worker in order; raises when it complained or failed."""
    code = process.terminate(timeout=30)
    complaints = [line for line in process.output.splitlines() if " ERROR " in line or "Traceback" in line]
    if code or complaints:
        raise RuntimeError(f"{process} ended with {code}. Output:\n{process.output[-3000:]}")
