"""A run that this process has started: its lease renewed, its end noted, and ended when it hangs or is lost."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from ops import leases, metrics, runs
from ops.jobs import Job
from ops.leases import Held, Leases
from ops.runs import Claim

logger = logging.getLogger(__name__)


class Launched(Protocol):
    """What does the work, as `ops.children.Child`."""

    @property
    def sentinel(self) -> int:
        """Becomes readable when it ends."""

    def ended(self) -> bool:
        """Whether it is over."""

    def kill(self) -> None:
        """End it, whatever it does."""

    def exit_code(self) -> int | None:
        """Of one that ended."""

    def close(self) -> None:
        """Let go of it once it ended."""


Launch = Callable[[Job, Claim], Launched]


class Running:
    """From the launch to the release of the lease."""

    def __init__(self, job: Job, claim: Claim, held: Held, child: Launched) -> None:
        self.job = job
        self.claim = claim
        self.child = child
        self._held = held
        self._started = self._renewed = time.monotonic()
        self._hung = False

    def tend(self, mine: Leases) -> bool:
        """Do what is due; True once it is over and that is noted. May be called again after it raised."""
        if self.child.ended():
            self._note_end()
        elif time.monotonic() - self._started > self.job.limit.total_seconds():
            self._hung = True
            self.child.kill()
            self._note_end()
        elif self._keep(mine):
            return False
        else:
            self.child.kill()
        self._let_go(mine)
        return True

    def hand_back(self, mine: Leases) -> None:
        """End it, for another process to begin it anew at once."""
        logger.warning("The job %r is handed back", self.job.name)
        self.child.kill()
        runs.hand_back(self.claim)
        self._let_go(mine)

    def _note_end(self) -> None:
        """A child stores its own result. One that could not has failed."""
        why = f"The process ended without a result (exit code {self.child.exit_code()})."
        if self._hung:
            why = f"Ended: it took longer than its limit of {self.job.limit}."
        if runs.fail(self.job, self.claim, why, hung=self._hung):
            logger.error("The job %r: %s", self.job.name, why)
        metrics.job_ran(self.job.name, runs.status(self.claim), time.monotonic() - self._started)

    def _keep(self, mine: Leases) -> bool:
        """Renew the leases in time; False when the run is lost."""
        silent, lease = time.monotonic() - self._renewed, leases.lease_time().total_seconds()
        if silent > lease:
            logger.error("The job %r is ended: its lease could not be renewed in time", self.job.name)
            return False
        if silent > lease / 3:
            before = time.monotonic()
            if not (mine.renew(self._held) and runs.renew(self.claim)):
                logger.error("The job %r is ended: another process has taken its run over", self.job.name)
                return False
            self._renewed = before
        return True

    def _let_go(self, mine: Leases) -> None:
        mine.release(self._held)
        self.child.close()
