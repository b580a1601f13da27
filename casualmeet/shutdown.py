"""An orderly end of the web process: requests that are under way are finished, live sockets told when to come back.

Daphne itself, on SIGTERM, cancels every request and cuts every socket; Channels has no lifespan to hook into. So the
signal is taken first here, and handed on to Daphne (Twisted's reactor) when all is done. Only Daphne's own process is
concerned: elsewhere its reactor never runs, and nothing here does anything.
"""

import itertools
import json
import logging
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from twisted.internet import reactor as _reactor
from twisted.internet.interfaces import IListeningPort

# Which of its interfaces it has depends on the platform, so it has no type that fits.
reactor: Any = _reactor
logger = logging.getLogger(__name__)

Handler = Callable[[int, FrameType | None], Any]
Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

# RFC 6455, IANA's registry of close codes: "Service Restart".
SERVICE_RESTART = 1012
# Clients come back spread over this time, in milliseconds: 2,000 of them as 450 a second.
SOONEST_MS, LATEST_MS = 500, 5000
# A client that is there confirms the end of its socket at once; one that is not is not waited for.
SOCKETS_SECONDS = 2.0
LOOK_SECONDS = 0.05

# Set from the signal on: this process takes no more work. For readiness probes.
stopping = threading.Event()


class Counted:
    """The HTTP application, with a count of its requests that are under way."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.under_way = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass on."""
        self.under_way += 1
        try:
            await self.application(scope, receive, send)
        finally:
            self.under_way -= 1


def install(http: Counted) -> None:
    """Take SIGTERM and SIGINT once the reactor runs, which is when its own handlers are there to hand on to."""
    reactor.callWhenRunning(_take_signals, http)


def _take_signals(http: Counted) -> None:
    if threading.current_thread() is threading.main_thread():  # In `runserver` the reactor runs beside the reloader.
        asked = itertools.count()
        for number in (signal.SIGTERM, signal.SIGINT):
            _take_signal(number, http, asked)


def _take_signal(number: signal.Signals, http: Counted, asked: Iterator[int]) -> None:
    theirs = signal.getsignal(number)
    if not callable(theirs):
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        # Not by the event: a second signal may come while the first has its lock.
        if next(asked):  # Who asks twice does not want to wait.
            theirs(signum, frame)
            return
        stopping.set()
        reactor.callFromThread(_End(http, then=lambda: theirs(signum, frame)).begin)

    signal.signal(number, handle)


class _End:
    """The end of this process, from the signal on. Runs in the reactor's thread."""

    def __init__(self, http: Counted, *, then: Callable[[], object]) -> None:
        self._http = http
        self._then = then
        self._began = time.monotonic()

    def begin(self) -> None:
        """Take no more connections, so that clients who come back reach the next process; then see what is open."""
        for one in reactor.getReaders():
            if IListeningPort.providedBy(one):
                one.stopListening()
        logger.info("Stopping: %d requests, %d live sockets", self._http.under_way, len(_sockets()))
        self._look()

    def _look(self) -> None:
        # Again each time: a handshake may have been under way.
        for socket in _sockets():
            _say_goodbye(socket)
        waited = time.monotonic() - self._began
        busy = self._http.under_way and waited < settings.SHUTDOWN_SECONDS
        open_ = _sockets(closing=True) and waited < SOCKETS_SECONDS
        if busy or open_:
            reactor.callLater(LOOK_SECONDS, self._look)
        else:
            # The last answer's bytes are handed to the network in the reactor's next turns.
            reactor.callLater(2 * LOOK_SECONDS, self._then)


def _sockets(*, closing: bool = False) -> list[WebSocketProtocol]:
    """The live sockets that are open, or also those that wait for the client to confirm their end."""
    states = {WebSocketProtocol.STATE_OPEN, *([WebSocketProtocol.STATE_CLOSING] if closing else [])}
    protocols = [getattr(one, "protocol", None) for one in reactor.getReaders()]
    return [one for one in protocols if isinstance(one, WebSocketProtocol) and one.state in states]


def _say_goodbye(socket: WebSocketProtocol) -> None:
    """`{"type": "restart", "retry_ms": 500 to 5000}`, then close code 1012."""
    retry_ms = random.randint(SOONEST_MS, LATEST_MS)
    socket.serverSend(json.dumps({"type": "restart", "retry_ms": retry_ms}))
    # Not serverClose: of the standard's codes it lets applications use 1000 only.
    socket.sendCloseFrame(code=SERVICE_RESTART)
