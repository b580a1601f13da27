"""The addresses of the live sockets, behind the check of which page opened them."""

import logging
from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path, re_path

from safety.consumers import PersonConsumer
from sos.consumers import ModerationConsumer

logger = logging.getLogger(__name__)


class SameOrigin:
    """Lets only our own pages open sockets: a browser sends cookies along with anybody's handshake.

    The Origin must be PUBLIC_BASE_URL, or scheme, host and port of the address that was called.
    """

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass on, or deny with a line in the log (Channels denies in silence)."""
        headers = dict(scope.get("headers", []))
        origin = headers.get(b"origin", b"").decode("latin1")
        if is_own_origin(origin, host=headers.get(b"host", b"").decode("latin1")):
            await self.application(scope, receive, send)
        else:
            logger.warning("Refused a live socket from origin %r", origin[:200])
            await WebsocketDenier()(scope, receive, send)


def is_own_origin(origin: str, *, host: str) -> bool:
    """Whether a page with this Origin is one of ours, called under this Host."""
    public = urlsplit(settings.PUBLIC_BASE_URL)
    if origin == f"{public.scheme}://{public.netloc}":
        return True
    name, _port = split_domain_port(host)
    return bool(name) and validate_host(name, settings.ALLOWED_HOSTS) and origin == f"{public.scheme}://{host}"


sockets = SameOrigin(
    AuthMiddlewareStack(
        URLRouter(
            [
                path("ws/person/", PersonConsumer.as_asgi()),
                path("ws/moderation/", ModerationConsumer.as_asgi()),
                re_path("", WebsocketDenier.as_asgi()),
            ]
        )
    )
)
