"""Pushes to browsers: Web Push (RFC 8030), encrypted (RFC 8291), signed with our key (RFC 8292).

The endpoint comes from whoever subscribes, so it may only lead to a push service that is listed, by https, on its
usual port, and no redirect is followed.
"""

import base64
import json
import re
import time
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings
from py_vapid import Vapid
from pywebpush import WebPusher

from notifications.carriers import pushes
from notifications.carriers.base import Answer, ErrorClass, Outcome, OutgoingMessage, PushTarget
from notifications.carriers.errors import http_error
from notifications.carriers.transport import CONNECT_TIMEOUT, READ_TIMEOUT, Reply, Transport, TransportError

MAX_PAYLOAD: Final = 3000
"""Bytes before encryption. Services take 3,993 (RFC 8291 in a body of 4,096); some phones' services less."""

SHORT_PAYLOAD: Final = 700
"""Bytes of the second try, where a service finds the first one too big."""

MAX_ENDPOINT: Final = 1000
TOKEN_LIFE: Final = 12 * 3600
"""Seconds our signature holds; services refuse more than 24 hours."""

MAX_ORIGINS: Final = 64
"""Push services whose connections are kept open."""

_ENDPOINT: Final = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?/[!-~]+")
_UNSAFE: Final = re.compile(r"[\\@#\s]")
_LOCATION: Final = re.compile(r"[!-~]*?([^/?#]+)/?")


class WebPushCarrier:
    """Sends to any listed push service. `subject` says who we are: "mailto:…" or "https://…"."""

    name = "webpush"
    simulated = False
    templated = False

    def __init__(
        self,
        vapid: Vapid,
        subject: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._vapid = vapid
        self._subject = subject
        self._timeouts = {"connect_timeout": connect_timeout, "read_timeout": read_timeout}
        self._transports: dict[str, Transport] = {}

    async def send(self, message: OutgoingMessage) -> Answer:
        """Send it. Services also accept for endpoints that are long dead: only the phone's receipt is proof."""
        target = message.target
        if target is None or target.kind != "webpush":
            return Answer(Outcome.PERMANENT, detail="no browser to send to")
        origin = endpoint_origin(target.endpoint)
        if origin is None or not keys_are_valid(target.p256dh, target.auth):
            detail = "not the address of a known push service" if origin is None else "not a browser's keys"
            return Answer(Outcome.PERMANENT, error_class="bad_recipient", detail=detail)
        try:
            reply = await self._push(message, target, origin, limit=MAX_PAYLOAD)
            if reply.status == 413:  # certainly not sent; a service with less room than the others
                reply = await self._push(message, target, origin, limit=SHORT_PAYLOAD)
        except TransportError as failure:
            return failure.answer()
        return classify(reply)

    async def close(self) -> None:
        """Close the connections."""
        for transport in self._transports.values():
            await transport.close()

    async def _push(self, message: OutgoingMessage, target: PushTarget, origin: str, *, limit: int) -> Reply:
        # Encrypting and signing take less than a millisecond: no reason to leave the loop.
        body = encrypted(payload(message, limit=limit), target)
        headers = headers_for(message) | self._signature(origin)
        transport = self._transports.get(origin) or Transport(origin, **self._timeouts)
        kept = len(self._transports) < MAX_ORIGINS or origin in self._transports
        if kept:
            self._transports[origin] = transport
        try:
            return await transport.request("POST", target.endpoint[len(origin) :], body=body, headers=headers)
        finally:
            if not kept:
                await transport.close()

    def _signature(self, origin: str) -> dict[str, str]:
        """Our claims, made anew for each push: the audience is the one service that it goes to."""
        claims = {"aud": origin, "exp": int(time.time()) + TOKEN_LIFE, "sub": self._subject}
        return dict(self._vapid.sign(claims))


def payload(message: OutgoingMessage, *, limit: int = MAX_PAYLOAD) -> bytes:
    """What the service worker reads: JSON in at most `limit` bytes, with the receipt that it is to post."""
    title, body = pushes.title_and_body(message)
    fixed = {"link": message.link, "tag": pushes.tag(message), "receipt": str(message.attempt_id)}

    def encoded(body: str) -> bytes:
        said = {"title": title, "body": body, **fixed}
        return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()

    return pushes.fitted(encoded, body, limit=limit)


def headers_for(message: OutgoingMessage) -> dict[str, str]:
    """How long the service keeps it, how urgent it is, and what it replaces there (RFC 8030, sections 5.2 to 5.4)."""
    return {
        "TTL": str(pushes.TTL),
        "Urgency": "high" if pushes.is_urgent(message) else "normal",
        "Topic": pushes.topic(message),
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
    }


def encrypted(plain: bytes, target: PushTarget) -> bytes:
    """Readable by that browser only. The keys must be valid."""
    keys = {"p256dh": target.p256dh, "auth": target.auth}
    return bytes(WebPusher({"endpoint": target.endpoint, "keys": keys}).encode(plain)["body"])


def classify(reply: Reply) -> Answer:
    """The answer that a reply means."""
    outcome, error_class = _verdict(reply.status)
    fields = reply.fields() or {}
    location = _LOCATION.fullmatch(reply.headers.get("Location", ""))
    return Answer(
        outcome,
        carrier_message_id=location[1] if location and outcome is Outcome.ACCEPTED else "",
        http_status=reply.status,
        # Mozilla numbers its errors, Apple names them; the others have only the status.
        error_code=str(fields.get("errno") or fields.get("reason") or ""),
        error_class=error_class,
        detail=str(fields.get("message") or ""),
        raw=reply.text,
        retry_after=reply.retry_after,
    )


def _verdict(status: int) -> tuple[Outcome, ErrorClass]:
    if status in (200, 201, 202):
        return Outcome.ACCEPTED, ""
    if status in (404, 410):
        return Outcome.PERMANENT, "gone"
    if status == 400:
        return Outcome.PERMANENT, "config"
    if status == 413:
        return Outcome.PERMANENT, "content"
    if status >= 500:
        # Repeated it replaces itself, by its topic and its tag, so a lost answer costs nothing.
        return Outcome.TRANSIENT, "transient"
    return http_error(status, readable=True)


def endpoint_origin(endpoint: str) -> str | None:
    """The origin of a push service's address, None unless the service is one we may call.

    Strict on purpose: what two parsers could read in two ways is refused.
    """
    if len(endpoint) > MAX_ENDPOINT or _UNSAFE.search(endpoint) or not _ENDPOINT.fullmatch(endpoint):
        return None
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return None
    origin = f"{parts.scheme}://{parts.netloc}"
    if origin == settings.CARRIER_SIMULATOR_URL.rstrip("/"):
        return origin
    if parts.scheme != "https" or port not in (None, 443):
        return None
    host = parts.hostname or ""
    return origin if any(_matches(host, listed.strip().lower()) for listed in settings.WEB_PUSH_HOSTS) else None


def _matches(host: str, listed: str) -> bool:
    if not listed.startswith("*."):
        return host == listed
    return host.endswith(listed[1:]) and all(host.removesuffix(listed[1:]).split("."))


def keys_are_valid(p256dh: str, auth: str) -> bool:
    """Whether they are a browser's keys (RFC 8291): a point on P-256, uncompressed, and 16 secret bytes."""
    try:
        point, secret = _decoded(p256dh), _decoded(auth)
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except (ValueError, UnsupportedAlgorithm):
        return False
    return len(point) == 65 and len(secret) == 16


def _decoded(text: str) -> bytes:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}={0,2}", text):
        raise ValueError("not base64url")
    bare = text.rstrip("=")
    return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))


