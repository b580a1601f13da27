"""What a call says: pure functions from facts to words that are read out.

Times are spoken ("9:30 PM, 5 minutes ago"): the age needs no time zone, which the ear would miss.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final

from notifications.texts import moments
from notifications.texts.facts import ALERTS, AlertFacts, Kind
from notifications.texts.typed import clean, cut

MAX_SPOKEN: Final = 1000
"""Characters of the longest prompt, far below what a carrier takes (Twilio: 4,096 in one Say)."""

_LONGEST_TYPED: Final = 60


class Ending(StrEnum):
    """How a call ends."""

    HELPING = "helping"
    DECLINED = "declined"
    SAFE = "safe"
    NO_ANSWER = "no_answer"
    NOT_SAVED = "not_saved"
    OUT_OF_DATE = "out_of_date"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenWording:
    """All spoken words of one language."""

    unnamed: str
    opening: str
    repeated: str
    """Takes `number`, from 2."""
    events: Mapping[Kind, str]
    """Take `name`, `time` and `age`."""
    place: str
    meeting: str
    todo: Mapping[Kind, str]
    keys: str
    just_now: str
    ages: tuple[tuple[str, str], ...]
    """Minutes, hours, days: one and many."""
    months: tuple[str, ...]
    endings: Mapping[Ending, str]
    """May take `name`."""


ENGLISH: Final = SpokenWording(
    unnamed="A CasualMeet user",
    opening="This is an urgent call from CasualMeet Safety. {name} named you as a trusted contact.",
    repeated="This is call number {number}.",
    events={
        Kind.MISSED_CHECK_IN: "{name} missed a check-in at {time}, {age}.",
        Kind.SOS: "{name} pressed SOS at {time}, {age}.",
        Kind.DURESS: "{name} pressed SOS at {time}, {age}.",
    },
    place="The place they named: {place}.",
    meeting="Whom they meet: {met}.",
    todo={
        Kind.MISSED_CHECK_IN: "Call them. If there is no answer, dial 1 1 2.",
        Kind.SOS: "They may be unable to talk. Dial 1 1 2.",
        Kind.DURESS: "Do not call or text their phone. Dial 1 1 2.",
    },
    keys="Press 1 if you are helping, 2 if you can't, or star to hear this again.",
    just_now="just now",
    ages=(("1 minute ago", "{} minutes ago"), ("1 hour ago", "{} hours ago"), ("1 day ago", "{} days ago")),
    months=(
        *("January", "February", "March", "April", "May", "June", "July"),
        *("August", "September", "October", "November", "December"),
    ),
    endings={
        Ending.HELPING: "Thank you. {name} and the moderators see that you are helping. Goodbye.",
        Ending.DECLINED: "Thank you for telling us. We go on alerting the others. Goodbye.",
        Ending.SAFE: "Good news. {name} is safe and the alarm is closed. Goodbye.",
        Ending.NO_ANSWER: "We got no answer. You can still answer on the page that our text links to. Goodbye.",
        Ending.NOT_SAVED: (
            "Sorry, your answer could not be saved. Please answer on the page that our text links to. Goodbye."
        ),
        Ending.OUT_OF_DATE: "This call is out of date. Goodbye.",
    },
)

HINDI: Final = SpokenWording(
    unnamed="एक CasualMeet सदस्य",
    opening="यह CasualMeet सुरक्षा सेवा का ज़रूरी कॉल है। {name} ने आपको अपना भरोसेमंद संपर्क चुना है।",
    repeated="यह कॉल नंबर {number} है।",
    events={
        Kind.MISSED_CHECK_IN: "{name} को {time} पर चेक-इन करना था, पर नहीं किया। यह {age} की बात है।",
        Kind.SOS: "{name} ने {time} पर SOS दबाया। यह {age} की बात है।",
        Kind.DURESS: "{name} ने {time} पर SOS दबाया। यह {age} की बात है।",
    },
    place="उनकी बताई जगह: {place}।",
    meeting="वे इनसे मिल रहे हैं: {met}।",
    todo={
        Kind.MISSED_CHECK_IN: "उन्हें फ़ोन करें। जवाब न मिले तो 1 1 2 मिलाएँ।",
        Kind.SOS: "शायद वे बोल न पाएँ। 1 1 2 मिलाएँ।",
        Kind.DURESS: "उनके फ़ोन पर कॉल या SMS न करें। 1 1 2 मिलाएँ।",
    },
    keys="मदद कर रहे हैं तो 1 दबाएँ, नहीं कर सकते तो 2, और फिर से सुनने के लिए स्टार दबाएँ।",
    just_now="अभी-अभी",
    ages=(("1 मिनट पहले", "{} मिनट पहले"), ("1 घंटे पहले", "{} घंटे पहले"), ("1 दिन पहले", "{} दिन पहले")),
    months=(
        *("जनवरी", "फ़रवरी", "मार्च", "अप्रैल", "मई", "जून", "जुलाई"),
        *("अगस्त", "सितंबर", "अक्टूबर", "नवंबर", "दिसंबर"),
    ),
    endings={
        Ending.HELPING: "धन्यवाद। {name} और मॉडरेटर देख रहे हैं कि आप मदद कर रहे हैं। नमस्ते।",
        Ending.DECLINED: "बताने के लिए धन्यवाद। हम दूसरों को सूचना देते रहेंगे। नमस्ते।",
        Ending.SAFE: "अच्छी ख़बर। {name} सुरक्षित हैं और अलर्ट बंद है। नमस्ते।",
        Ending.NO_ANSWER: "हमें जवाब नहीं मिला। हमारे SMS में दिए पेज पर आप अब भी जवाब दे सकते हैं। नमस्ते।",
        Ending.NOT_SAVED: "माफ़ कीजिए, आपका जवाब सहेजा नहीं जा सका। हमारे SMS में दिए पेज पर जवाब दें। नमस्ते।",
        Ending.OUT_OF_DATE: "यह कॉल पुराना हो चुका है। नमस्ते।",
    },
)


def compose_call(facts: AlertFacts, language: str, now: datetime, repeat: int = 0) -> str:
    """What a call about an alert says, at most MAX_SPOKEN characters whatever people typed.

    `language` is `en` or `hi` (others hear English); `now` (aware) decides the age; `repeat` counts earlier calls about
    the same thing. Raises ValueError for a kind that is no alert.
    """
    if facts.kind not in ALERTS:
        raise ValueError(f"nobody is called about {facts.kind}")
    words = wording(language)
    name = _name(facts.person_name, words)
    place, met = _typed(facts.place_name), _typed(facts.meet_with)
    happened = words.events[facts.kind].format(
        name=name,
        time=_spoken_time(facts.happened_at, now, moments.zone(facts.time_zone), words),
        age=_age(now - facts.happened_at, words),
    )
    said = [
        words.opening.format(name=name),
        words.repeated.format(number=min(repeat, 98) + 1) if repeat > 0 else "",
        happened,
        words.place.format(place=place) if place else "",
        words.meeting.format(met=met) if met else "",
        words.todo[facts.kind],
        words.keys,
    ]
    return " ".join(filter(None, said))


def compose_ending(ending: Ending, language: str, *, person_name: str = "") -> str:
    """The last words of a call."""
    words = wording(language)
    return words.endings[ending].format(name=_name(person_name, words))


def wording(language: str) -> SpokenWording:
    """The words of `hi` or `hi-IN`; of anything else, the English ones."""
    return HINDI if re.split("[-_]", language.lower())[0] == "hi" else ENGLISH


def _name(typed: str, words: SpokenWording) -> str:
    return _typed(typed) or words.unnamed


def _typed(text: str) -> str:
    spoken = cut(clean(text, gsm=False), _LONGEST_TYPED)
    return spoken if any(char.isalnum() for char in spoken) else ""


def _age(age: timedelta, words: SpokenWording) -> str:
    minutes = age // timedelta(minutes=1)
    if minutes < 1:
        return words.just_now
    count, (one, many) = next(
        (count, forms)
        for count, most, forms in zip(
            (minutes, minutes // 60, minutes // 1440), (120, 48, 10**9), words.ages, strict=True
        )
        if count < most
    )
    return one if count == 1 else many.format(count)


def _spoken_time(moment: datetime, now: datetime, where: tzinfo, words: SpokenWording) -> str:
    """`9:30 PM`, with the date where that is not today's."""
    local = moment.astimezone(where)
    hour = local.hour % 12 or 12
    date = f"{local.day} {words.months[local.month - 1]}" if local.date() != now.astimezone(where).date() else ""
    if words is ENGLISH:
        time = f"{hour}:{local.minute:02d} {'AM' if local.hour < 12 else 'PM'}"
        return f"{time} on {date}" if date else time
    minute = f"{hour} बजकर {local.minute} मिनट" if local.minute else f"{hour} बजे"
    return f"{date} {_part_of_day(local.hour)} {minute}".strip()


def _part_of_day(hour: int) -> str:
    for until, part in ((4, "रात"), (12, "सुबह"), (16, "दोपहर"), (20, "शाम")):
        if hour < until:
            return part
    return "रात"
