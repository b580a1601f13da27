"""Django's part of the ASGI application: each request from its first middleware to its last in one thread, and not more
of them at once than the database can serve.
"""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

# A request more than that waits without a thread. After an outage thousands come at once, and a thread for each, all
# waiting for one of a few connections, leaves none of them time to be answered.
AT_ONCE = 64
# What carriers and browsers report, and repeat where it was not answered. People's requests never wait behind it.
REPORTS = ("/hooks/", "/push/receipt")
REPORTS_AT_ONCE = 8
# Whether the process is well is asked just then.
UNLIMITED = ("/healthz", "/readyz", "/health/", "/metrics")


class Handler(ASGIHandler):
    """Django's own handler, without the hop back into the event loop between the middleware and the view.

    All our views and some middleware are sync. Django's own way for them is a thread that waits for a task of the loop,
    which waits for the thread. Where the client hangs up just before that task begins, it is cancelled without a word,
    and the thread waits for ever: one in a hundred requests that were broken off. Such a thread keeps the process
    from ending on SIGTERM.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = WeakKeyDictionary()

    def load_middleware(self, is_async: bool = False) -> None:
        """As for WSGI."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """When it is its turn. By now Daphne has the whole request, so that no slow client holds a slot."""
        path = scope["path"]
        if path.startswith(UNLIMITED):
            await super().handle(scope, receive, send)
            return
        slots = self._slots.setdefault(asyncio.get_running_loop(), Slots())
        async with slots.reports if path.startswith(REPORTS) else slots.people:
            await super().handle(scope, receive, send)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """In the request's own thread."""
        return await sync_to_async(self.get_response)(request)


class Slots:
    """How many requests may be under way at once, of an event loop."""

    def __init__(self) -> None:
        self.people = asyncio.Semaphore(AT_ONCE)
        self.reports = asyncio.Semaphore(REPORTS_AT_ONCE)
