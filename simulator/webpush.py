"""A push service for browsers, and the browsers that subscribed: RFC 8030, RFC 8291 (encryption), RFC 8292 (VAPID)."""

import base64
import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

import http_ece
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from simulator.answers import Answer, scripted, write
from simulator.clock import VirtualClock
from simulator.face import Face
from simulator.journal import Journal
from simulator.rules import Rules, accept

MAX_BODY: Final = 4096
MAX_TOKEN_SECONDS: Final = 24 * 3600

_URGENCIES: Final = frozenset({"very-low", "low", "normal", "high"})
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VAPID: Final = re.compile(r"vapid t=([^,\s]+), ?k=(\S+)")


@dataclass(slots=True)
class Browser:
    """One subscription. `known_key` is the VAPID key it was made with, once it is known; others are refused."""

    endpoint: str
    key: ec.EllipticCurvePrivateKey
    secret: bytes
    known_key: str = ""
    gone: bool = False

    def subscription(self) -> dict[str, Any]:
        """What the browser hands to the site."""
        point = self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": self.endpoint, "keys": {"p256dh": b64(point), "auth": b64(self.secret)}}

    def read(self, body: bytes) -> str:
        """The words of an encrypted push, as the service worker would get them. Raises ValueError if it can't be read."""
        try:
            plain = http_ece.decrypt(body, private_key=self.key, auth_secret=self.secret, version="aes128gcm")
        except http_ece.ECEException as error:
            raise ValueError(str(error)) from error
        return str(plain.decode())


class WebPush(Face):
    """Scripts know a push by its endpoint: `on(to=endpoint, carrier="webpush")`."""

    name = "webpush"

    def __init__(self, clock: VirtualClock, journal: Journal, rules: Rules) -> None:
        super().__init__(clock, journal, rules)
        self.browsers: dict[str, Browser] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/webpush/{id}", self.push)]

    def subscribe(self, base_url: str, *, vapid_key: str = "") -> Browser:
        """A browser subscribes; `vapid_key` (base64url) is the site's."""
        identity = secrets.token_urlsafe(24)
        browser = Browser(
            f"{base_url}/webpush/{identity}",
            ec.generate_private_key(ec.SECP256R1()),
            secrets.token_bytes(16),
            vapid_key,
        )
        self.browsers[identity] = browser
        return browser

    async def push(self, request: web.Request) -> web.StreamResponse:
        """Take a push, or say why not."""
        browser = self.browsers.get(request.match_info["id"])
        to = "" if browser is None else browser.endpoint
        step = self.rules.take("create", self.name, to) or accept
        body = await request.read()
        if not step.accepted:
            status, reason, text = step.status or 503, step.message or "scripted", ""
        else:
            status, reason, text = self._judge(request, browser, body)
        self.asked("create", to, request, {"length": str(len(body))}, accepted=status == 201)
        if status != 201 or browser is None:
            return await write(request, scripted(step, Answer.of(status, {"reason": reason})), self.clock, step)
        identity = secrets.token_urlsafe(12)
        self.journal.add(
            carrier=self.name,
            channel="push",
            phone=browser.endpoint,
            text=text,
            at=self.clock.now(),
            message_id=identity,
            status="accepted",
            on_phone=True,
        )
        taken = Answer(step.status or 201, b"", {"Location": f"{request.url.origin()}/webpush-message/{identity}"})
        return await write(request, scripted(step, taken), self.clock, step)

    def _judge(self, request: web.Request, browser: Browser | None, body: bytes) -> tuple[int, str, str]:
        """The status, the reason for it, and what the push says."""
        if browser is None:
            return 404, "NotFound", ""
        headers, origin = request.headers, str(request.url.origin())
        bad_token = self._bad_token(headers.get("Authorization", ""), origin, browser)
        checks = (
            (410, "Unregistered", browser.gone),
            (413, "PayloadTooLarge", len(body) > MAX_BODY),
            (403, bad_token, bool(bad_token)),
            (400, "BadTtl", not headers.get("TTL", "").isdigit()),
            (400, "BadUrgency", headers.get("Urgency", "normal") not in _URGENCIES),
            (400, "BadTopic", not _TOPIC.fullmatch(headers.get("Topic", "none"))),
            (400, "BadContentEncoding", headers.get("Content-Encoding") != "aes128gcm"),
        )
        for status, reason, wrong in checks:
            if wrong:
                return status, reason, ""
        try:
            return 201, "", browser.read(body)
        except ValueError:
            return 400, "CannotDecrypt", ""

    def _bad_token(self, header: str, origin: str, browser: Browser) -> str:
        """What is wrong with the site's signature."""
        found = _VAPID.fullmatch(header)
        if found is None:
            return "MissingVapid"
        token, key = found.groups()
        try:
            head, claims, signature = token.split(".")
            values = json.loads(unb64(claims))
            raw = unb64(signature)
            public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), unb64(key))
            pair = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
            public.verify(pair, f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature):
            return "BadJwtToken"
        subject, left = str(values.get("sub", "")), values.get("exp", 0) - self.clock.now()
        if values.get("aud") != origin or not 0 < left <= MAX_TOKEN_SECONDS:
            return "BadJwtToken"
        if not subject.startswith(("mailto:", "https:")) or subject.endswith("@localhost"):
            return "BadJwtToken"
        if browser.known_key not in ("", key):
            return "VapidPkHashMismatch"
        return ""


def b64(value: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def unb64(value: str) -> bytes:
    """The bytes of base64url with or without padding."""
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
