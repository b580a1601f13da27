"""The rules of the messages page, each as a test, and golden texts in full."""

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifications.texts import (
    ALERTS,
    LINKED,
    MAX_SEGMENTS,
    AlertFacts,
    Figures,
    Kind,
    compose,
    compose_digest,
    dlt_template,
    dlt_variables,
    format_position,
    is_gsm7,
    segments,
)
from notifications.texts.facts import SAID
from notifications.texts.gsm import units, utf16_units
from notifications.texts.typed import clean, cut

LINK = "https://casualmeet.app/s/Ab3"
POINT = re.compile(r"(?<![\d.])-?\d{1,2}\.\d{5},-?\d{1,3}\.\d{5}(?!\d)")
ANY_LINK = re.compile(r"://|www\.\S|\w\.(?:com|org|in|ly|co)\b", re.IGNORECASE)


def ist(hour: int, minute: int, day: int = 14) -> datetime:
    """An Indian wall-clock time in March 2025."""
    return datetime(2025, 3, day, hour, minute, tzinfo=UTC) - timedelta(hours=5, minutes=30)


NOW = {
    Kind.MISSED_CHECK_IN: ist(21, 35),
    Kind.SOS: ist(21, 21),
    Kind.DURESS: ist(21, 21),
    Kind.UPDATE: ist(21, 34),
    Kind.ALL_CLEAR: ist(21, 47),
    Kind.CHECK_PROMPT: ist(21, 15),
    Kind.INVITATION: ist(21, 0),
    Kind.FAIL_SAFE: ist(20, 0),
    Kind.REPLY: ist(21, 20),
    Kind.RECONFIRM: ist(11, 0),
    Kind.DIGEST: ist(7, 0),
    Kind.SELF_TEST: ist(6, 0),
}


def facts(kind: Kind, **changes: Any) -> AlertFacts:
    """The facts behind the examples of the messages page."""
    given_: dict[str, Any] = {
        "kind": kind,
        "person_name": "Priya Sharma",
        "person_phone": "+919812345678",
        "reference": "K7Q",
        "happened_at": ist(21, 20),
        "opened_at": ist(21, 35),
        "latitude": 28.6139,
        "longitude": 77.209,
        "accuracy_m": 25.0,
        "located_at": ist(21, 20),
        "time_zone": "Asia/Kolkata",
    }
    by_kind: dict[Kind, dict[str, Any]] = {
        Kind.MISSED_CHECK_IN: {
            "happened_at": ist(21, 30),
            "located_at": ist(21, 12),
            "meet_with": "Rahul K",
            "place_name": "Cafe Blue",
        },
        Kind.UPDATE: {
            "happened_at": ist(21, 34),
            "located_at": ist(21, 34),
            "latitude": 28.62011,
            "longitude": 77.2154,
            "accuracy_m": 30.0,
        },
        Kind.ALL_CLEAR: {"happened_at": ist(21, 47), "confirmed_with_pin": True},
        Kind.CHECK_PROMPT: {"happened_at": ist(21, 30), "minutes_left": 15},
        Kind.FAIL_SAFE: {"happened_at": ist(21, 30), "reference": "K7QM2X4P"},
        Kind.REPLY: {"said": "CasualMeet: good. Your timer is ended, nobody is alerted."},
        Kind.DIGEST: {"said": "CasualMeet 13 Mar: 12 alarms, 2 open."},
        Kind.SELF_TEST: {"said": "CasualMeet test of twilio, 14 Mar 06:00. Nothing to do."},
    }
    return AlertFacts(**{**given_, **by_kind.get(kind, {}), **changes})


def text(kind: Kind, language: str = "en", repeat: int = 0, link: str = LINK, **changes: Any) -> str:
    """The example of `kind`, with `changes` to its facts."""
    now = changes.pop("now", NOW[kind])
    return compose(facts(kind, **changes), language=language, link=link, now=now, repeat=repeat)


def rendered(kind: Kind, language: str, variables: tuple[str, ...]) -> str:
    """A DLT template with its variables filled in."""
    parts = dlt_template(kind, language).split("{#var#}")
    assert len(parts) == len(variables) + 1
    return "".join(a + b for a, b in zip(parts, (*variables, ""), strict=True))


