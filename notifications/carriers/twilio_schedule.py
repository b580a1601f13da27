"""Texts that Twilio keeps and sends by itself at a set time, unless they are cancelled before.

Twilio docs, "Message Scheduling" (`ScheduleType=fixed`, `SendAt` from 300 s to 35 days ahead, only from a Messaging
Service; cancelled by `Status=canceled`), "Messages resource", and errors 30409 (no longer scheduled) and 35115 (`SendAt`
out of that window). No answer is taken for what it does not say: `UNKNOWN` means that the message may stand, or may not.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from casualmeet.db import storable
from notifications.carriers.transport import Reply, Transport, TransportError
from notifications.carriers.twilio import BASE_URL
from notifications.carriers.twilio_status import Untold, messages_to

SHORTEST_LEAD: Final = timedelta(seconds=300)
"""What is nearer than this can't be scheduled."""

_SID: Final = re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}")
# Refusals that say nothing about the message: who asks, and how often.
_ABOUT_US: Final = frozenset({401, 403, 408, 425, 429})


class State(StrEnum):
    """What stands at the carrier."""

    SCHEDULED = "scheduled"  # it will go out
    GONE = "gone"  # it will not go out, and did not
    SENT = "sent"  # it is going out, or did
    UNKNOWN = "unknown"  # no answer that tells


_STATES: Final = {
    "scheduled": State.SCHEDULED,
    **dict.fromkeys(("canceled", "failed"), State.GONE),
    **dict.fromkeys(
        ("accepted", "queued", "sending", "sent", "delivered", "undelivered", "partially_delivered", "read"),
        State.SENT,
    ),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """A message as the carrier tells of it. `detail` has no number and no text in it."""

    state: State
    message_id: str = ""
    error_code: str = ""
    detail: str = ""


class TwilioScheduler:
    """Schedules, cancels and looks after messages; never raises for what the network or Twilio does."""

    def __init__(
        self, account_sid: str, auth_token: str, *, messaging_service_sid: str, base_url: str = BASE_URL
    ) -> None:
        self._auth = (account_sid, auth_token)
        self._service = messaging_service_sid
        self._messages = f"/2010-04-01/Accounts/{account_sid}/Messages"
        self._transport = Transport(base_url or BASE_URL)

    async def schedule(self, *, to: str, text: str, send_at: datetime) -> Standing:
        """Have `text` sent to the E.164 number `to` at `send_at`. GONE: certainly not taken; UNKNOWN: perhaps it was."""
        try:
            reply = await self._ask(
                "POST",
                f"{self._messages}.json",
                {
                    "To": to,
                    "Body": storable(text),
                    "MessagingServiceSid": self._service,
                    "ScheduleType": "fixed",
                    "SendAt": f"{send_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
                },
            )
        except TransportError as failure:
            never_left = failure.outcome.value != "unknown"
            return Standing(State.GONE if never_left else State.UNKNOWN, detail=failure.detail)
        # A refusal in Twilio's own form; what comes from something in front of it tells nothing.
        if 400 <= reply.status < 500 and _code(reply):
            return Standing(State.GONE, error_code=_code(reply), detail=f"HTTP {reply.status}")
        return _standing(reply)

    async def cancel(self, message_id: str) -> Standing:
        """Cancel what is scheduled. Only GONE is a confirmation; where Twilio refuses, how it stands decides."""
        try:
            reply = await self._ask("POST", f"{self._messages}/{message_id}.json", {"Status": "canceled"})
        except TransportError as failure:
            return Standing(State.UNKNOWN, message_id, detail=failure.detail)
        if 400 <= reply.status < 500 and reply.status not in _ABOUT_US:
            # 30409, or whatever else Twilio calls it: no longer scheduled, so it was cancelled before, or it went out.
            found = await self.fetch(message_id)
            # Refused and yet scheduled: not cancelled.
            return Standing(found.state, message_id, _code(reply) or found.error_code, found.detail)
        return _standing(reply, message_id)

    async def fetch(self, message_id: str) -> Standing:
        """How the message stands."""
        try:
            reply = await self._ask("GET", f"{self._messages}/{message_id}.json")
        except TransportError as failure:
            return Standing(State.UNKNOWN, message_id, detail=failure.detail)
        if reply.status == 404 and _code(reply) == "20404":
            return Standing(State.GONE, message_id, "20404", "no such message")
        return _standing(reply, message_id)

    async def find(self, *, to: str, marker: str, since: datetime) -> list[Standing] | None:
        """The messages to this number since then whose text has `marker` in it; None when that can't be told."""
        try:
            listed = messages_to(self._transport, self._auth, to, since=since)
            return [_of(message) async for message in listed if marker in str(message.get("body"))]
        except Untold:
            return None

    async def close(self) -> None:
        """Close this event loop's connections."""
        await self._transport.close()

    async def _ask(self, method: str, path: str, data: dict[str, str] | None = None) -> Reply:
        return await self._transport.request(method, path, data=data, auth=self._auth)


def _standing(reply: Reply, message_id: str = "") -> Standing:
    fields = reply.fields()
    if fields is None or not 200 <= reply.status < 300:
        return Standing(State.UNKNOWN, message_id, _code(reply), f"HTTP {reply.status}")
    return _of(fields, message_id)


def _of(message: dict[str, Any], message_id: str = "") -> Standing:
    sid = message.get("sid")
    if not isinstance(sid, str) or not _SID.fullmatch(sid) or (message_id and sid != message_id):
        return Standing(State.UNKNOWN, message_id, detail="an answer about no message, or another one")
    status = str(message.get("status"))
    return Standing(_STATES.get(status, State.UNKNOWN), sid, str(message.get("error_code") or ""), status[:40])


def _code(reply: Reply) -> str:
    code = (reply.fields() or {}).get("code")
    return str(code) if isinstance(code, int) else ""