def configured() -> WebPushCarrier | None:
    """The carrier of the settings, None without a usable key pair."""
    vapid = _vapid()
    if vapid is None or not _subject_is_valid():
        return None
    return WebPushCarrier(vapid, settings.VAPID_SUBJECT)


def public_key() -> str:
    """What a browser subscribes with, base64url; "" where no push is offered."""
    vapid = _vapid()
    return encoded_public_key(vapid) if vapid is not None and _subject_is_valid() else ""


def encoded_public_key(vapid: Vapid) -> str:
    """The public half as an uncompressed point, base64url without padding."""
    point: Any = vapid.public_key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return base64.urlsafe_b64encode(point).rstrip(b"=").decode()


def problem() -> str:
    """What keeps Web Push from being used although it is set, as a sentence for the operator, or ""."""
    if not settings.VAPID_PRIVATE_KEY:
        return ""
    if _vapid() is None:
        return "Web Push is not used: VAPID_PRIVATE_KEY is not a key that `manage.py make_vapid_keys` printed."
    if not _subject_is_valid():
        return "Web Push is not used: VAPID_SUBJECT must be like mailto:safety@example.org or https://example.org."
    return ""


def _vapid() -> Vapid | None:
    if not settings.VAPID_PRIVATE_KEY:
        return None
    try:
        return Vapid.from_string(settings.VAPID_PRIVATE_KEY)
    except Exception:  # noqa: BLE001 - py_vapid raises whatever the parsers below it do
        return None


def _subject_is_valid() -> bool:
    """Apple refuses a subject on localhost, and an address without "mailto:"."""
    subject = settings.VAPID_SUBJECT
    mail = re.fullmatch(r"mailto:[^@\s]+@[\w-]+(\.[\w-]+)+", subject)
    return bool(mail or re.fullmatch(r"https://[\w-]+(\.[\w-]+)+", subject))
