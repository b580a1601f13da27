"""Names and places as people type them, made fit for a text.

Nothing here fails: what can't be kept is left out, and the result may be empty.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from notifications.texts.gsm import GSM7_BASIC, utf16_units

MAX_TYPED: Final = 400
"""Characters looked at; far more than any text has room for."""

CLUSTER_UNITS: Final = 8
"""Longest run of UTF-16 units treated as one inseparable letter."""

_MAX_MARKS = 3  # more stacked marks on one letter than any script needs

_SIMPLER = {
    "‘": "'", "’": "'", "‚": "'", "‛": "'", "′": "'", "`": "'", "ʼ": "'", "ʻ": "'", "´": "'",
    "‹": "'", "›": "'", "“": '"', "”": '"', "„": '"', "‟": '"', "″": '"', "«": '"', "»": '"',
    "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "―": "-", "−": "-", "~": "-", "⁓": "-",
    "…": "...", "•": "-", "·": "-", "⁄": "/", "∕": "/", "\\": "/", "|": "/", "¦": "/",
    "[": "(", "]": ")", "{": "(", "}": ")", "^": "", "₹": "Rs", "₨": "Rs", "×": "x", "÷": "/",
    "。": ". ", "،": ",", "؛": ";", "؟": "?", "।": ".", "॥": ".", "\u115f": "", "\u1160": "",
}  # fmt: skip
_LATIN = {
    "ı": "i", "œ": "oe", "Œ": "OE", "þ": "th", "Þ": "Th", "ð": "d", "Ð": "D", "ŋ": "ng",
    "Ŋ": "Ng", "ə": "e", "Ə": "E", "ĸ": "k", "ẞ": "SS", "ȷ": "j",
}  # fmt: skip
_LATIN_NAME = re.compile(r"LATIN (SMALL|CAPITAL) LETTER ([A-Z]{1,2})\b")

_COMMON_TLDS = (
    "com|net|org|in|io|co|me|app|info|biz|xyz|ly|gl|gg|uk|us|eu|de|fr|ru|cn|dev|link|site|online"
    "|top|club|shop|live|tk|ai|to|cc|tv|page|web|click|icu|buzz|vip|work|gov|edu|pk|np|bd|lk"
)
_LINK = re.compile(
    rf"""\S*://\S*                                       # any scheme
    | www\.\S*
    | \S+@\S+\.\S+                                       # mail address
    | \d{{1,3}}(?:\.\d{{1,3}}){{3}}\S*                   # IP address
    | (?:[\w-]+\.)+(?:{_COMMON_TLDS})(?!\w)(?:[/?\#:]\S*)?""",
    re.IGNORECASE | re.VERBOSE,
)
_PHONE = re.compile(r"\+?\d(?:[\s().\-/]{0,3}\d){6,}")
# Under a top-level domain not listed above a phone would still make a link of `evil.zip`, but
# `Dr.Rao` is a name: a space after the dot spares the one and disarms the other.
_JOINING_DOT = re.compile(r"\.(?=[^\W\d_][^\s.])")
_EDGES = " .,;:-/'\""


@lru_cache(maxsize=1024)  # each text is composed for several people
def clean(typed: str, *, gsm: bool) -> str:
    """`typed` on one line without links, phone numbers, emoji, control or bidi characters.

    With `gsm`, Latin letters and signs outside GSM-7 are replaced by the nearest that are in it;
    letters of other scripts stay, since a name must remain recognisable. Digits become ASCII.
    """
    text = unicodedata.normalize("NFKC", typed[:MAX_TYPED])
    text = "".join(_kept(text, gsm))
    for unwanted in (_LINK, _PHONE):
        text = unwanted.sub(" ", text)
    text = _JOINING_DOT.sub(". ", text)
    return " ".join(text.split()).strip(_EDGES)


def _kept(text: str, gsm: bool) -> Iterator[str]:
    """The characters of `text` that may stay, each in the form in which it may."""
    marks, before = 0, ""
    for index, char in enumerate(text):
        if unicodedata.category(char).startswith("M"):
            marks += 1
            if marks > _MAX_MARKS or not before or _is_selector(char):
                continue
            if gsm and before in GSM7_BASIC:
                continue
            yield char
        elif char in "\u200c\u200d":
            # Indic and Persian spelling needs the joiners; anywhere else they hide things.
            if _joinable(text[index - 1 : index]) and _joinable(text[index + 1 : index + 2]):
                yield char
        else:
            marks = 0
            simpler = _simpler(char, gsm)
            before = simpler[-1:].strip()
            yield simpler


def _is_selector(mark: str) -> bool:
    """Whether `mark` only picks an emoji or glyph style (variation selectors, keycaps)."""
    return unicodedata.category(mark) == "Me" or "VARIATION SELECTOR" in unicodedata.name(mark, "")


def _joinable(char: str) -> bool:
    return char >= "\u0590" and unicodedata.category(char)[0] in "LM"


def _simpler(char: str, gsm: bool) -> str:
    """What to write for one character that is no combining mark; may be empty or longer."""
    if char in _SIMPLER:
        return _SIMPLER[char]
    if char.isspace():
        return " "
    kind = unicodedata.category(char)
    if kind == "Nd":
        return str(unicodedata.digit(char))
    if kind == "Pd":
        return "-"
    if gsm and kind[0] == "L" and char not in GSM7_BASIC:
        return _latin(char)
    kept = char in GSM7_BASIC or char == "€" or kind[0] in ("L" if gsm else "LPN")
    return char if kept else ""


def _latin(letter: str) -> str:
    """A GSM-7 spelling of a Latin letter; letters of other scripts come back unchanged."""
    if letter in _LATIN:
        return _LATIN[letter]
    plain = "".join(c for c in unicodedata.normalize("NFKD", letter) if c in GSM7_BASIC)
    if plain:
        return plain
    named = _LATIN_NAME.match(unicodedata.name(letter, ""))
    if not named:
        return letter
    return named[2] if named[1] == "CAPITAL" else named[2].lower()


def _clusters(text: str) -> Iterator[str]:
    """Pieces of `text` that must not be cut: a letter with its marks, an Indic conjunct."""
    piece = ""
    for char in text:
        joins = piece and (
            unicodedata.category(char).startswith("M")
            or char in "\u200c\u200d"
            or piece[-1] == "\u200d"
            or unicodedata.combining(piece[-1]) == 9  # virama: the next consonant hangs on it
        )
        if joins and utf16_units(piece + char) <= CLUSTER_UNITS:
            piece += char
            continue
        if piece:
            yield piece
        piece = char
    if piece:
        yield piece


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` UTF-16 units, at a word's end where that keeps half of them."""
    if utf16_units(text) <= limit:
        return text
    kept = "".join(piece for piece, end in _ends(text) if end <= limit)
    words = kept.rpartition(" ")[0]
    if not text[len(kept) :].startswith(" ") and utf16_units(words) * 2 >= limit:
        kept = words
    return kept.rstrip(_EDGES + "(")


def _ends(text: str) -> Iterator[tuple[str, int]]:
    """Each piece of `text` with the UTF-16 units from the start of the text to the end of the piece."""
    end = 0
    for piece in _clusters(text):
        end += utf16_units(piece)
        yield piece, end


@lru_cache(maxsize=1024)
def cuts(text: str, longest: int, shortest: int = CLUSTER_UNITS) -> tuple[str, ...]:
    """`text` cut to each width from `longest` down to `shortest` units, without repeats."""
    widest = max(shortest, min(longest, utf16_units(text)))
    return tuple(dict.fromkeys(cut(text, width) for width in range(widest, shortest - 1, -1)))
