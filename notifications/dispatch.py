"""The dispatcher: takes queued deliveries under a lease, calls the carriers, writes down what they answered.

One thread talks to the database, in batches; the calls run in an event loop of their own. So a call never happens
inside a transaction (P5), and an answer waits in memory while the database is away. Any number of dispatchers share
the queue: every step is a conditional update.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from casualmeet import clock, logs
from casualmeet.db import is_transient
from notifications import health, measuring, polling, receipts, retention, wake
from notifications.answers import finish, finish_found
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome
from notifications.carriers.loop import CarrierLoop
from notifications.claims import LONGEST_ASKING, Job, claim_jobs
from notifications.models import Channel
from notifications.recovery import recover_leases
from ops import beats
from ops.worker import run_cycles

logger = logging.getLogger(__name__)

RECOVERY_SECONDS = 2.0
RECEIPTS_SECONDS = 1.0
TRIM_SECONDS = 600.0
GATHER_SECONDS = 0.005
# So many times the slots are claimed: what is claimed ahead fills a slot the moment it falls free.
AHEAD = 2
NOT_SENT = Answer(Outcome.TRANSIENT, error_class="transient", detail="Not sent: its lease was nearly over.")


@dataclass(frozen=True, slots=True)
class Counts:
    """What one cycle did."""

    claimed: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job: the carrier's answer, or the id under which its lost predecessor was found."""

    job: Job
    answer: Answer | None
    found: str = ""


class Dispatcher:
    """Runs cycles in the calling thread, and up to `concurrency` carrier calls at the same time.

    An SOS has as many slots again, which nothing else may take: slow carriers can't keep it waiting (P8).
    """

    def __init__(self, *, concurrency: int | None = None) -> None:
        self.concurrency = concurrency or settings.DISPATCH_CONCURRENCY
        self._calls = CarrierLoop()
        self._slots = {urgent: asyncio.Semaphore(self.concurrency) for urgent in (True, False)}
        self._in_flight = {True: 0, False: 0}
        self._answers: queue.SimpleQueue[tuple[Result, bool]] = queue.SimpleQueue()
        self._unstored: list[Result] = []
        self._recovered_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a call is out or an answer waits to be stored."""
        return bool(any(self._in_flight.values()) or self._unstored)

    def cycle(self, *, claim: bool = True) -> Counts:
        """Store the answers that came, take over what dead dispatchers left, and fill the free slots."""
        finished = self._store_answers()
        now = clock.now()
        if now.timestamp() - self._recovered_at > RECOVERY_SECONDS:
            recover_leases(now)
            self._recovered_at = now.timestamp()
        claimed = self._fill_slots(now) if claim else 0
        return Counts(claimed=claimed, finished=finished)

    def drain(self) -> None:
        """Work until nothing is due and no call is out; for `--once` and for tests."""
        while self.cycle().claimed or self.busy:
            if self.busy:
                wake.work.wait(timeout=0.5)
                wake.work.clear()

    def close(self) -> None:
        """Claim nothing more, wait for the calls that are out, store their answers."""
        self._calls.close()
        self._store_answers()

    def _fill_slots(self, now: datetime) -> int:
        claimed = 0
        for urgent in (True, False):
            jobs = claim_jobs(AHEAD * self.concurrency - self._in_flight[urgent], urgent=urgent, now=now)
            self._submit(jobs, urgent=urgent)
            claimed += len(jobs)
        return claimed

    def _submit(self, jobs: list[Job], *, urgent: bool) -> None:
        self._in_flight[urgent] += len(jobs)
        if jobs:
            self._calls.start([self._call(job, urgent=urgent) for job in jobs])

    async def _call(self, job: Job, *, urgent: bool) -> None:
        delivery = job.delivery
        async with self._slots[urgent]:
            # Frozen, or kept waiting by slow carriers: by now another dispatcher may have taken it over.
            late = time.monotonic() > job.start_by
            with logs.about(incident=delivery.incident_id, delivery=delivery.pk):
                found = None if late else await _ask_about(job)
                answer = NOT_SENT if late else None if found is not None else await _call_carrier(job)
        self._answers.put((Result(job, answer, found or ""), urgent))
        wake.work.set()

    def _store_answers(self) -> int:
        """Only an answer that is stored leaves `_unstored`; a database that is away raises here."""
        while not self._answers.empty():
            result, urgent = self._answers.get()
            self._unstored.append(result)
            self._in_flight[urgent] -= 1
        results = self._unstored
        if results:
            _store(results)
            self._unstored = []
            given = [(one.job.attempt.carrier, one.answer) for one in results if one.answer]
            health.note([(name, answer) for name, answer in given if answer is not NOT_SENT], now=clock.now())
        return len(results)


def run(stop: threading.Event, *, poll_seconds: float, concurrency: int | None = None) -> None:
    """Dispatch until `stop`, then finish the calls that are out. Rides out a database that is away."""
    for problem in (*routing.problems(), *routing.push_problems()):
        logger.warning(problem)
    dispatcher = Dispatcher(concurrency=concurrency)
    listener = threading.Thread(target=wake.listen, args=(stop,), name="wake", daemon=True)
    listener.start()
    poller = threading.Thread(target=_poll, args=(stop,), name="receipts")
    poller.start()
    try:
        run_cycles(dispatcher.cycle, stop=stop, wait=lambda _: _wait(poll_seconds), role=beats.DISPATCH)
    finally:
        dispatcher.close()
        poller.join()


def _poll(stop: threading.Event) -> None:
    """Ask carriers for receipts that did not come, and clear away old jobs: beside the dispatching, which never waits."""
    trimmed_at = -math.inf

    def cycle() -> None:
        nonlocal trimmed_at
        polling.run_once(clock.now())
        if time.monotonic() - trimmed_at > TRIM_SECONDS:
            trimmed_at = time.monotonic()
            retention.trim(clock.now())
            measuring.trim(clock.now())

    run_cycles(cycle, stop=stop, wait=lambda _: stop.wait(RECEIPTS_SECONDS))


def _wait(poll_seconds: float) -> None:
    """Until there is work; then a moment more, so that answers which come together are stored together."""
    if wake.work.wait(timeout=poll_seconds):
        time.sleep(GATHER_SECONDS)
    wake.work.clear()


def _store(results: list[Result]) -> None:
    """All in one transaction; where one of them can't be stored, it alone is left to its lease (P14)."""
    for result in results:
        if result.answer is None:
            _store_alone(result)
    answered = [(result.job, result.answer) for result in results if result.answer is not None]
    try:
        finish(answered, now=clock.now())
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("Storing %d answers failed; storing them one by one", len(answered))
        for result in results:
            if result.answer is not None:
                _store_alone(result)


