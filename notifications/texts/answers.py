"""What we answer to a text that came in: one part in English, at most two in Hindi, whatever people typed.

An answer never repeats what was received: it may have held a PIN.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from notifications.texts import moments
from notifications.texts.facts import Kind
from notifications.texts.fitting import most_segments
from notifications.texts.gsm import segments
from notifications.texts.typed import clean, cuts

_LONGEST_TYPED: Final = 40
_LONGEST_WHOSE: Final = 16
_REPEAT_MARK: Final = ", 98th"


class Topic(StrEnum):
    """What an answer is about."""

    TIMER_ENDED = "timer_ended"
    ALARM_CLOSED = "alarm_closed"
    EXTENDED = "extended"
    SOS_ON = "sos_on"
    WRONG_PIN = "wrong_pin"
    PIN_REQUIRED = "pin_required"
    PIN_LOCKED = "pin_locked"
    BAD_MINUTES = "bad_minutes"
    TOO_LONG = "too_long"
    DUE = "due"
    CHANGED = "changed"
    NOTHING_RUNNING = "nothing_running"
    PERSON_USAGE = "person_usage"
    HELPING = "helping"
    REACHED = "reached"
    DECLINED = "declined"
    SAFE = "safe"
    WHICH = "which"
    CONTACT_USAGE = "contact_usage"


_UNNAMED: Final = {"en": "A CasualMeet user", "hi": "एक CasualMeet सदस्य"}

_ENGLISH: Final[Mapping[Topic, str]] = {
    Topic.TIMER_ENDED: "CasualMeet: good. Your timer is ended, nobody is alerted.",
    Topic.ALARM_CLOSED: "CasualMeet: good that you are safe. Alarm {reference} is closed, all who were alerted are told.",
    Topic.EXTENDED: "CasualMeet: {minutes} min more. Your timer now ends {time}.",
    Topic.SOS_ON: "CasualMeet: SOS {reference} is on. In danger dial 112. Safe? Reply SAFE <pin>.",
    Topic.WRONG_PIN: "CasualMeet: that is not your PIN. Nothing was changed.",
    Topic.PIN_REQUIRED: "CasualMeet: your PIN is needed. Reply SAFE <pin>. Nothing was changed.",
    Topic.PIN_LOCKED: "CasualMeet: too many wrong PINs. Wait five minutes. Nothing was changed.",
    Topic.BAD_MINUTES: "CasualMeet: nothing was changed. MORE takes 1 to {minutes} minutes, such as MORE 30.",
    Topic.TOO_LONG: "CasualMeet: nothing was changed. A timer runs for at most 12 hours in all.",
    Topic.DUE: "CasualMeet: nothing was changed. Your deadline has passed. If you are safe, reply SAFE <pin> now.",
    Topic.CHANGED: "CasualMeet: nothing was changed. Your timer changed at the same moment. Try again, or open the app.",
    Topic.NOTHING_RUNNING: "CasualMeet: nothing was changed. You have no timer running and no alarm.",
    Topic.PERSON_USAGE: "CasualMeet: not understood. Reply SAFE <pin>, MORE 30, or HELP for an SOS.",
    Topic.HELPING: "Thank you. You are helping {name} (alert {reference}). Reply 2 once you reached them, 3 if you can't.",
    Topic.REACHED: "Thank you. You reached {name} (alert {reference}); the moderators see it. They end it with I'm Safe.",
    Topic.DECLINED: "Noted: you can't help {name} (alert {reference}). Others are being alerted. Reply 1 if you can after all.",
    Topic.SAFE: "{name} is safe. Alert {reference} is closed, no action needed.",
    Topic.WHICH: "CasualMeet: nothing was noted. Which alert? {list}. Reply with its letters, such as 1 {reference}.",
    Topic.CONTACT_USAGE: "Alert {reference}, {name}: reply 1 if you help, 2 if you reached them, 3 if you can't.",
}

_HINDI: Final[Mapping[Topic, str]] = {
    Topic.TIMER_ENDED: "CasualMeet: ठीक है। आपका टाइमर बंद, किसी को सूचना नहीं।",
    Topic.ALARM_CLOSED: "CasualMeet: अलार्म {reference} बंद। जिन्हें सूचना गई थी, उन्हें बताया जा रहा है।",
    Topic.EXTENDED: "CasualMeet: {minutes} मिनट और। टाइमर अब {time} पर ख़त्म होगा।",
    Topic.SOS_ON: "CasualMeet: SOS {reference} चालू है। ख़तरे में 112 मिलाएँ। सुरक्षित हों तो SAFE <pin> भेजें।",
    Topic.WRONG_PIN: "CasualMeet: PIN ग़लत है। कुछ नहीं बदला।",
    Topic.PIN_REQUIRED: "CasualMeet: PIN चाहिए। SAFE <pin> भेजें। कुछ नहीं बदला।",
    Topic.PIN_LOCKED: "CasualMeet: कई बार ग़लत PIN। पाँच मिनट रुकें। कुछ नहीं बदला।",
    Topic.BAD_MINUTES: "CasualMeet: कुछ नहीं बदला। MORE 1 से {minutes} मिनट लेता है, जैसे MORE 30।",
    Topic.TOO_LONG: "CasualMeet: कुछ नहीं बदला। टाइमर कुल 12 घंटे तक चलता है।",
    Topic.DUE: "CasualMeet: कुछ नहीं बदला। समय बीत चुका है। सुरक्षित हों तो अभी SAFE <pin> भेजें।",
    Topic.CHANGED: "CasualMeet: कुछ नहीं बदला। टाइमर इसी समय बदला। फिर भेजें या ऐप खोलें।",
    Topic.NOTHING_RUNNING: "CasualMeet: कुछ नहीं बदला। आपका कोई टाइमर या अलार्म चालू नहीं।",
    Topic.PERSON_USAGE: "CasualMeet: समझ नहीं आया। SAFE <pin>, MORE 30, या SOS के लिए HELP भेजें।",
    Topic.HELPING: "धन्यवाद। आप {name} की मदद कर रहे हैं ({reference})। पहुँच जाएँ तो 2, न कर सकें तो 3 भेजें।",
    Topic.REACHED: "धन्यवाद। आप {name} तक पहुँच गए ({reference}), मॉडरेटर देख रहे हैं।",
    Topic.DECLINED: "ठीक है, आप {name} की मदद नहीं कर सकते ({reference})। कर सकें तो 1 भेजें।",
    Topic.SAFE: "{name} सुरक्षित। अलर्ट {reference} बंद।",
    Topic.WHICH: "CasualMeet: कौन सा अलर्ट? {list}। अक्षरों के साथ भेजें, जैसे 1 {reference}।",
    Topic.CONTACT_USAGE: "अलर्ट {reference}, {name}: मदद करें तो 1, पहुँच गए तो 2, न कर सकें तो 3 भेजें।",
}


def compose_answer(
    topic: Topic,
    language: str,
    *,
    whose: str = "",
    name: str = "",
    reference: str = "",
    minutes: int = 0,
    at: datetime | None = None,
    time_zone: str = "UTC",
    alerts: Sequence[tuple[str, str]] = (),
) -> str:
    """The words of an answer in `en` or `hi`.

    `whose` names the one of several people with the same number whom the answer is about. `name` is the person in
    danger, `reference` their incident's; `at` (aware) the new deadline, shown in the IANA zone
    `time_zone`; `alerts` the incidents to choose from: reference and person's name, of which as many as fit are listed.
    """
    spoken = "hi" if re.split("[-_]", language.lower())[0] == "hi" else "en"
    gsm = spoken == "en"
    frame = (_ENGLISH if gsm else _HINDI)[topic]
    owner = cuts(clean(whose, gsm=gsm), _LONGEST_WHOSE)[0]
    if owner:
        frame = frame.replace("CasualMeet:", f"CasualMeet, {owner}:", 1)
    time = moments.clock_zone(at, moments.zone(time_zone)) if at else ""
    text = ""
    for shown in cuts(clean(name, gsm=gsm) or _UNNAMED[spoken], _LONGEST_TYPED):
        for listed in _lists(alerts, gsm=gsm):
            text = frame.format(name=shown, reference=reference, minutes=minutes, time=time, list=listed)
            if segments(text + _REPEAT_MARK) <= most_segments(text, Kind.REPLY):
                return text
    return text


def _lists(alerts: Sequence[tuple[str, str]], *, gsm: bool) -> Iterator[str]:
    """The incidents to choose from, fullest first: with names, with short names, references alone, fewer of them."""
    for width in (20, 10):
        named = [(reference, cuts(clean(name, gsm=gsm), width)) for reference, name in alerts]
        yield ", ".join(f"{reference} ({shown[0]})" if shown[0] else reference for reference, shown in named)
    for count in range(len(alerts), 0, -1):
        yield ", ".join(reference for reference, _ in alerts[:count])
