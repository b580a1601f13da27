"""Fitting a text into its limit.

A text is a frame with named slots. Every slot starts with its shortest wording (often nothing):
that floor is written so that it fits whatever the facts are. Then offers are made in order of
worth; each puts the first of its wordings (fullest first) that still fits into its slot, or leaves
the slot as it was. So what is worth least goes first, nothing is cut in the middle, and room left
by a part that did not fit still serves the parts after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from notifications.texts.facts import Kind
from notifications.texts.gsm import GSM7_PART, UCS2_PART, is_gsm7, segments, units, utf16_units

Offer = tuple[str, Sequence[str]]
"""A slot's name and the wordings offered for it, fullest first."""

MAX_SEGMENTS: Final[Mapping[Kind, tuple[int, int]]] = {
    Kind.MISSED_CHECK_IN: (2, 3),
    Kind.SOS: (2, 3),
    Kind.DURESS: (2, 3),
    Kind.UPDATE: (1, 2),  # coordinates and a link alone fill one part of UCS-2
    Kind.ALL_CLEAR: (1, 1),
    Kind.CHECK_PROMPT: (1, 1),
    Kind.INVITATION: (2, 2),
    Kind.FAIL_SAFE: (2, 3),
    Kind.REPLY: (1, 2),
    Kind.RECONFIRM: (1, 2),
    Kind.DIGEST: (1, 2),
    Kind.SELF_TEST: (1, 2),
}
"""Most SMS parts by kind: in GSM-7, in UCS-2."""


def fits(text: str, kind: Kind, point: str) -> bool:
    """Whether `text` keeps the limit of its kind and has `point` whole in its early part.

    Early is the first part of a GSM-7 text (153 septets) or the first two of a UCS-2 one (134
    units), so that the coordinates survive the loss of the last part.
    """
    gsm = is_gsm7(text)
    if segments(text, gsm=gsm) > MAX_SEGMENTS[kind][0 if gsm else 1]:
        return False
    if not point:
        return True
    until = text[: text.index(point) + len(point)] if point in text else ""
    return units(until) <= GSM7_PART if gsm else utf16_units(until) <= 2 * UCS2_PART


def most_segments(text: str, kind: Kind) -> int:
    """The most SMS parts a text of `kind` may take in the alphabet that `text` needs."""
    return MAX_SEGMENTS[kind][0 if is_gsm7(text) else 1]


def full(floor: Mapping[str, str], offers: Iterable[Offer]) -> dict[str, str]:
    """The slots with all that is offered, whether it fits or not."""
    return {**floor, **{slot: wordings[0] for slot, wordings in offers if wordings}}


def fill(
    frame: str,
    floor: Mapping[str, str],
    offers: Iterable[Offer],
    fitting: Callable[[str], bool],
) -> dict[str, str]:
    """The slots of `frame` after all `offers`, each taken as far as `fitting` allows."""
    slots = dict(floor)
    for slot, wordings in offers:
        for wording in wordings:
            trial = {**slots, slot: wording}
            if fitting(frame.format(**trial)):
                slots = trial
                break
    return slots
