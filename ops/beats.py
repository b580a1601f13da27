"""Heartbeats: each worker has a row that says when it last finished a cycle.

A beat means that a cycle ended well. A worker that hangs, or whose cycles raise, writes none: its row goes stale.
"""

import logging
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from casualmeet import clock
from casualmeet.db import insert_one
from ops.models import WorkerBeat

logger = logging.getLogger(__name__)

TIMER, DISPATCH, SCHEDULER, AUDIT = "timer", "dispatch", "scheduler", "audit"
EVERY_SECONDS = 2.0
# Who has not finished a cycle for so long is not counted on.
FRESH = timedelta(seconds=10)
# The auditor has one row in the whole fleet: whoever ran it last.
AUDIT_ID = UUID("7c0d8f5a-3f3e-4a55-9a44-0f9b3b1f6d01")


def node() -> str:
    """This process, for people: host and process id."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


class Beat:
    """The heartbeat of one worker. Nothing in here ever raises into its cycle."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._id = uuid4()
        self._written_at = -math.inf
        self._started_at: datetime | None = None
        self.workers = 1
        """How many of the role finished a cycle lately, with this one; as of the last beat."""

    def cycle_finished(self, seconds: float) -> None:
        """A cycle that took so long has ended well. Written down at most every two seconds."""
        if time.monotonic() - self._written_at < EVERY_SECONDS:
            return
        self._written_at = time.monotonic()
        try:
            now = clock.now()
            self._started_at = self._started_at or now
            _write(self._id, self.role, started_at=self._started_at, now=now, seconds=seconds)
            fresh = WorkerBeat.objects.filter(role=self.role, cycle_at__gt=now - FRESH)
            self.workers = max(1, fresh.count())
        except Exception as error:  # noqa: BLE001 - the work is more important than the word about it
            logger.warning("The heartbeat of this %s worker was not written: %s", self.role, error)

    def end(self) -> None:
        """The worker ends in good order: nobody is to miss it."""
        try:
            WorkerBeat.objects.filter(pk=self._id).delete()
        except Exception as error:  # noqa: BLE001 - then it is missed for an hour
            logger.warning("The heartbeat of this %s worker was not removed: %s", self.role, error)


def audit_finished(seconds: float) -> None:
    """All checks of the auditor were tried, in so many seconds."""
    now = clock.now()
    _write(AUDIT_ID, AUDIT, started_at=now, now=now, seconds=seconds)


def alive(role: str, *, now: datetime, within: timedelta) -> bool:
    """Whether some worker of the role finished a cycle in this time."""
    return WorkerBeat.objects.filter(role=role, cycle_at__gt=now - within).exists()


@dataclass(frozen=True, slots=True)
class RoleBeats:
    """The workers of one role, the one that beat last first: those with a fresh beat, and those that fell silent."""

    role: str
    fresh: Sequence[WorkerBeat]
    silent: Sequence[WorkerBeat]

    @property
    def newest(self) -> WorkerBeat | None:
        """Who beat last."""
        return next(iter([*self.fresh, *self.silent]), None)


def of_role(role: str, *, now: datetime, within: timedelta) -> RoleBeats:
    """The workers of a role; those are fresh that finished a cycle in this time."""
    rows = list(WorkerBeat.objects.filter(role=role).order_by("-cycle_at"))
    count = sum(row.cycle_at > now - within for row in rows)
    return RoleBeats(role, rows[:count], rows[count:])


def _write(pk: UUID, role: str, *, started_at: datetime, now: datetime, seconds: float) -> None:
    """One update by key; an insert the first time, or where the row of a worker long silent was cleared away."""
    told = {
        "node": node(),
        "cycle_at": now,
        "cycle_ms": round(seconds * 1000, 3),
        "skew_ms": round(clock.skew_seconds() * 1000),
    }
    if not WorkerBeat.objects.filter(pk=pk).update(**told):
        insert_one(WorkerBeat(id=pk, role=role, started_at=started_at, **told))
