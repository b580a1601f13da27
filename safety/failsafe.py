"""The fail-safe for our own death: backup alerts that the carrier keeps and sends by itself (setting FAIL_SAFE).

`failsafe_alerts` has the rows and the rule, `failsafe_carrier` the calls; here is the work that a worker does, in a
thread of its own: a carrier that is slow must not hold up an expiry.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings

from casualmeet import clock
from notifications.carriers.twilio_schedule import TwilioScheduler
from ops.worker import run_cycles
from safety import failsafe_alerts
from safety.failsafe_carrier import make_it_so
from safety.models import FailSafeAlert

logger = logging.getLogger(__name__)

BATCH = 200
CONCURRENCY = 20
POLL_SECONDS = 1.0
POLL_SECONDS_WHEN_OFF = 60.0

_begin = sync_to_async(failsafe_alerts.begin, thread_sensitive=True)


def missing_settings() -> list[str]:
    """What Twilio needs for scheduling and was not given."""
    needed = ("TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN", "TWILIO_MESSAGING_SERVICE_SID")
    return [name for name in needed if not getattr(settings, name)]


def work(now: datetime) -> int:
    """One portion: first what is not settled, then what is to be looked after."""
    return settle(now) + reconcile(now)


def settle(now: datetime, limit: int = BATCH) -> int:
    """Make what stands at the carrier what is wanted, where it is not, or may not be. Returns the alerts looked at."""
    return _work_on(_due(now, limit, settled=False))


def reconcile(now: datetime, limit: int = BATCH) -> int:
    """Ask the carrier how those stand that were in order, each every ten minutes, and mend what is not."""
    return _work_on(_due(now, limit, settled=True))


def run(stop: threading.Event) -> None:
    """Work until `stop`; for a thread."""
    if missing := missing_settings():
        logger.error("Backup alerts can be neither scheduled nor cancelled: set %s.", ", ".join(missing))
        return
    poll = POLL_SECONDS if settings.FAIL_SAFE else POLL_SECONDS_WHEN_OFF
    run_cycles(lambda: work(clock.now()), stop=stop, wait=lambda done, _: done or stop.wait(poll))


def needed() -> bool:
    """Whether there may be anything to do: it is on, or it may have been, so that something may stand at the carrier."""
    return settings.FAIL_SAFE or not missing_settings()


def _due(now: datetime, limit: int, *, settled: bool) -> list[tuple[UUID, datetime]]:
    due = FailSafeAlert.objects.filter(settled=settled, next_try_at__lte=now).order_by("next_try_at")
    return [(pk, at) for pk, at in due.values_list("pk", "next_try_at")[:limit] if at]


def _work_on(due: Sequence[tuple[UUID, datetime]]) -> int:
    if due:
        async_to_sync(_all)(due)
    return len(due)


async def _all(due: Sequence[tuple[UUID, datetime]]) -> None:
    """Each under a lease of its own; one that fails is left to the end of its lease (P14)."""
    carrier = TwilioScheduler(
        settings.TWILIO_ACCOUNT_SID,
        settings.TWILIO_AUTH_TOKEN,
        messaging_service_sid=settings.TWILIO_MESSAGING_SERVICE_SID,
        base_url=settings.CARRIER_SIMULATOR_URL or settings.TWILIO_API_BASE_URL,
    )
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(pk: UUID, next_try_at: datetime) -> None:
        async with gate:
            task = await _begin(pk, next_try_at=next_try_at)
            if task is not None:
                await make_it_so(task, carrier)

    try:
        results = await asyncio.gather(*(one(pk, at) for pk, at in due), return_exceptions=True)
    finally:
        await carrier.close()
    for (pk, _), result in zip(due, results, strict=True):
        if isinstance(result, Exception):
            logger.error("Backup alert %s failed; it is tried again", pk, exc_info=result)
        elif isinstance(result, BaseException):
            raise result
