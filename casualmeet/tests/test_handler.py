"""A request stays in its thread, and there are not too many of them."""

import asyncio
import json
import traceback
from threading import Event, Semaphore
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path

from casualmeet.asgi import application
from casualmeet.handler import REPORTS_AT_ONCE


def stack(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"functions": [frame.name for frame in traceback.extract_stack()]})


under_way = Semaphore(0)
release = Event()


def report(_request: HttpRequest) -> JsonResponse:
    under_way.release()
    assert release.wait(20)
    return JsonResponse({})


urlpatterns = [path("stack", stack), path("hooks/report", report)]


async def get(address: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": address,
        "raw_path": address.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "root_path": "",
    }
    await application(scope, receive, send)
    assert sent[0]["status"] == 200
    return sent


@override_settings(ROOT_URLCONF=__name__)
async def test_no_thread_of_a_request_waits_for_the_event_loop():
    functions = json.loads((await get("/stack"))[1]["body"])["functions"]
    assert "get_response" in functions
    # Where asgiref waits in a thread for a task of the loop.
    assert "run_until_future" not in functions


@override_settings(ROOT_URLCONF=__name__)
async def test_a_storm_of_reports_takes_few_threads_and_keeps_nobody_waiting():
    release.clear()
    storm = [asyncio.create_task(get("/hooks/report")) for _ in range(3 * REPORTS_AT_ONCE)]
    try:
        for _ in range(REPORTS_AT_ONCE):
            assert await asyncio.to_thread(under_way.acquire, timeout=20)
        await asyncio.wait_for(get("/stack"), 20)
        assert not under_way.acquire(blocking=False)
    finally:
        release.set()
    await asyncio.gather(*storm)
    for _ in range(2 * REPORTS_AT_ONCE):
        assert under_way.acquire(blocking=False)
