"""Pushes to apps through Firebase Cloud Messaging.

Firebase docs, "FCM HTTP v1 API" (projects.messages.send), "ErrorCode" and "Best practices when sending FCM messages
at scale". Written without a live account; the raw answer is kept on every attempt.
"""

import json
import re
import time
from typing import Any, Final

from django.conf import settings

from notifications.carriers import pushes
from notifications.carriers.base import Answer, ErrorClass, Outcome, OutgoingMessage
from notifications.carriers.errors import http_error
from notifications.carriers.service_account import FixedToken, ServiceAccount, TokenSource, read_info
from notifications.carriers.transport import CONNECT_TIMEOUT, READ_TIMEOUT, Reply, Transport, TransportError

BASE_URL: Final = "https://fcm.googleapis.com"
SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
MAX_BYTES: Final = 4096

WAIT_QUOTA: Final = 60.0
"""Seconds to wait after QUOTA_EXCEEDED without a Retry-After; WAIT_RETRY the least after any other failure."""
WAIT_RETRY: Final = 10.0

# Firebase docs, "ErrorCode". INVALID_ARGUMENT depends on more than its name: see _blames_token.
ERRORS: Final[dict[str, tuple[Outcome, ErrorClass]]] = {
    "UNREGISTERED": (Outcome.PERMANENT, "gone"),
    "SENDER_ID_MISMATCH": (Outcome.PERMANENT, "bad_recipient"),
    "THIRD_PARTY_AUTH_ERROR": (Outcome.PERMANENT, "config"),
    "QUOTA_EXCEEDED": (Outcome.TRANSIENT, "throttled"),
    "UNAVAILABLE": (Outcome.TRANSIENT, "transient"),
    "INTERNAL": (Outcome.TRANSIENT, "transient"),
}

_FCM_ERROR: Final = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
_NAME: Final = re.compile(r"projects/[^/]+/messages/([^/]+)")
_NEVER_AGAIN: Final = frozenset({400, 401, 403, 404})


