"""What a worker does beside its main cycle: a list of chores, each of which may fail without stopping the others."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from casualmeet import clock

logger = logging.getLogger(__name__)

R = TypeVar("R")

LEFT_OUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Chore:
    """Work in small portions: `work` does one and tells whether it did anything, `next_at` when the next one is due
    (None: none in sight).
    """

    name: str
    work: Callable[[], object]
    next_at: Callable[[], datetime | None]


class Chores:
    """Runs chores one after the other. One that raises is logged and left out for a few seconds."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._left_out: dict[str, float] = {}

    def run(self, *, give_way: Callable[[], bool]) -> None:
        """One portion of each, until `give_way` says that something more urgent waits."""
        for number, chore in enumerate(self._current()):
            if number and give_way():
                return
            self._try(chore, chore.work)

    def finish(self) -> None:
        """All that is due now, of each."""
        for chore in self._current():
            while (at := self._try(chore, chore.next_at)) is not None and at <= clock.now():
                if not self._try(chore, chore.work):
                    break

    def next_at(self) -> datetime | None:
        """When the first of them is due."""
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
