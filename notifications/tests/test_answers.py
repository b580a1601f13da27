"""Automatic replies: goldens in both languages, and limits whatever people typed."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.texts import MAX_SEGMENTS, AlertFacts, Kind, Topic, compose, compose_answer, is_gsm7, segments

AT = datetime(2025, 3, 14, 16, 30, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "name": "Priya Sharma",
    "reference": "K7Q",
    "minutes": 30,
    "at": AT,
    "time_zone": "Asia/Kolkata",
    "alerts": (("K7Q", "Priya Sharma"), ("M3P", "Asha Rao")),
}
ENGLISH = {
    Topic.TIMER_ENDED: "CasualMeet: good. Your timer is ended, nobody is alerted.",
    Topic.ALARM_CLOSED: "CasualMeet: good that you are safe. Alarm K7Q is closed, all who were alerted are told.",
    Topic.EXTENDED: "CasualMeet: 30 min more. Your timer now ends 22:00 IST.",
    Topic.SOS_ON: "CasualMeet: SOS K7Q is on. In danger dial 112. Safe? Reply SAFE <pin>.",
    Topic.WRONG_PIN: "CasualMeet: that is not your PIN. Nothing was changed.",
    Topic.PIN_REQUIRED: "CasualMeet: your PIN is needed. Reply SAFE <pin>. Nothing was changed.",
    Topic.PIN_LOCKED: "CasualMeet: too many wrong PINs. Wait five minutes. Nothing was changed.",
    Topic.BAD_MINUTES: "CasualMeet: nothing was changed. MORE takes 1 to 30 minutes, such as MORE 30.",
    Topic.TOO_LONG: "CasualMeet: nothing was changed. A timer runs for at most 12 hours in all.",
    Topic.DUE: "CasualMeet: nothing was changed. Your deadline has passed. If you are safe, reply SAFE <pin> now.",
    Topic.CHANGED: "CasualMeet: nothing was changed. Your timer changed at the same moment. Try again, or open the app.",
    Topic.NOTHING_RUNNING: "CasualMeet: nothing was changed. You have no timer running and no alarm.",
    Topic.PERSON_USAGE: "CasualMeet: not understood. Reply SAFE <pin>, MORE 30, or HELP for an SOS.",
    Topic.HELPING: "Thank you. You are helping Priya Sharma (alert K7Q). Reply 2 once you reached them, 3 if you can't.",
    Topic.REACHED: "Thank you. You reached Priya Sharma (alert K7Q); the moderators see it. They end it with I'm Safe.",
    Topic.DECLINED: "Noted: you can't help Priya Sharma (alert K7Q). Others are being alerted. Reply 1 if you can after all.",
    Topic.SAFE: "Priya Sharma is safe. Alert K7Q is closed, no action needed.",
    Topic.WHICH: (
        "CasualMeet: nothing was noted. Which alert? K7Q (Priya Sharma), M3P (Asha Rao). "
        "Reply with its letters, such as 1 K7Q."
    ),
    Topic.CONTACT_USAGE: "Alert K7Q, Priya Sharma: reply 1 if you help, 2 if you reached them, 3 if you can't.",
}
HINDI = {
    Topic.TIMER_ENDED: "CasualMeet: ठीक है। आपका टाइमर बंद, किसी को सूचना नहीं।",
    Topic.ALARM_CLOSED: "CasualMeet: अलार्म K7Q बंद। जिन्हें सूचना गई थी, उन्हें बताया जा रहा है।",
    Topic.EXTENDED: "CasualMeet: 30 मिनट और। टाइमर अब 22:00 IST पर ख़त्म होगा।",
    Topic.WRONG_PIN: "CasualMeet: PIN ग़लत है। कुछ नहीं बदला।",
    Topic.HELPING: "धन्यवाद। आप Priya Sharma की मदद कर रहे हैं (K7Q)। पहुँच जाएँ तो 2, न कर सकें तो 3 भेजें।",
    Topic.WHICH: "CasualMeet: कौन सा अलर्ट? K7Q (Priya Sharma), M3P (Asha Rao)। अक्षरों के साथ भेजें, जैसे 1 K7Q।",
}


@pytest.mark.parametrize("topic", Topic)
def test_the_english_answers_read_word_for_word(topic: Topic) -> None:
    assert compose_answer(topic, "en", **VALUES) == ENGLISH[topic]


@pytest.mark.parametrize("topic", HINDI)
def test_the_hindi_answers_read_word_for_word(topic: Topic) -> None:
    assert compose_answer(topic, "hi-IN", **VALUES) == HINDI[topic]


def test_where_several_share_a_number_it_says_whom_it_is_about() -> None:
    assert compose_answer(Topic.WRONG_PIN, "en", whose="Priya {x} Sharma Devi") == (
        "CasualMeet, Priya (x) Sharma: that is not your PIN. Nothing was changed."
    )


def test_a_name_of_nothing_is_a_member() -> None:
    assert compose_answer(Topic.SAFE, "en", name="   ", reference="K7Q").startswith("A CasualMeet user is safe.")


TYPED = st.text(max_size=120) | st.sampled_from(["W" * 99, "€" * 99, "क्" * 99, "م" * 99, "{list}" * 9, "%s %(x)s"])
ALERTS = st.lists(st.tuples(st.from_regex(r"[A-Z][2-9][A-Z]", fullmatch=True), TYPED), min_size=1, max_size=40)


@given(name=TYPED, whose=TYPED, alerts=ALERTS, language=st.sampled_from(["en", "hi"]), topic=st.sampled_from(Topic))
def test_whatever_was_typed_an_answer_keeps_its_limits(
    name: str, whose: str, alerts: list[tuple[str, str]], language: str, topic: Topic
) -> None:
    """Also as a repeat, which says so."""
    values = {**VALUES, "name": name, "alerts": alerts, "minutes": 9999}
    said = compose_answer(topic, language, whose=whose, **values)
    facts = AlertFacts(kind=Kind.REPLY, person_name="", happened_at=AT, said=said)
    texts = [compose(facts, language=language, link="", now=AT, repeat=repeat) for repeat in (0, 1, 10**9)]
    assert texts[0] == said
    assert len(set(texts)) == 3
    for text in texts:
        assert segments(text) <= MAX_SEGMENTS[Kind.REPLY][0 if is_gsm7(text) else 1]
        assert "\n" not in text
