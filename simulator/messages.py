"""Twilio's message resource: its states, its JSON, and how a message goes its way.

Twilio docs, "Messages resource" and "Outbound message status in status callbacks".
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from notifications.texts import gsm
from simulator.callbacks import SiteCaller
from simulator.clock import VirtualClock
from simulator.credentials import ACCOUNT_SID
from simulator.journal import Entry, Journal
from simulator.rules import Step

API_VERSION: Final = "2010-04-01"
QUEUE_SECONDS: Final = 10 * 3600
EXPIRED: Final = 30036
QUEUE_OVERFLOW: Final = 30001
OPTED_OUT: Final = 21610
MANY_SEGMENTS: Final = 10
PRICE_PER_SEGMENT: Final = 0.0083


@dataclass(slots=True)
class Message:
    """One message. Times are seconds since 1970; `leaves_at` is when its sender's queue lets it go."""

    sid: str
    to: str
    body: str
    status: str
    created_at: float
    updated_at: float
    leaves_at: float
    entry: Entry
    sender: str = ""
    service: str = ""
    status_callback: str = ""
    direction: str = "outbound-api"
    validity: int = QUEUE_SECONDS
    send_at: float | None = None
    sent_at: float | None = None
    error_code: int | None = None
    opted_out: bool = False

    @property
    def accepted_at(self) -> float:
        """When the queue took it, which for a scheduled message is later."""
        return self.created_at if self.send_at is None else self.send_at

    @property
    def segments(self) -> int:
        return gsm.segments(self.body)

    @property
    def too_long(self) -> bool:
        """More segments than Twilio advises to send at all."""
        return self.segments > MANY_SEGMENTS

    def as_json(self) -> dict[str, Any]:
        base = f"/{API_VERSION}/Accounts/{ACCOUNT_SID}/Messages/{self.sid}"
        undecided = bool(self.service) and self.status in {"accepted", "scheduled"}
        billed = self.sent_at is not None
        return {
            "account_sid": ACCOUNT_SID,
            "api_version": API_VERSION,
            "body": self.body,
            "date_created": rfc2822(self.created_at),
            "date_sent": None if self.sent_at is None else rfc2822(self.sent_at),
            "date_updated": rfc2822(self.updated_at),
            "direction": self.direction,
            "error_code": self.error_code,
            "error_message": None if self.error_code is None else f"Error {self.error_code}",
            "from": self.sender or None,
            "messaging_service_sid": self.service or None,
            "num_media": "0",
            "num_segments": "0" if undecided else str(self.segments),
            "price": f"-{self.segments * PRICE_PER_SEGMENT:.5f}" if billed else None,
            "price_unit": "USD",
            "sid": self.sid,
            "status": self.status,
            "subresource_uris": {"media": f"{base}/Media.json"},
            "to": self.to,
            "uri": f"{base}.json",
        }

    def callback_fields(self) -> dict[str, str]:
        """The form of a status callback."""
        fields = {
            "AccountSid": ACCOUNT_SID,
            "ApiVersion": API_VERSION,
            "From": self.sender,
            "MessageSid": self.sid,
            "MessageStatus": self.status,
            "SmsSid": self.sid,
            "SmsStatus": self.status,
            "To": self.to,
        }
        if self.service:
            fields["MessagingServiceSid"] = self.service
        if self.error_code is not None:
            fields["ErrorCode"] = str(self.error_code)
        if self.status in {"delivered", "undelivered"}:
            fields["RawDlrDoneDate"] = datetime.fromtimestamp(self.updated_at, UTC).strftime("%y%m%d%H%M")
        return fields


class Courier:
    """Takes messages from state to state, and tells the site of each.

    `pace` is the time from one state to the next, in seconds.
    """

    def __init__(self, clock: VirtualClock, journal: Journal, caller: SiteCaller, *, pace: float) -> None:
        self._clock = clock
        self._journal = journal
        self._caller = caller
        self.pace = pace

    async def carry(self, message: Message, step: Step) -> None:
        """Bring the message to its end, with its callbacks."""
        faults = step.callbacks
        if message.send_at is not None:
            await self._clock.until(message.send_at)
            if message.status != "scheduled":
                return
        await self._clock.until(min(message.leaves_at, message.accepted_at + message.validity))
        told: list[dict[str, str]] = []
        for status, code in self._way(message, step):
            await self._clock.sleep(self.pace)
            arrives = status == "delivered" or (status == "sent" and step.ends != "undelivered")
            self._enter(message, status, code, arrives=arrives)
            if faults.backwards:
                told.insert(0, message.callback_fields())
            elif faults.late:
                self._clock.spawn(self._tell(message, message.callback_fields(), step))
            else:
                await self._tell(message, message.callback_fields(), step)
        for fields in told:
            await self._tell(message, fields, step)

    async def cancel(self, message: Message) -> None:
        """Take a scheduled message back, and tell the site."""
        self._enter(message, "canceled", None)
        self._clock.spawn(self._tell(message, message.callback_fields(), Step()))

    async def _tell(self, message: Message, fields: dict[str, str], step: Step) -> None:
        await self._caller.tell(message.status_callback, fields, step.callbacks)

    def _way(self, message: Message, step: Step) -> Iterator[tuple[str, int | None]]:
        """The states after the first, which has no callback, with the error code of each."""
        if message.opted_out:
            yield "failed", OPTED_OUT
        elif message.leaves_at - message.accepted_at > QUEUE_SECONDS:
            yield "failed", QUEUE_OVERFLOW
        elif message.leaves_at - message.accepted_at > message.validity:
            yield "failed", EXPIRED
        elif step.ends == "failed":
            yield "failed", step.error_code
            if step.after_all:
                yield "delivered", None
        else:
            yield "sending", step.error_code if step.code_from_start else None
            yield "sent", None
            if step.ends != "sent":
                yield step.ends or "delivered", step.error_code
            if step.after_all:
                yield "delivered", None

    def _enter(self, message: Message, status: str, code: int | None, *, arrives: bool = False) -> None:
        now = self._clock.now()
        message.status, message.error_code, message.updated_at = status, code, now
        if status == "sent":
            message.sent_at = now
        self._journal.change(
            message.entry,
            status=status,
            error_code=code,
            on_phone=message.entry.on_phone or arrives,
            sender=message.sender or message.service,
        )


def new_sid(prefix: str = "SM") -> str:
    """A made-up SID."""
    return prefix + secrets.token_hex(16)


def rfc2822(when: float) -> str:
    """A time the way Twilio's JSON writes it."""
    return format_datetime(datetime.fromtimestamp(when, UTC))
