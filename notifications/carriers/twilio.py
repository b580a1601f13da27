"""Text messages through Twilio, with Twilio's own client.

Twilio docs, "Messages resource" and "Error and Warning Dictionary".
"""

import logging
import re
from typing import Any, Final

from twilio.http import HttpClient
from twilio.http.response import Response
from twilio.rest import Client

from notifications.carriers.base import Answer, ErrorClass, Outcome, OutgoingMessage, storable
from notifications.carriers.errors import http_error, twilio_error
from notifications.carriers.transport import (
    CONNECT_TIMEOUT,
    POOL_SIZE,
    READ_TIMEOUT,
    Reply,
    Transport,
    TransportError,
    path_of,
)

BASE_URL: Final = "https://api.twilio.com"

VALIDITY_PERIOD: Final = 3600
"""Seconds a message may wait in Twilio's queue before it is dropped.

Twilio's default is ten hours. An alert that is an hour late still helps and says when it
happened; a later one frightens people about an evening that is long over.
"""

_MESSAGE_SID: Final = re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}")
_NOT_SENT: Final = frozenset({"failed", "undelivered", "canceled"})
_log: Final = logging.getLogger(__name__)


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
        pool_size: int = POOL_SIZE,
    ) -> None:
        self._credentials = (account_sid, auth_token)
        self._sender = {"messaging_service_sid": messaging_service_sid} if messaging_service_sid else {"from_": sender}
        self._transport = Transport(
            base_url or BASE_URL,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            pool_size=pool_size,
        )

    def send(self, message: OutgoingMessage) -> Answer:
        """Create the message at Twilio. There is no idempotency key: an UNKNOWN may be out."""
        # A client per call is cheap (about 70 µs) and gives each call a place of its own for
        # what came back: the library keeps neither the body of a success nor that of garbage.
        exchange = _Exchange(self._transport)
        try:
            client = Client(*self._credentials, http_client=exchange)
            client.messages.create(
                to=message.to,
                body=storable(message.text),
                validity_period=VALIDITY_PERIOD,
                **self._sender,
            )
        except TransportError as failure:
            return failure.answer()
        except Exception as error:  # noqa: BLE001
            # The library raises for refusals, and all sorts of errors for answers that are
            # not what it expects: what came back is judged below. Without an answer this is
            # the library refusing to ask, so another carrier may still get the word out.
            if exchange.reply is None:
                detail = f"the Twilio client sent nothing: {type(error).__name__}"
                _log.error(detail)  # without the traceback: its text may quote the number
                return Answer(Outcome.PERMANENT, error_class="config", detail=detail)
        if exchange.reply is None:
            raise AssertionError("the Twilio client returned without a call")
        return _classify(exchange.reply)


class _Exchange(HttpClient):
    """The HTTP client of one call: posts through the shared transport, keeps what came back."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(_log, is_async=False)
        self._transport = transport
        self.reply: Reply | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        params: dict[str, object] | None = None,
        data: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        **_: object,
    ) -> Response:
        if method != "POST" or params:
            raise NotImplementedError(f"{method} is not needed to send a message")
        reply = self._transport.post(path_of(url), data=data or {}, headers=headers, auth=auth)
        self.reply = reply
        return Response(reply.status, reply.text, reply.headers)


def _classify(reply: Reply) -> Answer:
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
