"""The words of pushes."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifications.texts import AlertFacts, Kind, compose_push
from notifications.texts.facts import SAID

NOW = datetime(2026, 3, 14, 16, 0, tzinfo=UTC)
PUSHED = [kind for kind in Kind if kind not in SAID | {Kind.INVITATION, Kind.FAIL_SAFE, Kind.RECONFIRM}]
LONGEST = {
    "Latin": "Maximiliana Featherstonehaugh " * 3,
    "Devanagari": "क्षत्रिय श्रीवास्तव " * 5,
    "Arabic": "عبد الرحمن " * 8,
}


def facts(kind: Kind = Kind.SOS, **changes: Any) -> AlertFacts:
    """Everything that can be said."""
    values: dict[str, Any] = {
        "kind": kind,
        "person_name": "Priya Sharma",
        "person_phone": "+919812345678",
        "reference": "K7Q",
        "happened_at": NOW + timedelta(minutes=5 if kind is Kind.CHECK_PROMPT else -1),
        "opened_at": NOW - timedelta(minutes=12),
        "latitude": 28.6139,
        "longitude": 77.209,
        "accuracy_m": 25.0,
        "located_at": NOW - timedelta(minutes=2),
        "meet_with": "Rahul K",
        "place_name": "Cafe Blue",
        "time_zone": "Asia/Kolkata",
        "confirmed_with_pin": True,
        **changes,
    }
    return AlertFacts(**values)


def push(kind: Kind = Kind.SOS, *, language: str = "en", repeat: int = 0, **changes: Any) -> tuple[str, str]:
    """Title and body."""
    title, body = compose_push(facts(kind, **changes), language=language, now=NOW, repeat=repeat).split("\n")
    return title, body


GOLDEN = {
    (Kind.MISSED_CHECK_IN, "en"): (
        "SAFETY ALERT: Priya Sharma",
        (
            "Priya Sharma missed a 21:29 IST check-in, 14 Mar. At 28.61390,77.20900 (25 m, 21:28). Call +919812345678. "
            "No answer? Dial 112 and read this. Meeting: Rahul K, Cafe Blue. "
            "Tap for the map, and to say that you are helping."
        ),
    ),
    (Kind.SOS, "en"): (
        "SOS: Priya Sharma",
        (
            "Priya Sharma pressed SOS 21:29 IST, 14 Mar. At 28.61390,77.20900 (25 m, 21:28). Dial 112 and read this. "
            "They may be unable to talk. Meeting: Rahul K, Cafe Blue. Tap for the map, and to say that you are helping."
        ),
    ),
    (Kind.DURESS, "en"): (
        "SOS: Priya Sharma",
        (
            "Priya Sharma pressed SOS 21:29 IST, 14 Mar. At 28.61390,77.20900 (25 m, 21:28). Dial 112 and read this. "
            "DO NOT call or text their phone. Meeting: Rahul K, Cafe Blue. "
            "Tap for the map, and to say that you are helping."
        ),
    ),
    (Kind.UPDATE, "en"): (
        "UPDATE to SOS K7Q, not a new alarm",
        "Priya Sharma now 28.61390,77.20900 (25 m, 21:28 IST).",
    ),
    (Kind.ALL_CLEAR, "en"): (
        "ALL CLEAR: Priya Sharma",
        (
            "Priya Sharma confirmed safe 21:29 IST with their PIN. Alert K7Q of 21:18 is closed, no action needed. "
            "Unsure? Phone them yourself."
        ),
    ),
    (Kind.CHECK_PROMPT, "en"): (
        "5 min left on your safety timer",
        "Are you safe? Tap to say so, or to take more time, before 21:35 IST.",
    ),
    (Kind.MISSED_CHECK_IN, "hi"): (
        "सुरक्षा अलर्ट: Priya Sharma",
        (
            "Priya Sharma ने 21:29 IST, 14 Mar का चेक-इन नहीं किया। स्थान: 28.61390,77.20900 (25 मी, 21:28)। "
            "+919812345678 पर कॉल करें। जवाब न मिले तो 112 पर फ़ोन कर यह पढ़ें। मुलाक़ात: Rahul K, Cafe Blue। "
            "मैप देखने और मदद बताने के लिए टैप करें।"
        ),
    ),
    (Kind.CHECK_PROMPT, "hi"): (
        "सुरक्षा टाइमर: 5 मिनट बाकी",
        "आप सुरक्षित हैं? 21:35 IST से पहले टैप करके बताएँ, या समय बढ़ाएँ।",
    ),
}


@pytest.mark.parametrize(("case", "expected"), GOLDEN.items())
def test_golden(case: tuple[Kind, str], expected: tuple[str, str]) -> None:
    kind, language = case
    assert push(kind, language=language) == expected


@pytest.mark.parametrize("language", ["en", "hi"])
@pytest.mark.parametrize("kind", PUSHED)
class TestEveryKind:
    """What holds for all."""

    def test_a_repeat_says_so(self, kind: Kind, language: str) -> None:
        assert push(kind, language=language)[0] != push(kind, language=language, repeat=1)[0]
        assert "2" in push(kind, language=language, repeat=1)[0]

    def test_p10_never_that_duress_was_used_nor_a_word_for_it(self, kind: Kind, language: str) -> None:
        assert "duress" not in " ".join(push(kind, language=language)).lower()

    def test_names_are_cleaned_and_cut(self, kind: Kind, language: str) -> None:
        nasty = "Priya\nSOS cancelled\r https://evil.example/x +447700900123 \u202egnp" + "x" * 200
        said = "\n".join(push(kind, language=language, person_name=nasty, meet_with=nasty, place_name=nasty))
        for unwanted in ("evil.example", "447700900123", "\u202e", "\r", "x" * 41):
            assert unwanted not in said
        assert said.count("\n") == 1

    @pytest.mark.parametrize("script", LONGEST)
    def test_the_longest_names_fit_a_push(self, kind: Kind, language: str, script: str) -> None:
        name = LONGEST[script]
        title, body = push(kind, language=language, person_name=name, meet_with=name, place_name=name, repeat=98)
        assert len(title) <= 100
        assert len(body.encode()) < 2000

    def test_nobody_is_nameless(self, kind: Kind, language: str) -> None:
        title, body = push(kind, language=language, person_name="")
        assert not re.search(r": $|^ ", title)
        assert not body.startswith(" ")


def test_coordinates_are_the_same_in_every_language() -> None:
    for language in ("en", "hi", "de"):
        assert "28.61390,77.20900" in push(language=language)[1]


def test_without_a_position_the_planned_place_is_said() -> None:
    assert "No GPS. Planned place: Cafe Blue." in push(latitude=None)[1]


def test_an_old_position_says_how_old() -> None:
    assert "Last seen 20:30 at 28.61390,77.20900" in push(located_at=NOW - timedelta(hours=1))[1]


def test_a_late_alert_says_so() -> None:
    assert "(alert 3 h late)" in push(Kind.MISSED_CHECK_IN, late_seconds=3 * 3600)[1]


def test_invitations_are_texted_only() -> None:
    with pytest.raises(ValueError, match="not a push"):
        push(Kind.INVITATION)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        compose_push(facts(), language="en", now=NOW.replace(tzinfo=None))
