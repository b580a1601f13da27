"""Django's part of the ASGI application: each request from its first middleware to its last in one thread."""

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class Handler(ASGIHandler):
    """Django's own handler, without the hop back into the event loop between the middleware and the view.

    All our views and some middleware are sync. Django's own way for them is a thread that waits for a task of the loop,
    which waits for the thread. Where the client hangs up just before that task begins, it is cancelled without a word,
    and the thread waits for ever: one in a hundred requests that were broken off. Such a thread keeps the process
    from ending on SIGTERM.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        """As for WSGI."""
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """In the request's own thread."""
        return await sync_to_async(self.get_response)(request)
