"""Pushes: a title and a body for a phone's lock screen, from the same facts and pieces as the texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from notifications.texts import moments
from notifications.texts.compose import LONGEST_TYPED, Scene, events, meeting, positions, scene_of
from notifications.texts.facts import ALERTS, AlertFacts, Kind
from notifications.texts.hindi import HINDI
from notifications.texts.typed import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class PushWording:
    """What a language says differently in a push."""

    alarms: Mapping[Kind, str]
    tap: str
    update: str
    """Takes `reference`, which brings the space before it."""
    all_clear: str
    prompt: str
    """Takes `minutes`."""
    prompt_body: str
    """Takes `deadline`."""


_ENGLISH: Final = PushWording(
    alarms=MappingProxyType({Kind.MISSED_CHECK_IN: "SAFETY ALERT", Kind.SOS: "SOS", Kind.DURESS: "SOS"}),
    tap=" Tap for the map, and to say that you are helping.",
    update="UPDATE to SOS{reference}, not a new alarm",
    all_clear="ALL CLEAR",
    prompt="{minutes} left on your safety timer",
    prompt_body="Are you safe? Tap to say so, or to take more time, before {deadline}.",
)

_HINDI: Final = PushWording(
    alarms=MappingProxyType({Kind.MISSED_CHECK_IN: "सुरक्षा अलर्ट", Kind.SOS: "SOS", Kind.DURESS: "SOS"}),
    tap=" मैप देखने और मदद बताने के लिए टैप करें।",
    update="SOS{reference} अपडेट, नया अलार्म नहीं",
    all_clear="सब ठीक",
    prompt="सुरक्षा टाइमर: {minutes} बाकी",
    prompt_body="आप सुरक्षित हैं? {deadline} से पहले टैप करके बताएँ, या समय बढ़ाएँ।",
)


def compose_push(facts: AlertFacts, *, language: str, now: datetime, repeat: int = 0) -> str:
    """Title and body of a push, with a line break between them.

    Languages, `now` and `repeat` as in `compose`. It says no more than the text does: no PIN, and not that a duress
    PIN was used. Raises ValueError for what is only ever texted, such as invitations and replies, and for a
    `now` without a zone.
    """
    scene = scene_of(facts, language=language, now=now, repeat=repeat)
    words = _HINDI if scene.words is HINDI else _ENGLISH
    if facts.kind in ALERTS:
        title, body = _alert(scene, words)
    elif facts.kind is Kind.UPDATE:
        title, body = _update(scene, words)
    elif facts.kind is Kind.ALL_CLEAR:
        title, body = _all_clear(scene, words)
    elif facts.kind is Kind.CHECK_PROMPT:
        title = words.prompt.format(minutes=scene.minutes) + scene.again
        body = words.prompt_body.format(deadline=moments.clock_zone(facts.happened_at, scene.where))
    else:
        raise ValueError(f"not a push: {facts.kind}")
    return f"{title}\n{body}"


def _alert(scene: Scene, words: PushWording) -> tuple[str, str]:
    kind = scene.facts.kind
    where = positions(scene, scene.words.alert_position, zoned=False)[0]
    met, met_at = meeting(scene)
    call = scene.words.call[0].format(phone=scene.phone) if kind is Kind.MISSED_CHECK_IN and scene.phone else ""
    parts = [
        _name(scene),
        events(scene, late=scene.late)[0],
        f" {where}",
        call,
        scene.words.emergency[0],
        scene.words.caution.get(kind, ""),
        (met_at or met or [""])[0],
        words.tap,
    ]
    return f"{words.alarms[kind]}{scene.again}: {_name(scene)}", "".join(parts)


def _update(scene: Scene, words: PushWording) -> tuple[str, str]:
    where = positions(scene, scene.words.update_position, zoned=True)[0]
    reference = f" {scene.reference}" if scene.reference else ""
    return words.update.format(reference=reference) + scene.again, f"{_name(scene)} {where}"


def _all_clear(scene: Scene, words: PushWording) -> tuple[str, str]:
    opened = scene.words.opened.format(opened=scene.opened) if scene.opened else ""
    form = scene.words.closed[0] if scene.reference else scene.words.closed_unnamed
    closed = form.format(reference=scene.reference, opened=opened)
    body = _name(scene) + events(scene, late="")[0] + closed + scene.words.unsure
    return f"{words.all_clear}{scene.again}: {_name(scene)}", body


def _name(scene: Scene) -> str:
    return cut(scene.name, LONGEST_TYPED)
