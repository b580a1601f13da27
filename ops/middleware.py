"""Answers monitoring before anything else looks at the request."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve


class MonitoringMiddleware:
    """Calls the views of `ops.urls` at once: without session or database, and whatever the Host header says.

    Probes call a process by its own address, which is in no ALLOWED_HOSTS; these answers make no use of the host. Stands
    right behind SecurityMiddleware, whose redirect to https leaves these addresses out.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            match = resolve(request.path_info, urlconf="ops.urls")
        except Resolver404:
            return self.get_response(request)
        answer: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
        return answer
