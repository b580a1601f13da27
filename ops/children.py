"""Runs each job in a process of its own, which can be killed. It is forked from one that has everything loaded
(ops/forkserver.py), by Python's own fork server: that takes 25 ms, not the seconds of a fresh start.
"""

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

from django.conf import settings

from ops import jobs, reporting, runs
from ops.jobs import Job
from ops.runs import Claim

KILL_LIMIT_SECONDS = 5.0

_context = multiprocessing.get_context("forkserver")


class Child:
    """A run under way."""

    def __init__(self, claim: Claim) -> None:
        self._process = _context.Process(target=_run, args=(claim,), name=f"job-{claim.job}")
        self._process.start()

    @property
    def sentinel(self) -> int:
        """Becomes readable when it ends."""
        return self._process.sentinel

    def ended(self) -> bool:
        """Whether it is over."""
        return not self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL: no handler runs, and nothing holds it."""
        self._process.kill()
        self._process.join(KILL_LIMIT_SECONDS)

    def exit_code(self) -> int | None:
        """Of one that ended; minus the number of the signal that did it."""
        return self._process.exitcode

    def close(self) -> None:
        """Let go of it once it ended."""
        self._process.close()


def prepare() -> None:
    """Start the fork server, so that the first job need not wait for it."""
    # It looks for modules in PYTHONPATH only, not where this process found them.
    paths = [str(settings.BASE_DIR), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    _context.set_forkserver_preload(["ops.forkserver"])
    process = _context.Process(target=_nothing)
    process.start()
    process.join()
    process.close()


def launch(_job: Job, claim: Claim) -> Child:
    """Run the claimed slot in a child."""
    return Child(claim)


def _nothing() -> None: ...


def _run(claim: Claim) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        runs.perform({job.name: job for job in jobs.jobs()}[claim.job], claim)
    finally:
        reporting.flush()


def _end_with_parent() -> None:
    """End at once when the scheduler is gone: nobody renews the lease, and soon another process runs the job."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
