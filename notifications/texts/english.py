"""English texts, in GSM-7 unless a name needs another script."""

from typing import Final

from notifications.texts.facts import ALERTS, Kind
from notifications.texts.wording import DltWording, PositionWording, Wording

_ALERT = "{brand}{again}: {name}{event} {position}{call}{dial}{caution}{meeting}{word}{map} {link}"
_DLT_ALERT = "{position}: {point}. Dial 112 and read this. "
_DLT_MAP = "Map + tell others you're helping: {link}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _repeated(number: int, kind: Kind) -> str:
    return f", {_ordinal(number)} {'alert' if kind in ALERTS else 'copy'}"


def _repeated_short(number: int, kind: Kind) -> str:
    return _repeated(number, kind) if kind in ALERTS else f", {_ordinal(number)}"


_DLT: Final = DltWording(
    frames={
        Kind.MISSED_CHECK_IN: (
            "SAFETY ALERT (CasualMeet), {again}: {name} missed the check-in of {event}. "
            "{position}: {point}. Call {phone}. No answer? Dial 112 and read this. "
            "Meeting: {met}, {place}. " + _DLT_MAP
        ),
        Kind.SOS: (
            "SOS (CasualMeet), {again}: {name} pressed SOS {event}. "
            + _DLT_ALERT
            + "They may be unable to talk. "
            + _DLT_MAP
        ),
        Kind.DURESS: (
            "SOS (CasualMeet), {again}: {name} pressed SOS {event}. "
            + _DLT_ALERT
            + "DO NOT call or text their phone. "
            + _DLT_MAP
        ),
        Kind.UPDATE: ("UPDATE to SOS {reference} (not a new alarm): {name}, {position}: {point}. Map: {link}"),
        Kind.ALL_CLEAR: (
            "ALL CLEAR (CasualMeet): {name} confirmed safe {event}. Alert {reference} is closed, "
            "no action needed. Unsure? Phone them yourself."
        ),
        Kind.CHECK_PROMPT: (
            "CasualMeet: {minutes} left on your safety timer ({event}). Reply SAFE <pin>, or MORE 30, or open the app."
        ),
        Kind.INVITATION: (
            "CasualMeet {again}: {name} asks you to be their trusted contact. If they miss a "
            "check-in or press SOS, we text you. Answer here: {link} Reply not needed, ignore if "
            "you don't know them."
        ),
        Kind.FAIL_SAFE: (
            "CasualMeet backup alert, {again}: {name} did not check in by {event} and our service may be down. "
            "Call {phone}, else dial 112. Automatic text, ref {reference}."
        ),
        Kind.REPLY: "CasualMeet reply: {said}. More in the app or on the alert's page.",
        Kind.RECONFIRM: (
            "CasualMeet {again}: {name} has you as trusted contact. Still willing? Open the link: {link} "
            "Reply STOP to end our texts."
        ),
        Kind.DIGEST: "CasualMeet yesterday: {said}. More in the app.",
        Kind.SELF_TEST: "CasualMeet carrier test: {said}. Nothing to do.",
    },
    first="new alert",
    first_invitation="invitation",
    repeated_invitation=lambda number: f"{_ordinal(number)} invitation",
    first_question="question",
    repeated_question=lambda number: f"question, {_ordinal(number)} time",
    no_position="No GPS, planned place",
    nowhere="not known",
    nobody="not given",
    no_reference="alert",
    late=", {age} late",
    located="Position{detail}",
    now="now{detail}",
    seen="last seen {when}{detail}",
    undated="last seen{detail}",
)

