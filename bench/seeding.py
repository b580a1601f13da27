"""People, contacts and timers by the million: one INSERT … SELECT per table, numbered rows with keys that follow."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, models

from casualmeet import clock
from notifications.models import Delivery
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus, TrustedContact, User
from sos.models import SosEvent, SosStatus, Source

LONDON = "+4477"
MUMBAI = "+9198"
FIRST_NUMBER = 10_000_000
HOUR_MS = 3_600_000
PLACE = {"type": "Point", "coordinates": [72.8318, 18.9227]}
FIX = {"latitude": 18.92251, "longitude": 72.83164, "accuracy_m": 14.0}
CHUNK = 500
STATUSES = TimerStatus.values
ORDER = "md5('person' || i)"


class Sql(str):
    """An SQL expression over `i`, the number of the row; other values are the same for all rows."""

    __slots__ = ()


def people(first: int, last: int) -> None:
    """Persons numbered so."""
    insert_series(
        User,
        first,
        last,
        id=_key(),
        username=Sql("'person' || i"),
        password="!",
        full_name="Asha Rao",
        phone=Sql(f"'+9197' || ({FIRST_NUMBER} + i)"),
        time_zone="Asia/Kolkata",
        date_joined=clock.now(),
    )


def contacts(first: int, last: int) -> None:
    """Two verified contacts for each of these persons: one that Fast2SMS serves, and one that Twilio does."""
    now = clock.now()
    for slot, (name, prefix) in enumerate([("Meera Nair", MUMBAI), ("Tom Baker", LONDON)]):
        insert_series(
            TrustedContact,
            first,
            last,
            id=_key(suffix=slot),
            person_id=_key(),
            slot=slot,
            name=name,
            phone=Sql(f"'{prefix}' || ({FIRST_NUMBER} + i)"),
            status=TrustedContact.Status.VERIFIED,
            token=Sql(_digest(suffix=slot)),
            invited_at=now,
            answered_at=now,
        )


def timers(first: int, last: int, *, due: datetime, step_ms: float = 0, status: str = TimerStatus.ACTIVE) -> None:
    """One timer for each of these persons. The first is due at `due`, each next one `step_ms` later."""
    suffix = STATUSES.index(status)
    insert_series(
        MeetingTimer,
        first,
        last,
        id=_key(suffix=suffix),
        person_id=_key(),
        location_name="Café Mondegar, Colaba",
        meetup_location=PLACE,
        meet_with="Rohan",
        duration_minutes=60,
        started_at=due - timedelta(hours=1),
        expires_at=_moment(due, first, step_ms),
        escalates_at=_moment(due, first, step_ms),
        resolved_at=None if status in LIVE_STATUSES else due,
        last_fix=FIX,
        last_fix_at=due - timedelta(minutes=5),
        status=status,
    )


def armed(first: int, last: int) -> None:
    """Persons with timers that run out between six and twelve hours from now."""
    people(first, last)
    timers(first, last, due=clock.now() + timedelta(hours=6), step_ms=6 * HOUR_MS / max(1, last - first))


def past(first: int, last: int, *, status: str) -> None:
    """Timers of the last year for these persons; the expired ones with their incidents, long resolved."""
    then = clock.now() - timedelta(days=365)
    timers(first, last, due=then, step_ms=24 * 364 * HOUR_MS / max(1, last - first), status=status)
    if status == TimerStatus.EXPIRED:
        insert_series(
            SosEvent,
            first,
            last,
            id=_key(),
            person_id=_key(),
            source=Source.TIMER_EXPIRED,
            status=SosStatus.RESOLVED,
            reference="K7Q",
            triggered_timer_id=_key(suffix=STATUSES.index(status)),
            happened_at=then,
            opened_at=then,
            alerted_at=then,
            resolved_at=then,
            all_clear_at=then,
        )


def digests(first: int, last: int, *, priority: int, facts: dict[str, Any]) -> None:
    """Queued deliveries of no incident, numbered so, due at once; Twilio serves their numbers."""
    now = clock.now()
    insert_series(
        Delivery,
        first,
        last,
        id=_key(),
        kind="digest",
        priority=priority,
        address=Sql(f"'{LONDON}' || ({FIRST_NUMBER} + i)"),
        recipient_id=_key(),
        recipient_name="Tom Baker",
        link="http://localhost:8000/c/x",
        facts=facts,
        created_at=now,
        next_attempt_at=now,
    )


def make_due(first: int, last: int, *, at: datetime) -> None:
    """Move the deadline of these persons' timers."""
    keys = [timer_key(i) for i in range(first, last + 1)]
    for start in range(0, len(keys), CHUNK):
        MeetingTimer.objects.filter(pk__in=keys[start : start + CHUNK]).update(expires_at=at, escalates_at=at)


