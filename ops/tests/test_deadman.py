"""The dead man's switch, against a real HTTP server: never raises, never waits long, never tells its address."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ops import deadman
from testing.processes import free_port

SECRET = "/ping/8c1f-secret"


class Switch:
    """The service outside: what it was asked for, and the status it answers with."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.hanging = threading.Event()
        self.hanging.set()

    @contextmanager
    def running(self) -> Iterator[str]:
        switch = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                switch.asked.append(self.path)
                switch.hanging.wait(20)
                self.send_response(switch.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{SECRET}"
        finally:
            self.hanging.set()
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def switch(settings: Any) -> Iterator[Switch]:
    switch = Switch()
    with switch.running() as url:
        settings.DEADMAN_URL = url
        yield switch


def test_it_is_asked_for_once_by_get(switch: Switch) -> None:
    assert deadman.ping()
    assert switch.asked == [SECRET]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_wrong_answer_is_logged_and_no_redirect_is_followed(
    switch: Switch, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    switch.status = status
    assert not deadman.ping()
    assert switch.asked == [SECRET]
    assert str(status) in caplog.text
    assert "secret" not in caplog.text


def test_a_server_that_hangs_holds_up_nobody(
    switch: Switch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deadman, "LIMIT_SECONDS", 0.2)
    switch.hanging.clear()
    started = time.monotonic()
    assert not deadman.ping()
    assert time.monotonic() - started < 3
    assert "was not reached" in caplog.text


def test_nobody_there_is_logged_without_the_address(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ops")
    settings.DEADMAN_URL = f"http://127.0.0.1:{free_port()}{SECRET}"
    assert not deadman.ping()
    assert "was not reached: ConnectionError" in caplog.text
    assert "secret" not in "".join(record.getMessage() for record in caplog.records if record.name == "ops.deadman")


def test_without_an_address_nothing_happens(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.DEADMAN_URL = ""
    assert not deadman.ping()
    assert caplog.text == ""