GOLDEN_ENGLISH = {
    Kind.MISSED_CHECK_IN: (
        "SAFETY ALERT (CasualMeet): Priya Sharma missed a 21:30 IST check-in, 14 Mar. Last seen "
        "21:12 at 28.61390,77.20900 (25 m). Call +919812345678. No answer? Dial 112 and read this. "
        f"Meeting: Rahul K, Cafe Blue. Map + tell others you're helping: {LINK}"
    ),
    Kind.SOS: (
        "SOS (CasualMeet): Priya Sharma pressed SOS 21:20 IST, 14 Mar. At 28.61390,77.20900 (25 m, "
        "21:20). Dial 112 and read this. They may be unable to talk. Map + tell others you're "
        f"helping: {LINK}"
    ),
    Kind.DURESS: (
        "SOS (CasualMeet): Priya Sharma pressed SOS 21:20 IST, 14 Mar. At 28.61390,77.20900 (25 m, "
        "21:20). Dial 112 and read this. DO NOT call or text their phone. Map + tell others you're "
        f"helping: {LINK}"
    ),
    Kind.UPDATE: (
        f"UPDATE to SOS K7Q (not a new alarm): Priya Sharma now 28.62011,77.21540 (30 m, 21:34 IST). Map: {LINK}"
    ),
    Kind.ALL_CLEAR: (
        "ALL CLEAR (CasualMeet): Priya Sharma confirmed safe 21:47 IST with their PIN. Alert K7Q "
        "of 21:35 is closed, no action needed. Unsure? Phone them yourself."
    ),
    Kind.CHECK_PROMPT: (
        "CasualMeet: 15 min left on your safety timer (21:30). Reply SAFE <pin>, or MORE 30, or open the app."
    ),
    Kind.INVITATION: (
        "CasualMeet: Priya Sharma asks you to be their trusted contact: if they miss a check-in or "
        f"press SOS, we text you. Answer here: {LINK} Reply not needed, ignore if you don't know "
        "them."
    ),
    Kind.FAIL_SAFE: (
        "CasualMeet backup alert: Priya Sharma did not check in by 21:30 IST, 14 Mar, and our service may be down. "
        "Call +919812345678. No answer? Dial 112 and read this. Automatic text, ref K7QM2X4P."
    ),
    Kind.REPLY: "CasualMeet: good. Your timer is ended, nobody is alerted.",
    Kind.RECONFIRM: (
        "CasualMeet: Priya Sharma still counts on you as trusted contact. Still willing? Open the link: "
        f"{LINK} STOP to end."
    ),
    Kind.DIGEST: "CasualMeet 13 Mar: 12 alarms, 2 open.",
    Kind.SELF_TEST: "CasualMeet test of twilio, 14 Mar 06:00. Nothing to do.",
}

GOLDEN_HINDI = {
    Kind.MISSED_CHECK_IN: (
        "सुरक्षा अलर्ट (CasualMeet): प्रिया शर्मा ने 21:30 IST, 14 Mar का चेक-इन नहीं किया। "
        f"अंतिम स्थान 21:12: 28.61390,77.20900 (25 मी)। कॉल +919812345678। 112 मिलाएँ। मैप: {LINK}"
    ),
    Kind.SOS: (
        "SOS (CasualMeet): प्रिया शर्मा ने 21:20 IST, 14 Mar को SOS दबाया। "
        f"स्थान: 28.61390,77.20900 (25 मी, 21:20)। 112 पर फ़ोन कर यह पढ़ें। शायद वे बोल न पाएँ। मैप: {LINK}"
    ),
    Kind.DURESS: (
        "SOS (CasualMeet): प्रिया शर्मा ने 21:20 IST, 14 Mar को SOS दबाया। "
        "स्थान: 28.61390,77.20900 (25 मी, 21:20)। 112 पर फ़ोन कर यह पढ़ें। "
        f"उनके फ़ोन पर कॉल या SMS न करें। मैप: {LINK}"
    ),
    Kind.UPDATE: (f"SOS K7Q अपडेट (नया अलार्म नहीं): प्रिया शर्मा अब 28.62011,77.21540 (30 मी, 21:34 IST)। मैप: {LINK}"),
    Kind.ALL_CLEAR: "सब ठीक (CasualMeet): प्रिया शर्मा सुरक्षित, 21:47 IST PIN से। K7Q बंद।",
    Kind.CHECK_PROMPT: "CasualMeet: 15 मिनट बाकी (21:30)। SAFE <pin>, MORE 30 या ऐप।",
    Kind.INVITATION: (f"CasualMeet: प्रिया शर्मा का अनुरोध: उनके भरोसेमंद संपर्क बनें: {LINK} अनजान हों तो अनदेखा करें।"),
    Kind.FAIL_SAFE: (
        "CasualMeet बैकअप अलर्ट: प्रिया शर्मा ने 21:30 IST, 14 Mar तक चेक-इन नहीं किया, हमारी सेवा शायद बंद है। "
        "+919812345678 पर कॉल करें। जवाब न मिले तो 112 पर फ़ोन कर यह पढ़ें। स्वचालित SMS, K7QM2X4P।"
    ),
    Kind.RECONFIRM: (f"CasualMeet: प्रिया शर्मा के आप भरोसेमंद संपर्क हैं। क्या अब भी तैयार हैं? बताएँ: {LINK} बंद: STOP।"),
    # Composed when they were queued, in the language of then.
    **{kind: GOLDEN_ENGLISH[kind] for kind in SAID},
}


@pytest.mark.parametrize("kind", Kind)
def test_the_english_text_reads_word_for_word(kind: Kind) -> None:
    assert text(kind) == GOLDEN_ENGLISH[kind]


