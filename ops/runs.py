"""The run of one slot: the row that decides who runs it, and every change of that row.

Each change is one conditional update on the fence, so a process that lost the run can change nothing any more.
"""

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from uuid import UUID, uuid5

from django.db import close_old_connections
from django.db.models import Q, QuerySet
from django.db.utils import DatabaseError

from casualmeet import clock
from casualmeet.db import insert_one, storable
from casualmeet.logs import mask
from ops import beats, reporting
from ops.jobs import Job
from ops.leases import lease_time
from ops.models import JobRun, JobStatus

logger = logging.getLogger(__name__)

NAMESPACE = UUID("2f0d4c1e-7f0b-4a53-9c8e-4a7a6f0e5d11")
ERROR_LENGTH = 4000
SUMMARY_LENGTH = 300
STORE_AGAIN_SECONDS = 1.0
MOST_UNFINISHED = 100


class LostRun(Exception):
    """Another process has taken the run over."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a slot: valid while the row has this fence."""

    pk: UUID
    job: str
    slot: datetime
    fence: int
    tries: int
    # Whether the operators were told that this job fails.
    told: bool = False

    def still_mine(self) -> None:
        """See `ops.jobs.Run`."""
        if not self.row().filter(lease_until__gt=clock.now()).exists():
            raise LostRun(f"{self.job} of {self.slot} is no longer this process's to run")

    def row(self) -> QuerySet[JobRun]:
        """The row, while it is this claim's."""
        return JobRun.objects.filter(pk=self.pk, fence=self.fence, status=JobStatus.RUNNING)


def run_id(job: str, slot: datetime) -> UUID:
    """The same for all processes: who inserts it first has the slot."""
    return uuid5(NAMESPACE, f"{job}:{slot.isoformat()}")


def claim(job: Job, slot: datetime, *, fence: int, told: bool = False) -> Claim | None:
    """Take the slot for the holder of the job's lease; None when it is done, given up, or not to be tried again yet.

    That nobody else holds the lease means that whoever is still noted as running it is dead. `told`: the operators
    know that the run before failed.
    """
    now = clock.now()
    pk = run_id(job.name, slot)
    row = JobRun(
        id=pk, job=job.name, slot=slot, fence=fence, node=beats.node(), started_at=now, lease_until=now + lease_time()
    )
    if insert_one(row):
        return Claim(pk, job.name, slot, fence, tries=1, told=told)
    there = JobRun.objects.filter(pk=pk, fence__lt=fence).first()
    if there is None or not _open(there, now):
        return None
    if there.status == JobStatus.RUNNING and there.tries > len(job.retry_after):
        _give_up(there, fence, "The process died in each of its tries.")
        return None
    taken = _as_read(there).update(
        status=JobStatus.RUNNING,
        fence=fence,
        node=beats.node(),
        tries=there.tries + 1,
        started_at=now,
        finished_at=None,
        lease_until=now + lease_time(),
        next_try_at=None,
    )
    return Claim(pk, job.name, slot, fence, tries=there.tries + 1, told=True) if taken else None


def pass_over(job: Job, slot: datetime, *, fence: int) -> bool:
    """Give up the run before this slot if it is not over: of several waiting slots the latest runs.

    Tells whether that run failed, now or before.
    """
    before = JobRun.objects.filter(job=job.name, slot__lt=slot).order_by("-slot").first()
    if before is None:
        return False
    if _open(before, None):
        _give_up(before, fence, "Given up: the next slot has come.")
        return True
    return before.status == JobStatus.FAILED


def perform(job: Job, claim: Claim) -> None:
    """Run the job's function and store what came of it."""
    try:
        summary = job.function(claim)
    except LostRun as lost:
        logger.warning("%s", lost)
    except Exception as error:
        logger.exception("The job %r failed (try %d)", job.name, claim.tries)
        text = "".join(traceback.format_exception(error))
        _until_stored(lambda: fail(job, claim, text), claim)
    else:
        _until_stored(lambda: finish(claim, summary), claim)


def finish(claim: Claim, summary: str) -> bool:
    """The run is done. False when it is no longer this claim's.

    Whatever the job returned: its work is done, and must not be done again for a word that can't be stored.
    """
    done = claim.row().update(
        status=JobStatus.DONE,
        finished_at=clock.now(),
        lease_until=None,
        summary=mask(storable(str(summary or "")))[:SUMMARY_LENGTH],
        error="",
    )
    if done and claim.told:
        reporting.resolve(key(claim.job))
    return bool(done)


