"""Shows times in the person's own zone."""

import zoneinfo
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils import timezone


class PersonTimeZoneMiddleware:
    """Activates the signed-in person's time zone for the request; durations and instants are not touched by it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with timezone.override(None):
            return self.get_response(request)

    def process_view(self, request: HttpRequest, *_view: object) -> None:
        """Here, not in `__call__`: an error of the database then is the view's, with its plain answer."""
        if request.path.startswith("/api/") or not request.user.is_authenticated:
            return
        try:
            timezone.activate(zoneinfo.ZoneInfo(request.user.time_zone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            timezone.activate("UTC")
