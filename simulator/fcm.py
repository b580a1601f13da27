"""The face of Firebase Cloud Messaging's HTTP v1 API, and of Google's token endpoint.

Firebase docs: "projects.messages.send", "FcmError"; Google docs: "Using OAuth 2.0 for server to server applications".
"""

import json
import re
import secrets
from functools import cache
from typing import Any, Final

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from simulator.answers import Answer, scripted, write
from simulator.clock import VirtualClock
from simulator.credentials import FCM_PROJECT, FCM_TOKEN
from simulator.face import Face
from simulator.journal import Journal
from simulator.rules import Rules, Step, accept

MAX_PAYLOAD: Final = 4096
MAX_TTL: Final = 2_419_200
TOKEN_SECONDS: Final = 3600
FCM_ERROR: Final = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"

_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FCM_CODES: Final = {
    400: "INVALID_ARGUMENT",
    403: "SENDER_ID_MISMATCH",
    404: "UNREGISTERED",
    429: "QUOTA_EXCEEDED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_TTL: Final = re.compile(r"[0-9]+(\.[0-9]+)?s")


class FCM(Face):
    """Scripts know a push by its token: `on(to=token, carrier="fcm")`; operation "token" is the token endpoint.

    `gone` holds tokens that are no longer registered. In a scripted refusal `message` may name another errorCode.
    """

    name = "fcm"

    def __init__(self, clock: VirtualClock, journal: Journal, rules: Rules) -> None:
        super().__init__(clock, journal, rules)
        self.gone: set[str] = set()
        self.issued: dict[str, float] = {}
        self.payloads: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/projects/{project}/messages:send", self.send),
            web.post("/token", self.token),
        ]

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Take a push, or say why not."""
        body = await _json(request)
        message = body.get("message")
        message = message if isinstance(message, dict) else {}
        to = str(message.get("token", ""))
        step = self.rules.take("create", self.name, to) or accept
        no = _scripted_refusal(step) or self._refusal(request, body, message)
        self.asked("create", to, request, {"message": json.dumps(message)}, accepted=no is None)
        if no is not None:
            return await write(request, scripted(step, no), self.clock, step)
        project = request.match_info["project"]
        name = f"projects/{project}/messages/0:{secrets.token_hex(8)}"
        if body.get("validate_only"):
            name = f"projects/{project}/messages/fake_message_id"
        else:
            self._take(to, message, name)
        answer = scripted(step, Answer.of(step.status or 200, {"name": name}))
        return await write(request, answer, self.clock, step)

    async def token(self, request: web.Request) -> web.StreamResponse:
        """A bearer token for a signed assertion, whose signature is not looked at."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        step = self.step("token", "", request, form)
        if step is not None and not step.accepted:
            usual = Answer.of(step.status or 500, {"error": "temporarily_unavailable"})
        elif not form.get("grant_type", "").endswith("jwt-bearer") or not form.get("assertion"):
            usual = Answer.of(400, {"error": "invalid_grant", "error_description": "Invalid JWT"})
        else:
            token = f"ya29.{secrets.token_hex(16)}"
            self.issued[token] = self.clock.now() + TOKEN_SECONDS
            usual = Answer.of(200, {"access_token": token, "expires_in": TOKEN_SECONDS, "token_type": "Bearer"})
        return await write(request, scripted(step or accept, usual), self.clock, step)

    def _refusal(self, request: web.Request, body: dict[str, Any], message: dict[str, Any]) -> Answer | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given != FCM_TOKEN and self.issued.get(given, 0.0) < self.clock.now():
            return error(401, "Request had invalid authentication credentials.")
        if request.match_info["project"] != FCM_PROJECT:
            return error(404, "Requested entity was not found.")
        if wrong := _violation(body, message):
            return error(400, "Invalid value.", "INVALID_ARGUMENT", violation=wrong)
        if message["token"] in self.gone:
            return error(404, "Requested entity was not found.", "UNREGISTERED")
        return None

    def _take(self, to: str, message: dict[str, Any], name: str) -> None:
        self.payloads.append(message)
        shown = message.get("notification") or message.get("data", {})
        self.journal.add(
            carrier=self.name,
            channel="push",
            phone=to,
            text="\n".join(filter(None, (shown.get("title"), shown.get("body")))),
            at=self.clock.now(),
            message_id=name,
            status="accepted",
            on_phone=True,
        )


def error(status: int, message: str, code: str = "", *, violation: str = "") -> Answer:
    """An error in Google's form; `code` is FCM's own errorCode, `violation` the field that is wrong."""
    details: list[dict[str, Any]] = []
    if code:
        details.append({"@type": FCM_ERROR, "errorCode": code})
    if violation:
        details.append({"@type": BAD_REQUEST, "fieldViolations": [{"field": violation, "description": message}]})
    said: dict[str, Any] = {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}
    if details:
        said["details"] = details
    return Answer.of(status, {"error": said})


@cache
def private_key() -> str:
    """A key for the service account, made once for each process: making one takes a moment."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def service_account(url: str) -> dict[str, str]:
    """The key file of a service account whose tokens come from the simulator at `url`."""
    return {
        "type": "service_account",
        "project_id": FCM_PROJECT,
        "private_key_id": "simulator",
        "private_key": private_key(),
        "client_email": f"safety@{FCM_PROJECT}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{url}/token",
    }


def _scripted_refusal(step: Step) -> Answer | None:
    if step.accepted:
        return None
    status = step.status or 503
    code = step.message or ("" if status == 401 else _FCM_CODES.get(status, ""))
    return error(status, "Scripted.", code)


def _violation(body: dict[str, Any], message: dict[str, Any]) -> str:
    """The field that FCM would not take."""
    data, android = message.get("data", {}), message.get("android", {})
    ttl = str(android.get("ttl", "0s"))
    checks = {
        "message": not isinstance(body.get("message"), dict),
        "message.token": not isinstance(message.get("token"), str) or not message["token"].isprintable(),
        "message.data": not all(isinstance(value, str) for value in data.values()),
        "message.android.ttl": not _TTL.fullmatch(ttl) or float(ttl[:-1]) > MAX_TTL,
        "message.android.priority": str(android.get("priority", "HIGH")).upper() not in {"HIGH", "NORMAL"},
        "message.size": len(json.dumps([data, message.get("notification")]).encode()) > MAX_PAYLOAD,
    }
    return next((name for name, wrong in checks.items() if wrong), "")


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        given = json.loads(await request.read())
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