ENGLISH: Final = Wording(
    gsm=True,
    unnamed="A CasualMeet user",
    brand=" (CasualMeet)",
    frames={
        Kind.MISSED_CHECK_IN: "SAFETY ALERT" + _ALERT,
        Kind.SOS: "SOS" + _ALERT,
        Kind.DURESS: "SOS" + _ALERT,
        Kind.UPDATE: "UPDATE{reference}{calm}{again}: {name} {position}{map} {link}",
        Kind.ALL_CLEAR: "ALL CLEAR{brand}{again}: {name}{event}{closed}{unsure}",
        Kind.CHECK_PROMPT: (
            "CasualMeet{again}: {minutes} left on your safety timer ({event}). "
            "Reply SAFE <pin>, or MORE 30, or open the app."
        ),
        Kind.INVITATION: "CasualMeet{again}: {name}{ask} {link}{end}",
        Kind.FAIL_SAFE: (
            "CasualMeet backup alert{again}: {name}{event} and our service may be down.{call}{dial} "
            "Automatic text{reference}."
        ),
        Kind.REPLY: "{said}{again}",
        Kind.RECONFIRM: "CasualMeet{again}: {name}{ask} {link}{end}",
        Kind.DIGEST: "{said}{again}",
        Kind.SELF_TEST: "{said}{again}",
    },
    repeated=_repeated,
    repeated_short=_repeated_short,
    events={
        Kind.MISSED_CHECK_IN: (
            " missed a {time} check-in, {date}{late}.",
            " missed a {time} check-in.",
            " missed {clock}.",
        ),
        Kind.SOS: (" pressed SOS {time}, {date}.", " pressed SOS {time}.", " {clock}."),
        Kind.DURESS: (" pressed SOS {time}, {date}.", " pressed SOS {time}.", " {clock}."),
        Kind.ALL_CLEAR: (
            " confirmed safe {time} {how}.",
            " safe {time} {how}.",
            " safe {clock} {how}.",
        ),
        Kind.FAIL_SAFE: (
            " did not check in by {time}, {date},",
            " did not check in by {time},",
            " did not check in by {clock},",
        ),
    },
    late=" (alert {age} late)",
    late_ages=("{} min", "{} h", "{} days"),
    alert_position=PositionWording(
        fresh="At {point}{detail}.",
        seen="Last seen {when} at {point}{detail}.",
        undated="Last seen at {point}{detail}.",
        bare="Last seen {clock}: {point}.",
        none="No GPS.",
        planned="No GPS. Planned place: {place}.",
    ),
    update_position=PositionWording(
        fresh="now {point}{detail}.",
        seen="last seen {when} at {point}{detail}.",
        undated="last seen at {point}{detail}.",
        bare="{clock} at {point}",
        none="{when}, no GPS.",
        planned="{when}, no GPS.",
    ),
    approximate="approximate",
    metres="{} m",
    kilometres="{} km",
    call=(" Call {phone}. No answer?", " Call {phone}."),
    emergency=(" Dial 112 and read this.", " Dial 112."),
    caution={
        Kind.SOS: " They may be unable to talk.",
        Kind.DURESS: " DO NOT call or text their phone.",
    },
    met=" Meeting: {met}.",
    met_at=" Meeting: {met}, {place}.",
    place=" Planned place: {place}.",
    agreed_word=" Your word: {word}.",
    map=(" Map + tell others you're helping:", " Map:"),
    update_of=(" to SOS {reference}", " {reference}"),
    no_new_alarm=" (not a new alarm)",
    with_pin="with their PIN",
    in_app="in the app",
    closed=(
        " Alert {reference}{opened} is closed, no action needed.",
        " Alert {reference}{opened} is closed.",
        " {reference} closed.",
    ),
    closed_unnamed=" The alert{opened} is closed, no action needed.",
    opened=" of {opened}",
    unsure=" Unsure? Phone them yourself.",
    minutes="{} min",
    under_a_minute="under 1 min",
    their_phone="them",
    tracked=", ref {reference}",
    invitation_ask=(
        " asks you to be their trusted contact: if they miss a check-in or press SOS, we text you. Answer here:",
        " asks you to be their trusted contact:",
        " wants you as SOS contact:",
    ),
    invitation_end=(
        " Reply not needed, ignore if you don't know them.",
        " Ignore if you don't know them.",
        " Ignore if unknown.",
    ),
    reconfirm_ask=(
        " still counts on you as trusted contact. Still willing? Open the link:",
        " has you as SOS contact. Still willing? Open:",
        ": still SOS contact?",
    ),
    reconfirm_end=" STOP to end.",
    dlt=_DLT,
)
