"""The beat that all live sockets of a process share: one look at the database serves hundreds of them.

Sockets that a hint concerns are looked at at once, all of them every LIVE_POLL_SECONDS. One task does it, in batches,
so that a hint never waits for more than a small one; what it holds is one entry for each open socket, never more.
"""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.db.utils import DatabaseError

from notifications.hints import LIVE
from notifications.looks import Look, look
from ops import metrics

if TYPE_CHECKING:
    from notifications.live import StateConsumer

logger = logging.getLogger(__name__)

# So many that hints concern are looked at at once, and so many of the others: these must not keep a hint waiting.
HINTED = 200
DUE = 50
# However long LIVE_POLL_SECONDS is: heartbeats come with the beats.
SLOWEST_SECONDS = 20.0
LISTEN_AGAIN_SECONDS = 5.0
JOIN_AGAIN_SECONDS = 20.0
# After an error: soon, since a database that was away for a moment must not cost a whole beat.
LOOK_AGAIN_SECONDS = 1.0
# A client that can't be written to for so long is as good as gone.
SEND_SECONDS = 2.0

_beats: dict[asyncio.AbstractEventLoop, "Beat"] = {}


def add(socket: "StateConsumer") -> None:
    """Look for this socket too, from now on."""
    loop = asyncio.get_running_loop()
    if loop not in _beats:
        _beats[loop] = Beat()
    _beats[loop].add(socket)


def discard(socket: "StateConsumer") -> None:
    """Look for it no more; again does no harm. With the last one the beat ends."""
    loop = asyncio.get_running_loop()
    if loop in _beats and not _beats[loop].discard(socket):
        _beats.pop(loop).end()


def look_at(socket: "StateConsumer") -> None:
    """Look for it before others."""
    if known := _beats.get(asyncio.get_running_loop()):
        known.look_at([socket])