def timer_key(i: int) -> UUID:
    """The key of the live timer of person number i."""
    digest = hashlib.md5(f"person{i}".encode(), usedforsecurity=False).hexdigest()
    return UUID(f"{digest[:-1]}{STATUSES.index(TimerStatus.ACTIVE)}")


def person_of_number(phone: str) -> int:
    """The number of the person whose contact has this phone number."""
    return int(phone[-8:]) - FIRST_NUMBER


def insert_series(model: type[models.Model], first: int, last: int, **columns: Any) -> None:
    """Insert rows numbered first to last in one statement; fields that are not named get their defaults."""
    names, expressions, params = [], [], []
    for column in model._meta.concrete_fields:
        names.append(connection.ops.quote_name(column.column or ""))
        value = columns.pop(column.attname) if column.attname in columns else column.get_default()
        if isinstance(value, Sql):
            expressions.append(str(value))
        else:
            expressions.append("%s")
            params.append(column.get_db_prep_save(value, connection))
    if columns:
        raise TypeError(f"{model.__name__} has no {', '.join(columns)}.")
    with _without_limits(), connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE series(i) AS (SELECT CAST(%s AS integer) UNION ALL SELECT i + 1 FROM series WHERE i < %s) "
            f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) "
            f"SELECT {', '.join(expressions)} FROM series ORDER BY {ORDER}",
            [first, last, *params],
        )


def settle() -> None:
    """What the database does by itself in time: statistics, vacuum, checkpoint."""
    with _without_limits(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM (ANALYZE)")
            cursor.execute("CHECKPOINT")
        else:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _without_limits() -> Iterator[None]:
    """Without the product's statement time-out, and without checks of keys that are known to fit."""
    sqlite = connection.vendor == "sqlite"
    before = (
        ["PRAGMA foreign_keys=OFF", "PRAGMA synchronous=OFF", "PRAGMA cache_size=-1000000"]
        if sqlite
        else ["SET statement_timeout=0", "SET session_replication_role=replica"]
    )
    with connection.cursor() as cursor:
        for statement in before:
            cursor.execute(statement)
        try:
            yield
        finally:
            # The next connection has the product's own options again.
            connection.close()


def _key(*, suffix: int = 0) -> Sql:
    """The key of row i: scattered like a real one, but in the same order in all tables, which speeds up the insert."""
    digest = _digest(suffix=suffix)
    return Sql(f"CAST({digest} AS uuid)" if connection.vendor == "postgresql" else digest)


def _digest(*, suffix: int = 0) -> str:
    return f"substr({ORDER}, 1, 31) || '{suffix}'"


def _moment(start: datetime, first: int, step_ms: float) -> Sql:
    """`start` for the first row, then `step_ms` later for each."""
    shift = f"((i - {first}) * {step_ms!r})"
    at = start.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    if connection.vendor == "postgresql":
        return Sql(f"timestamptz '{at}Z' + {shift} * interval '1 millisecond'")
    return Sql(f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', '{at}', ({shift} / 1000.0) || ' seconds')")