class FCMCarrier:
    """Sends to the tokens of one Firebase project. `base_url` is another one only for a local stand-in."""

    name = "fcm"
    simulated = False
    templated = False

    def __init__(
        self,
        tokens: TokenSource,
        *,
        base_url: str = BASE_URL,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._tokens = tokens
        self._path = f"/v1/projects/{tokens.project_id}/messages:send"
        self._transport = Transport(base_url or BASE_URL, connect_timeout=connect_timeout, read_timeout=read_timeout)

    async def send(self, message: OutgoingMessage) -> Answer:
        """Send it. Accepted by Google is not shown by the phone: only the phone's receipt says so."""
        if message.target is None or message.target.kind != "fcm":
            return Answer(Outcome.PERMANENT, detail="no FCM token to send to")
        body = request_body(message, now=time.time())
        try:
            token = await self._tokens.token()
            reply = await self._post(body, token)
            if reply.status == 401 and _status(_error(reply)) == "UNAUTHENTICATED" and not _code(_error(reply)):
                self._tokens.refused(token)
                reply = await self._post(body, await self._tokens.token())
        except TransportError as failure:
            return failure.answer()
        return classify(reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _post(self, body: bytes, token: str) -> Reply:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json; charset=utf-8"}
        return await self._transport.request("POST", self._path, body=body, headers=headers)


def request_body(message: OutgoingMessage, *, now: float) -> bytes:
    """The request as JSON in at most 4,096 bytes. `now` is a Unix time in seconds.

    Firebase docs, "projects.messages": the values of `data` must be strings, times to live end in "s".
    """
    title, body = pushes.title_and_body(message)
    target, tag = message.target, pushes.tag(message)
    data = {
        "kind": pushes.shown_kind(message),
        "receipt": str(message.attempt_id),
        "tag": tag,
        "link": message.link,
        "incident": str(message.incident_id or ""),
    }

    def encoded(body: str) -> bytes:
        sent = {
            "token": target.endpoint if target else "",
            "notification": {"title": title, "body": body},
            "data": {name: value for name, value in data.items() if value},
            "android": _android(message, tag),
            "apns": _apns(message, tag, now=now),
            "webpush": {
                "headers": {"Urgency": "high" if pushes.is_urgent(message) else "normal", "TTL": str(pushes.TTL)}
            },
        }
        return json.dumps({"message": sent}, ensure_ascii=False, separators=(",", ":")).encode()

    return pushes.fitted(encoded, body, limit=MAX_BYTES)


def _android(message: OutgoingMessage, tag: str) -> dict[str, Any]:
    # HIGH for all: a check prompt that waits until the phone wakes by itself comes after the deadline.
    return {
        "priority": "HIGH",
        "ttl": f"{pushes.TTL}s",
        "collapse_key": tag,
        "direct_boot_ok": True,
        "notification": {"channel_id": "sos" if pushes.is_urgent(message) else "safety", "tag": tag},
    }


def _apns(message: OutgoingMessage, tag: str, *, now: float) -> dict[str, Any]:
    level = "time-sensitive" if pushes.is_urgent(message) else "active"
    return {
        "headers": {
            "apns-priority": "10",
            "apns-expiration": str(int(now) + pushes.TTL),
            "apns-collapse-id": tag,
        },
        "payload": {"aps": {"sound": "default", "interruption-level": level}},
    }


def classify(reply: Reply) -> Answer:
    """The answer that a reply means."""
    outcome, error_class, message_id = _verdict(reply)
    error = _error(reply)
    code = _code(error) or _status(error)
    return Answer(
        outcome,
        carrier_message_id=message_id,
        http_status=reply.status,
        error_code=code,
        error_class=error_class,
        detail=str((error or {}).get("message") or ""),
        raw=reply.text,
        retry_after=_wait(reply, outcome, error_class),
    )


def _verdict(reply: Reply) -> tuple[Outcome, ErrorClass, str]:
    """Outcome, error class and message id of a reply."""
    if not 200 <= reply.status < 300:
        return *_refusal(reply.status, _error(reply)), ""
    name = _NAME.fullmatch(str((reply.fields() or {}).get("name") or ""))
    return (Outcome.ACCEPTED, "", name[1]) if name else (Outcome.UNKNOWN, "", "")


def _refusal(status: int, error: dict[str, Any] | None) -> tuple[Outcome, ErrorClass]:
    code = _code(error)
    if code in ERRORS:
        return ERRORS[code]
    if code == "INVALID_ARGUMENT":
        return Outcome.PERMANENT, "gone" if _blames_token(error) else "content"
    if code and status not in _NEVER_AGAIN:
        return Outcome.TRANSIENT, "transient"
    if status in (400, 404):
        # Without Firebase's own error a 404 means the project or the API, not the token.
        return Outcome.PERMANENT, "content" if status == 400 else "config"
    return http_error(status, readable=error is not None)


def _blames_token(error: dict[str, Any] | None) -> bool:
    """Whether INVALID_ARGUMENT is about the token: a bad payload has the same code, and must not cost a good token.

    Two shapes are known: field violations that name message.token, or none and words about the registration token.
    """
    fields = [
        violation.get("field")
        for detail in _details(error)
        if detail.get("@type") == _BAD_REQUEST
        for violation in _dicts(detail.get("fieldViolations"))
    ]
    if fields:
        return set(fields) == {"message.token"}
    return "registration token" in str((error or {}).get("message") or "").lower()


def _wait(reply: Reply, outcome: Outcome, error_class: ErrorClass) -> float | None:
    """Seconds to wait: what the reply asks for, else what the documentation does."""
    if outcome is not Outcome.TRANSIENT:
        return reply.retry_after
    return reply.retry_after or (WAIT_QUOTA if error_class == "throttled" else WAIT_RETRY)


def _error(reply: Reply) -> dict[str, Any] | None:
    error = (reply.fields() or {}).get("error")
    return error if isinstance(error, dict) else None


def _code(error: dict[str, Any] | None) -> str:
    """Firebase's own error code, or "" where it is not Firebase that answers."""
    for detail in _details(error):
        if detail.get("@type") == _FCM_ERROR and isinstance(detail.get("errorCode"), str):
            return str(detail["errorCode"])
    return ""


def _status(error: dict[str, Any] | None) -> str:
    status = (error or {}).get("status")
    return status if isinstance(status, str) else ""


def _details(error: dict[str, Any] | None) -> list[dict[str, Any]]:
    return _dicts((error or {}).get("details"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def configured() -> FCMCarrier | None:
    """The carrier of the settings, None without a usable service account. A simulator takes the place of Google."""
    if settings.CARRIER_SIMULATOR_URL:
        source = FixedToken("simulated", "simulated")
        return FCMCarrier(source, base_url=settings.CARRIER_SIMULATOR_URL)
    if not settings.FCM_SERVICE_ACCOUNT or problem():
        return None
    account = ServiceAccount(read_info(settings.FCM_SERVICE_ACCOUNT), scope=SCOPE)
    return FCMCarrier(account, base_url=settings.FCM_API_BASE_URL)


def is_offered() -> bool:
    """Whether this site means to send to apps."""
    return bool(settings.FCM_SERVICE_ACCOUNT or settings.CARRIER_SIMULATOR_URL)


def problem() -> str:
    """What keeps FCM from being used although it is set, as a sentence for the operator, or ""."""
    if not settings.FCM_SERVICE_ACCOUNT:
        return ""
    try:
        ServiceAccount(read_info(settings.FCM_SERVICE_ACCOUNT), scope=SCOPE)
    except ValueError as error:
        return f"FCM is not used: FCM_SERVICE_ACCOUNT is {error}."
    return ""
