"""The loop that every worker process runs: cycles that never overlap, and a stop that finishes the cycle."""

import gc
import logging
import math
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import close_old_connections, connection

from casualmeet import clock
from ops import alive, metrics
from ops.beats import Beat

logger = logging.getLogger(__name__)

R = TypeVar("R")

FAILURE_WAIT_SECONDS = 1.0
# New objects between two looks for garbage cycles. A batch makes ten thousands of rows, which are no garbage; the
# default of 700 spent up to a third of a worker's time on looking.
COLLECT_AFTER = 50_000
# After a cycle a worker rests this part of the time that it took, times the workers of its role: a cycle for five rows costs
# little more than one for a single row. In proportion, so that it is short where the machine is quick; and together they
# look no more often than one would, which fills the processors with cycles for single rows.
RESTS = 0.5
# A new one for each cycle of a busy worker would take longer than its statements.
CONNECTION_SECONDS = 60.0
# How long a connection that has just answered is taken to be still there. Should it not, the cycle fails and is done again.
SURE_SECONDS = 1.0


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; they interrupt nothing.

    A thread sets it. A handler runs in the midst of whatever the main thread does, and that may be to set this very event or
    to wait for it: it would wait for ever for a lock that it keeps from being released.
    """
    stop = threading.Event()
    # To put something in takes no lock, so that a handler may.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell() -> None:
        while True:
            logger.info("%s: finishing the cycle", signal.Signals(came.get()).name)
            stop.set()

    threading.Thread(target=tell, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: came.put(signum))
    return stop


def run_cycles(
    cycle: Callable[[], R], *, stop: threading.Event, wait: Callable[[R, float], object], beat: Beat | None = None
) -> None:
    """Run `cycle` until `stop` is set, with `wait` between; a cycle that raises is logged and tried again.

    `wait` gets what the cycle returned, and for how many seconds to let work gather, if the caller's work may wait.

    `beat` is the worker's heartbeat, which tells that a cycle has ended well; without one it works beside another.

    A connection is kept from cycle to cycle, for a minute at most, and looked at before each, once a second at most: after
    a restart of the database the next one gets a fresh one.
    What the process has loaded by now is left out of all later searches for garbage.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    kept_until = sure_until = -math.inf
    while not stop.is_set():
        alive.beat()
        try:
            now = time.monotonic()
            if now > sure_until:
                if now > kept_until or not _usable():
                    close_old_connections()
                    kept_until = now + CONNECTION_SECONDS
                sure_until = now + SURE_SECONDS
            clock.now()
            started = time.perf_counter()
            with metrics.cycle(beat.role if beat else "beside"):
                result = cycle()
            took = time.perf_counter() - started
            if beat:
                beat.cycle_finished(took)
            wait(result, RESTS * took * (beat.workers if beat else 1))
        except Exception:
            logger.exception("The cycle failed; trying again")
            kept_until = sure_until = -math.inf
            stop.wait(FAILURE_WAIT_SECONDS)
    if beat:
        beat.end()
    close_old_connections()


def _usable() -> bool:
    """Whether this thread's connection still answers. MongoDB's client looks after its own."""
    return connection.vendor == "mongodb" or connection.connection is None or connection.is_usable()