@pytest.mark.parametrize("kind", Kind)
def test_the_hindi_text_reads_word_for_word(kind: Kind) -> None:
    assert text(kind, "hi", person_name="प्रिया शर्मा") == GOLDEN_HINDI[kind]


def test_without_a_position_the_planned_place_stands_in() -> None:
    changes: dict[str, Any] = {
        "latitude": None,
        "place_name": "Cafe Blue, MG Road",
        "meet_with": "Rahul K",
    }
    assert text(Kind.SOS, **changes) == (
        "SOS (CasualMeet): Priya Sharma pressed SOS 21:20 IST, 14 Mar. No GPS. Planned place: Cafe "
        "Blue, MG Road. Dial 112 and read this. They may be unable to talk. Meeting: Rahul K. "
        f"Map + tell others you're helping: {LINK}"
    )
    assert " No GPS. Dial" in text(Kind.SOS, latitude=None)
    assert "GPS नहीं। तय जगह: कैफ़े" in text(Kind.SOS, "hi", latitude=None, place_name="कैफ़े")
    assert "Priya Sharma 21:34 IST, no GPS. Map:" in text(Kind.UPDATE, latitude=None)


def test_a_devanagari_name_in_an_english_text_is_kept_and_boilerplate_goes() -> None:
    link = "https://casualmeet.app/s/AbCdEf0123456789AbCdEf"
    message = text(Kind.MISSED_CHECK_IN, person_name="प्रिया शर्मा", link=link)
    assert message == (
        "SAFETY ALERT: प्रिया शर्मा missed a 21:30 IST check-in, 14 Mar. Last seen 21:12 at "
        f"28.61390,77.20900 (25 m). Call +919812345678. Dial 112. Map: {link}"
    )
    assert segments(message) == 3


@pytest.mark.parametrize(
    ("language", "kind", "expected"),
    [
        (
            "en",
            Kind.MISSED_CHECK_IN,
            (
                "new alert",
                "Priya Sharma",
                "21:30 IST, 14 Mar",
                "Last seen 21:12 (25 m)",
                "28.61390,77.20900",
                "+919812345678",
                "Rahul K",
                "Cafe Blue",
                LINK,
            ),
        ),
        (
            "en",
            Kind.SOS,
            (
                "new alert",
                "Priya Sharma",
                "21:20 IST, 14 Mar",
                "Position (25 m, 21:20)",
                "28.61390,77.20900",
                LINK,
            ),
        ),
        (
            "en",
            Kind.UPDATE,
            ("K7Q", "Priya Sharma", "now (30 m, 21:34 IST)", "28.62011,77.21540", LINK),
        ),
        ("en", Kind.ALL_CLEAR, ("Priya Sharma", "21:47 IST with their PIN", "K7Q of 21:35")),
        ("en", Kind.CHECK_PROMPT, ("15 min", "21:30")),
        ("en", Kind.INVITATION, ("invitation", "Priya Sharma", LINK)),
        (
            "hi",
            Kind.SOS,
            (
                "अलर्ट",
                "Priya Sharma",
                "21:20 IST, 14 Mar",
                "स्थान (25 मी, 21:20)",
                "28.61390,77.20900",
                LINK,
            ),
        ),
    ],
)
def test_dlt_variables_carry_the_same_facts(language: str, kind: Kind, expected: tuple[str, ...]) -> None:
    variables = dlt_variables(facts(kind), language=language, link=LINK, now=NOW[kind])
    assert variables == expected


def test_a_dlt_template_reads_as_the_free_text_does() -> None:
    variables = dlt_variables(facts(Kind.ALL_CLEAR), language="en", link="", now=NOW[Kind.ALL_CLEAR])
    assert rendered(Kind.ALL_CLEAR, "en", variables) == GOLDEN_ENGLISH[Kind.ALL_CLEAR]


# Counting and coordinates


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("", 1),
        ("a" * 160, 1),
        ("a" * 161, 2),
        ("a" * 306, 2),
        ("a" * 307, 3),
        ("€" * 80, 1),
        ("€" * 80 + "a", 2),
        ("a" * 152 + "€" + "a" * 152, 3),  # the escape pair moves over whole: 152 + 153 + 1
        ("é\f^{}[]~\\|€", 1),
        ("क" * 70, 1),
        ("क" * 71, 2),
        ("क" * 134, 2),
        ("क" * 135, 3),
        ("😀" * 35, 1),
        ("😀" * 36, 2),
        ("’" + "a" * 70, 2),
    ],
)
def test_segments_are_counted_as_carriers_do(message: str, count: int) -> None:
    assert segments(message) == count


def test_gsm7_knows_its_alphabet() -> None:
    assert is_gsm7("@£$¥èéùìòÇØøÅåΔΦΓΛΩΠΨΣΘΞÆæßÉ¤¡ÄÖÑÜ§¿äöñüà€")
    assert not any(is_gsm7(char) for char in "çóá’“₹°क😀`\x1b")


