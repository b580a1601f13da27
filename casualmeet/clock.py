"""One clock for all processes: the database server's, in whole milliseconds (docs/decisions/clock.md).

A process measures how far its own monotonic clock lies from the database's time, at first use and then every
half minute, and adds that offset. So a machine whose wall clock is minutes off, or is being set, neither fires
early nor late. SQLite has no server: its clock is this machine's.
"""

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.utils import DatabaseError

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 30.0
# Wall and monotonic clock drift apart by this much only when the machine slept or its clock was set.
JUMP_SECONDS = 0.5
SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The database's time at one moment of the local clocks; all in seconds."""

    database: float
    monotonic: float
    wall: float

    def stale(self) -> bool:
        """Whether half a minute has gone by, or the machine slept or was set to another time."""
        elapsed = time.monotonic() - self.monotonic
        return elapsed > REFRESH_SECONDS or abs(time.time() - self.wall - elapsed) > JUMP_SECONDS


_reading: Reading | None = None
_lock = threading.Lock()


def now() -> datetime:
    """The database server's time, UTC, cut to whole milliseconds (what MongoDB can store)."""
    if connection.vendor == "sqlite":
        return _in_milliseconds(time.time())
    reading = _reading
    # Within a transaction an old reading will do, but none would mean this machine's own clock (P12).
    if reading is None or (reading.stale() and not connection.in_atomic_block):
        reading = refresh()
    if reading is None:
        return _in_milliseconds(time.time())
    return _in_milliseconds(reading.database + time.monotonic() - reading.monotonic)


def skew_seconds() -> float:
    """How far this machine's wall clock is ahead of the database server's, in seconds."""
    return time.time() - now().timestamp()


def refresh() -> Reading | None:
    """Measure the offset to the database again; keep the old one while the database does not answer."""
    global _reading
    with _lock:
        if _reading is not None and not _reading.stale():
            return _reading
        try:
            _reading = min((_measure() for _ in range(SAMPLES)), key=lambda sample: sample[0])[1]
        except DatabaseError as error:
            logger.warning("The database did not tell its time: %s", error)
        return _reading


def forget() -> None:
    """Drop the measured offset, so that the next call measures again."""
    global _reading
    _reading = None


def _measure() -> tuple[float, Reading]:
    """One sample, with the round trip it took; the shortest round trip bounds the error best."""
    before = time.monotonic()
    database = _database_time(connection)
    after = time.monotonic()
    return after - before, Reading(database=database, monotonic=(before + after) / 2, wall=time.time())


def _database_time(connection: Any) -> float:
    if connection.vendor == "mongodb":
        local: datetime = connection.database.command("hello")["localTime"]
        return local.replace(tzinfo=local.tzinfo or UTC).timestamp()
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def _in_milliseconds(timestamp: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(timestamp * 1000))
