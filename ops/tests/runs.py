"""A run of a job, for tests that call the job's work themselves."""

from dataclasses import dataclass, field
from datetime import datetime

from casualmeet import clock


class Lost(Exception):
    """Another process has taken the run over."""


@dataclass(slots=True)
class TestRun:
    """Nobody takes it over, or somebody does after `steps`."""

    __test__ = False

    slot: datetime = field(default_factory=clock.now)
    steps: int | None = None

    def still_mine(self) -> None:
        if self.steps == 0:
            raise Lost
        if self.steps:
            self.steps -= 1