@pytest.mark.parametrize(
    ("latitude", "longitude", "expected"),
    [
        (28.6139, 77.209, "28.61390,77.20900"),
        (-0.000001, 0.0000049, "0.00000,0.00000"),
        (-90, 180, "-90.00000,180.00000"),
        (1e-7, -179.999999, "0.00000,-180.00000"),
    ],
)
def test_coordinates_have_five_decimals_and_a_dot(latitude: float, longitude: float, expected: str) -> None:
    assert format_position(latitude, longitude) == expected


@pytest.mark.parametrize("bad", [(float("nan"), 1), (1, float("inf")), (90.1, 0), (0, -180.1)])
def test_coordinates_off_the_globe_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="globe"):
        format_position(*bad)
    assert facts(Kind.SOS, latitude=bad[0], longitude=bad[1]).point == ""


def test_null_island_counts_as_no_position() -> None:
    assert "No GPS." in text(Kind.SOS, latitude=0.0, longitude=0.0)


# Times and fixes


def test_a_fix_older_than_ten_minutes_is_last_seen() -> None:
    assert " At 28.61390,77.20900 (25 m, 21:20)." in text(Kind.SOS, now=ist(21, 30))
    late = text(Kind.SOS, now=ist(21, 30) + timedelta(seconds=1))
    assert " Last seen 21:20 at 28.61390,77.20900 (25 m)." in late
    late = text(Kind.UPDATE, now=ist(22, 0))
    assert " last seen 21:34 IST at 28.62011,77.21540 (30 m)." in late


def test_a_fix_of_another_day_says_its_date() -> None:
    changes: dict[str, Any] = {"located_at": ist(23, 50, 13), "now": ist(21, 21)}
    assert "Last seen 23:50 13 Mar at 28." in text(Kind.SOS, **changes)


def test_a_fix_of_unknown_age_is_last_seen() -> None:
    assert "Last seen at 28.61390,77.20900 (25 m)." in text(Kind.SOS, located_at=None)


def test_accuracy_over_500_metres_is_approximate() -> None:
    assert "approximate" not in text(Kind.SOS, accuracy_m=500.0)
    assert "(approximate, 501 m, 21:20)" in text(Kind.SOS, accuracy_m=501.0)
    assert "(approximate, 3 km, 21:20)" in text(Kind.SOS, accuracy_m=2600.0)
    assert "(लगभग, 501 मी, 21:20)" in text(Kind.SOS, "hi", accuracy_m=501.0)


@pytest.mark.parametrize(
    ("time_zone", "shown"),
    [
        ("Asia/Kolkata", "21:20 IST, 14 Mar"),
        ("Asia/Kathmandu", "21:35 UTC+05:45, 14 Mar"),
        ("America/Sao_Paulo", "12:50 UTC-03:00, 14 Mar"),
        ("America/New_York", "11:50 EDT, 14 Mar"),
        ("Pacific/Auckland", "04:50 NZDT, 15 Mar"),
        ("UTC", "15:50 UTC, 14 Mar"),
        ("Mars/Olympus", "15:50 UTC, 14 Mar"),
        ("", "15:50 UTC, 14 Mar"),
        ("../../etc/passwd", "15:50 UTC, 14 Mar"),
        ("Asia", "15:50 UTC, 14 Mar"),
    ],
)
def test_times_are_local_with_their_zone(time_zone: str, shown: str) -> None:
    assert f"pressed SOS {shown}." in text(Kind.SOS, time_zone=time_zone)


def test_the_hour_that_happens_twice_names_its_zone() -> None:
    first = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
    for moment, shown in ((first, "01:30 BST"), (first + timedelta(hours=1), "01:30 GMT")):
        message = text(Kind.SOS, happened_at=moment, now=moment, time_zone="Europe/London")
        assert f"pressed SOS {shown}, 26 Oct." in message


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (119, ""),
        (120, " (alert 2 min late)"),
        (10800, " (alert 3 h late)"),
        (7199, " (alert 119 min late)"),
        (200000, " (alert 2 days late)"),
    ],
)
def test_a_late_alert_says_so(seconds: int, said: str) -> None:
    message = text(Kind.MISSED_CHECK_IN, late_seconds=seconds, place_name="", meet_with="")
    assert f"check-in, 14 Mar{said}. Last" in message


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        facts(Kind.SOS, happened_at=ist(21, 20).replace(tzinfo=None))
    with pytest.raises(ValueError, match="zone"):
        text(Kind.SOS, now=ist(21, 20).replace(tzinfo=None))


# What is and isn't said


def test_a_repeat_says_which_one_it_is() -> None:
    assert text(Kind.SOS, repeat=1).startswith("SOS (CasualMeet), 2nd alert: Priya Sharma pressed")
    assert ", 3rd alert: " in text(Kind.MISSED_CHECK_IN, repeat=2)
    assert ", 11th alert: " in text(Kind.SOS, repeat=10)
    assert ", 22nd alert: " in text(Kind.SOS, repeat=21)
    assert text(Kind.SOS, "hi", repeat=1).startswith("SOS (CasualMeet), दोबारा (2): ")
    assert "(not a new alarm), 2nd copy: " in text(Kind.UPDATE, repeat=1)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("language", ["en", "hi"])
