"""Many rows in one statement, on PostgreSQL and SQLite: what `bulk_create` and `bulk_update` do, in a small part of
their time. The time that alarms and sends take in this process was mostly theirs.

Values go to the database as the rows hold them, so they must have their field's own Python type already.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection, models, transaction
from django.db.models.expressions import RawSQL

M = TypeVar("M", bound=models.Model)


def insert_or_ignore(model: type[models.Model], rows: Sequence[models.Model]) -> int:
    """Insert the rows whose unique keys are not there yet; returns how many these were."""
    fields = model._meta.concrete_fields
    table, columns = _table(model), [_quoted(field) for field in fields]
    listed = ", ".join(columns)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            marks = ", ".join(["%s"] * len(fields))
            # Not INSERT OR IGNORE, which would drop a row with a missing value in silence too.
            cursor.executemany(
                f"INSERT INTO {table} ({listed}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608 - names of ours
                _sqlite_rows(fields, rows),
            )
        else:
            cursor.execute(
                f"INSERT INTO {table} ({listed}) SELECT {listed} "  # noqa: S608 - names of ours
                f"FROM json_populate_recordset(NULL::{table}, %s::json) ON CONFLICT DO NOTHING",
                [_json(fields, rows)],
            )
        inserted: int = cursor.rowcount
    return inserted


@transaction.atomic(savepoint=False)  # Django lets no row be locked outside of a transaction
def take(found: models.QuerySet[M], changes: Mapping[str, object]) -> list[M]:
    """Change the rows that the query finds, and return them as they are then, in no order.

    On PostgreSQL, rows that another transaction holds are passed over.
    """
    model = found.model
    key, table = _quoted(model._meta.pk), _table(model)
    query, params = found.select_for_update(skip_locked=True, no_key=True).values("pk").query.sql_with_params()
    fields = [model._meta.get_field(name) for name in changes]
    assigned = ", ".join(f"{_quoted(field)} = %s" for field in fields)
    values = [
        field.get_db_prep_save(value, connection)  # type: ignore[union-attr]
        for field, value in zip(fields, changes.values(), strict=True)
    ]
    # Materialized: the limit in the query must hold, so it may run only once.
    statement = (
        f"WITH found(row_key) AS MATERIALIZED ({query}) UPDATE {table} SET {assigned} "  # noqa: S608 - names of ours
        f"WHERE {key} IN (SELECT row_key FROM found) RETURNING *"
    )
    return list(model._default_manager.raw(statement, [*params, *values]))


def update(
    model: type[models.Model], rows: Sequence[models.Model], names: Sequence[str], *, tell: str = ""
) -> dict[Any, Any]:
    """Write these fields of the rows that are still there; on PostgreSQL, returns what `tell` holds then, by key."""
    key = model._meta.pk
    fields = [field for field in model._meta.concrete_fields if field.name in names]
    table = _table(model)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            changes = ", ".join(f"{_quoted(field)} = %s" for field in fields)
            statement = f"UPDATE {table} SET {changes} WHERE {_quoted(key)} = %s"  # noqa: S608 - names of ours
            cursor.executemany(statement, _sqlite_rows([*fields, key], rows))
        else:
            changes = ", ".join(f"{_quoted(field)} = changed.{_quoted(field)}" for field in fields)
            told = f"{table}.{_quoted(key)}, {table}.{_quoted(model._meta.get_field(tell))}" if tell else ""
            telling = f" RETURNING {told}" if tell else ""
            cursor.execute(
                f"UPDATE {table} SET {changes} "  # noqa: S608 - names of ours
                f"FROM json_populate_recordset(NULL::{table}, %s::json) AS changed "
                f"WHERE {table}.{_quoted(key)} = changed.{_quoted(key)}{telling}",
                [_json([*fields, key], rows)],
            )
            if tell:
                return dict(cursor.fetchall())
    return {}


def keys(ids: Collection[UUID]) -> Any:
    """The ids, for an `__in`; on PostgreSQL as one parameter, since hundreds take longer to pass than to find."""
    if connection.vendor != "postgresql":
        return list(ids)
    return RawSQL("SELECT unnest(%s::uuid[])", ["{" + ",".join([one.hex for one in ids]) + "}"])


def words(texts: Collection[str]) -> Any:
    """The same for texts."""
    return RawSQL("SELECT unnest(%s::text[])", [list(texts)]) if connection.vendor == "postgresql" else list(texts)


def _table(model: type[models.Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _quoted(field: Any) -> str:
    return connection.ops.quote_name(field.column)


def _json(fields: Sequence[Any], rows: Sequence[models.Model]) -> str:
    """An array of objects, one for each row, keyed by column."""
    columns = [field.column for field in fields]
    values = attrgetter(*(field.attname for field in fields))
    return json.dumps([dict(zip(columns, values(row), strict=True)) for row in rows], default=_in_json)


def _in_json(value: object) -> str:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"A {type(value).__name__} needs a way into the database.")


def _sqlite_rows(fields: Sequence[Any], rows: Sequence[models.Model]) -> list[list[Any]]:
    values = attrgetter(*(field.attname for field in fields))
    adapters: dict[type, Callable[[Any], Any]] = {
        UUID: attrgetter("hex"),
        datetime: connection.ops.adapt_datetimefield_value,
        dict: json.dumps,
        list: json.dumps,
    }
    return [
        [value if (adapt := adapters.get(type(value))) is None else adapt(value) for value in values(row)]
        for row in rows
    ]
