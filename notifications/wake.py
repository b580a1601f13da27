"""Wakes the dispatcher. Only a hint: polling finds the same work a moment later.

Inside one process it is an event; between processes a Redis channel, when REDIS_URL is set.
"""

import logging
import threading

import redis
from django.conf import settings

from notifications import hints

logger = logging.getLogger(__name__)

CHANNEL = "cm-safety:wake:dispatch"
RECONNECT_SECONDS = 2.0

work = threading.Event()


def dispatcher() -> None:
    """Say that something was queued. Never raises, never waits."""
    work.set()
    hints.send_to_redis(CHANNEL)


def listen(stop: threading.Event) -> None:
    """Set `work` for every hint from another process, until `stop`; run in a thread of its own."""
    if not settings.REDIS_URL:
        return
    while not stop.is_set():
        try:
            _listen_once(stop)
        except redis.RedisError as error:
            logger.warning("No wake-ups from Redis, polling goes on: %s", error)
            stop.wait(RECONNECT_SECONDS)


def _listen_once(stop: threading.Event) -> None:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, health_check_interval=15)
    with client, client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(CHANNEL)
        while not stop.is_set():
            if channel.get_message(timeout=1.0):
                work.set()
