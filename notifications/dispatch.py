"""The dispatcher: takes queued deliveries under a lease, calls the carriers, writes down what they answered.

One thread talks to the database, in batches; the calls run in an event loop of their own. So a call never happens
inside a transaction (P5), and an answer waits in memory while the database is away. Any number of dispatchers share
the queue: every step is a conditional update.
"""

import asyncio
import functools
import logging
import queue
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.utils import DatabaseError

from casualmeet import clock, logs
from casualmeet.db import is_transient
from notifications import health, polling, receipts, wake
from notifications.answers import finish, finish_found
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome
from notifications.carriers.loop import CarrierLoop
from notifications.claims import LONGEST_ASKING, Job, claim_jobs, first_due, hand_back, others_due
from notifications.lanes import Lane
from notifications.models import Channel, DeliveryAttempt, Priority
from notifications.pacing import Pace, Portion
from notifications.recovery import recover_leases
from ops import beats
from ops.worker import run_cycles

logger = logging.getLogger(__name__)

RECOVERY_SECONDS = 2.0
RECEIPTS_SECONDS = 1.0
GATHER_SECONDS = 0.005
MOST_REST_SECONDS = 0.2
# How long a thread that wants to run waits for one that computes. The carriers' loop wants to after each request that it
# writes: with Python's 5 ms a batch of twenty would wait a tenth of a second for the storing beside it.
SWITCH_SECONDS = 0.0005
# While enough waits in memory to keep the slots busy: a batch costs nearly the same, whatever its size.
GATHER_LONGER_SECONDS = 0.03
# What is claimed ahead fills a slot the moment it falls free. At least as many as there are slots; for what is no SOS also
# what goes out in a moment.
MOST_AHEAD = 500
CLOSING_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Counts:
    """What one cycle did."""

    claimed: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job: the carrier's answer, or the id under which its lost predecessor was found.

    Neither: it was too late to begin the call.
    """

    job: Job
    answer: Answer | None = None
    found: str | None = None


class Dispatcher:
    """Runs cycles in the calling thread, and up to `concurrency` carrier calls at the same time.

    An SOS has as many slots again, which nothing else may take: slow carriers can't keep it waiting (P8).
    """

    def __init__(self, *, concurrency: int | None = None) -> None:
        self.concurrency = concurrency or settings.DISPATCH_CONCURRENCY
        self._calls = CarrierLoop()
        self._lanes = {
            urgent: Lane(self._calls, self.concurrency, functools.partial(self._call, urgent=urgent))
            for urgent in (True, False)
        }
        self._in_flight = {True: 0, False: 0}
        self._answers: queue.SimpleQueue[tuple[Result, bool]] = queue.SimpleQueue()
        self._unstored: list[Result] = []
        self._recovered_at = 0.0
        self._pace = Pace()
        self._portions = {True: Portion(), False: Portion()}

    @property
    def busy(self) -> bool:
        """Whether a call is out or an answer waits to be stored."""
        return bool(any(self._in_flight.values()) or self._unstored)

    @property
    def stocked(self) -> bool:
        """Whether all slots could be filled once more with what was claimed."""
        return self._lanes[False].stock >= self.concurrency

    def cycle(self) -> Counts:
        """Store the answers that came, take over what dead dispatchers left, and fill the free slots.

        Storing takes longer than claiming, so an SOS that is due is claimed first.
        """
        self._collect_answers()
        now = clock.now()
        claimed = self._claim(urgent=True, now=now) if self._unstored and first_due(now) == Priority.SOS else 0
        finished = self._store_answers()
        self._pace.note(finished)
        now = clock.now()  # what those answers call for is due by now
        if now.timestamp() - self._recovered_at > RECOVERY_SECONDS:
            recover_leases(now)
            self._recovered_at = now.timestamp()
        return Counts(claimed=claimed + self._fill_slots(now), finished=finished)

    def drain(self) -> None:
        """Work until nothing is due and no call is out; for `--once` and for tests."""
        while self.cycle().claimed or self.busy:
            if self.busy:
                wake.work.wait(timeout=0.5)
                wake.work.clear()

    def close(self) -> None:
        """Claim nothing more, hand back what was not begun, wait for the calls that are out, store their answers."""
        self._hand_back()
        while self._calls.busy:
            wake.work.wait(timeout=CLOSING_LOOK_SECONDS)
            wake.work.clear()
            self._collect_answers()
            try:
                self._store_answers()
            except DatabaseError:
                logger.exception("Answers can't be stored yet")
        self._calls.close()
        self._collect_answers()
        self._store_answers()

    def _fill_slots(self, now: datetime) -> int:
        first = first_due(now)
        if first is None:
            return 0
        claimed = self._claim(urgent=True, now=now) if first == Priority.SOS else 0
        if first != Priority.SOS or others_due(now):
            claimed += self._claim(urgent=False, now=now)
        return claimed

    def _claim(self, *, urgent: bool, now: datetime) -> int:
        """Fill the slots of one lane, and what it claims ahead; returns with how many."""
        ahead = self.concurrency if urgent else max(self.concurrency, min(MOST_AHEAD, self._pace.in_time))
        portion = self._portions[urgent]
        wanted = min(portion.most, self.concurrency + ahead - self._in_flight[urgent])
        began = time.monotonic()
        try:
            jobs = claim_jobs(wanted, urgent=urgent, now=now)
        except Exception:
            portion.failed(wanted)
            raise
        portion.claimed(len(jobs), seconds=time.monotonic() - began)
        self._submit(jobs, urgent=urgent)
        return len(jobs)

    def _submit(self, jobs: list[Job], *, urgent: bool) -> None:
        self._in_flight[urgent] += len(jobs)
        if jobs:
            self._calls.soon(self._lanes[urgent].add, jobs)

    def _hand_back(self) -> None:
        """Where that fails, the leases run out."""
        left = self._calls.run(self._unbegun())
        if not left:
            return
        try:
            hand_back(left, now=clock.now())
        except Exception:
            logger.exception("%d deliveries that were claimed ahead can't be handed back", len(left))
        wake.dispatcher()

    async def _unbegun(self) -> list[Job]:
        left = {urgent: lane.clear() for urgent, lane in self._lanes.items()}
        for urgent, jobs in left.items():
            self._in_flight[urgent] -= len(jobs)
        return [job for jobs in left.values() for job in jobs]

    async def _call(self, job: Job, *, urgent: bool) -> None:
        # Frozen, or kept waiting by slow carriers: by now another dispatcher may have taken it over.
        if time.monotonic() > job.start_by:
            result = Result(job)
        else:
            with logs.about(incident=job.delivery.incident_id, delivery=job.delivery.pk):
                result = await _asked_or_sent(job)
        self._answers.put((result, urgent))
        if not wake.work.is_set():
            wake.work.set()

    def _collect_answers(self) -> None:
        """An answer that came makes room for another call."""
        while not self._answers.empty():
            result, urgent = self._answers.get()
            self._unstored.append(result)
            self._in_flight[urgent] -= 1

    def _store_answers(self) -> int:
        """Only an answer that is stored leaves `_unstored`; a database that is away raises here."""
        results = self._unstored
        if results:
            _store(results)
            self._unstored = []
            health.note([(one.job.attempt.carrier, one.answer) for one in results if one.answer], now=clock.now())
        return len(results)


def run(stop: threading.Event, *, poll_seconds: float, concurrency: int | None = None) -> None:
    """Dispatch until `stop`, then finish the calls that are out and hand back the rest.

    Rides out a database that is away.
    """
    for problem in (*routing.problems(), *routing.push_problems()):
        logger.warning(problem)
    sys.setswitchinterval(SWITCH_SECONDS)
    dispatcher = Dispatcher(concurrency=concurrency)
    listener = threading.Thread(target=wake.listen, args=(stop,), name="wake", daemon=True)
    listener.start()
    poller = threading.Thread(target=_poll, args=(stop,), name="receipts")
    poller.start()
    try:
        run_cycles(
            dispatcher.cycle,
            stop=stop,
            wait=lambda _, rest: _wait(poll_seconds, dispatcher, rest),
            beat=beats.Beat(beats.DISPATCH),
        )
    finally:
        dispatcher.close()
        poller.join()


def _poll(stop: threading.Event) -> None:
    """Ask carriers for receipts that did not come: beside the dispatching, which never waits."""
    loop = CarrierLoop()
    run_cycles(
        lambda: polling.run_once(clock.now(), run=loop.run),
        stop=stop,
        wait=lambda asked, rest: stop.wait(rest if asked == polling.BATCH else RECEIPTS_SECONDS),
    )
    loop.close()


def _wait(poll_seconds: float, dispatcher: Dispatcher, rest: float) -> None:
    """Until there is work; then a moment more, so that answers which come together are stored together."""
    began = time.monotonic()
    if wake.work.wait(timeout=poll_seconds):
        rest = GATHER_LONGER_SECONDS if dispatcher.stocked else min(rest, MOST_REST_SECONDS)
        time.sleep(max(GATHER_SECONDS, rest - (time.monotonic() - began)))
    wake.work.clear()


def _store(results: list[Result]) -> None:
    """All in one transaction; where one of them can't be stored, it alone is left to its lease (P14)."""
    answered = [(result.job, result.answer) for result in results if result.answer is not None]
    for result in results:
        if result.found is not None:
            _store_alone(result)
    _store_unbegun([result for result in results if result.answer is None and result.found is None])
    if not answered:
        return
    try:
        finish(answered, now=clock.now())
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("Storing %d answers failed; storing them one by one", len(answered))
        for result in results:
            if result.answer is not None:
                _store_alone(result)


