"""A web process that is stopped finishes what it does, tells its live sockets when to come back, and exits 0."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from django.conf import settings
from django.db import connection, connections, transaction
from playwright.sync_api import Page, WebSocket, expect
from websockets.exceptions import ConnectionClosed

from casualmeet import clock, shutdown
from casualmeet.tests.test_live import PERSON, Login, Site, Watcher, log_in, serving
from safety import tokens
from safety.models import MeetingTimer, TimerStatus
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from testing.processes import BASE_DIR, wait_until
from testing.site import chromium

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


@pytest.fixture
def site(database_url: str) -> Iterator[Site]:
    made = Site(database_url)
    with serving(made):
        yield made


def test_live_sockets_are_told_when_to_come_back_and_closed_as_by_a_restart(site: Site) -> None:
    login = log_in(PersonFactory.create())
    # First, so that its request is over by the time the process is to end.
    assert container_check(site) == 0
    with site.open(PERSON, login) as one, site.open(PERSON, login) as other:
        for watcher in (one, other):
            watcher.until("snapshot")
        assert site.process.terminate(settings.SHUTDOWN_SECONDS) == 0
        waits = [farewell(watcher) for watcher in (one, other)]
    assert all(shutdown.SOONEST_MS <= wait <= shutdown.LATEST_MS for wait in waits)
    assert waits[0] != waits[1]
    assert "Stopping: 0 requests, 2 live sockets" in site.process.output
    assert "Traceback" not in site.process.output
    assert container_check(site) == 1


def container_check(site: Site) -> int:
    """What the image's health check says of the web process."""
    command = [sys.executable, "-I", str(BASE_DIR / "deploy" / "healthcheck.py")]
    return subprocess.run(command, env={"PORT": str(site.port)}, check=False, capture_output=True).returncode


def farewell(watcher: Watcher) -> int:
    """The pause that the last message asks for; the close code must be that of a restart."""
    messages: list[dict[str, Any]] = []
    with pytest.raises(ConnectionClosed) as closed:
        messages.extend(json.loads(text) for text in watcher.socket)
    assert closed.value.rcvd
    assert (closed.value.rcvd.code, messages[-1]["type"]) == (1012, "restart")
    return int(messages[-1]["retry_ms"])


@contextmanager
def silent_client(site: Site, login: Login) -> Iterator[None]:
    """An open live socket whose other end answers nothing, not even a close: a phone that lost its network."""
    lines = [
        f"GET {PERSON} HTTP/1.1",
        f"Host: 127.0.0.1:{site.port}",
        f"Origin: {site.url}",
        f"Cookie: {login.cookie}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        assert b"101 Switching" in client.recv(100)
        yield


def test_a_client_that_is_gone_does_not_keep_it_from_ending(site: Site) -> None:
    with silent_client(site, log_in(PersonFactory.create())):
        site.process.send(signal.SIGINT)
        site.process.wait_for_line("Stopping: 0 requests, 1 live sockets")
        site.process.send(signal.SIGTERM)  # Who asks twice does not want to wait.
        assert site.process.wait(10) == 0


@pytest.mark.skipif("connection.vendor == 'mongodb'", reason="nothing there can hold up a request")
def test_a_request_that_is_under_way_is_answered_and_no_new_one_taken(site: Site) -> None:
    person = PersonFactory.create()
    ContactFactory.create(person=person)
    token = tokens.issue(person)
    site.request("GET", "timers", token)
    answers: list[requests.Response] = []

    def arm() -> None:
        answers.append(site.request("POST", "timers", token, {"location_name": "Cafe", "duration_minutes": 30}))

    asking = threading.Thread(target=arm)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE safety_meetingtimer IN ACCESS EXCLUSIVE MODE")
        asking.start()
        time.sleep(0.3)  # Not for luck: the request can't be answered before, and is to have been begun.
        site.process.send(signal.SIGTERM)
        site.process.wait_for_line("Stopping: 1 requests")
        with pytest.raises(requests.ConnectionError):
            site.request("GET", "timers", token)
    asking.join(20)
    assert [answer.status_code for answer in answers] == [201]
    assert site.process.wait(10) == 0
    assert MeetingTimer.objects.live().count() == 1


@pytest.mark.browser
@pytest.mark.timeout(240)
def test_open_pages_come_back_by_themselves_with_the_state_of_now_and_no_word_of_trouble(
    database_url: str,
) -> None:
    site = Site(database_url, DEBUG="on")  # Otherwise scripts come from where collectstatic puts them.
    login = log_in(PersonFactory.create())
    ContactFactory.create(person=login.user)
    TimerFactory.create(person=login.user)
    with serving(site), chromium() as browser:
        page = browser.new_page()
        name, _, value = login.cookie.partition("=")
        page.context.add_cookies([{"name": name, "value": value, "url": site.url}])
        page.set_default_timeout(60_000)
        heard: list[WebSocket] = []
        page.on("websocket", lambda one: one.on("framereceived", lambda _: heard.append(one)))
        page.goto(site.url)
        playing(page, lambda: heard)
        page.evaluate(WATCH_THE_CONNECTION_LINE)
        began = page.evaluate("Date.now()")
        assert site.process.terminate(10) == 0
        with ThreadPoolExecutor(1) as elsewhere:  # Playwright's own thread may not use the database.
            elsewhere.submit(cancel_every_timer).result()
        site.process.start()
        playing(page, lambda: heard[-1] is not heard[0])
        expect(page.get_by_role("heading", name="New timer")).to_be_visible()
        # A server that is away for longer than a restart takes is another matter.
        assert [text for at, text in page.evaluate("said") if text and at < began + 10_000] == []
    assert "Traceback" not in site.process.output


WATCH_THE_CONNECTION_LINE = """
    window.said = [];
    const line = document.getElementById("connection");
    new MutationObserver(() => said.push([Date.now(), line.textContent])).observe(line, {childList: true, subtree: true});
"""


def playing(page: Page, condition: Callable[[], object]) -> None:
    """Wait until it is so; the browser's events come only during a call to it."""

    def now() -> bool:
        page.wait_for_timeout(50)
        return bool(condition())

    wait_until(now, timeout=60)


def cancel_every_timer() -> None:
    try:
        MeetingTimer.objects.live().update(status=TimerStatus.CANCELLED, resolved_at=clock.now())
    finally:
        connections.close_all()
