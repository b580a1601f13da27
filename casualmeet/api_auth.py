"""Who calls the JSON API: a bearer token, or the session of the pages with its CSRF token."""

import hashlib
import json
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from ninja.security import SessionAuth
from ninja.throttling import SimpleRateThrottle


class ApiRequest(HttpRequest):
    """A request that passed authentication: `auth` is the person."""

    auth: Any


class PageSession(SessionAuth):
    """The pages' session. Without one the answer is 401, not a complaint about CSRF."""

    def _get_key(self, request: HttpRequest) -> str | None:
        return super()._get_key(request) if request.user.is_authenticated else None


class LoginThrottle(SimpleRateThrottle):
    """Per user name and address: enough for mistakes, too little for guessing."""

    def get_cache_key(self, request: HttpRequest) -> str | None:
        """A digest, since the name is whatever was typed."""
        try:
            username = json.loads(request.body)["username"]
        except (ValueError, TypeError, KeyError, RecursionError, SuspiciousOperation):
            return None
        if not isinstance(username, str):
            return None
        # JSON can hold lone surrogates, which plain UTF-8 can't.
        typed = f"{username}|{self.get_ident(request)}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(typed).hexdigest()
        return f"login-throttle-{digest}"