def test_no_two_repeats_are_the_same(kind: Kind, language: str) -> None:
    texts = {text(kind, language, repeat=n) for n in range(5)}
    variables = {dlt_variables(facts(kind), language=language, link=LINK, now=NOW[kind], repeat=n) for n in range(5)}
    assert len(texts) == len(variables) == 5


@pytest.mark.parametrize("name", ["Priya Sharma", "W" * 99, "م" * 99, "𑄇𑄧" * 99])
@pytest.mark.parametrize("phone", ["+123456789012345", ""])
@pytest.mark.parametrize("language", ["en", "hi"])
def test_a_backup_alert_always_says_that_it_is_automatic_whom_to_call_and_its_mark(
    language: str, phone: str, name: str
) -> None:
    """By the mark the carrier's copy is found again; a text that lost it could never be called back."""
    for repeat in (0, 50):
        message = text(Kind.FAIL_SAFE, language, repeat, person_name=name, person_phone=phone)
        assert "K7QM2X4P" in message
        assert "112" in message
        assert "21:30" in message
        assert ("Automatic text" if language == "en" else "स्वचालित SMS") in message
        assert (phone or ("Call them." if language == "en" else "कॉल उन्हें करें।")) in message
        assert not ANY_LINK.search(message)


@pytest.mark.parametrize("language", ["en", "hi"])
def test_duress_reads_as_an_sos_that_must_not_be_answered_by_phone(language: str) -> None:
    message = text(Kind.DURESS, language, place_name="Cafe", meet_with="Rahul")
    assert message.startswith("SOS")
    assert ("DO NOT call or text their phone." if language == "en" else "न करें।") in message
    assert "9812345678" not in message
    assert not re.search(r"duress|\bpin\b", message, re.IGNORECASE)


def test_an_all_clear_says_how_safety_was_confirmed() -> None:
    assert " 21:47 IST in the app. " in text(Kind.ALL_CLEAR, confirmed_with_pin=False)
    assert " ऐप से।" in text(Kind.ALL_CLEAR, "hi", confirmed_with_pin=False)


def test_an_all_clear_of_yesterdays_alert_dates_it() -> None:
    assert "K7Q of 23:50 13 Mar is closed" in text(Kind.ALL_CLEAR, opened_at=ist(23, 50, 13))
    assert "Alert K7Q is closed" in text(Kind.ALL_CLEAR, opened_at=None)
    assert "The alert of 21:35 is closed" in text(Kind.ALL_CLEAR, reference="")


def test_minutes_left_are_counted_where_not_given() -> None:
    changes: dict[str, Any] = {"minutes_left": None, "now": ist(21, 15) + timedelta(seconds=30)}
    assert ": 15 min left " in text(Kind.CHECK_PROMPT, **changes)
    assert ": under 1 min left " in text(Kind.CHECK_PROMPT, minutes_left=0)


def test_the_agreed_word_is_in_the_text_room_permitting() -> None:
    assert " Your word: mango. Map" in text(Kind.SOS, agreed_word="mango")
    crowded: dict[str, Any] = {
        "meet_with": "Rahul Kumar",
        "place_name": "Cafe Blue, MG Road, Bengaluru",
    }
    assert "mango" not in text(Kind.SOS, agreed_word="mango", **crowded, link="x" * 80)


def test_a_phone_that_is_none_is_left_out() -> None:
    for phone in ("", "ring me", "+91 98123 45678 <b>"):
        message = text(Kind.MISSED_CHECK_IN, person_phone=phone)
        assert "Call" not in message
        assert "No answer" not in message
    assert "Call +919812345678." in text(Kind.MISSED_CHECK_IN, person_phone="+91 98123-45678")


def test_an_unknown_language_reads_english() -> None:
    assert text(Kind.SOS, "ta") == GOLDEN_ENGLISH[Kind.SOS]
    assert text(Kind.SOS, "hi-IN") == text(Kind.SOS, "hi")


@pytest.mark.parametrize("name", ["Priya Sharma", "W" * 60])
@pytest.mark.parametrize("repeat", [0, 1])
def test_a_question_whether_they_still_will_fits_one_part_and_says_how_to_end_it(name: str, repeat: int) -> None:
    link = "https://safety.example.org/c/abcdefghijkmnopqrstuvwxy"
    message = text(Kind.RECONFIRM, repeat=repeat, person_name=name, link=link)
    assert message.endswith(f"{link} STOP to end.")
    assert segments(message) == 1


def figures(**changes: Any) -> Figures:
    return Figures(**{"day": date(2025, 3, 13), "incidents": 12, "unresolved": 2, **changes})


