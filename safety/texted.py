"""What people mean by a text they send us: pure, and forgiving of case, spaces, punctuation and scripts' digits.

It forgives how a thing is written, never what is said: "SAFE? No!" is no check-in, "2 min away" is not "reached".
"""

import re
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DEFAULT_MINUTES: Final = 15
MAX_READ: Final = 200
"""Characters of a text that are looked at."""


class Verb(StrEnum):
    """What a text asks for."""

    SAFE = "safe"
    MORE = "more"
    HELP = "help"
    HELPING = "helping"
    REACHED = "reached"
    CANT_HELP = "cant_help"
    STOP = "stop"
    START = "start"
    NOT_UNDERSTOOD = "not_understood"


PERSON_VERBS: Final = frozenset({Verb.SAFE, Verb.MORE, Verb.HELP})
CONTACT_VERBS: Final = {"1": Verb.HELPING, "2": Verb.REACHED, "3": Verb.CANT_HELP}

# Twilio docs, "Advanced Opt-Out": the words that it acts on by itself. The Hindi ones are ours.
STOP_WORDS: Final = frozenset(
    {"STOP", "STOPALL", "STOP ALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "OPTOUT", "OPT OUT", "REVOKE"}
    | {"बंद", "बंद करो", "बंद करें", "रोको", "रोकें"}
)
START_WORDS: Final = frozenset({"START", "YES", "UNSTOP"})

_SAFE: Final = re.compile(r"(?:I ?A?M )?(?:SAFE|सुरक्षित)(?P<rest>(?: (?:\d+|PIN|MY|IS|NOW|PLEASE))*)")
_UNIT: Final = r"(?: (?:M|MIN|MINS|MINUTE|MINUTES|मिनट))?"
_MORE: Final = re.compile(rf"(?:MORE|और)(?: TIME)?(?: (\d{{1,9}}))?{_UNIT}(?: PLEASE)?|(\d{{1,9}}){_UNIT} (?:MORE|और)")
# Whatever else they manage to write: somebody who begins with this needs help.
_HELP: Final = re.compile(r"(?:PLEASE |I NEED )?(?:HELP|SOS|मदद|बचाओ)(?: .*)?")
_ANSWER: Final = re.compile(r"(?P<digit>[123])(?P<after>[A-Z]\d[A-Z])?|(?P<before>[A-Z]\d[A-Z])(?P<last>[123])")


@dataclass(frozen=True, slots=True)
class Texted:
    """A text, understood. The PIN stays out of the repr, and so out of logs and tracebacks."""

    verb: Verb
    pin: str = field(default="", repr=False)
    minutes: int = 0
    reference: str = ""
    word: str = ""


def parse(body: str) -> Texted:
    """What the text means. Never fails: what is not understood is a verb of its own."""
    said = normalised(body)
    if said in STOP_WORDS or said in START_WORDS:
        return Texted(Verb.STOP if said in STOP_WORDS else Verb.START, word=said)
    return _command(said)


def _command(said: str) -> Texted:
    if answer := _ANSWER.fullmatch(said.replace(" ", "")):
        digit = answer["digit"] or answer["last"]
        return Texted(CONTACT_VERBS[digit], reference=answer["after"] or answer["before"] or "")
    if safe := _SAFE.fullmatch(said):
        return Texted(Verb.SAFE, pin="".join(re.findall(r"\d", safe["rest"])))
    if more := _MORE.fullmatch(said):
        return Texted(Verb.MORE, minutes=int(more[1] or more[2] or DEFAULT_MINUTES))
    if _HELP.fullmatch(said):
        return Texted(Verb.HELP)
    return Texted(Verb.NOT_UNDERSTOOD)


def normalised(body: str) -> str:
    """Capital letters and ASCII digits, apart from each other, with one space between words and no punctuation."""
    plain = unicodedata.normalize("NFKC", body[:MAX_READ]).upper()
    kept = "".join(map(_kept, plain))
    return " ".join(re.sub(r"(?<=\d)(?=[^\d ])|(?<=[^\d ])(?=\d)", " ", kept).split())


def _kept(char: str) -> str:
    kind = unicodedata.category(char)
    if kind == "Nd":
        return str(unicodedata.digit(char))
    if kind[0] in "LM":
        return char
    # Dropped, so that "I'm" stays one word; what hides between letters (joiners, bidi marks) goes too.
    return "" if char in "'’‘`´" or kind == "Cf" else " "
