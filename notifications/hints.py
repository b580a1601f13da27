"""Sends hints through Redis from a thread of its own, so that no caller ever waits for Redis or sees it fail.

A hint that is lost costs a poll interval, nothing else: so when the queue is full or Redis is down, hints are dropped.
"""

import asyncio
import logging
import queue
import threading
import time

import redis.asyncio
from channels.layers import get_channel_layer
from django.conf import settings

logger = logging.getLogger(__name__)

QUEUE_SIZE = 20_000
BREAKER_SECONDS = 5.0
# Hints for one group within this time are one hint.
COALESCE_SECONDS = 0.02
# The one group of all processes with live sockets: a hint names those whom it concerns, and who has none passes over it.
LIVE = "live"
GROUPS_IN_A_MESSAGE = 500

_queue: queue.Queue[tuple[str, str]] = queue.Queue(maxsize=QUEUE_SIZE)
_thread: threading.Thread | None = None
_lock = threading.Lock()


def send_to_group(group: str) -> None:
    """Tell every live socket of a group to look at the database."""
    _put("group", group)


def send_to_redis(channel: str) -> None:
    """Publish an empty message on a Redis channel."""
    _put("channel", channel)


def flush(seconds: float) -> None:
    """Give the waiting hints so long to leave: for a process that is about to end."""
    until = time.monotonic() + seconds
    while _queue.unfinished_tasks and time.monotonic() < until:
        time.sleep(COALESCE_SECONDS / 4)


def _put(kind: str, name: str) -> None:
    if not settings.REDIS_URL:
        return
    _start()
    try:
        _queue.put_nowait((kind, name))
    except queue.Full:
        logger.warning("Dropped a hint: the queue is full.")


def _start() -> None:
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="hints", daemon=True)
            _thread.start()


def _run() -> None:
    """One event loop, and so one set of Redis connections, for the life of the process."""
    loop = asyncio.new_event_loop()
    client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1)
    while True:
        batch, count = _next_batch()
        try:
            loop.run_until_complete(_send(client, batch))
        except Exception as error:  # noqa: BLE001 - a hint may fail in any way; nothing may follow from it
            logger.warning("Could not send hints: %s: %s", type(error).__name__, error)
            time.sleep(BREAKER_SECONDS)
            _drop_all()
        for _ in range(count):
            _queue.task_done()


def _next_batch() -> tuple[list[tuple[str, str]], int]:
    """The waiting hints without repeats, in order, and how many they were; blocks until there is one."""
    waiting = [_queue.get()]
    time.sleep(COALESCE_SECONDS)
    while not _queue.empty():
        waiting.append(_queue.get_nowait())
    return list(dict.fromkeys(waiting)), len(waiting)


def _drop_all() -> None:
    while not _queue.empty():
        _queue.get_nowait()
        _queue.task_done()


async def _send(client: redis.asyncio.Redis, batch: list[tuple[str, str]]) -> None:
    for kind, name in batch:
        if kind == "channel":
            await client.publish(name, b"")
    layer = get_channel_layer()
    groups = [name for kind, name in batch if kind == "group"]
    for start in range(0, len(groups), GROUPS_IN_A_MESSAGE):
        await layer.group_send(LIVE, {"type": "live.changed", "groups": groups[start : start + GROUPS_IN_A_MESSAGE]})
