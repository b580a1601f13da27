"""The server, in a thread of its own with its own event loop, and what tests do with it."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, Self, TypeVar

from aiohttp import web

from simulator import credentials
from simulator.callbacks import Sent, SiteCaller
from simulator.calls import Call
from simulator.clock import VirtualClock
from simulator.control import Control
from simulator.face import Face
from simulator.fast2sms import Fast2SMS
from simulator.fcm import FCM, service_account
from simulator.inbound import Inbound
from simulator.journal import Entry, Journal, Request, Wanted
from simulator.pages import Pages
from simulator.rules import Callbacks, Rules, Script
from simulator.twilio import Twilio
from simulator.twilio_api import Account, problem
from simulator.voice import Voice
from simulator.webpush import Browser, WebPush

T = TypeVar("T")

INBOUND_PATH: Final = "/hooks/twilio/sms"
FAST2SMS_PATH: Final = "/hooks/fast2sms/"
PATIENCE_SECONDS: Final = 30


class Simulator:
    """All carriers on one port of `host`. Every method may be called from any thread.

    site: where callbacks and texts of people go; `point_at` sets it later.
    public_url: the address the site believes to have, where a proxy would stand in between.
    pace: seconds from one state of a message to the next. frozen: time passes only by `advance`.
    strict: leaving the context fails where `assert_nothing_unexpected` would.
    """

    def __init__(
        self,
        site: str = "http://127.0.0.1:9",
        *,
        public_url: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 0.0,
        frozen: bool = False,
        start: float | None = None,
        strict: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self.clock = VirtualClock(start=start, frozen=frozen)
        self.journal = Journal()
        self.rules = Rules()
        self.callbacks = SiteCaller(self.clock)
        self.account = Account()
        parts = (self.clock, self.journal, self.rules)
        self.twilio = Twilio(*parts, self.callbacks, self.account, pace=pace)
        self.voice = Voice(*parts, self.callbacks, self.account, pace=pace)
        self.fast2sms = Fast2SMS(*parts, self.callbacks, pace=pace)
        self.fcm = FCM(*parts)
        self.webpush = WebPush(*parts)
        self.inbound = Inbound(self.twilio, self.callbacks)
        self.control = Control(*parts)
        self.pages = Pages(
            self.clock,
            self.journal,
            inbound=self.inbound,
            voice=self.voice,
            caller=self.callbacks,
        )
        self.strict = strict
        self.point_at(site, public_url=public_url)
        self._listener: socket.socket
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._runner: web.AppRunner
        self._site: web.SockSite

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, exc_type: object, *rest: object) -> None:
        try:
            if self.strict and exc_type is None:
                self.assert_nothing_unexpected()
        finally:
            self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def point_at(self, site: str, *, public_url: str = "") -> None:
        """Send callbacks and texts of people there."""
        self.callbacks.site = site.rstrip("/")
        self.callbacks.public_url = public = (public_url or site).rstrip("/")
        self.inbound.url = public + INBOUND_PATH
        self.fast2sms.webhook = f"{public}{FAST2SMS_PATH}{credentials.FAST2SMS_WEBHOOK_SECRET}"

    def start(self) -> None:
        """Listen, on a free port unless one was given."""
        self._listener = socket.create_server((self.host, self.port), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carrier simulator", daemon=True)
        self._thread.start()
        self.run(self._serve())

    def stop(self) -> None:
        """Refuse further requests and drop those that are open."""
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = PATIENCE_SECONDS) -> T:
        """Do something in the simulator's loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def environment(
        self, *, fast2sms: bool = True, messaging_service: bool = True, simulated: bool = False, base_url: str = ""
    ) -> dict[str, str]:
        """Settings, or environment variables, that make this the only carrier.

        With `simulated` the site knows that nothing is real, shows the simulated phone, and sends pushes here too.
        """
        base_url = base_url or self.url
        return {
            "TWILIO_API_BASE_URL": base_url,
            "TWILIO_ACCOUNT_SID": credentials.ACCOUNT_SID,
            "TWILIO_AUTH_TOKEN": credentials.AUTH_TOKEN,
            "TWILIO_FROM": credentials.FROM_NUMBER,
            "TWILIO_MESSAGING_SERVICE_SID": credentials.MESSAGING_SERVICE_SID if messaging_service else "",
            "FAST2SMS_API_BASE_URL": base_url,
            "FAST2SMS_API_KEY": credentials.FAST2SMS_API_KEY if fast2sms else "",
            "FAST2SMS_ROUTE": "q",
            "FAST2SMS_SENDER_ID": "",
            "FAST2SMS_WEBHOOK_SECRET": credentials.FAST2SMS_WEBHOOK_SECRET,
            "FCM_API_BASE_URL": base_url,
            "CARRIER_SIMULATOR_URL": base_url if simulated else "",
        }

    def service_account(self) -> str:
        """The JSON of an FCM service account whose tokens come from here. The first one takes a moment."""
        return json.dumps(service_account(self.url))

    # Scripting

    def on(self, to: str | None = None, *, carrier: str | None = None, operation: str = "create") -> Script:
        """Script the next requests: see `simulator.rules`."""
        return self.rules.on(to, carrier=carrier, operation=operation)

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Nobody listens at the port, and what is open is cut."""
        self.run(self._stop_listening())
        try:
            yield
        finally:
            self._listener = socket.create_server((self.host, self.port), backlog=1024)
            self.run(self._listen())

    # Time

    def advance(self, seconds: float) -> None:
        """Let the simulator's clock jump, doing all that is due on the way."""
        self.run(self.clock.advance(seconds))

    def settle(self) -> None:
        """Wait until every callback that is due has been sent and answered."""
        self.run(self.clock.settle())

    # People

    def text_from(self, phone: str, text: str, *, to: str = "", **more: str) -> Sent:
        """The person at `phone` sends a text (to the number that texted last); returns what the site answered."""
        sent = self.run(self.inbound.text(phone, text, to=to, **more))
        self.settle()
        return sent

    def ringing(self, phone: str, *, timeout: float = 10.0) -> "Phone":
        """The phone, once a call rings there (or is going on). Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while (call := self.voice.ringing(phone)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{phone} does not ring after {timeout:g} s")
            time.sleep(0.01)
        self.settle()  # the site has been told that it rings
        return Phone(self, call)

    def subscribe(self, *, vapid_key: str = "") -> Browser:
        """A browser subscribes to pushes; its `subscription()` is what it hands to the site."""
        return self.webpush.subscribe(self.url, vapid_key=vapid_key)

    def tell(self, path: str, fields: Mapping[str, str], **faults: Any) -> Sent:
        """Post any callback to the site, signed unless the faults say otherwise (fields of `Callbacks`)."""
        url = self.callbacks.absolute(path)
        return self.run(self.callbacks.send(url, fields, Callbacks(**faults)))

    def replay(self, sent: Sent) -> Sent:
        """Send the very same callback again."""
        return self.run(self.callbacks.replay(sent))

    # What happened

    def requests(
        self, phone: str | None = None, *, carrier: str | None = None, operation: str | None = "create"
    ) -> list[Request]:
        """Every request, refused ones too."""
        return self.journal.requests(phone, carrier=carrier, operation=operation)

    def texts(self, phone: str) -> list[str]:
        """The texts of the site on this phone."""
        self.settle()
        return self.journal.texts(phone)

    def wait_for(
        self, count: int, phone: str | None = None, *, channel: str | None = None, timeout: float = 10.0
    ) -> list[Entry]:
        """What the phone (or all) shows, once that is `count`. Raises TimeoutError."""
        return self.journal.wait_for(count, phone, channel=channel, timeout=timeout)

    def assert_exactly(self, phone: str, wanted: Sequence[Wanted], *, channel: str | None = None) -> None:
        """Fail unless the phone shows exactly these, in this order: see `Journal.assert_exactly`."""
        self.settle()
        self.journal.assert_exactly(phone, wanted, channel=channel)

    def assert_nothing_unexpected(self) -> None:
        """Fail if a phone shows something that no assertion named, or something went wrong in here."""
        self.settle()
        failures = [f"failure: {error!r}" for error in self.clock.failures]
        if found := [*self.journal.unexpected(), *failures]:
            raise AssertionError("Unexpected:\n" + "\n".join(f"  - {line}" for line in found))

    def clear(self) -> None:
        """Forget the journal and the rules."""
        self.journal.clear()
        self.rules.clear()

    # The server

    async def _serve(self) -> None:
        await self.callbacks.start()
        app = web.Application()
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.05)
        await self._runner.setup()
        await self._listen()

    def _routes(self) -> list[web.RouteDef]:
        faces: tuple[Face, ...] = (self.twilio, self.voice, self.fast2sms, self.fcm, self.webpush)
        carriers = chain.from_iterable(face.routes() for face in faces)
        return [
            *(web.route(route.method, route.path, self._counted(route.handler)) for route in carriers),
            *self.control.routes(),
            *self.pages.routes(),
            web.route("*", "/{anything:.*}", self._stray),
        ]

    def _counted(self, handler: Any) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler, whose work `settle` waits for."""

        async def counted(request: web.Request) -> web.StreamResponse:
            try:
                return await self.clock.counted(handler(request))
            except Exception as error:
                self.clock.failures.append(error)
                raise

        return counted

    async def _listen(self) -> None:
        self._site = web.SockSite(self._runner, self._listener)
        await self._site.start()

    async def _stop_listening(self) -> None:
        await self._site.stop()
        self._listener.close()
        if self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        await asyncio.sleep(0)

    async def _close(self) -> None:
        await self._stop_listening()
        await self.clock.close()
        await self._runner.cleanup()
        await self.callbacks.stop()

    async def _stray(self, request: web.Request) -> web.StreamResponse:
        self.journal.stray(f"{request.method} {request.path}")
        answer = problem(404, 20404)
        return web.Response(status=answer.status, body=answer.body, content_type="application/json")


class Phone:
    """A phone that rings, and the person who holds it. Each verb returns when the site has been told and has answered."""

    def __init__(self, sim: Simulator, call: Call) -> None:
        self._sim = sim
        self.call = call

    @property
    def heard(self) -> list[str]:
        """What was said so far."""
        return list(self.call.heard)

    def answer(self, by: str = "human") -> Self:
        """Take the call, as a person or as another of Twilio's AnsweredBy."""
        return self._do(self._sim.voice.switchboard.answer(self.call, by=by))

    def press(self, digits: str) -> Self:
        """Press keys."""
        return self._do(self._sim.voice.switchboard.press(self.call, digits))

    def hang_up(self) -> Self:
        """End the call, or decline it while it rings."""
        status = "busy" if self.call.status == "ringing" else "completed"
        return self._do(self._sim.voice.switchboard.end(self.call, status))

    def _do(self, work: Coroutine[Any, Any, None]) -> Self:
        self._sim.run(work)
        self._sim.settle()
        return self
