"""Calls: rung, answered, spoken into, hung up, and what goes wrong with them."""

from collections.abc import Iterator
from typing import Any

import pytest
from twilio.base.exceptions import TwilioRestException
from twilio.rest import Client

from simulator import Callbacks, Simulator, accept, answered, busy, call_failed, no_answer
from simulator.calls import APOLOGY
from simulator.credentials import FROM_NUMBER
from simulator.tests.conftest import Got, Site, signed

TESS = "+447700900123"
EVENTS = ["initiated", "ringing", "answered", "completed"]


@pytest.fixture
def sim(site: Site) -> Iterator[Simulator]:
    with Simulator(site=site.url, frozen=True) as sim:
        yield sim


def ask(site: Site, *, then: str = "<Say>Goodbye.</Say>", **attributes: object) -> str:
    """A document that asks for one key."""
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return (
        f'<Response><Gather numDigits="1" timeout="8" action="{site.url}/hooks/twilio/voice/7"{given}>'
        f"<Say>Asha needs help. Press 1.</Say></Gather>{then}</Response>"
    )


def call(client: Client, site: Site, document: str = "", **more: Any) -> Any:
    if "url" not in more:
        more["twiml"] = document or ask(site)
    return client.calls.create(
        to=TESS,
        from_=FROM_NUMBER,
        status_callback=f"{site.url}/hooks/twilio/status/7",
        status_callback_event=EVENTS,
        **more,
    )


def thanks(got: Got) -> tuple[int, str]:
    """The site's answers: thanks for a key, nothing else to say."""
    if "Digits" in got.form:
        return 200, f"<Response><Say>You pressed {got.form['Digits'] or 'nothing'}.</Say></Response>"
    return 204, ""


def statuses(site: Site) -> list[str]:
    return [got.status for got in site.got if "/status/" in got.path]