class Beat:
    """The open sockets of this event loop, which is to say of this process, and the tasks that serve them."""

    def __init__(self) -> None:
        self._groups: dict[str, set[StateConsumer]] = {}
        # In the order in which they are to be looked at.
        self._hinted: dict[StateConsumer, None] = {}
        self._due: dict[StateConsumer, None] = {}
        self._wake = asyncio.Event()
        self._began = self._next = self._due_at = self._pause = 0.0
        self._layer: Any = get_channel_layer()
        self._channel = f"hints.{uuid4().hex}"
        self._tasks = [asyncio.create_task(work()) for work in (self._listen, self._stay_joined, self._run)]

    def add(self, socket: "StateConsumer") -> None:
        """Look for this socket too, from now on."""
        if not self._has(socket):
            self._groups.setdefault(socket.group, set()).add(socket)
            metrics.SOCKETS_OPEN.labels(socket.kind).inc()
        self.look_at([socket])

    def discard(self, socket: "StateConsumer") -> bool:
        """Look for it no more. False when there is none left."""
        if self._has(socket):
            metrics.SOCKETS_OPEN.labels(socket.kind).dec()
            self._groups[socket.group].discard(socket)
            if not self._groups[socket.group]:
                del self._groups[socket.group]
            self._hinted.pop(socket, None)
            self._due.pop(socket, None)
        return bool(self._groups)

    def end(self) -> None:
        """Stop the tasks."""
        for task in self._tasks:
            task.cancel()

    def look_at(self, sockets: Iterable["StateConsumer"]) -> None:
        """Look for these before others. Many wishes before the next look are one."""
        self._hinted |= dict.fromkeys(socket for socket in sockets if self._has(socket))
        self._wake.set()

    def _has(self, socket: "StateConsumer") -> bool:
        return socket in self._groups.get(socket.group, ())

    def _all(self) -> list["StateConsumer"]:
        return [socket for sockets in self._groups.values() for socket in sockets]

    async def _listen(self) -> None:
        while self._layer is not None:
            try:
                self._heard(await self._layer.receive(self._channel))
            except Exception as error:  # noqa: BLE001 - without Redis the beat goes on
                _no_hints(error)
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    def _heard(self, message: dict[str, Any]) -> None:
        for group in message.get("groups", ()):
            self.look_at(self._groups.get(group, ()))

    async def _stay_joined(self) -> None:
        """Join, and again from time to time: a restarted Redis may have forgotten its subscribers."""
        if self._layer is None:
            return
        await asyncio.sleep(0)  # Only a channel that somebody listens on can join a group.
        joined = False
        try:
            while True:
                try:
                    await self._layer.group_add(LIVE, self._channel)
                    if not joined:
                        self.look_at(self._all())  # Hints may have been missed until now.
                    joined = True
                except Exception as error:  # noqa: BLE001 - without Redis the beat goes on
                    _no_hints(error)
                    joined = False
                await asyncio.sleep(JOIN_AGAIN_SECONDS if joined else LISTEN_AGAIN_SECONDS)
        finally:
            with contextlib.suppress(Exception):
                await self._layer.group_discard(LIVE, self._channel)

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception:
                logger.exception("The beat of the live sockets failed; it goes on")
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _turn(self) -> None:
        """One batch, or a wait until there is something to do."""
        loop = asyncio.get_running_loop()
        if not self._due and loop.time() >= self._next:
            self._begin(loop.time())
        beating = bool(self._due)
        batch = self._take(loop.time())
        if not batch:
            until = self._due_at if self._due else self._next
            wait = max(0.0, until - loop.time()) if self._groups else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait)
            self._wake.clear()
            return
        await self._look(batch, at=loop.time())
        if beating and not self._due:
            # A beat that takes long leaves as much time again to everything else.
            self._next = max(self._next, 2 * loop.time() - self._began)

    def _begin(self, now: float) -> None:
        """Begin a beat: its batches are spread over half of its time, so that hints meet a process at rest."""
        period = min(settings.LIVE_POLL_SECONDS, SLOWEST_SECONDS)
        self._due = dict.fromkeys(self._all())
        self._began = self._due_at = now
        self._next = now + period
        self._pause = period / 2 / max(1, math.ceil(len(self._due) / DUE))

    def _take(self, now: float) -> list["StateConsumer"]:
        """Those that hints concern, and, when it is their time, some of the others."""
        batch = list(itertools.islice(self._hinted, HINTED))
        for socket in batch:
            del self._hinted[socket]
            self._due.pop(socket, None)
        if self._due and now >= self._due_at:
            self._due_at = now + self._pause
            rest = list(itertools.islice(self._due, DUE))
            for socket in rest:
                del self._due[socket]
                self._hinted.pop(socket, None)
            batch += rest
        return batch

    async def _look(self, batch: list["StateConsumer"], *, at: float) -> None:
        looks = [Look(socket, snapshot=socket.wants_snapshot(at)) for socket in batch]
        try:
            await database_sync_to_async(look)(looks)
        except Exception:
            for socket in batch:
                socket.want_snapshot()
            raise
        away = [one.error for one in looks if isinstance(one.error, DatabaseError)]
        if away:
            logger.warning("%d live sockets could not read the database: %s", len(away), type(away[0]).__name__)
            self._next = min(self._next, at + LOOK_AGAIN_SECONDS)
        tasks = [asyncio.create_task(self._deliver(socket, one)) for socket, one in zip(batch, looks, strict=True)]
        _, stuck = await asyncio.wait(tasks, timeout=SEND_SECONDS)
        for socket, task in zip(batch, tasks, strict=True):
            if task in stuck:
                task.cancel()
                discard(socket)
                logger.warning("A live socket takes nothing any more; it is not served")

    async def _deliver(self, socket: "StateConsumer", found: Look) -> None:
        if not self._has(socket):
            return
        try:
            if not await socket.take(found, at=asyncio.get_running_loop().time()):
                discard(socket)
        except Exception:
            logger.exception("A live socket failed; the client reconnects")
            discard(socket)
            with contextlib.suppress(Exception):
                await socket.close(1011)


def _no_hints(error: Exception) -> None:
    logger.warning("No hints for a live socket, polling goes on: %s", type(error).__name__)
