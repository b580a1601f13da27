"""The event loop in which all carrier calls run: one thread carries as many calls as are out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from notifications.carriers import routing

R = TypeVar("R")


class CarrierLoop:
    """A thread with an event loop, from the first use until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carriers", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something that was spawned still runs."""
        return bool(self._tasks)

    def soon(self, function: Callable[[R], None], argument: R) -> None:
        """Have the function called in the loop's thread, and return at once; in order."""
        self._loop.call_soon_threadsafe(function, argument)

    def spawn(self, task: Coroutine[Any, Any, None]) -> None:
        """Run this beside everything else; only in the loop's own thread. It must not raise."""
        running = self._loop.create_task(task)
        # The loop itself holds its tasks weakly only.
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """What the call returns, or raises."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def close(self) -> None:
        """Wait for the calls that are out, close the connections, end the thread."""
        self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await routing.close()
        await self._loop.shutdown_default_executor()
