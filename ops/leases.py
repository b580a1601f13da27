"""Which process may do something that only one at a time should: a lease in the database, and before it a Redis lock.

The lease decides: its fence rises with each new holder, so that what an old one still writes can be told. Redis only
spares the database the others' tries, and nothing is lost without it. Why both: docs/decisions/scheduled-jobs.md.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import QuerySet
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import LockError, RedisError
from redis.lock import Lock
from redis.retry import Retry

from casualmeet import clock
from casualmeet.db import insert_missing
from ops.models import Lease

logger = logging.getLogger(__name__)

REDIS_LIMIT_SECONDS = 1.0
# So long nobody asks a Redis that did not answer; each try may take its whole limit.
REDIS_PAUSE_SECONDS = 10.0

Answer = Lock | Literal["busy", "gone"]


def lease_time() -> timedelta:
    """How long a holder may be silent before it is taken for dead."""
    return timedelta(seconds=settings.JOB_LEASE_SECONDS)


@dataclass(slots=True)
class Held:
    """A lease of this process. `slot` as of when it was taken."""

    name: str
    holder: UUID
    fence: int
    slot: datetime | None
    lock: Lock | None


class RedisLocks:
    """Locks in Redis: SET NX PX with a random token; released and renewed by scripts that compare the token."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(
            url,
            socket_connect_timeout=REDIS_LIMIT_SECONDS,
            socket_timeout=REDIS_LIMIT_SECONDS,
            # A SET NX that is sent again after its answer was lost finds its own lock and takes it for another's.
            retry=Retry(NoBackoff(), 0),
        )
        self._gone_until = 0.0
        self._gone = False

    def take(self, name: str) -> Answer:
        """The lock, or why there is none."""
        if time.monotonic() < self._gone_until:
            return "gone"
        # Another thread may release it than took it.
        lock = Lock(self._client, f"cm-safety:lease:{name}", timeout=lease_time().total_seconds(), thread_local=False)
        try:
            taken = lock.acquire(blocking=False)
        except RedisError as error:
            self._lost(error)
            return "gone"
        if self._gone:
            logger.info("Redis answers again")
            self._gone = False
        return lock if taken else "busy"

    def renew(self, lock: Lock, name: str) -> Lock | None:
        """The lock with its whole time before it, or another where Redis has forgotten it; None: go on without."""
        try:
            lock.reacquire()
        except LockError:
            again = self.take(name)
            logger.warning("Redis no longer holds the lock of %r; its lease in the database goes on", name)
            return again if isinstance(again, Lock) else None
        except RedisError as error:
            self._lost(error)
        return lock

    def release(self, lock: Lock) -> None:
        """Let others have it, if it is still ours."""
        try:
            lock.release()
        except LockError:
            pass
        except RedisError as error:
            self._lost(error)

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    def _lost(self, error: RedisError) -> None:
        self._gone_until = time.monotonic() + REDIS_PAUSE_SECONDS
        if not self._gone:
            logger.warning("Redis does not answer (%s): the leases in the database alone decide until it does", error)
            self._gone = True


class Leases:
    """The leases of one process. For one thread."""

    def __init__(self, redis_url: str = "") -> None:
        self.holder = uuid4()
        self._redis = RedisLocks(redis_url) if redis_url else None

    def take(self, name: str) -> Held | None:
        """The lease, for `lease_time()`; None while another process holds it."""
        answer: Answer = self._redis.take(name) if self._redis else "gone"
        if answer == "busy":
            return None
        lock = answer if isinstance(answer, Lock) else None
        held = None
        try:
            held = self._take(name, lock)
        finally:
            if held is None:
                self._unlock(lock)
        return held

    def renew(self, held: Held) -> bool:
        """Begin its time anew; False when it is another's by now."""
        if not self._mine(held).update(until=clock.now() + lease_time()):
            return False
        if self._redis and held.lock:
            held.lock = self._redis.renew(held.lock, held.name)
        return True

    def mark(self, held: Held, slot: datetime) -> bool:
        """Note the latest slot; False when the lease is another's by now."""
        return self._mine(held).update(slot=slot) == 1

    def release(self, held: Held) -> None:
        """Let others have it, if it is still ours."""
        try:
            self._mine(held).update(holder=None, until=clock.now())
        finally:
            self._unlock(held.lock)

    def close(self) -> None:
        """Drop the connections to Redis."""
        if self._redis:
            self._redis.close()

    def _take(self, name: str, lock: Lock | None) -> Held | None:
        now = clock.now()
        lease = Lease.objects.filter(name=name, until__lte=now).first()
        if lease is None:
            return None
        fence = lease.fence + 1
        taken = Lease.objects.filter(name=name, fence=lease.fence, until__lte=now).update(
            fence=fence, holder=self.holder, until=now + lease_time()
        )
        return Held(name, self.holder, fence, lease.slot, lock) if taken else None

    def _mine(self, held: Held) -> QuerySet[Lease]:
        return Lease.objects.filter(name=held.name, fence=held.fence, holder=held.holder)

    def _unlock(self, lock: Lock | None) -> None:
        if self._redis and lock:
            self._redis.release(lock)


def know(names: Iterable[str]) -> None:
    """Make the leases that are not there yet. What is known from now on has no slots before now."""
    now = clock.now()
    insert_missing(Lease, [Lease(name=name, until=now, slot=now) for name in names])
