"""A site to receive callbacks, and a simulator that calls it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import pytest
from twilio.http.http_client import TwilioHttpClient
from twilio.request_validator import RequestValidator
from twilio.rest import Client

from simulator import Simulator
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN


@dataclass(frozen=True)
class Got:
    """A request as the site saw it."""

    path: str
    form: dict[str, str]
    headers: dict[str, str]

    @property
    def status(self) -> str:
        return self.form.get("MessageStatus") or self.form.get("CallStatus", "")


class Site:
    """Takes every POST. `answer` decides what it says: a status and a body."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Callable[[Got], tuple[int, str]] = lambda _got: (204, "")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def statuses(self) -> list[str]:
        return [got.status for got in self.got]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                text = body.decode()
                form = {"": text} if text.startswith("{") else dict(parse_qsl(text, keep_blank_values=True))
                got = Got(self.path, form, headers)
                site.got.append(got)
                status, answer = site.answer(got)
                with suppress(ConnectionError):  # the simulator has given up waiting
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer.encode())))
                    self.end_headers()
                    self.wfile.write(answer.encode())

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def sim(site: Site) -> Iterator[Simulator]:
    with Simulator(site=site.url) as sim:
        yield sim


@pytest.fixture
def client(sim: Simulator) -> Iterator[Client]:
    """Twilio's own client, talking to the simulator."""
    http = Redirected(sim)
    yield Client(ACCOUNT_SID, AUTH_TOKEN, http_client=http)
    if http.session is not None:
        http.session.close()


class Redirected(TwilioHttpClient):
    """Asks the simulator instead of Twilio."""

    def __init__(self, sim: Simulator) -> None:
        super().__init__(timeout=10)
        self._sim = sim

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        path = url.split("//", 1)[1].partition("/")[2]
        return super().request(method, f"{self._sim.url}/{path}", *args, **kwargs)


def signed(url: str, got: Got, token: str = AUTH_TOKEN) -> bool:
    """What Twilio's own validator thinks of the signature."""
    return bool(RequestValidator(token).validate(url, got.form, got.headers["x-twilio-signature"]))
