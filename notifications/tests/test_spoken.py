"""What calls say: golden texts in both languages, what is never said, and limits whatever people typed."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.texts import ALERTS, AlertFacts, Ending, Kind, compose_call, compose_ending
from notifications.texts.spoken import MAX_SPOKEN


def ist(hour: int, minute: int, day: int = 14) -> datetime:
    """An Indian wall-clock time in March 2025."""
    return datetime(2025, 3, day, hour, minute, tzinfo=UTC) - timedelta(hours=5, minutes=30)


def facts(kind: Kind, **changes: Any) -> AlertFacts:
    """An alert about Priya at 21:30."""
    told: dict[str, Any] = {
        "kind": kind,
        "person_name": "Priya Sharma",
        "person_phone": "+919812345678",
        "reference": "K7Q",
        "happened_at": ist(21, 30),
        "latitude": 28.6139,
        "longitude": 77.209,
        "meet_with": "Rahul K",
        "place_name": "Cafe Blue",
        "time_zone": "Asia/Kolkata",
    }
    return AlertFacts(**{**told, **changes})


def call(kind: Kind, language: str = "en", *, repeat: int = 0, now: datetime | None = None, **changes: Any) -> str:
    return compose_call(facts(kind, **changes), language, now or ist(21, 35), repeat)


KEYS = "Press 1 if you are helping, 2 if you can't, or star to hear this again."
KEYS_HINDI = "मदद कर रहे हैं तो 1 दबाएँ, नहीं कर सकते तो 2, और फिर से सुनने के लिए स्टार दबाएँ।"
OPENING = "This is an urgent call from CasualMeet Safety. Priya Sharma named you as a trusted contact."
OPENING_HINDI = "यह CasualMeet सुरक्षा सेवा का ज़रूरी कॉल है। प्रिया शर्मा ने आपको अपना भरोसेमंद संपर्क चुना है।"
ENGLISH = {
    Kind.MISSED_CHECK_IN: (
        f"{OPENING} Priya Sharma missed a check-in at 9:30 PM, 5 minutes ago. The place they named: Cafe Blue. "
        f"Whom they meet: Rahul K. Call them. If there is no answer, dial 1 1 2. {KEYS}"
    ),
    Kind.SOS: (
        f"{OPENING} Priya Sharma pressed SOS at 9:30 PM, 5 minutes ago. The place they named: Cafe Blue. "
        f"Whom they meet: Rahul K. They may be unable to talk. Dial 1 1 2. {KEYS}"
    ),
    Kind.DURESS: (
        f"{OPENING} Priya Sharma pressed SOS at 9:30 PM, 5 minutes ago. The place they named: Cafe Blue. "
        f"Whom they meet: Rahul K. Do not call or text their phone. Dial 1 1 2. {KEYS}"
    ),
}
HINDI = {
    Kind.MISSED_CHECK_IN: (
        f"{OPENING_HINDI} प्रिया शर्मा को रात 9 बजकर 30 मिनट पर चेक-इन करना था, पर नहीं किया। यह 5 मिनट पहले की बात है। "
        f"उनकी बताई जगह: कैफ़े ब्लू। वे इनसे मिल रहे हैं: राहुल। उन्हें फ़ोन करें। जवाब न मिले तो 1 1 2 मिलाएँ। {KEYS_HINDI}"
    ),
    Kind.SOS: (
        f"{OPENING_HINDI} प्रिया शर्मा ने रात 9 बजकर 30 मिनट पर SOS दबाया। यह 5 मिनट पहले की बात है। "
        f"उनकी बताई जगह: कैफ़े ब्लू। वे इनसे मिल रहे हैं: राहुल। शायद वे बोल न पाएँ। 1 1 2 मिलाएँ। {KEYS_HINDI}"
    ),
    Kind.DURESS: (
        f"{OPENING_HINDI} प्रिया शर्मा ने रात 9 बजकर 30 मिनट पर SOS दबाया। यह 5 मिनट पहले की बात है। "
        f"उनकी बताई जगह: कैफ़े ब्लू। वे इनसे मिल रहे हैं: राहुल। उनके फ़ोन पर कॉल या SMS न करें। 1 1 2 मिलाएँ। {KEYS_HINDI}"
    ),
}


@pytest.mark.parametrize("kind", sorted(ALERTS))
def test_the_english_call_reads_word_for_word(kind: Kind) -> None:
    assert call(kind) == ENGLISH[kind]


@pytest.mark.parametrize("kind", sorted(ALERTS))
@pytest.mark.parametrize("language", ["hi", "hi-IN"])
def test_the_hindi_call_reads_word_for_word(kind: Kind, language: str) -> None:
    said = call(kind, language, person_name="प्रिया शर्मा", place_name="कैफ़े ब्लू", meet_with="राहुल")
    # A typed nukta may come composed or not; it sounds the same.
    assert said.replace("फ़", "फ़") == HINDI[kind].replace("फ़", "फ़")


@pytest.mark.parametrize(
    ("happened", "now", "said"),
    [
        (ist(21, 30), ist(21, 30), "at 9:30 PM, just now."),
        (ist(21, 30), ist(21, 29), "at 9:30 PM, just now."),
        (ist(21, 30), ist(21, 31), "at 9:30 PM, 1 minute ago."),
        (ist(0, 5), ist(2, 4), "at 12:05 AM, 119 minutes ago."),
        (ist(12, 0), ist(14, 30), "at 12:00 PM, 2 hours ago."),
        (ist(23, 50, 13), ist(0, 20), "at 11:50 PM on 13 March, 30 minutes ago."),
        (ist(9, 0, 11), ist(9, 0), "at 9:00 AM on 11 March, 3 days ago."),
    ],
)
def test_times_are_spoken_with_their_age(happened: datetime, now: datetime, said: str) -> None:
    assert said in call(Kind.SOS, now=now, happened_at=happened)


@pytest.mark.parametrize(
    ("hour", "said"), [(3, "रात 3 बजे"), (6, "सुबह 6 बजे"), (13, "दोपहर 1 बजे"), (18, "शाम 6 बजे"), (21, "रात 9 बजे")]
)
def test_hindi_names_the_part_of_the_day(hour: int, said: str) -> None:
    assert f" ने {said} पर SOS" in call(Kind.SOS, "hi", happened_at=ist(hour, 0), now=ist(hour, 5))
    assert f" ने 13 मार्च {said} पर SOS" in call(Kind.SOS, "hi", happened_at=ist(hour, 0, 13), now=ist(hour, 0))


def test_a_repeated_call_says_so() -> None:
    assert " This is call number 2. " in call(Kind.SOS, repeat=1)
    assert " यह कॉल नंबर 3 है। " in call(Kind.SOS, "hi", repeat=2)


def test_what_is_not_known_is_left_out() -> None:
    said = call(Kind.SOS, place_name="", meet_with="<<>>", person_name="  ")
    assert "place" not in said
    assert "meet:" not in said
    assert said.count("A CasualMeet user") == 2


@pytest.mark.parametrize("language", ["en", "hi", "fr"])
@pytest.mark.parametrize("kind", sorted(ALERTS))
def test_p10_no_call_tells_of_a_pin_or_of_duress(kind: Kind, language: str) -> None:
    assert not re.search(r"\bpin\b|duress|812345|28\.6", call(kind, language), re.IGNORECASE)


@pytest.mark.parametrize("kind", sorted(set(Kind) - ALERTS))
def test_nobody_is_called_about_anything_but_an_alert(kind: Kind) -> None:
    with pytest.raises(ValueError, match="nobody is called"):
        call(kind)


TYPED = st.text(max_size=300) | st.sampled_from(["&" * 200, "क्" * 200, "<" * 200, "م " * 200, "call +919812345678 now"])


@given(name=TYPED, place=TYPED, met=TYPED, language=st.sampled_from(["en", "hi"]), repeat=st.integers(0, 10**6))
def test_whatever_was_typed_the_call_stays_short(name: str, place: str, met: str, language: str, repeat: int) -> None:
    for kind in ALERTS:
        said = call(kind, language, person_name=name, place_name=place, meet_with=met, repeat=repeat)
        assert len(said) <= MAX_SPOKEN
        assert said.endswith(KEYS if language == "en" else KEYS_HINDI)
        assert "\n" not in said
        assert "9812345678" not in said


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_is_said_in_both_languages(ending: Ending) -> None:
    english = compose_ending(ending, "en", person_name="Priya")
    assert english.endswith("Goodbye.")
    assert compose_ending(ending, "hi", person_name="प्रिया").endswith("नमस्ते।")


def test_an_ending_names_the_person() -> None:
    assert compose_ending(Ending.SAFE, "en", person_name="Priya") == (
        "Good news. Priya is safe and the alarm is closed. Goodbye."
    )
    assert compose_ending(Ending.HELPING, "hi", person_name="प्रिया") == (
        "धन्यवाद। प्रिया और मॉडरेटर देख रहे हैं कि आप मदद कर रहे हैं। नमस्ते।"
    )
