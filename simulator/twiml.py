"""Reading TwiML: the verbs that a call needs. Twilio docs, "TwiML for Programmable Voice"."""

from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as ET

SIMPLE: Final = frozenset({"Say", "Play", "Pause", "Redirect", "Hangup", "Reject"})


class TwimlError(ValueError):
    """A document that Twilio would not run (error 12100 or 12200)."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: its name, attributes, text, and for Gather what is played meanwhile."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    inner: tuple["Verb", ...] = ()

    def says(self) -> str:
        """What is heard of it."""
        if self.name == "Say":
            return self.text
        if self.name == "Play":
            return f"[{self.text}]"
        return " ".join(filter(None, (verb.says() for verb in self.inner)))


def parse(document: str) -> list[Verb]:
    """The verbs of a document. Raises TwimlError for what is not TwiML, or has verbs the simulator does not know."""
    try:
        root = ET.fromstring(document.strip())
    except ET.ParseError as error:
        raise TwimlError(str(error)) from error
    if root.tag != "Response":
        raise TwimlError(f"the root is {root.tag}, not Response")
    return [_verb(node) for node in root]


def spoken(verbs: list[Verb]) -> str:
    """Everything that is heard if no key is pressed."""
    return " ".join(filter(None, (verb.says() for verb in verbs)))


def _verb(node: ET.Element) -> Verb:
    text = " ".join("".join(node.itertext()).split())
    if node.tag in SIMPLE:
        return Verb(node.tag, dict(node.attrib), text)
    if node.tag == "Gather":
        return Verb("Gather", dict(node.attrib), "", tuple(_verb(inner) for inner in node))
    raise TwimlError(f"a verb that is not known: {node.tag}")
