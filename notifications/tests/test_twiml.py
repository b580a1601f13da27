"""TwiML: read back as XML, escaped, within Twilio's limit."""

from uuid import UUID
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from notifications.carriers import twiml

ATTEMPT = UUID("00000000-0000-4000-8000-000000000001")
ACTION = twiml.action_url("https://safety.example.org/", ATTEMPT, said=1)


def test_the_action_is_ours_and_counts() -> None:
    for base in ("https://safety.example.org", "https://safety.example.org/"):
        action = twiml.action_url(base, ATTEMPT, said=3)
        assert action == f"https://safety.example.org/hooks/twilio/voice/{ATTEMPT}?n=3"


def test_a_question_waits_for_one_key_with_the_prompt_inside_so_that_a_key_interrupts() -> None:
    gather = ET.fromstring(twiml.ask("Press 1.", language="en", action=ACTION))[0]
    assert gather.tag == "Gather"
    assert gather.attrib == {
        "numDigits": "1",
        "timeout": "8",
        "actionOnEmptyResult": "true",
        "method": "POST",
        "action": ACTION,
    }
    assert [(said.tag, said.text, said.attrib) for said in gather] == [("Say", "Press 1.", {"language": "en-IN"})]


def test_hindi_has_its_voice_and_its_letters() -> None:
    document = twiml.say("नमस्ते", language="hi")
    assert "नमस्ते" in document
    assert [node.tag for node in ET.fromstring(document)] == ["Say", "Hangup"]
    assert ET.fromstring(document)[0].attrib == {"language": "hi-IN"}
    assert twiml.spoken_language("ta") == "en-IN"


def test_hanging_up_says_nothing() -> None:
    assert [node.tag for node in ET.fromstring(twiml.hang_up())] == ["Hangup"]


def test_markup_is_said_and_not_done() -> None:
    said = "</Say></Gather><Dial>+919812345678</Dial> & \"'"
    document = ET.fromstring(twiml.ask(said, language="en", action=ACTION + "&x=<"))
    assert [node.tag for node in document.iter()] == ["Response", "Gather", "Say"]
    assert document[0][0].text == said


@given(said=st.text(st.characters(exclude_categories=()), max_size=300), times=st.integers(1, 60))
def test_any_text_makes_a_document_that_twilio_takes(said: str, times: int) -> None:
    """Control characters, lone surrogates and 60 times 300 ampersands."""
    for document in (twiml.ask(said * times, language="hi", action=ACTION), twiml.say(said, language="en")):
        ET.fromstring(document)
        assert document.encode()
    assert len(twiml.ask(said * times, language="hi", action=ACTION)) <= twiml.MAX_TWIML
