"""Runs the expiry worker, with a dispatcher beside it."""

import math
import threading
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications import dispatch
from ops import beats, metrics
from ops.chores import Chore, Chores
from ops.worker import run_cycles, stop_on_signals
from safety import expiry, failsafe, prompts, stops
from sos import escalation

# Done after each expiry cycle, a portion of each; an expiry that comes due meanwhile goes first. None calls a carrier.
CHORES = (
    Chore("escalation", lambda: escalation.advance_due(clock.now()), escalation.next_wave),
    Chore("check prompts", lambda: prompts.send_due(clock.now()), prompts.next_at),
    Chore("stopped texts", lambda: stops.tell_due(clock.now()), stops.next_at),
    # Where a crash can leave some each cycle looks too; where nothing can, its three looks were a tenth of a cycle.
    Chore("half-done alarms", expiry.repair, lambda: None),
)
MOST_REST_SECONDS = 0.25


class Command(BaseCommand):
    """manage.py run_timer_worker"""

    # Of no use here, and a broken page must not keep alerts from going out.
    requires_system_checks = ()
    help = "Expire due timers and send their alerts until stopped. SIGTERM and SIGINT finish the cycle."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--once, --batch, --poll, --no-dispatch."""
        parser.add_argument("--once", action="store_true", help="Deal with all that is due now, then exit.")
        parser.add_argument("--batch", type=_batch, default=expiry.BATCH, help="Timers in one transaction.")
        parser.add_argument(
            "--poll", type=_poll, default=settings.TIMER_POLL_SECONDS, help="Longest sleep between cycles, in seconds."
        )
        parser.add_argument("--no-dispatch", action="store_true", help="Leave sending to run_dispatch_worker.")

    def handle(self, *, once: bool, batch: int, poll: float, no_dispatch: bool, **_options: Any) -> None:
        """Run."""
        if once:
            self._run_once(batch=batch, dispatching=not no_dispatch)
            return
        stop = stop_on_signals()
        metrics.serve()
        sender = threading.Thread(
            target=dispatch.run, args=(stop,), kwargs={"poll_seconds": settings.DISPATCH_POLL_SECONDS}, name="dispatch"
        )
        # In a thread of its own, because it calls a carrier.
        keeper = threading.Thread(target=failsafe.run, args=(stop,), name="fail-safe")
        beside = [*([] if no_dispatch else [sender]), *([keeper] if failsafe.needed() else [])]
        for thread in beside:
            thread.start()
        self.stdout.write(f"Expiring timers every {poll:g} s, {batch} at a time. Ctrl-C stops.")
        chores, beat = Chores(CHORES), beats.Beat(beats.TIMER)
        run_cycles(
            lambda: _turn(chores, batch=batch, workers=beat.workers),
            stop=stop,
            wait=lambda result, rest: _sleep(stop, result, poll, chores, rest),
            beat=beat,
        )
        for thread in beside:
            thread.join()

    def _run_once(self, *, batch: int, dispatching: bool) -> None:
        total = result = expiry.cycle(batch=batch)
        while result.full:
            result = expiry.cycle(batch=batch)
            total += result
        Chores(CHORES).finish()
        if dispatching:
            dispatcher = dispatch.Dispatcher()
            dispatcher.drain()
            dispatcher.close()
        if settings.FAIL_SAFE and not failsafe.missing_settings():
            failsafe.work(clock.now())
        self.stdout.write(
            f"processed={total.processed} incidents_opened={total.incidents_opened} joined={total.joined}"
        )


def _turn(chores: Chores, *, batch: int, workers: int) -> expiry.CycleResult:
    """The expiry first; the rest only when no timer is due any more."""
    result = expiry.cycle(batch=batch, repairing=not has_transactions())
    if not result.full:
        chores.run(give_way=_expiry_due, workers=workers)
    return result


def _expiry_due() -> bool:
    coming = expiry.next_deadline()
    return coming is not None and coming <= clock.now()


def _sleep(stop: threading.Event, result: expiry.CycleResult, poll: float, chores: Chores, rest: float) -> None:
    """Until the earliest coming deadline or chore or the poll interval, whichever is first; a full batch means go on.

    `rest` is for how many seconds timers that come due may gather. After a cycle that had something to do there is no
    look at what comes next: under load that is always the next timer, and a cycle finds it as well.
    """
    if result.full:
        return
    if result.processed:
        stop.wait(min(rest, MOST_REST_SECONDS))
        return
    coming = [at for at in (expiry.next_deadline(), chores.next_at()) if at is not None]
    until = (min(coming) - clock.now()).total_seconds() if coming else poll
    stop.wait(max(min(rest, MOST_REST_SECONDS), min(poll, until)))


def _batch(text: str) -> int:
    """A batch of no timers would be full for ever."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError("a whole number from 1 up is needed")
    return int(text)


def _poll(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ArgumentTypeError("seconds are needed, more than 0")
    return seconds