def test_the_digest_reads_word_for_word() -> None:
    busy = figures(nobody_reached=1, dead_letters=3, accepted=(2.4, 9.0), acknowledged=(240.0, 7300.0))
    assert compose_digest(busy, "en") == (
        "CasualMeet 13 Mar: 12 alarms, 2 open, 1 with nobody reached, 3 dead letters. First accepted 2 s/9 s. "
        "Answered 4 min/2 h (median/longest)."
    )
    assert compose_digest(figures(failing=["fast2sms"]), "hi") == "CasualMeet 13 Mar: 12 अलार्म, 2 खुले। ख़राब: fast2sms।"
    assert (
        compose_digest(figures(incidents=1, dead_letters=1), "en")
        == "CasualMeet 13 Mar: 1 alarm, 2 open, 1 dead letter."
    )


@pytest.mark.parametrize(("language", "parts"), [("en", 1), ("hi", 2)])
def test_the_busiest_digest_fits_even_as_a_repeat(language: str, parts: int) -> None:
    said = compose_digest(
        figures(
            incidents=10**6,
            unresolved=10**6,
            nobody_reached=10**6,
            dead_letters=10**6,
            failing=["fast2sms", "twilio", "twilio-voice", "fcm", "webpush"],
            accepted=(10**7, 10**8),
            acknowledged=(10**7, 10**8),
        ),
        language,
    )
    assert segments(text(Kind.DIGEST, language, repeat=97, said=said)) <= parts
    assert "1000000" in said


@pytest.mark.parametrize("link", ["", "https://x.y/a b", "https://x.y/ü", "a" * 81, "x\n", "a%20b"])
def test_a_link_that_a_text_cannot_carry_is_refused(link: str) -> None:
    for kind in LINKED:
        with pytest.raises(ValueError, match="link"):
            text(kind, link=link)
        with pytest.raises(ValueError, match="link"):
            dlt_variables(facts(kind), language="en", link=link, now=NOW[kind])
    assert text(Kind.ALL_CLEAR, link=link) == GOLDEN_ENGLISH[Kind.ALL_CLEAR]


# What people type


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("Cafe “Blue” – the ‘old’ one…", "Cafe \"Blue\" - the 'old' one"),
        ("José Łukasz Çelik Müller", "José Lukasz Çelik Müller"),
        ("Zoë García Đặng Œuvre", "Zoe Garcia Dang OEuvre"),
        ("₹500 Bar 20°", "Rs500 Bar 20"),
        ("Priya 💃🏽❤️ Sharma", "Priya Sharma"),
        ("line\nbreak\ttab\u2028sep", "line break tab sep"),
        ("a\u202eb\u2066c\u200bd\x00e", "abcde"),
        ("Cafe https://evil.com/x now", "Cafe now"),
        ("HTTP://EVIL.COM", ""),
        ("www.evil.example Bar", "Bar"),
        ("go to evil.com/x?y=1 now", "go to now"),
        ("ev\u200bil.com", ""),
        ("evil．com", ""),
        ("me@evil.org", ""),
        ("10.0.0.1/x Bar", "Bar"),
        ("Dr.Rao", "Dr. Rao"),
        ("evil.zip/x", "evil. zip/x"),
        ("A.P.J. Abdul Kalam", "A.P.J. Abdul Kalam"),
        ("Rahul +91 98123-45678", "Rahul"),
        ("Rahul ९८१२३४५६७८", "Rahul"),
        ("Gate 4, Sector 62", "Gate 4, Sector 62"),
        ("प्रिया शर्मा", "प्रिया शर्मा"),
        ("محمد العربي", "محمد العربي"),
        ("a|b[c]{d}~e\\f^g", "a/b(c)(d)-e/fg"),
        ("\ud800", ""),
        ("", ""),
    ],
)
def test_what_people_type_is_cleaned(typed: str, kept: str) -> None:
    assert clean(typed, gsm=True) == kept


def test_joiners_survive_only_inside_scripts_that_spell_with_them() -> None:
    assert clean("क्\u200dष می\u200cخواهم", gsm=False) == "क्\u200dष می\u200cخواهم"
    assert clean("a\u200db", gsm=False) == "ab"


def test_a_name_of_nothing_becomes_a_user() -> None:
    assert "): A CasualMeet user pressed" in text(Kind.SOS, person_name="🎉\u202e")
    assert "): एक CasualMeet सदस्य ने" in text(Kind.SOS, "hi", person_name=" ")


def test_cutting_spares_words_letters_and_their_marks() -> None:
    assert cut("Christopher Montgomery", 16) == "Christopher"
    assert cut("Christopher", 8) == "Christop"
    assert cut("कि" * 10, 7) == "कि" * 3
    assert cut("क्षक्ष", 4) == "क्ष"
    assert cut("𑄇𑄇𑄇", 5) == "𑄇𑄇"


