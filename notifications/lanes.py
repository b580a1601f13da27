"""The calls of one rank: so many at the same time, while the jobs that were claimed ahead wait their turn.

A lane lives in the thread of the carriers' loop; other threads go through `CarrierLoop`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from notifications.carriers.loop import CarrierLoop
from notifications.claims import Job


class Lane:
    """Begins up to `width` calls at the same time; one that ends makes room for the next job at once."""

    def __init__(self, loop: CarrierLoop, width: int, call: Callable[[Job], Awaitable[None]]) -> None:
        """`call` must not raise."""
        self._loop = loop
        self._width = width
        self._call = call
        self._running = 0
        self._waiting: deque[Job] = deque()

    @property
    def stock(self) -> int:
        """How many jobs wait; may be read from any thread."""
        return len(self._waiting)

    def add(self, jobs: Sequence[Job]) -> None:
        """Take these jobs on; those for which there is room begin now."""
        self._waiting.extend(jobs)
        while self._waiting and self._running < self._width:
            self._running += 1
            self._loop.spawn(self._work(self._waiting.popleft()))

    def clear(self) -> list[Job]:
        """Let go of the jobs that have not begun."""
        left = list(self._waiting)
        self._waiting.clear()
        return left

    async def _work(self, job: Job) -> None:
        try:
            await self._call(job)
            while self._waiting:
                await self._call(self._waiting.popleft())
        finally:
            self._running -= 1
