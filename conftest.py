"""What every test may use, and what no test may do. The environment is set in testing/environment.py."""

import inspect
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.core.management.commands import flush
from django.db import connections

from testing import database, processes
from testing.servers import Redis

hypothesis.settings.register_profile("quick", max_examples=25)
hypothesis.settings.register_profile("thorough", max_examples=200)
hypothesis.settings.load_profile("quick")

# What SQLite may need in memory, with room to spare.
MEMORY_BYTES = 512 * 1024 * 1024

LEAKS = (
    "{name} is async and uses the database without a real transaction: what it writes through "
    "database_sync_to_async would stay for the tests after it. Mark it django_db(transaction=True)."
)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Refuse async tests that would leak rows."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj) and _leaks(item):
            raise collector.CollectError(LEAKS.format(name=item.name))
    return made


def pytest_configure() -> None:
    """Serve static files by their plain names: the manifest exists only after collectstatic."""
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.WHITENOISE_AUTOREFRESH = settings.WHITENOISE_USE_FINDERS = True
    # The real ones take a third of a second each, by design.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    processes.start_from_nursery()


@pytest.fixture(scope="session", autouse=True)
def flush_only_what_tests_wrote() -> Iterator[None]:
    """Django empties the database with the command `flush`, after each test that it can't roll back."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(flush.Command, "handle", database.empty)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker is left with it when the other one is done.

    With ONLY_DATABASE_TESTS set, leave out what has run on another database already and needs none.
    """
    items.sort(key=_is_short)
    if os.environ.get("ONLY_DATABASE_TESTS"):
        kept = [item for item in items if _uses_database(item)]
        config.hook.pytest_deselected(items=[item for item in items if not _uses_database(item)])
        items[:] = kept


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
) -> Iterator[None]:
    """Give each run its own SQLite file, so that two runs in one working copy don't delete each other's."""
    with ExitStack() as kept:
        for one in connections.all():
            if one.vendor == "sqlite":
                directory = kept.enter_context(TemporaryDirectory(prefix="casualmeet-tests-", dir=_memory()))
                one.settings_dict["TEST"]["NAME"] = f"{directory}/test.sqlite3"
        yield


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The test database as DATABASE_URL, for processes that the test starts."""
    return database.address()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A real Redis, started when the first test asks for it. A test that stops it starts it again."""
    with Redis() as server:
        yield server


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """Poll until a condition holds: `wait_until(lambda: …, timeout=10, message="…")`."""
    return processes.wait_until


def _memory() -> Path | None:
    """A directory that costs no waiting for a disk, where there is one; what the code asks of SQLite is the same."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_BYTES else None


def _is_short(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("browser", "processes", "slow"))


def _uses_database(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", [])
    return bool(item.get_closest_marker("django_db") or {"db", "transactional_db", "django_db_setup"} & {*fixtures})


def _leaks(item: pytest.Function) -> bool:
    marker = item.get_closest_marker("django_db")
    if marker is not None:
        return not (marker.kwargs.get("transaction") or marker.args[:1] == (True,))
    return "db" in item.fixturenames and "transactional_db" not in item.fixturenames