def test_a_place_is_shortened_before_anything_else_goes() -> None:
    place = "Cafe Blue on the first floor, MG Road"
    message = text(Kind.MISSED_CHECK_IN, place_name=place, link="x" * 55)
    assert "Meeting: Rahul K, Cafe Blue on the. Map + tell" in message
    message = text(Kind.MISSED_CHECK_IN, place_name=place, late_seconds=9000, link="x" * 58)
    assert "Meeting: Rahul K. Map + tell" in message
    assert "(alert 2 h late)" in message


# Whatever comes in

_AWKWARD = st.sampled_from(
    [
        "Priya Sharma",
        "प्रिया शर्मा",
        "محمد عبد الرحمن",
        "👩\u200d👩\u200d👧 ",
        "e\u0301" * 9,
        "a\u0336" * 30,
        "क्ष्म्य" * 9,
        "क्" * 40,
        "𑄇𑄧" * 20,
        "\u202e",
        "\n",
        "|",
        "{name}",
        "https://evil.com/a ",
        "evil.com/x",
        "+919876543210",
        "28.61390,77.20900",
        "W" * 90,
        "€" * 50,
        "“",
        "₹",
        "Żółć",
    ]
)
TYPED = st.one_of(
    st.text(max_size=200),
    st.lists(st.one_of(_AWKWARD, st.text(max_size=20)), max_size=12).map("".join),
    st.lists(_AWKWARD, max_size=8).map(" ".join),
    st.sampled_from(["अ" * 200, "م" * 200, "Ω" * 200, "a b " * 50]),
)
MOMENTS = st.integers(1_577_836_800, 2_051_222_400).map(lambda s: datetime.fromtimestamp(s, UTC))
AGES = st.integers(0, 3 * 86400).map(lambda s: timedelta(seconds=s))


@st.composite
def any_facts(draw: st.DrawFn) -> tuple[AlertFacts, datetime]:
    """Facts as nasty as people and phones make them, and a time at which to tell them."""
    now = draw(MOMENTS)
    drawn = AlertFacts(
        kind=draw(st.sampled_from(Kind)),
        person_name=draw(TYPED),
        person_phone=draw(st.sampled_from(["", "+919812345678", "+12025550123", "x"])),
        reference=draw(st.one_of(st.sampled_from(["K7Q", "", "ABCDEFGHIJ"]), st.text(max_size=9))),
        happened_at=now - draw(AGES),
        opened_at=draw(st.none() | AGES.map(lambda age: now - age)),
        latitude=draw(st.none() | st.floats(-91, 91)),
        longitude=draw(st.floats(-180, 180) | st.just(-179.12345)),
        accuracy_m=draw(st.none() | st.floats(width=32)),
        located_at=draw(st.none() | AGES.map(lambda age: now - age)),
        meet_with=draw(TYPED),
        place_name=draw(TYPED),
        time_zone=draw(st.sampled_from(["Asia/Kolkata", "Asia/Kathmandu", "UTC", "nowhere"])),
        confirmed_with_pin=draw(st.booleans()),
        minutes_left=draw(st.none() | st.integers()),
        late_seconds=draw(st.integers(0, 10**12)),
        agreed_word=draw(st.sampled_from(["", "mango", "आम"])),
    )
    return drawn, now


LINKS = st.one_of(
    st.just("https://casualmeet.app/s/AbCdEf0123456789AbCdEf"),
    st.integers(0, 80 - 24).map(lambda n: "https://casualmeet.app/s/" + "x" * max(1, n - 1)),
)
SEND = {
    "language": st.sampled_from(["en", "hi", "fr"]),
    "link": LINKS,
    "repeat": st.integers(0, 3) | st.integers(-1, 10**9),
}


def check_limits(message: str, kind: Kind, point: str) -> None:
    gsm = is_gsm7(message)
    assert segments(message) <= MAX_SEGMENTS[kind][0 if gsm else 1]
    if point and kind in ALERTS:
        until = message[: message.index(point) + len(point)]
        assert units(until) <= 153 if gsm else utf16_units(until) <= 134


