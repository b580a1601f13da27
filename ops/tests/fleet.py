"""Schedulers in this process, for tests: jobs that are written down, and a clock that is set by hand."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import connections

from ops import runs
from ops.jobs import Job, Run
from ops.leases import Leases
from ops.models import JobRun
from ops.runs import Claim
from ops.scheduler import Scheduler

NOW = datetime(2026, 3, 14, 21, tzinfo=UTC)


@dataclass
class Inline:
    """A run that is over as soon as it is launched, in this thread."""

    sentinel: int = 0

    def ended(self) -> bool:
        return True

    def kill(self) -> None: ...

    def exit_code(self) -> int:
        return 0

    def close(self) -> None: ...


def inline(job: Job, claim: Claim) -> Inline:
    runs.perform(job, claim)
    return Inline()


@dataclass
class Endless(Inline):
    """A run that does nothing and ends only when it is killed."""

    killed: bool = False

    def ended(self) -> bool:
        return self.killed

    def kill(self) -> None:
        self.killed = True


@dataclass
class Work:
    """A job that notes its slots, and fails while `trouble` says so."""

    slots: list[datetime] = field(default_factory=list)
    trouble: str = ""

    def __call__(self, run: Run) -> str:
        self.slots.append(run.slot)
        if self.trouble:
            raise ValueError(self.trouble)
        return f"run {len(self.slots)}"


def minutely(work: Callable[[Run], str], *, cron: str = "* * * * *", name: str = "count", **more: object) -> Job:
    return Job(name, cron, work, ZoneInfo("UTC"), **more)  # type: ignore[arg-type]


def scheduler(*jobs: Job, redis_url: str = "", launch: Callable[[Job, Claim], Inline] = inline) -> Scheduler:
    return Scheduler(jobs, Leases(redis_url), launch=launch)


def rows(job: str = "count") -> list[JobRun]:
    return list(JobRun.objects.filter(job=job).order_by("slot"))


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def together(*functions: Callable[[], object]) -> None:
    """Run them at the same time, each in a thread with a connection of its own."""
    barrier = threading.Barrier(len(functions))
    raised: list[BaseException] = []

    def body(function: Callable[[], object]) -> None:
        try:
            barrier.wait(10)
            function()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=body, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not raised
