"""Scheduled jobs: each app declares its own in `jobs.py`; the scheduler runs each slot once in the whole fleet."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from cronsim.cronsim import FIELD_NAMES
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules


class Run(Protocol):
    """One run of a job, as the job sees it."""

    @property
    def slot(self) -> datetime:
        """The time that the cron expression names, UTC."""

    def still_mine(self) -> None:
        """Raises LostRun when another process has taken the run over. Call it before each step that must not happen
        twice.
        """


JobFunction = Callable[[Run], str]

LIMIT = timedelta(minutes=10)
RETRY_AFTER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,59}")
# So far back the latest slot is looked for first: those of a frequent job are many.
WINDOWS = (timedelta(hours=1), timedelta(days=2))


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done when. The function returns what it did, in a few words.

    `limit` is how long a run may take. A run that fails is tried again after each of `retry_after`.
    """

    name: str
    cron: str
    function: JobFunction
    time_zone: ZoneInfo = ZoneInfo("UTC")  # noqa: RUF009 - it can't be changed
    limit: timedelta = LIMIT
    retry_after: tuple[timedelta, ...] = RETRY_AFTER
    declared_at: str = ""

    def slots_after(self, after: datetime) -> Iterator[datetime]:
        """The coming slots, UTC. A local time that occurs twice is one slot, one that never occurs is the next that
        does; so the expression must have five fields. One of six, with seconds, goes by the hands of the clock.
        """
        zone = UTC if self.time_zone.key == "UTC" else self.time_zone
        # From within an hour that occurs twice, cronsim names times of its first pass.
        return (utc for slot in CronSim(self.cron, after.astimezone(zone)) if (utc := slot.astimezone(UTC)) > after)

    def latest_slot(self, *, after: datetime, now: datetime) -> datetime | None:
        """The last of the slots after `after` that have come."""
        for start in [*(now - window for window in WINDOWS if now - window > after), after]:
            latest = None
            for slot in takewhile(lambda slot: slot <= now, self.slots_after(start)):
                latest = slot
            if latest is not None:
                return latest
        return None

    def coming(self, number: int, *, now: datetime) -> list[datetime]:
        """The next slots."""
        return list(islice(self.slots_after(now), number))


_jobs: dict[str, Job] = {}


def job(
    name: str,
    cron: str,
    *,
    time_zone: str = "UTC",
    limit: timedelta = LIMIT,
    retry_after: tuple[timedelta, ...] = RETRY_AFTER,
) -> Callable[[JobFunction], JobFunction]:
    """Declare the function as a job: `@job("digest", "0 7 * * *", time_zone="Asia/Kolkata")`.

    Raises ImproperlyConfigured, with file and line, for a declaration that can't be followed.
    """

    def declare(function: JobFunction) -> JobFunction:
        where = _where(function)
        try:
            declared = Job(name, cron, function, _zone(time_zone), limit, retry_after, where)
            _check(declared)
        except ValueError as error:
            raise ImproperlyConfigured(f"{where}: job {name!r}: {error}") from None
        _jobs[name] = declared
        return function

    return declare


def jobs() -> list[Job]:
    """All jobs that the apps declare."""
    autodiscover_modules("jobs")
    return [_jobs[name] for name in sorted(_jobs)]


def _where(function: JobFunction) -> str:
    """File and line of the declaration."""
    code = inspect.unwrap(function).__code__
    path = Path(code.co_filename)
    if path.is_relative_to(settings.BASE_DIR):
        path = path.relative_to(settings.BASE_DIR)
    return f"{path}:{code.co_firstlineno}"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; write one like 'Asia/Kolkata'") from None


def _check(declared: Job) -> None:
    """Raise ValueError, with what is wrong."""
    if not NAME.fullmatch(declared.name):
        raise ValueError("a name is up to 60 small letters, digits, dots, - and _")
    other = _jobs.get(declared.name)
    if other is not None and other.declared_at != declared.declared_at:
        raise ValueError(f"the name is taken by {other.declared_at}")
    if declared.limit <= timedelta(0) or any(wait < timedelta(0) for wait in declared.retry_after):
        raise ValueError("the limit must be more than nothing, and no pause less")
    try:
        first = next(declared.slots_after(datetime(2026, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise ValueError(_in_words(declared.cron, str(error))) from None
    if first is None:
        raise ValueError(f"the cron expression {declared.cron!r} names a time that never comes")


def _in_words(cron: str, trouble: str) -> str:
    fields = cron.split()
    if len(fields) not in {5, 6}:
        return f"the cron expression {cron!r} has {len(fields)} fields, not 5 (minute hour day month weekday) or 6 (seconds first)"
    name = trouble.removeprefix("Bad ")
    part = fields[FIELD_NAMES.index(name) - (6 - len(fields))] if name in FIELD_NAMES else cron
    return f"the cron expression {cron!r} is wrong: {part!r} is no {name}"
