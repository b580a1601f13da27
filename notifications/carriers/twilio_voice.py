"""Calls through Twilio, with Twilio's own client. What is said, and what is asked, goes along as TwiML.

Twilio docs, "Calls resource".
"""

import re
from typing import Final

from django.conf import settings
from twilio.base import values
from twilio.rest import Client

from notifications.carriers import twiml
from notifications.carriers.base import Answer, OutgoingMessage
from notifications.carriers.transport import CONNECT_TIMEOUT, READ_TIMEOUT, Transport
from notifications.carriers.twilio import BASE_URL, Exchange, exchange, status_callback

RING_SECONDS: Final = 25
"""How long it rings: most voicemails answer after that, and nobody else does."""

EVENTS: Final = ["initiated", "ringing", "answered", "completed"]
_NUMBER: Final = re.compile(r"\+[1-9][0-9]{6,14}")


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
        self.client = Client(account_sid, auth_token, http_client=Exchange(self.transport))

    async def send(self, message: OutgoingMessage) -> Answer:
        """Create the call at Twilio. There is no idempotency key: after an UNKNOWN the phone may ring."""
        callback = status_callback(message.attempt_id)
        action = twiml.action_url(settings.PUBLIC_BASE_URL, message.attempt_id, said=1)
        return await exchange(
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