def _store_unbegun(results: list[Result]) -> None:
    """Handed back together: they come in numbers when the database is slow, which one by one would make it slower."""
    try:
        hand_back([result.job for result in results], now=clock.now())
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("Handing back %d deliveries failed; handing them back one by one", len(results))
        for result in results:
            _store_alone(result)


def _store_alone(result: Result) -> None:
    delivery = result.job.delivery
    try:
        if result.found is not None:
            finish_found(result.job, result.found, now=clock.now())
        elif result.answer is not None:
            finish([(result.job, result.answer)], now=clock.now())
        else:
            hand_back([result.job], now=clock.now())
    except Exception as error:
        if result.answer is None and is_transient(error):
            raise
        with logs.about(incident=delivery.incident_id, delivery=delivery.pk):
            logger.exception("The answer for delivery %s can't be stored", delivery.pk)


async def _asked_or_sent(job: Job) -> Result:
    """Sent, unless the attempt before it, whose answer was lost, had gone out after all."""
    found = await _ask_about(job, job.doubt) if job.doubt is not None else None
    return Result(job, found=found) if found is not None else Result(job, await _call_carrier(job))


async def _ask_about(job: Job, doubt: DeliveryAttempt) -> str | None:
    """The id of the attempt before this one, whose answer was lost, where its carrier knows of it; else None."""
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
