"""A request stays in its thread."""

import asyncio
import json
import traceback
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path

from casualmeet.asgi import application


def stack(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"functions": [frame.name for frame in traceback.extract_stack()]})


urlpatterns = [path("stack", stack)]


@override_settings(ROOT_URLCONF=__name__)
async def test_no_thread_of_a_request_waits_for_the_event_loop():
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
        "path": "/stack",
        "raw_path": b"/stack",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "root_path": "",
    }
    await application(scope, receive, send)
    assert sent[0]["status"] == 200
    functions = json.loads(sent[1]["body"])["functions"]
    assert "get_response" in functions
    # Where asgiref waits in a thread for a task of the loop.
    assert "run_until_future" not in functions
