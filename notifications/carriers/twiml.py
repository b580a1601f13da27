"""What Twilio does in a call: TwiML documents.

Twilio docs, "TwiML for Programmable Voice" (Gather, Say, Hangup) and "Calls resource": inline TwiML has at most 4,000
characters (error 32018).
"""

import re
from typing import Final
from uuid import UUID

from twilio.twiml.voice_response import Gather, VoiceResponse

MAX_TWIML: Final = 4000
MAX_REPEATS: Final = 3
GATHER_SECONDS: Final = 8

# XML 1.0, section 2.2: everything else makes the whole document unreadable.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def ask(prompt: str, *, language: str, action: str) -> str:
    """Say the prompt and wait for one key; it, or none after 8 s, is posted to the URL `action`.

    A key interrupts the prompt. A prompt that would not fit is cut.
    """
    prompt = _NOT_XML.sub("", prompt)
    document = _asking(prompt, language=language, action=action)
    while len(document) > MAX_TWIML:
        prompt = prompt[: len(prompt) * 3 // 4]
        document = _asking(prompt, language=language, action=action)
    return document


def say(text: str, *, language: str) -> str:
    """Say the text, then hang up."""
    response = VoiceResponse()
    response.say(_NOT_XML.sub("", text), language=spoken_language(language))
    response.hangup()
    return str(response)


def hang_up() -> str:
    """Say nothing, as to a machine that would record it."""
    response = VoiceResponse()
    response.hangup()
    return str(response)


def action_url(base_url: str, attempt_id: UUID, *, said: int) -> str:
    """Where the key is posted; `said` counts how often the prompt has been said by then."""
    return f"{base_url.rstrip('/')}/hooks/twilio/voice/{attempt_id}?n={said}"


def spoken_language(language: str) -> str:
    """Twilio's name of the voice's language: `hi-IN` or `en-IN`."""
    return "hi-IN" if re.split("[-_]", language.lower())[0] == "hi" else "en-IN"


def _asking(prompt: str, *, language: str, action: str) -> str:
    response = VoiceResponse()
    gather = Gather(num_digits=1, timeout=GATHER_SECONDS, action=action, method="POST", action_on_empty_result=True)
    gather.say(prompt, language=spoken_language(language))
    response.append(gather)
    return str(response)
