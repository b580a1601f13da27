"""The simulator's time: it runs with the machine's, can be frozen, and can be moved on at once."""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClock:
    """Times are seconds since 1970. Everything but `now` belongs to the simulator's event loop.

    Work started with `spawn`, or done in `counted`, is waited for: `settle` returns when each piece of it is done or
    sleeps on this clock.
    """

    def __init__(self, *, start: float | None = None, frozen: bool = False) -> None:
        self._frozen_at = (time.time() if start is None else start) if frozen else None
        self._offset = 0.0 if start is None else start - time.time()
        self._timers: list[tuple[float, int, asyncio.Future[None], bool]] = []
        self._numbers = itertools.count()
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.failures: list[BaseException] = []

    def now(self) -> float:
        return time.time() + self._offset if self._frozen_at is None else self._frozen_at

    async def sleep(self, seconds: float) -> None:
        await self.until(self.now() + seconds)

    async def until(self, when: float) -> None:
        """Return when this clock shows `when`, at once where that is past."""
        if when <= self.now():
            return
        counted = asyncio.current_task() in self._tasks
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (when, next(self._numbers), future, counted))
        self._set_ticker()
        if counted:
            self._add(-1)
        try:
            await future
        except asyncio.CancelledError:
            if counted and future.cancelled():
                self._add(1)
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else. What it raises is kept in `failures`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._add(1)
        task.add_done_callback(self._done)
        return task

    async def counted(self, work: Awaitable[T]) -> T:
        """Have `settle` wait for what this task does meanwhile, too."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("not in a task")
        self._tasks.add(task)
        self._add(1)
        try:
            return await work
        finally:
            self._tasks.discard(task)
            self._add(-1)

    async def settle(self) -> None:
        await self._idle.wait()

    async def advance(self, seconds: float) -> None:
        """Move on, doing on the way what is due, in the order of its times."""
        target = self.now() + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            self._set(max(self._timers[0][0], self.now()))
            self._fire()
            await self.settle()
        self._set(max(target, self.now()))
        self._fire()
        await self.settle()

    async def close(self) -> None:
        """Stop everything that was spawned."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set(self, now: float) -> None:
        if self._frozen_at is None:
            self._offset += now - self.now()
        else:
            self._frozen_at = now

    def _fire(self) -> None:
        # A reading of its own for the whole round: the running clock moves while we compare.
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            _, _, future, counted = heapq.heappop(self._timers)
            if not future.done():
                if counted:
                    self._add(1)
                future.set_result(None)
        self._set_ticker()

    def _set_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        if self._frozen_at is None and self._timers and self._timers[0][0] < math.inf:
            wait = max(0.0, self._timers[0][0] - self.now())
            self._ticker = asyncio.get_running_loop().call_later(wait, self._fire)

    def _add(self, number: int) -> None:
        self._busy += number
        if self._busy:
            self._idle.clear()
        else:
            self._idle.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._add(-1)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)
