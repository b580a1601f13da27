"""Text messages through Twilio, and what its calls share with them.

Twilio docs, "Messages resource" and "Error and Warning Dictionary".
"""

import re
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings

from casualmeet.db import storable
from notifications.carriers.base import Answer, ErrorClass, Outcome, OutgoingMessage
from notifications.carriers.errors import http_error, twilio_error
from notifications.carriers.transport import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Reply,
    Transport,
    TransportError,
)
from notifications.carriers.twilio_status import find_message

BASE_URL: Final = "https://api.twilio.com"

VALIDITY_PERIOD: Final = 3600
"""Seconds a message may wait in Twilio's queue before it is dropped.

Twilio's default is ten hours. An alert that is an hour late still helps and says when it
happened; a later one frightens people about an evening that is long over.
"""

REPEAT_CALLBACKS: Final = "#rc=3&rp=5xx,ct,rt"
"""Twilio repeats a callback that met a server error or a time-out, three times (Twilio docs, "Webhooks: Connection
Overrides"). The fragment is not part of what it signs.
"""

_MESSAGE_SID: Final = re.compile(r"(?:SM|MM|CA)[0-9a-fA-F]{32}")
_NOT_SENT: Final = frozenset({"failed", "undelivered", "canceled"})


class TwilioCarrier:
    """Sends from a Messaging Service if one is given, else from a number or sender id.

    `base_url` is where the API is; another region, or a local stand-in, has another one. The
    client's own TWILIO_EDGE and TWILIO_REGION do not apply.
    """

    name = "twilio"
    simulated = False
    templated = False

    def __init__(
        self,
        account_sid: str,
        auth_token: str,
        *,
        sender: str = "",
        messaging_service_sid: str = "",
        base_url: str = BASE_URL,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._sender = {"MessagingServiceSid": messaging_service_sid} if messaging_service_sid else {"From": sender}
        self._messages = f"/2010-04-01/Accounts/{account_sid}/Messages.json"
        self.auth = (account_sid, auth_token)
        self.transport = Transport(base_url or BASE_URL, connect_timeout=connect_timeout, read_timeout=read_timeout)

    async def send(self, message: OutgoingMessage) -> Answer:
        """Create the message at Twilio. There is no idempotency key: an UNKNOWN may be out.

        Not through Twilio's client, which takes as much processor time as all the rest of a call.
        """
        form = {"To": message.to, "Body": storable(message.text), "ValidityPeriod": VALIDITY_PERIOD, **self._sender}
        if callback := status_callback(message.attempt_id):
            form["StatusCallback"] = callback
        try:
            return classify(await self.transport.request("POST", self._messages, data=form, auth=self.auth))
        except TransportError as failure:
            return failure.answer()

    async def find(self, *, to: str, text: str, since: datetime) -> str | None:
        """The SID of a message that may have gone out though its answer was lost; None if Twilio knows of none."""
        return await find_message(self.transport, self.auth, to=to, since=since, reference=storable(text))

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()


def status_callback(attempt_id: UUID) -> str:
    """Where Twilio reports what became of an attempt; "" where it could not reach us."""
    public = urlsplit(settings.PUBLIC_BASE_URL)
    if public.hostname in {"localhost", "127.0.0.1", "::1"} and not settings.CARRIER_SIMULATOR_URL:
        return ""
    return f"{settings.PUBLIC_BASE_URL}/hooks/twilio/status/{attempt_id}{REPEAT_CALLBACKS}"


def classify(reply: Reply) -> Answer:
    """An answer to the creation of a message or a call."""
    fields = reply.fields()
    outcome, error_class, sid, code = _verdict(reply.status, fields)
    return Answer(
        outcome,
        carrier_message_id=sid,
        http_status=reply.status,
        error_code="" if code is None else str(code),
        error_class=error_class,
        detail=_detail(fields),
        raw=reply.text,
        retry_after=reply.retry_after,
    )


def _verdict(status: int, fields: dict[str, Any] | None) -> tuple[Outcome, ErrorClass, str, int | None]:
    """Outcome, error class, message id and error code of an answer."""
    if fields is None:
        return *http_error(status, readable=False), "", None
    sid = fields.get("sid")
    if 200 <= status < 300:
        if not isinstance(sid, str) or not _MESSAGE_SID.fullmatch(sid):
            return Outcome.UNKNOWN, "", "", None
        if fields.get("status") not in _NOT_SENT:
            return Outcome.ACCEPTED, "", sid, None
        code = _code(fields.get("error_code"))
        return *(_known(code) or (Outcome.PERMANENT, "")), sid, code
    code = _code(fields.get("code"))
    return *(_known(code) or http_error(status, readable=code is not None)), "", code


def _known(code: int | None) -> tuple[Outcome, ErrorClass] | None:
    return None if code is None else twilio_error(code)


def _code(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _detail(fields: dict[str, Any] | None) -> str:
    message = (fields or {}).get("message") or (fields or {}).get("error_message")
    return message if isinstance(message, str) else ""
