"""What every carrier is given, and what it has to answer."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol
from uuid import UUID

from casualmeet.db import storable

ErrorClass = Literal[
    "",
    "auth",
    "bad_recipient",
    "config",
    "content",
    "expired",
    "geo",
    "gone",
    "opt_out",
    "throttled",
    "transient",
]

MAX_RAW: Final = 4000
MAX_DETAIL: Final = 500
MAX_ERROR_CODE: Final = 32
MAX_MESSAGE_ID: Final = 64


class Outcome(StrEnum):
    """What one call to a carrier came to, in terms of what may be done next.

    ACCEPTED: the carrier took the message off our hands. It is not "delivered".
    TRANSIENT: certainly not sent; the same carrier may take it later.
    PERMANENT: certainly not sent, and this carrier will not take it.
    UNKNOWN: the request left but no readable answer came back. The message may be out, so
        whatever is sent next has to say that it is a repeat.
    """

    ACCEPTED = "accepted"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PushTarget:
    """A browser (`p256dh` and `auth` are its keys, base64url) or an app: where a push goes."""

    kind: str
    endpoint: str = field(repr=False)
    p256dh: str = field(default="", repr=False)
    auth: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message to one address: a text, what a call says, or a push (its title on the first line).

    `to` is E.164, or for a push the subscription's id, with `target` beside it. `variables` fill a
    registered template where a carrier sends templates instead of `text`. `reference` is the
    incident's. Address and words stay out of the repr, and so out of logs and tracebacks.
    """

    to: str = field(repr=False)
    text: str = field(repr=False)
    kind: str
    variables: tuple[str, ...] = field(repr=False)
    language: str
    attempt_id: UUID
    channel: str = "sms"
    link: str = field(default="", repr=False)
    reference: str = ""
    incident_id: UUID | None = None
    target: PushTarget | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A carrier's answer, classified.

    `raw` is the answer's body as it came, for every call that got one. `retry_after` is in
    seconds. Every text is cut to the limits above and made fit for any database: a carrier
    that answers garbage must not be able to make saving its answer fail.
    """

    outcome: Outcome
    carrier_message_id: str = ""
    http_status: int | None = None
    error_code: str = ""
    error_class: ErrorClass = ""
    detail: str = ""
    raw: str = ""
    retry_after: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (
            ("carrier_message_id", MAX_MESSAGE_ID),
            ("error_code", MAX_ERROR_CODE),
            ("detail", MAX_DETAIL),
            ("raw", MAX_RAW),
        ):
            text = getattr(self, name)
            if len(text) > limit or not text.isascii() or "\0" in text:
                object.__setattr__(self, name, storable(text[:limit]))


class Carrier(Protocol):
    """Something that takes a message off our hands.

    `send` runs many times at once in one event loop, which it never blocks. It never raises for
    anything the network or the carrier does: all of that becomes an `Answer`.
    """

    name: str
    simulated: bool
    # Sends registered templates and so needs `OutgoingMessage.variables` in place of `text`.
    templated: bool

    async def send(self, message: OutgoingMessage) -> Answer: ...

    async def close(self) -> None: ...
