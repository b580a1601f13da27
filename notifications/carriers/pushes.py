"""What the two push services have in common: how long, how urgent, under which name, and fitting a size."""

from collections.abc import Callable
from typing import Final

from casualmeet.db import storable
from notifications.carriers.base import OutgoingMessage
from notifications.texts.facts import ALERTS, Kind

TTL: Final = 600
"""Seconds a push service keeps a message for a phone that is away.

The text carries the alert anyway; a push that comes hours later frightens people about an evening that is over.
"""

_CUT: Final = "…"


def title_and_body(message: OutgoingMessage) -> tuple[str, str]:
    """The first line of a push's text, and the rest."""
    title, _, body = storable(message.text).partition("\n")
    return title, body


def is_urgent(message: OutgoingMessage) -> bool:
    """Whether it calls for help, and so may wake a sleeping phone."""
    return message.kind in ALERTS


def shown_kind(message: OutgoingMessage) -> str:
    """The kind as the phone may know it: nothing on it tells that a duress PIN was used."""
    return Kind.SOS.value if message.kind == Kind.DURESS else message.kind


def topic(message: OutgoingMessage) -> str:
    """What a newer push replaces an older one by: the incident, else the kind. At most 32 letters, digits and "_"."""
    return message.incident_id.hex if message.incident_id else shown_kind(message)


def tag(message: OutgoingMessage) -> str:
    """The same as the phone's notification is named."""
    return f"inc-{topic(message)}" if message.incident_id else topic(message)


def fitted(make: Callable[[str], bytes], body: str, *, limit: int) -> bytes:
    """`make(body)`, with the body shortened until it is at most `limit` bytes, or empty."""
    made, kept = make(body), body
    while len(made) > limit and kept:
        # In JSON no character takes more than six bytes: this never cuts too much, and soon enough.
        kept = kept[: len(kept) - max(1, (len(made) - limit) // 6)].rstrip()
        made = make(kept + _CUT if kept else "")
    return made
