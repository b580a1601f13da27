"""What the three databases need beyond the ORM: retry of transient conflicts, and inserts that may be repeated."""

import functools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import psycopg
from django.db import IntegrityError, close_old_connections, connection, models, transaction
from django.db.models import Count, Q, Value
from django.db.utils import DatabaseError

from casualmeet import bulk

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=models.Model)

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.05
# PostgreSQL, Appendix A: serialization failure, deadlock, lock not available, and the server going away.
TRANSIENT_SQLSTATES = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08000", "08001", "08003", "08006"}
TRANSIENT_TEXTS = (
    "database is locked",
    "database table is locked",
    "connection is closed",
    "server closed the connection",
)
# pymongo: what a failover or a dropped connection raises; write errors carry one of these codes
# (MongoDB server error codes: WriteConflict, primary stepped down, shutting down, not primary).
TRANSIENT_MONGO = {
    "AutoReconnect",
    "NotPrimaryError",
    "NetworkTimeout",
    "ServerSelectionTimeoutError",
    "ConnectionFailure",
}
TRANSIENT_MONGO_CODES = {112, 189, 91, 11600, 11602, 10107, 13435, 13436, 6, 7, 89, 9001}


class Constant(Value):
    """A word of ours, such as a status, written into the statement itself on SQLite.

    SQLite takes a partial index only where the statement alone proves that its condition holds, before parameters.
    """

    def as_sqlite(self, *_args: Any, **_more: Any) -> tuple[str, tuple[str | int, ...]]:
        """The quoted word. It may be letters only, so that it needs no escaping."""
        if not self.value.isalpha():
            raise ValueError(f"Not a word: {self.value!r}")
        return f"'{self.value}'", ()


def constants(words: Sequence[str]) -> Sequence[str | Constant]:
    """The words for an `__in` that a partial index is to serve."""
    return [Constant(word) for word in words] if connection.vendor == "sqlite" else words


def storable(text: str) -> str:
    """`text` with what PostgreSQL (NUL) or UTF-8 (lone surrogates) would refuse replaced by "?"."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\0", "?")


def has_transactions() -> bool:
    """False on MongoDB, where `atomic()` does nothing and the order of writes carries the promise instead."""
    return connection.vendor != "mongodb"


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed when done again: a lock, a conflict or a failover, not a mistake of ours."""
    return any(_transient(cause) for cause in _chain(error))


def retry_transient(function: Callable[P, R]) -> Callable[P, R]:
    """Run the function again, after a short random wait, when a transient conflict broke it.

    The function must be safe to repeat. Inside a transaction it runs once: only the whole can be repeated.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            return function(*args, **kwargs)
        for attempt in range(1, ATTEMPTS):
            try:
                return function(*args, **kwargs)
            except DatabaseError as error:
                if not is_transient(error):
                    raise
                logger.warning(
                    "%s: attempt %d met %s; trying again", function.__qualname__, attempt, type(error).__name__
                )
                close_old_connections()
                time.sleep(random.uniform(0, FIRST_WAIT_SECONDS * 2**attempt))
        return function(*args, **kwargs)

    return wrapper


def insert_missing(model: type[M], rows: Sequence[M]) -> bool:
    """Insert the rows whose unique keys are not there yet; leave the others as they are. Returns whether all were inserted.

    The keys decide, so it may be repeated after a crash and raced by others.
    """
    if not rows:
        return True
    if connection.features.supports_ignore_conflicts:
        return bulk.insert_or_ignore(model, rows) == len(rows)
    present = set(model._default_manager.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
    missing = [row for row in rows if row.pk not in present]
    try:
        model._default_manager.bulk_create(missing)
    except IntegrityError:
        # Another process inserts the same rows, or another key is taken: find out which, one by one.
        inserted = [insert_one(row) for row in missing]
        return all(inserted) and not present
    return not present


def unheld(rows: Sequence[M]) -> list[M]:
    """Those of the rows that no other transaction has in hand, and that are now in this one's until it ends.

    On PostgreSQL; elsewhere nobody waits for a row, so all of them. Call it inside a transaction.
    """
    if not (rows and connection.features.has_select_for_update_skip_locked):
        return list(rows)
    mine = type(rows[0])._default_manager.filter(pk__in=bulk.keys([row.pk for row in rows]))
    keys = set(mine.order_by().select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
    return [row for row in rows if row.pk in keys]


def update_rows(model: type[M], rows: Sequence[M], fields: Sequence[str], *, tell: str = "") -> dict[Any, Any]:
    """Write these fields of all the rows, each with its own values; returns what `tell` holds then, by key."""
    if not rows:
        return {}
    if connection.vendor == "postgresql":
        return bulk.update(model, rows, fields, tell=tell)
    if connection.vendor == "sqlite":
        bulk.update(model, rows, fields)
    else:
        model._default_manager.bulk_update(rows, fields)
    return dict(model._default_manager.filter(pk__in=[row.pk for row in rows]).values_list("pk", tell)) if tell else {}


def insert_one(row: models.Model) -> bool:
    """Insert the row; False when one of its unique keys is taken."""
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        return False
    return True


def in_batches(rows: models.QuerySet[M], *, by: str, size: int) -> Iterator[list[M]]:
    """The rows, the smallest `by` first and each once, also where what is done with them takes them out of the query.

    One that is passed over is not met again. `by` is a field that none of the rows has empty.
    """
    left = rows.order_by(by, "pk")
    while batch := list(left[:size]):
        yield batch
        edge = getattr(batch[-1], by)
        after = Q(**{f"{by}__gt": edge}) | Q(**{by: edge, "pk__gt": batch[-1].pk})
        # The second condition adds nothing but what an index can begin at.
        left = rows.filter(after, **{f"{by}__gte": edge}).order_by(by, "pk")


def count_by(rows: models.QuerySet[Any], name: str) -> Counter[Any]:
    """How many of the rows there are for each value of this field."""
    return Counter(dict(rows.order_by().values(name).annotate(n=Count("pk")).values_list(name, "n")))


def delete_in_batches(rows: models.QuerySet[M], *, size: int = 500) -> int:
    """Delete the rows, and what hangs on them, in portions that hold no lock for long. Returns how many there were.

    It may be broken off anywhere: the next call goes on.
    """
    deleted = 0
    while keys := list(rows.order_by().values_list("pk", flat=True)[:size]):
        deleted += _delete(rows, keys)
    return deleted


@retry_transient
def _delete(rows: models.QuerySet[M], keys: Sequence[Any]) -> int:
    """Those of the keys that still are what was asked for."""
    _, counts = rows.filter(pk__in=keys).delete()
    return counts.get(rows.model._meta.label, 0)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _never_reached_postgres(error: BaseException) -> bool:
    """Whether psycopg, or its pool, failed without a word from the server: nobody listens, or no connection is free."""
    mine = type(error).__module__.startswith("psycopg")
    return mine and isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def _transient(error: BaseException) -> bool:
    if getattr(error, "sqlstate", None) in TRANSIENT_SQLSTATES or _never_reached_postgres(error):
        return True
    if any(base.__name__ in TRANSIENT_MONGO for base in type(error).__mro__):
        return True
    if type(error).__module__.startswith("pymongo") and getattr(error, "code", None) in TRANSIENT_MONGO_CODES:
        return True
    return isinstance(error, DatabaseError) and any(text in str(error) for text in TRANSIENT_TEXTS)
