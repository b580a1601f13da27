"""Runs each slot of each job once in the whole fleet (docs/decisions/scheduled-jobs.md).

One thread, any number of processes. A look at a job costs one row; children do the work, so a job that hangs holds
nothing up.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.connection import wait

from django.db.utils import DatabaseError

from casualmeet import clock
from ops import leases, runs
from ops.jobs import Job
from ops.leases import Held, Leases
from ops.models import JobRun, Lease
from ops.running import Launch, Running

logger = logging.getLogger(__name__)

# Longest sleep between two cycles. A child that ends cuts it short, and so does a signal where no child runs.
SLEEP_SECONDS = 1.0
SLEEP_BESIDE_CHILDREN_SECONDS = 0.25
# Running jobs may end by themselves for so long after SIGTERM; then they are handed back.
STOP_SECONDS = 20.0
# In place of one job's name.
ALL = "(all)"
NEVER = datetime.max.replace(tzinfo=UTC)


class Scheduler:
    """The jobs of one process."""

    def __init__(self, jobs: Sequence[Job], mine: Leases, *, launch: Launch) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._leases = mine
        self._launch = launch
        self._running: dict[str, Running] = {}
        self._look_at: dict[str, datetime] = {}
        self._left_behind_at = datetime.min.replace(tzinfo=UTC)
        self._paused: dict[str, float] = {}

    def tick(self) -> None:
        """Tend what runs, start what is due, take up what others left behind. Each job's trouble is its own."""
        self._tend()
        if not self._look_at:
            self._guarded(ALL, self._begin)
        now = clock.now()
        for name, at in self._look_at.items():
            if at <= now and name not in self._running:
                self._guarded(name, partial(self._look, self._jobs[name]))
        # Afterwards: a slot that has come passes over what an earlier one left.
        if self._left_behind_at <= now:
            self._left_behind_at = now + look_again()
            self._guarded(ALL, self._take_up)

    def wait(self, stop: threading.Event) -> None:
        """Until something is due, a child ends, or `stop` is set (seen within a quarter of a second)."""
        if self._running:
            self._wait_for_children()
        else:
            due = min(self._look_at.values(), default=NEVER) - clock.now()
            stop.wait(min(max(due.total_seconds(), 0.0), SLEEP_SECONDS))

    def finish(self, seconds: float = float("inf")) -> None:
        """Wait for what runs, as long as this."""
        until = time.monotonic() + seconds
        while self._running and time.monotonic() < until:
            self._wait_for_children()
            self._tend()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Let what runs end, and hand back what does not in time."""
        self.finish(seconds)
        self._paused.clear()
        for name, running in list(self._running.items()):
            self._guarded(name, partial(running.hand_back, self._leases))
        self._leases.close()

    def run_now(self, name: str) -> JobRun | None:
        """Run the job now, to its end, beside its slots; None while another process runs it."""
        leases.know([lease_name(name)])
        self._start(self._jobs[name], clock.now(), newest=False)
        if name not in self._running:
            return None
        claim = self._running[name].claim
        self.finish()
        return JobRun.objects.get(pk=claim.pk)

    def _begin(self) -> None:
        leases.know(map(lease_name, self._jobs))
        self._look_at = dict.fromkeys(self._jobs, clock.now())

    def _tend(self) -> None:
        for name, running in list(self._running.items()):
            self._guarded(name, partial(self._tend_one, running))

    def _tend_one(self, running: Running) -> None:
        if running.tend(self._leases):
            del self._running[running.job.name]
            # A slot may have waited for its end.
            self._look_at[running.job.name] = clock.now()

    def _take_up(self) -> None:
        """Runs whose process went silent, and tries that are due."""
        for name, slot in runs.unfinished(list(self._jobs), now=clock.now()):
            if name not in self._running:
                self._guarded(name, partial(self._start, self._jobs[name], slot, newest=False))

    def _look(self, job: Job) -> None:
        """Start the job's latest slot if it has no run yet, and find out when to look again."""
        now = clock.now()
        lease = Lease.objects.filter(name=lease_name(job.name)).first()
        if lease is None:
            leases.know([lease_name(job.name)])
            return
        known = lease.slot or lease.until
        slot = job.latest_slot(after=known, now=now)
        if slot is None:
            self._look_at[job.name] = next(job.slots_after(max(known, now)), NEVER)
        else:
            self._look_at[job.name] = now + look_again()
            self._start(job, slot, newest=True)

    def _start(self, job: Job, slot: datetime, *, newest: bool) -> None:
        """Run the slot, unless another process runs the job. `newest`: it has come by the cron expression, and is not
        one that is tried again or asked for.
        """
        held = self._leases.take(lease_name(job.name))
        if held is None:
            return
        try:
            running = self._claimed(job, slot, held, newest=newest)
        except BaseException:
            self._leases.release(held)
            raise
        if running is None:
            self._leases.release(held)
        else:
            self._running[job.name] = running

    def _claimed(self, job: Job, slot: datetime, held: Held, *, newest: bool) -> Running | None:
        """The run, launched; None when the slot is not, or no longer, to be run."""
        # Since this process looked, another may have run the slot, or a later one.
        if newest and held.slot is not None and slot <= held.slot:
            return None
        told = newest and runs.pass_over(job, slot, fence=held.fence)
        claim = runs.claim(job, slot, fence=held.fence, told=told)
        if (newest and not self._leases.mark(held, slot)) or claim is None:
            return None
        try:
            return Running(job, claim, held, self._launch(job, claim))
        except Exception as error:
            logger.exception("The job %r could not be started", job.name)
            runs.fail(job, claim, f"It could not be started: {error}")
            return None

    def _wait_for_children(self) -> None:
        sentinels = [running.child.sentinel for running in self._running.values()]
        # A child that ended, and whose end can't be noted yet, must not make this spin.
        if any(running.child.ended() for running in self._running.values()) and self._paused:
            time.sleep(SLEEP_BESIDE_CHILDREN_SECONDS)
        else:
            wait(sentinels, SLEEP_BESIDE_CHILDREN_SECONDS)

    def _guarded(self, name: str, step: Callable[[], object]) -> None:
        """Do it. What raises is logged and left alone for a while."""
        if time.monotonic() < self._paused.get(name, 0.0):
            return
        try:
            step()
        except DatabaseError as error:
            logger.error("The database can't serve the job %s: %s; trying again", name, str(error).strip())
        except Exception:
            logger.exception("The job %s can't be scheduled; trying again", name)
        else:
            self._paused.pop(name, None)
            return
        self._paused[name] = time.monotonic() + look_again().total_seconds()
        if name in self._look_at:
            self._look_at[name] = clock.now() + look_again()


def look_again() -> timedelta:
    """Between two looks at a job that another process holds, at what others left behind, and at what raised."""
    return leases.lease_time() / 6


def lease_name(job: str) -> str:
    """Of the lease that keeps the job from overlapping with itself."""
    return f"job:{job}"
