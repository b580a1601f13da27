"""The event loop in which all carrier calls run: one thread carries as many calls as are out."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from notifications.carriers import routing

R = TypeVar("R")


class CarrierLoop:
    """A thread with an event loop, from the first use until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carriers", daemon=True)
        self._thread.start()

    def start(self, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Start these calls and return at once; they must not raise."""
        self._loop.call_soon_threadsafe(self._start, list(calls))

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """What the call returns, or raises."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def close(self) -> None:
        """Wait for the calls that are out, close the connections, end the thread."""
        self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, calls: list[Coroutine[Any, Any, None]]) -> None:
        for call in calls:
            task = self._loop.create_task(call)
            # The loop itself holds its tasks weakly only.
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _finish(self) -> None:
        while self._calls:
            await asyncio.wait(self._calls)
        await routing.close()
        await self._loop.shutdown_default_executor()
