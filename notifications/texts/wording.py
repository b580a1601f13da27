"""The pieces a language supplies; what goes into a text, and when, is the same in all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from notifications.texts.facts import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionWording:
    """How a position is put. Forms take `point`, `detail` and, when seen, `when`."""

    fresh: str
    seen: str
    undated: str
    bare: str
    """The shortest form; takes `point` and `clock`."""
    none: str
    planned: str
    """No position, but a planned place; takes `place`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """All words of one language. A tuple lists wordings of the same thing, fullest first.

    Frames have slots (see compose.py); the other pieces bring the space before them along, so that
    a slot left empty leaves no trace. `gsm` says whether typed names are spelled in GSM-7.
    """

    gsm: bool
    unnamed: str
    brand: str
    frames: Mapping[Kind, str]
    repeated: Callable[[int, Kind], str]
    """The mark of the n-th text about the same thing, n from 2."""
    repeated_short: Callable[[int, Kind], str]
    events: Mapping[Kind, tuple[str, ...]]
    late: str
    late_ages: tuple[str, str, str]
    """Minutes, hours, days; each takes a number."""
    alert_position: PositionWording
    update_position: PositionWording
    approximate: str
    metres: str
    kilometres: str
    call: tuple[str, ...]
    emergency: tuple[str, ...]
    caution: Mapping[Kind, str]
    met: str
    met_at: str
    place: str
    agreed_word: str
    map: tuple[str, ...]
    update_of: tuple[str, ...]
    no_new_alarm: str
    with_pin: str
    in_app: str
    closed: tuple[str, ...]
    """Take `reference` and `opened`."""
    closed_unnamed: str
    opened: str
    unsure: str
    minutes: str
    under_a_minute: str
    their_phone: str
    """What stands for the phone of somebody who gave none."""
    tracked: str
    """Takes `reference`."""
    invitation_ask: tuple[str, ...]
    invitation_end: tuple[str, ...]
    reconfirm_ask: tuple[str, ...]
    reconfirm_end: str
    dlt: "DltWording"


@dataclass(frozen=True, slots=True, kw_only=True)
class DltWording:
    """Templates to register with DLT and what fills a variable that has nothing to say."""

    frames: Mapping[Kind, str]
    first: str
    first_invitation: str
    repeated_invitation: Callable[[int], str]
    first_question: str
    repeated_question: Callable[[int], str]
    no_position: str
    nowhere: str
    nobody: str
    no_reference: str
    late: str
    located: str
    """Takes `detail`."""
    now: str
    seen: str
    """Takes `when` and `detail`."""
    undated: str
