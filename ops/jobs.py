"""Scheduled jobs: each app declares its own in `jobs.py`; the scheduler runs each slot once in the whole fleet."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

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


UTC = ZoneInfo("UTC")

JobFunction = Callable[[Run], str]

RETRY_AFTER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done when. The function returns what it did, in a few words.

    `limit` is how long a run may take. A run that fails is tried again after each of `retry_after`.
    """

    name: str
    cron: str
    function: JobFunction
    time_zone: ZoneInfo = UTC
    limit: timedelta = timedelta(minutes=10)
    retry_after: tuple[timedelta, ...] = RETRY_AFTER


_jobs: dict[str, Job] = {}


def job(
    name: str,
    cron: str,
    *,
    time_zone: str = "UTC",
    limit: timedelta = timedelta(minutes=10),
    retry_after: tuple[timedelta, ...] = RETRY_AFTER,
) -> Callable[[JobFunction], JobFunction]:
    """Declare the function as a job: `@job("digest", "0 7 * * *", time_zone="Asia/Kolkata")`."""

    def declare(function: JobFunction) -> JobFunction:
        _jobs[name] = Job(name, cron, function, ZoneInfo(time_zone), limit, retry_after)
        return function

    return declare


def jobs() -> list[Job]:
    """All jobs that the apps declare."""
    autodiscover_modules("jobs")
    return [_jobs[name] for name in sorted(_jobs)]
