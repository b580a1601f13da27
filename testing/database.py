"""The test database: where it is, and empty again after a test."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections, models, transaction

# Only migrations write these.
CONSTANT_TABLES = {"auth_permission", "django_content_type"}

_tables: list[str] = []


def address() -> str:
    """The test database as DATABASE_URL, for processes that a test starts."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


def empty(*_args: Any, **_options: Any) -> None:
    """Delete what a test left behind; stands in for the handler of the `flush` command.

    `flush` empties every table, whether or not there is something in it, and makes permissions and content types
    anew. That takes longer than most tests; on MongoDB, which rolls nothing back, after every one of them.
    """
    if not _tables:
        known = connection.introspection.django_table_names(only_existing=True, include_views=False)
        _tables.extend(sorted(set(known) - CONSTANT_TABLES))
    if connection.vendor == "mongodb":
        _empty_collections()
    else:
        _empty_tables()


def _empty_collections() -> None:
    mongodb: Any = connection
    first, *others = [(name, [{"$limit": 1}, {"$project": {"_id": 0, "name": {"$literal": name}}}]) for name in _tables]
    # One question instead of one for each collection.
    unions = [{"$unionWith": {"coll": name, "pipeline": pipeline}} for name, pipeline in others]
    for row in list(mongodb.database[first[0]].aggregate([*first[1], *unions])):
        mongodb.database[row["name"]].delete_many({})


def _empty_tables() -> None:
    quote = connection.ops.quote_name
    looks = [f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {quote(name)})" for name in _tables]
    # In one transaction, because foreign keys are checked at its end.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(looks))
        for (name,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {quote(name)}")


@contextmanager
def in_hand(rows: models.QuerySet[Any], *, keep: bool = False, **changes: Any) -> Iterator[None]:
    """Another transaction has changed these rows and does not end before the block does; then it is kept, or rolled back.

    Skips the test where no database locks single rows.
    """
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("Only PostgreSQL locks single rows.")
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                rows.update(**changes)
                holds.set()
                let_go.wait(60)
                transaction.set_rollback(not keep)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        if not holds.wait(30):
            raise RuntimeError("The rows can't be had.")
        yield
    finally:
        let_go.set()
        thread.join()


def sample(count: int, *, elsewhere: int) -> int:
    """How many made-up cases: all on the first database, on the others enough to show that they do the same."""
    return elsewhere if os.environ.get("ONLY_DATABASE_TESTS") else count