@settings(deadline=None)
@given(drawn=any_facts(), **SEND)
def test_any_text_keeps_its_limits(drawn: tuple[AlertFacts, datetime], language: str, link: str, repeat: int) -> None:
    told, now = drawn
    message = compose(told, language=language, link=link, now=now, repeat=repeat)
    check_limits(message, told.kind, told.point)
    has_point = told.kind in ALERTS | {Kind.UPDATE} and told.point
    assert POINT.findall(message) == ([told.point] if has_point else [])
    assert message.split().count(link) == (1 if told.kind in LINKED else 0)
    assert not ANY_LINK.search(message.replace(link, ""))
    assert "\n" not in message
    assert "  " not in message
    assert message.isprintable() or "\u200c" in message or "\u200d" in message
    if told.kind is Kind.DURESS:
        assert ("DO NOT call or text their phone." in message) != (language == "hi")
        assert "+919812345678" not in message
    assert "9876543210" not in message
    if repeat >= 1:
        first = compose(told, language=language, link=link, now=now)
        assert message != first


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("language", ["en", "hi"])
@pytest.mark.parametrize(
    "name",
    ["W" * 99, "€" * 99, "क्" * 99, "م" * 99, "𑄇𑄧" * 99, "ع " * 99],
    ids=["latin", "euro", "conjunct", "arabic", "astral", "words"],
)
def test_the_longest_of_everything_keeps_the_limits(kind: Kind, language: str, name: str) -> None:
    happened = datetime(2025, 12, 28, 23, 58, tzinfo=UTC)
    fixes = [None, happened, happened - timedelta(days=20)]
    points = [(-88.12345, -178.12345), (None, None)]
    for located, (latitude, longitude), pin in product(fixes, points, (True, False)):
        told = facts(
            kind,
            person_name=name,
            meet_with=name,
            place_name=name,
            person_phone="+123456789012345",
            reference="ABCDEFGH9",
            happened_at=happened,
            opened_at=happened - timedelta(days=20),
            located_at=located,
            latitude=latitude,
            longitude=longitude,
            accuracy_m=999_000.0,
            time_zone="Asia/Kathmandu",
            confirmed_with_pin=pin,
            minutes_left=10**9,
            late_seconds=10**9,
        )
        for repeat in (0, 10**9):
            message = compose(told, language=language, link="x" * 80, now=happened, repeat=repeat)
            check_limits(message, kind, told.point)


@settings(deadline=None)
@given(drawn=any_facts(), **SEND)
def test_any_dlt_variables_are_short_and_whole(
    drawn: tuple[AlertFacts, datetime], language: str, link: str, repeat: int
) -> None:
    told, now = drawn
    variables = dlt_variables(told, language=language, link=link, now=now, repeat=repeat)
    for variable in variables:
        assert variable.strip() == variable != ""
        assert not set(variable) & set("|\n\r")
        assert utf16_units(variable) <= 30 or variable == link
    assert variables.count(link) == (1 if told.kind in LINKED else 0)
    if told.point and told.kind in ALERTS | {Kind.UPDATE}:
        assert variables.count(told.point) == 1
    message = rendered(told.kind, language, variables)
    if is_gsm7(message) and told.kind in ALERTS and len(link) <= 48 and repeat < 4:
        assert segments(message) <= MAX_SEGMENTS[told.kind][0]


def test_the_longest_template_gives_way_where_nothing_is_given() -> None:
    happened = datetime(2026, 12, 28, 20, 0, tzinfo=UTC)
    told = facts(
        Kind.MISSED_CHECK_IN,
        person_name="",
        meet_with="",
        place_name="",
        happened_at=happened,
        latitude=-88.12345,
        longitude=-178.12345,
        accuracy_m=900.0,
        located_at=None,
        late_seconds=120,
    )
    variables = dlt_variables(told, language="en", link="x" * 48, now=happened, repeat=3)
    assert segments(rendered(told.kind, "en", variables)) == 2


@settings(deadline=None)
@given(drawn=any_facts())
def test_facts_round_trip_through_json(drawn: tuple[AlertFacts, datetime]) -> None:
    told, _ = drawn
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert AlertFacts.from_json({**data, "from_the_future": [1]}) == told


def test_facts_of_an_older_version_still_read() -> None:
    data = {"kind": "sos", "person_name": "Priya", "happened_at": "2025-03-14T21:20:00+05:30"}
    read = AlertFacts.from_json({**data, "meet_with": None})
    assert read == AlertFacts(kind=Kind.SOS, person_name="Priya", happened_at=ist(21, 20))
    assert read.happened_at.tzinfo is UTC
    with pytest.raises(KeyError):
        AlertFacts.from_json({"kind": "sos"})
    with pytest.raises(ValueError, match="shout"):
        AlertFacts.from_json({**data, "kind": "shout"})


def test_facts_drop_what_databases_refuse() -> None:
    assert replace(facts(Kind.SOS), person_name="P\x00ri\ud800ya").person_name == "Priya"


@pytest.mark.parametrize("language", ["en", "hi"])
@pytest.mark.parametrize("name", ["Maria-Magdalena Konstantinopolous Ray", "प्रियदर्शिनी चट्टोपाध्याय", "محمد عبد الرحمن"])
@pytest.mark.parametrize("kind", sorted(ALERTS))
def test_with_a_usual_link_every_alert_says_when_where_and_whom_to_call(kind: Kind, name: str, language: str) -> None:
    link = "https://casualmeet.app/s/AbCdEf0123456789AbCdEf"
    changes: dict[str, Any] = {"located_at": ist(21, 0), "accuracy_m": 800.0, "now": ist(22, 0)}
    message = text(kind, language, link=link, person_name=name, repeat=1, **changes)
    assert name.split(maxsplit=1)[0] in message
    assert "112" in message
    assert "21:00" in message
    assert ("Last seen" if language == "en" else "अंतिम स्थान") in message
    assert ("approximate" if language == "en" else "लगभग") in message