def _store_alone(result: Result) -> None:
    delivery = result.job.delivery
    try:
        if result.answer is None:
            finish_found(result.job, result.found, now=clock.now())
        else:
            finish([(result.job, result.answer)], now=clock.now())
    except Exception as error:
        if result.answer is None and is_transient(error):
            raise
        with logs.about(incident=delivery.incident_id, delivery=delivery.pk):
            logger.exception("The answer for delivery %s can't be stored", delivery.pk)


async def _ask_about(job: Job) -> str | None:
    """The id of the attempt before this one, whose answer was lost, where its carrier knows of it; else None."""
    doubt = job.doubt
    if doubt is None:
        return None
    if doubt.receipt_rank and doubt.receipt not in receipts.FAILED:
        return doubt.carrier_message_id  # a receipt has come meanwhile: so it was taken
    find = getattr(routing.get(doubt.carrier), "find", None)
    if find is None or job.delivery.channel != Channel.SMS:
        return None
    try:
        async with asyncio.timeout(LONGEST_ASKING.total_seconds()):
            found: str | None = await find(to=job.message.to, text=doubt.text, since=doubt.started_at)
            return found
    except Exception:
        logger.exception("Carrier %s could not be asked", doubt.carrier)
        return None


async def _call_carrier(job: Job) -> Answer:
    carrier = routing.get(job.attempt.carrier)
    if carrier is None:
        return Answer(outcome=Outcome.PERMANENT, error_class="config", detail="This carrier is not configured here.")
    try:
        return await carrier.send(job.message)
    except Exception as error:
        # A carrier must not raise; if one does, nobody knows whether the request left.
        logger.exception("Carrier %s raised", job.attempt.carrier)
        return Answer(outcome=Outcome.UNKNOWN, detail=f"{type(error).__name__} in the carrier's code")
