"""What the tests of pushes share: messages, a browser's keys, and a local stand-in for Google and push services."""

import base64
import json
import os
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

import http_ece
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from multidict import CIMultiDict
from py_vapid import Vapid

from notifications.carriers.base import OutgoingMessage, PushTarget
from notifications.carriers.transport import Reply

ATTEMPT = UUID("7b0d5c1e-0000-4000-8000-00000000beef")
INCIDENT = UUID("00000000-1111-4222-8333-444444444444")
TEXT = "SOS: Priya Sharma\nPriya Sharma pressed SOS 21:20 IST, 14 Mar. Dial 112."
LINK = "https://safety.example.org/i/abc"
TOKEN = "eXaMpLe_0123456789:APA91b-token"
SUBJECT = "mailto:safety@example.org"
# Made for these tests by manage.py make_vapid_keys.
VAPID_PRIVATE_KEY = "2frbTSQWQ7t2T4hP3TQOXBx8JzqUOqaRET3-pz_rWVA"
VAPID_PUBLIC_KEY = "BFDyb2iS70IVtOr3N438S-gWtv9sWQpyzgfq1AoyTjXyJaZfr2yWnvL1nWU3X7xEzTUXQ_FsHux0hroz6jWQIpA"


def unpadded(data: bytes) -> str:
    """base64url as browsers write it."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Browser:
    """The keys that a browser makes when it subscribes; it alone can read what is sent to it."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._secret = os.urandom(16)
        point = self._private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        self.p256dh, self.auth = unpadded(point), unpadded(self._secret)

    def target(self, endpoint: str) -> PushTarget:
        """Where a carrier sends."""
        return PushTarget("webpush", endpoint, self.p256dh, self.auth)

    def read(self, body: bytes) -> dict[str, Any]:
        """The decrypted JSON."""
        plain = http_ece.decrypt(body, private_key=self._private, auth_secret=self._secret, version="aes128gcm")
        found: dict[str, Any] = json.loads(plain)
        return found


def message(**changes: Any) -> OutgoingMessage:
    """A push about an SOS."""
    values: dict[str, Any] = {
        "to": "f6d9a1f2-0000-4000-8000-000000000001",
        "text": TEXT,
        "kind": "sos",
        "variables": (),
        "language": "en",
        "attempt_id": ATTEMPT,
        "channel": "push",
        "link": LINK,
        "reference": "K7Q",
        "incident_id": INCIDENT,
        **changes,
    }
    return OutgoingMessage(**values)


def reply(status: int, body: object = "", **headers: str) -> Reply:
    """What came back, with the body as JSON unless it is a text."""
    text = body if isinstance(body, str) else json.dumps(body)
    return Reply(status, CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}), text)


def service_account(token_uri: str) -> dict[str, Any]:
    """A key file as Google gives it out."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "type": "service_account",
        "project_id": "casualmeet-test",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "push@casualmeet-test.iam.gserviceaccount.com",
        "token_uri": token_uri,
    }


def vapid() -> Vapid:
    """This site's key pair."""
    return Vapid.from_string(VAPID_PRIVATE_KEY)


@dataclass
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


@dataclass
class StandIn:
    """A real HTTP server that answers as it is told, in turn (None: hangs up), and keeps what it was sent.

    `/token` is Google's token endpoint: it gives out token-1, token-2 and so on.
    """

    answers: list[web.Response | None] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    tokens: int = 0
    lifetime: int = 3600
    refuse_tokens: web.Response | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/token", self._token)
        app.router.add_post("/{path:.*}", self._answer)
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self._server.port}"

    async def _token(self, request: web.Request) -> web.Response:
        if self.refuse_tokens is not None:
            return self.refuse_tokens
        self.tokens += 1
        return web.json_response(
            {"access_token": f"token-{self.tokens}", "expires_in": self.lifetime, "token_type": "Bearer"}
        )

    async def _answer(self, request: web.Request) -> web.Response:
        self.seen.append(Seen(request.raw_path, dict(request.headers), await request.read()))
        answer = self.answers.pop(0)
        if answer is None and request.transport is not None:
            request.transport.abort()
        return answer or web.Response(status=500)
