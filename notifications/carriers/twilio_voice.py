"""Calls through Twilio, with Twilio's own client. What is said, and what is asked, goes along as TwiML.

Twilio docs, "Calls resource".
"""

import logging
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final
from urllib.parse import urlencode

from django.conf import settings
from twilio.base import values
from twilio.http import HttpClient
from twilio.http.response import Response
from twilio.rest import Client

from notifications.carriers import twiml
from notifications.carriers.base import Answer, Outcome, OutgoingMessage
from notifications.carriers.transport import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Reply,
    Transport,
    TransportError,
    path_of,
)
from notifications.carriers.twilio import BASE_URL, classify, status_callback

RING_SECONDS: Final = 25
"""How long it rings: most voicemails answer after that, and nobody else does."""

EVENTS: Final = ["initiated", "ringing", "answered", "completed"]
_NUMBER: Final = re.compile(r"\+[1-9][0-9]{6,14}")
_log: Final = logging.getLogger(__name__)


class TwilioVoiceCarrier:
    """Calls from the number `sender` (E.164). Whoever answers hears `message.text` and presses a key.

    Keys are posted to our /hooks/twilio/voice/<attempt id>, what becomes of the call to /hooks/twilio/status/<attempt id>.
    """

    name = "twilio-voice"
    simulated = False
    templated = False

    def __init__(
        self,
        account_sid: str,
        auth_token: str,
        *,
        sender: str,
        base_url: str = BASE_URL,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._sender = sender
        self.transport = Transport(base_url or BASE_URL, connect_timeout=connect_timeout, read_timeout=read_timeout)
        self.client = Client(account_sid, auth_token, http_client=_Exchange(self.transport))

    async def send(self, message: OutgoingMessage) -> Answer:
        """Create the call at Twilio. There is no idempotency key: after an UNKNOWN the phone may ring."""
        callback = status_callback(message.attempt_id)
        action = twiml.action_url(settings.PUBLIC_BASE_URL, message.attempt_id, said=1)
        return await _exchange(
            lambda: self.client.calls.create_async(
                to=message.to,
                from_=self._sender,
                twiml=twiml.ask(message.text, language=message.language, action=action),
                timeout=RING_SECONDS,
                machine_detection="Enable",
                status_callback=callback or values.unset,
                status_callback_event=EVENTS if callback else values.unset,
            )
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()


_replies: Final[ContextVar[list[Reply]]] = ContextVar("replies")


class _Exchange(HttpClient):
    """The official client's way to the network: our transport, which keeps what came back for `_exchange`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(_log, is_async=True)
        self._transport = transport

    async def request(
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
        query = f"?{urlencode(params)}" if params else ""
        reply = await self._transport.request(method, path_of(url) + query, data=data or {}, headers=headers, auth=auth)
        _replies.get().append(reply)
        return Response(reply.status, reply.text, reply.headers)


async def _exchange(call: Callable[[], Awaitable[object]]) -> Answer:
    """The verdict on one call of the official client, by what came back on the wire.

    The library keeps neither the body of a success nor that of garbage, raises for refusals, and all sorts of errors
    for answers that are not what it expects. Without an answer this is the library refusing to ask, so another
    carrier may still get the word out.
    """
    replies: list[Reply] = []
    _replies.set(replies)
    try:
        await call()
    except TransportError as failure:
        return failure.answer()
    except Exception as error:  # noqa: BLE001
        if not replies:
            detail = f"the Twilio client sent nothing: {type(error).__name__}"
            _log.error(detail)  # without the traceback: its text may quote the number
            return Answer(Outcome.PERMANENT, error_class="config", detail=detail)
    if not replies:
        raise AssertionError("the Twilio client returned without a call")
    return classify(replies[-1])


def configured() -> TwilioVoiceCarrier | None:
    """The carrier of the settings; None where something is missing.

    It calls from TWILIO_VOICE_FROM, else from TWILIO_FROM if that is a number: a name or a messaging service can't call.
    """
    sender = settings.TWILIO_VOICE_FROM or settings.TWILIO_FROM
    if not (settings.TWILIO_ACCOUNT_SID and settings.TWILIO_AUTH_TOKEN and _NUMBER.fullmatch(sender)):
        return None
    return TwilioVoiceCarrier(
        settings.TWILIO_ACCOUNT_SID,
        settings.TWILIO_AUTH_TOKEN,
        sender=sender,
        base_url=settings.TWILIO_API_BASE_URL,
    )