class TestAnswering:
    def test_the_person_hears_the_text_and_presses_a_key(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = thanks
        made = call(client, site)
        assert made.status == "queued"
        phone = sim.ringing(TESS).answer()
        assert phone.heard == ["Asha needs help. Press 1."]
        assert client.calls(made.sid).fetch().status == "in-progress"
        phone.press("1")
        assert phone.heard == ["Asha needs help. Press 1.", "You pressed 1."]
        assert statuses(site) == ["initiated", "ringing", "in-progress", "completed"]
        assert [got.form["SequenceNumber"] for got in site.got if "/status/" in got.path] == ["0", "1", "2", "3"]
        pressed = next(got for got in site.got if "/voice/" in got.path)
        assert pressed.form["Digits"] == "1"
        assert signed(f"{site.url}/hooks/twilio/voice/7", pressed)
        assert [c.sid for c in client.calls.list(to=TESS)] == [made.sid]
        sim.assert_exactly(TESS, ["Asha needs help. Press 1. Goodbye."])

    def test_another_key_is_for_the_site_to_judge(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = lambda got: (200, ask(site)) if got.form.get("Digits") == "9" else thanks(got)
        call(client, site)
        phone = sim.ringing(TESS).answer().press("9")
        assert phone.call.status == "in-progress"
        assert phone.press("2").heard[-1] == "You pressed 2."

    def test_without_a_key_it_falls_through(self, client: Client, sim: Simulator, site: Site) -> None:
        call(client, site)
        phone = sim.ringing(TESS).answer()
        sim.advance(7.9)
        assert phone.call.status == "in-progress"
        sim.advance(0.2)
        assert phone.heard == ["Asha needs help. Press 1.", "Goodbye."]
        assert phone.call.status == "completed"
        assert not any("Digits" in got.form for got in site.got)

    def test_an_empty_result_is_posted_where_that_is_asked_for(
        self, client: Client, sim: Simulator, site: Site
    ) -> None:
        site.answer = thanks
        call(client, site, ask(site, actionOnEmptyResult="true"))
        phone = sim.ringing(TESS).answer()
        sim.advance(9)
        assert phone.heard[-1] == "You pressed nothing."

    def test_several_keys_end_with_the_last_the_finishing_key_or_silence(
        self, client: Client, sim: Simulator, site: Site
    ) -> None:
        site.answer = thanks
        document = ask(site).replace('numDigits="1"', 'numDigits="3"')
        for press, then, heard in (("123", 0, "123"), ("12#", 0, "12"), ("1", 20, "1")):
            call(client, site, document)
            phone = sim.ringing(TESS).answer().press(press)
            sim.advance(then)
            assert phone.heard[-1] == f"You pressed {heard}."

    def test_hanging_up_in_the_middle(self, client: Client, sim: Simulator, site: Site) -> None:
        call(client, site)
        phone = sim.ringing(TESS).answer()
        sim.advance(3)
        phone.hang_up().press("1")
        assert site.got[-1].form["CallDuration"] == "3"
        assert statuses(site)[-1] == "completed"
        assert not any("Digits" in got.form for got in site.got)

    def test_nobody_answers(self, client: Client, sim: Simulator, site: Site) -> None:
        call(client, site, timeout=20)
        phone = sim.ringing(TESS)
        sim.advance(24.9)
        assert phone.call.status == "ringing"
        sim.advance(0.2)
        assert statuses(site) == ["initiated", "ringing", "no-answer"]
        with pytest.raises(TimeoutError):
            sim.ringing(TESS, timeout=0)

    def test_declining(self, client: Client, sim: Simulator, site: Site) -> None:
        call(client, site)
        sim.ringing(TESS).hang_up()
        assert statuses(site)[-1] == "busy"


class TestScripts:
    @pytest.mark.parametrize(
        ("step", "end", "rings"),
        [(busy(), "busy", False), (no_answer(), "no-answer", True), (call_failed(21217), "failed", False)],
    )
    def test_ends(self, client: Client, sim: Simulator, site: Site, *, step: Any, end: str, rings: bool) -> None:
        sim.on(to=TESS).then(step)
        made = call(client, site)
        sim.settle()
        assert statuses(site)[-1] == end
        assert client.calls(made.sid).fetch().status == end
        assert len(sim.journal.received(TESS)) == rings

    @pytest.mark.parametrize("by", ["human", "machine_start", "machine_end_beep", "fax", "unknown"])
    def test_who_answered(self, client: Client, sim: Simulator, site: Site, by: str) -> None:
        sim.on(to=TESS).then(answered(by=by))
        call(client, site, machine_detection="Enable")
        sim.advance(20)
        assert site.got[-1].form["AnsweredBy"] == by
        assert statuses(site)[-1] == "completed"

    def test_a_machine_takes_the_whole_message(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(answered(by="machine_start"))
        made = call(client, site, machine_detection="Enable")
        sim.advance(20)
        assert sim.voice.calls[made.sid].heard == ["Asha needs help. Press 1.", "Goodbye."]

    def test_without_detection_nobody_knows(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(answered(by="machine_start"))
        call(client, site)
        sim.advance(20)
        assert "AnsweredBy" not in site.got[-1].form

    def test_keys(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = thanks
        sim.on(to=TESS, carrier="twilio-voice").then(answered("2"))
        call(client, site)
        sim.settle()
        assert [got.form["Digits"] for got in site.got if "Digits" in got.form] == ["2"]

    def test_callbacks_can_be_early(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(accept.but(callbacks=Callbacks(early=True)))
        call(client, site)
        assert statuses(site) == ["initiated", "ringing"]

    def test_the_site_can_take_it_back(self, client: Client, sim: Simulator, site: Site) -> None:
        made = call(client, site)
        sim.settle()
        client.calls(made.sid).update(status="canceled")
        sim.settle()
        assert statuses(site)[-1] == "canceled"


class TestDocuments:
    def test_it_can_be_fetched(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = lambda got: (
            (200, "<Response><Say>From afar</Say></Response>") if got.path == "/twiml" else (204, "")
        )
        call(client, site, url=f"{site.url}/twiml")
        assert sim.ringing(TESS).answer().heard == ["From afar"]

    def test_redirects_are_followed_but_not_for_ever(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (200, "<Response><Say>Again</Say><Redirect>/again?n=2</Redirect></Response>")
        call(client, site, "<Response><Redirect>/again</Redirect></Response>")
        phone = sim.ringing(TESS).answer()
        assert phone.heard[0] == "Again"
        assert (phone.heard[-1], phone.call.status) == (APOLOGY, "completed")
        assert len(phone.heard) == 100

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [
            (500, "", 11200),
            (200, "<html>", 12100),
            (200, "<Other/>", 12100),
            (200, "", 12100),
            (200, f"<Response><Say>{'x' * 65536}</Say></Response>", 11750),
        ],
    )
    def test_what_is_wrong_with_them_ends_the_call(
        self, client: Client, sim: Simulator, site: Site, *, status: int, body: str, code: int
    ) -> None:
        site.answer = lambda got: (status, body) if "/voice/" in got.path else (204, "")
        call(client, site)
        phone = sim.ringing(TESS).answer().press("1")
        assert phone.heard[-1] == APOLOGY
        assert phone.call.status == "completed"
        assert code in sim.callbacks.alerts

    def test_a_fallback_is_tried(self, client: Client, sim: Simulator, site: Site) -> None:
        site.answer = lambda got: (200, "<Response><Say>Spare</Say></Response>") if got.path == "/spare" else (500, "")
        call(client, site, url=f"{site.url}/broken", fallback_url=f"{site.url}/spare")
        assert sim.ringing(TESS).answer().heard == ["Spare"]


class TestRefusing:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"to": "12"}, 21211),
            ({"from_": "+15550001111"}, 21212),
            ({"twiml": "<Response/>" + " " * 4000}, 32018),
            ({"url": "nowhere", "twiml": None}, 21205),
        ],
    )
    def test_what_is_wrong_with_it(self, client: Client, changes: dict[str, Any], code: int) -> None:
        given = {"to": TESS, "from_": FROM_NUMBER, "twiml": "<Response/>", **changes}
        with pytest.raises(TwilioRestException) as caught:
            client.calls.create(**{name: value for name, value in given.items() if value is not None})
        assert (caught.value.status, caught.value.code) == (400, code)

    def test_regions_that_calls_are_not_allowed_to(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.account.disabled_regions.add("+44")
        with pytest.raises(TwilioRestException) as caught:
            call(client, site)
        assert caught.value.code == 21215