def fail(job: Job, claim: Claim, error: str, *, hung: bool = False) -> bool:
    """This try failed; the next one, if there is one left, comes after the job's pause.

    The operators are told when it was the last one, and of a run that hung. False when it is no longer this claim's.
    """
    now = clock.now()
    again = now + job.retry_after[claim.tries - 1] if claim.tries <= len(job.retry_after) else None
    error = mask(storable(error))[-ERROR_LENGTH:]
    failed = claim.row().update(
        status=JobStatus.FAILED, finished_at=now, lease_until=None, next_try_at=again, error=error
    )
    if failed and (again is None or hung):
        _report(claim.job, claim.slot, error, tries=claim.tries, again=again)
    return bool(failed)


def status(claim: Claim) -> str:
    """How the claim's run stands, as JobStatus says; `lost` when it is no longer this claim's."""
    found: str | None = JobRun.objects.filter(pk=claim.pk, fence=claim.fence).values_list("status", flat=True).first()
    return found or "lost"


def renew(claim: Claim) -> bool:
    """Begin the lease's time anew; False when the run is no longer this claim's."""
    return claim.row().update(lease_until=clock.now() + lease_time()) == 1


def hand_back(claim: Claim) -> None:
    """Let another process begin it anew, at once and without counting this try."""
    claim.row().update(lease_until=clock.now(), tries=claim.tries - 1)


def unfinished(jobs: Sequence[str], *, now: datetime) -> list[tuple[str, datetime]]:
    """Job and slot of these jobs' runs that wait for somebody: their process is silent, or the next try is due."""
    waiting = JobRun.objects.filter(Q(lease_until__lte=now) | Q(next_try_at__lte=now), job__in=jobs)
    return list(waiting.order_by("slot").values_list("job", "slot")[:MOST_UNFINISHED])


def run_again(pks: Iterable[UUID]) -> int:
    """Have failed runs tried once more, as soon as a scheduler sees it. Returns how many."""
    failed = JobRun.objects.filter(pk__in=list(pks), status=JobStatus.FAILED)
    return failed.update(next_try_at=clock.now())


def key(job: str) -> str:
    """Of all reports about the job."""
    return f"job:{job}"


def _open(row: JobRun, now: datetime | None) -> bool:
    """Whether the run is not over, and (with `now`) may be taken."""
    if row.status == JobStatus.FAILED and row.next_try_at is not None:
        return now is None or row.next_try_at <= now
    return row.status == JobStatus.RUNNING


def _as_read(row: JobRun) -> QuerySet[JobRun]:
    """The row, unless somebody has changed it since."""
    return JobRun.objects.filter(pk=row.pk, fence=row.fence, status=row.status)


def _give_up(row: JobRun, fence: int, why: str) -> None:
    error = f"{row.error}\n{why}".strip()[-ERROR_LENGTH:]
    given_up = _as_read(row).update(
        status=JobStatus.FAILED,
        fence=fence,
        finished_at=clock.now(),
        lease_until=None,
        next_try_at=None,
        error=error,
    )
    if given_up:
        _report(row.job, row.slot, error, tries=row.tries, again=None)


def _report(job: str, slot: datetime, error: str, *, tries: int, again: datetime | None) -> None:
    details: Mapping[str, object] = {
        "slot": slot.isoformat(),
        "tries": tries,
        "next_try": again.isoformat() if again else "none",
        "error": error[-1000:],
    }
    title = f"The job {job} failed; it is tried again" if again else f"The job {job} failed and was given up"
    reporting.report(title, key=key(job), severity="warning" if again else "error", details=details)


def _until_stored(store: Callable[[], bool], claim: Claim) -> None:
    """Store it, again and again while the database can't: the work is done, and doing it anew is worse than waiting.
    Whoever started this process ends it when the run's lease or time is over.
    """
    for attempt in count(1):
        try:
            stored = store()
        except DatabaseError as error:
            level = logging.ERROR if attempt == 1 else logging.DEBUG
            logger.log(level, "The result of the job %r can't be stored yet: %s", claim.job, error)
            close_old_connections()
            time.sleep(STORE_AGAIN_SECONDS)
        else:
            if not stored and attempt == 1:
                logger.warning(
                    "The result of the job %r is not kept: another process has taken the run over", claim.job
                )
            return
