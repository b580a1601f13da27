"""What a worker does beside its main cycle: a list of chores, each of which may fail without stopping the others."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from casualmeet import clock

logger = logging.getLogger(__name__)

R = TypeVar("R")

LEFT_OUT_SECONDS = 5.0
# Their looks cost as much as a cycle does; none of them is in such a hurry that each cycle of a busy worker must look.
REST_SECONDS = 0.5
MOST_REST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Chore:
    """Work in small portions: `work` does one and tells whether it did anything, `next_at` when the next one is due
    (None: none in sight).
    """

    name: str
    work: Callable[[], object]
    next_at: Callable[[], datetime | None]


class Chores:
    """Runs chores one after the other, twice a second at most, in all workers together where nothing is behind.

    One that raises is logged and left out for a few seconds.
    """

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._left_out: dict[str, float] = {}
        self._round: list[Chore] = []
        self._rests_until = -math.inf
        self._coming: datetime | None = None

    def run(self, *, give_way: Callable[[], bool], workers: int = 1) -> None:
        """One portion of each, until `give_way` says that something more urgent waits; nothing so soon after the last
        round.

        The next run goes on with the chore at which this one gave way: each has its turn where something always waits.
        `workers` is how many processes do these chores.
        """
        if time.monotonic() < self._rests_until:
            return
        self._round = self._round or self._current()
        while self._round:
            chore = self._round.pop(0)
            self._try(chore, chore.work)
            if self._round and give_way():
                return
        self._coming = self._earliest()
        behind = self._coming is not None and self._coming <= clock.now()
        rest = REST_SECONDS if behind else min(REST_SECONDS * workers, MOST_REST_SECONDS)
        self._rests_until = time.monotonic() + rest

    def finish(self) -> None:
        """All that is due now, of each."""
        for chore in self._current():
            while (at := self._try(chore, chore.next_at)) is not None and at <= clock.now():
                if not self._try(chore, chore.work):
                    break

    def next_at(self) -> datetime | None:
        """When to run them again: as soon as the first is due, by what the last run saw."""
        rest = self._rests_until - time.monotonic()
        if rest <= 0:
            return self._earliest()
        return max(self._coming, clock.now() + timedelta(seconds=rest)) if self._coming else None

    def _earliest(self) -> datetime | None:
        times = [self._try(chore, chore.next_at) for chore in self._current()]
        return min((at for at in times if at is not None), default=None)

    def _current(self) -> list[Chore]:
        now = time.monotonic()
        return [chore for chore in self._chores if self._left_out.get(chore.name, 0.0) <= now]

    def _try(self, chore: Chore, step: Callable[[], R]) -> R | None:
        try:
            return step()
        except Exception:
            logger.exception("The chore %r failed; the others go on", chore.name)
            self._left_out[chore.name] = time.monotonic() + LEFT_OUT_SECONDS
            return None
