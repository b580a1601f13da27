"""Calls against a real HTTP server: what is asked of Twilio, and what its answers come to."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest
from twilio.rest.api.v2010.account.call import CallList

from notifications.carriers import twilio_voice
from notifications.carriers.base import Answer, Outcome, OutgoingMessage
from notifications.carriers.loop import CarrierLoop
from notifications.carriers.twilio import REPEAT_CALLBACKS
from testing.carrier import ACCOUNT_SID, AUTH_TOKEN, LocalCarrier, Reply

INDIA = "+919812345678"
SENDER = "+15005550006"
CALL = "CA" + "b2" * 16
ATTEMPT = UUID("00000000-0000-4000-8000-000000000001")
TAKEN = Reply(status=201, body=json.dumps({"sid": CALL, "status": "queued", "to": INDIA}), accepted=True)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCarrier]:
    with LocalCarrier() as carrier:
        yield carrier


@pytest.fixture(autouse=True)
def account(settings: Any, local: LocalCarrier) -> None:
    local.clear()
    settings.PUBLIC_BASE_URL = "https://safety.example.org"
    settings.TWILIO_ACCOUNT_SID, settings.TWILIO_AUTH_TOKEN = ACCOUNT_SID, AUTH_TOKEN
    settings.TWILIO_FROM, settings.TWILIO_VOICE_FROM = SENDER, ""
    settings.TWILIO_API_BASE_URL = local.url


def call(local: LocalCarrier, reply: Reply, *, language: str = "en", text: str = "Priya pressed SOS.") -> Answer:
    local.script(INDIA, reply)
    message = OutgoingMessage(
        to=INDIA, text=text, kind="sos", variables=(), language=language, attempt_id=ATTEMPT, channel="voice"
    )
    carrier = twilio_voice.configured()
    assert carrier is not None
    loop = CarrierLoop()
    try:
        answer = loop.run(carrier.send(message))
        loop.run(carrier.close())
    finally:
        loop.close()
    return answer


def test_the_request(local: LocalCarrier) -> None:
    answer = call(local, TAKEN, language="hi", text="राम & सीता")
    [entry] = local.journal()
    fields = dict(entry.fields)
    document = ET.fromstring(fields.pop("Twiml"))
    gather = document.find("Gather")
    assert gather is not None
    assert gather.attrib["action"] == f"https://safety.example.org/hooks/twilio/voice/{ATTEMPT}?n=1"
    assert [(said.text, said.attrib["language"]) for said in gather] == [("राम & सीता", "hi-IN")]
    assert fields == {
        "To": INDIA,
        "From": SENDER,
        "Timeout": "25",
        "MachineDetection": "Enable",
        "StatusCallback": f"https://safety.example.org/hooks/twilio/status/{ATTEMPT}{REPEAT_CALLBACKS}",
        "StatusCallbackEvent": "completed",  # the last of four fields with this name
    }
    assert twilio_voice.EVENTS == ["initiated", "ringing", "answered", "completed"]
    assert (answer.outcome, answer.carrier_message_id) == (Outcome.ACCEPTED, CALL)


@pytest.mark.parametrize(
    ("reply", "outcome", "error_class"),
    [
        (Reply.refuse(400, 21214), Outcome.PERMANENT, "bad_recipient"),
        (Reply.refuse(400, 21215), Outcome.PERMANENT, "geo"),
        (Reply.refuse(400, 10004), Outcome.TRANSIENT, "throttled"),
        (Reply.refuse(401, 20003), Outcome.PERMANENT, "auth"),
        (Reply.refuse(429, 20429), Outcome.TRANSIENT, "throttled"),
        (Reply.refuse(500, 20500), Outcome.TRANSIENT, "transient"),
        (Reply(status=502, body="<html>bad gateway</html>"), Outcome.UNKNOWN, ""),
        (Reply(status=201, body='{"sid": "no sid"}', accepted=True), Outcome.UNKNOWN, ""),
        (Reply.reset(accepted=True), Outcome.UNKNOWN, ""),
    ],
)
def test_what_an_answer_comes_to(local: LocalCarrier, reply: Reply, outcome: Outcome, error_class: str) -> None:
    answer = call(local, reply)
    assert (answer.outcome, answer.error_class) == (outcome, error_class)


@pytest.mark.parametrize(
    ("change", "works"),
    [
        ({}, True),
        ({"TWILIO_FROM": "", "TWILIO_VOICE_FROM": "+442071838750"}, True),
        ({"TWILIO_FROM": "CASUAL"}, False),
        ({"TWILIO_FROM": ""}, False),
        ({"TWILIO_AUTH_TOKEN": ""}, False),
        ({"TWILIO_ACCOUNT_SID": ""}, False),
    ],
)
def test_it_needs_an_account_and_a_number(settings: Any, change: dict[str, str], works: bool) -> None:
    for name, value in change.items():
        setattr(settings, name, value)
    assert (twilio_voice.configured() is not None) == works


def test_where_twilio_could_not_reach_us_no_callback_is_asked_for(local: LocalCarrier, settings: Any) -> None:
    settings.PUBLIC_BASE_URL = "http://localhost:8000"
    call(local, TAKEN)
    assert not {"StatusCallback", "StatusCallbackEvent"} & set(local.journal()[0].fields)


def test_error_inside_the_twilio_client_is_a_config_error(local: LocalCarrier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: object, **kwargs: object) -> None:
        raise ValueError(INDIA)

    monkeypatch.setattr(CallList, "create_async", broken)
    answer = call(local, TAKEN)
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "config")
    assert INDIA not in answer.detail
