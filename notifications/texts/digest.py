"""The supervisors' daily text: numbers only, in one part of English or at most two of Hindi."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from notifications.texts import moments
from notifications.texts.facts import Kind
from notifications.texts.fitting import most_segments
from notifications.texts.gsm import segments

_REPEAT_MARK: Final = ", 98th"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A day's counts, and times in seconds from the opening of an incident: median and longest, or none."""

    day: date
    incidents: int = 0
    unresolved: int = 0
    nobody_reached: int = 0
    dead_letters: int = 0
    accepted: tuple[float, float] | None = None
    acknowledged: tuple[float, float] | None = None
    failing: Sequence[str] = ()


# What is worth most comes first: the last ones are left out where there is no room.
_ENGLISH: Final[Mapping[str, str]] = {
    "head": "CasualMeet {day}: {incidents} alarm{s}, {unresolved} open",
    "nobody_reached": ", {n} with nobody reached",
    "dead_letters": ", {n} dead letter{s}",
    "failing": ". Failing: {names}",
    "accepted": ". First accepted {median}/{longest}",
    "acknowledged": ". Answered {median}/{longest} (median/longest)",
    "end": ".",
}
_HINDI: Final[Mapping[str, str]] = {
    "head": "CasualMeet {day}: {incidents} अलार्म, {unresolved} खुले",
    "nobody_reached": ", {n} में कोई नहीं मिला",
    "dead_letters": ", {n} संदेश नहीं गए",
    "failing": "। ख़राब: {names}",
    "accepted": "। पहला संदेश {median}/{longest}",
    "acknowledged": "। जवाब {median}/{longest}",
    "end": "।",
}


def compose_digest(figures: Figures, language: str) -> str:
    """The words of the digest in `en` or `hi`; parts that have nothing to say, or no room, are left out."""
    words = _HINDI if re.split("[-_]", language.lower())[0] == "hi" else _ENGLISH
    text = words["head"].format(
        day=moments.date_in_short(figures.day),
        incidents=figures.incidents,
        s=_plural(figures.incidents),
        unresolved=figures.unresolved,
    )
    for part in _parts(figures, words):
        longer = text + part + words["end"]
        if segments(longer + _REPEAT_MARK) <= most_segments(longer, Kind.DIGEST):
            text += part
    return text + words["end"]


def in_short(seconds: float) -> str:
    """`9 s`, `4 min`, `3 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _parts(figures: Figures, words: Mapping[str, str]) -> list[str]:
    found = []
    for name, count in (("nobody_reached", figures.nobody_reached), ("dead_letters", figures.dead_letters)):
        if count:
            found.append(words[name].format(n=count, s=_plural(count)))
    if figures.failing:
        found.append(words["failing"].format(names=", ".join(figures.failing)))
    for name, times in (("accepted", figures.accepted), ("acknowledged", figures.acknowledged)):
        if times:
            found.append(words[name].format(median=in_short(times[0]), longest=in_short(times[1])))
    return found
