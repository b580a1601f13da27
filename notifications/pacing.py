"""How much a dispatcher claims at once: enough to keep its calls busy, and no more than it can begin in time."""

import time
from typing import Final

# What is claimed ahead fills a slot the moment it falls free: as much as goes out in this time.
AHEAD_SECONDS: Final = 0.3
# Answers that come within this time count as one moment.
MOMENT_SECONDS: Final = 0.005
# A claim that takes longer takes fewer the next time. A call is begun within 14 s of its claim, or never.
CLAIM_SECONDS: Final = 3.0
MOST_CLAIMED: Final = 1000


class Pace:
    """How many calls end in a second, averaged over the last cycles."""

    def __init__(self) -> None:
        self._per_second = 0.0
        self._noted_at = time.monotonic()

    def note(self, ended: int) -> None:
        """So many since the last time."""
        now = time.monotonic()
        latest = ended / max(now - self._noted_at, MOMENT_SECONDS)
        self._per_second = (self._per_second + latest) / 2
        self._noted_at = now

    @property
    def in_time(self) -> int:
        """How many that makes in AHEAD_SECONDS."""
        return int(self._per_second * AHEAD_SECONDS)


class Portion:
    """How many deliveries one claim may take.

    On a database so slow that a claim outlasts what its calls may wait, all of them would be handed back and claimed
    again, for ever. So a claim that took too long is followed by one for as many as there is time for, one that failed
    by half as many, and a quick one by up to twice as many.
    """

    def __init__(self) -> None:
        self.most = MOST_CLAIMED

    def claimed(self, count: int, *, seconds: float) -> None:
        """So many were claimed in this time."""
        if seconds > CLAIM_SECONDS:
            self.most = max(1, min(self.most, int(count * CLAIM_SECONDS / seconds)))
        else:
            self.most = min(MOST_CLAIMED, 2 * self.most)

    def failed(self, asked: int) -> None:
        """A claim for so many ended with an error: it may have been one that the database gave up."""
        self.most = max(1, min(self.most, asked) // 2)
