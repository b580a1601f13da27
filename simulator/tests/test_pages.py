"""The phones on pages, and the simulator's doors for other processes."""

import json
from typing import Any

import pytest
import requests
from twilio.rest import Client

from simulator import Callbacks, Simulator, undelivered
from simulator.credentials import FROM_NUMBER, MESSAGING_SERVICE_SID
from simulator.tests.conftest import Got, Site

TESS = "+447700900123"
CALL = (
    '<Response><Gather numDigits="1" action="{url}/hooks/twilio/voice/7"><Say>Asha &amp; you: press 1</Say></Gather>'
    "</Response>"
)


def send(client: Client, text: str = "Hello", to: str = TESS) -> None:
    client.messages.create(to=to, body=text, messaging_service_sid=MESSAGING_SERVICE_SID)


def page(sim: Simulator, path: str, **query: str) -> str:
    answer = requests.get(f"{sim.url}{path}", params=query, timeout=10)
    assert answer.status_code == 200
    assert "script" not in answer.headers["Content-Security-Policy"]
    return answer.text


def act(sim: Simulator, path: str, *, origin: str = "", **form: str) -> int:
    """Post a form of a page without following where it leads."""
    headers = {"Origin": origin} if origin else {}
    answer = requests.post(f"{sim.url}{path}", data=form, headers=headers, timeout=10, allow_redirects=False)
    return answer.status_code


class TestPhones:
    def test_the_phone_heard_of_last_comes_first(self, client: Client, sim: Simulator) -> None:
        assert "No phone has got anything yet" in page(sim, "/")
        for to in (TESS, "+919988712345", TESS):
            send(client, to=to)
        sim.settle()
        shown = page(sim, "/")
        assert shown.index(TESS) < shown.index("+919988712345")
        assert shown.count("<li>") == 2
        assert 'href="/phone?number=%2B447700900123"' in shown

    def test_texts_are_shown_with_links_and_without_markup(self, client: Client, sim: Simulator) -> None:
        send(client, "<b>Priya</b> <script>alert(1)</script> Map: http://localhost:8000/i/a?b=1&c=2. Bye")
        sim.settle()
        shown = page(sim, "/thread", number=TESS)
        assert '<a href="http://localhost:8000/i/a?b=1&amp;c=2" target="_blank" rel="noopener noreferrer">' in shown
        assert "&lt;script&gt;" in shown
        assert "<script" not in shown
        assert "<b>" not in shown

    def test_a_number_from_outside_is_only_text(self, sim: Simulator) -> None:
        shown = page(sim, "/phone", number='"><script>alert(1)</script>')
        assert "<script" not in shown
        assert 'action="/phone/text"' not in shown

    def test_what_was_lost_is_marked(self, client: Client, sim: Simulator) -> None:
        sim.on(to=TESS).then(undelivered(30003))
        send(client)
        sim.settle()
        assert "undelivered (30003), not on the phone" in page(sim, "/thread", number=TESS)

    def test_a_reply_goes_to_the_site(self, client: Client, sim: Simulator, site: Site) -> None:
        send(client)
        assert act(sim, "/phone/text", number=TESS, text="1 I'm coming") == 303
        assert site.got[-1].form["Body"] == "1 I'm coming"
        assert "1 I&#x27;m coming" in page(sim, "/thread", number=TESS)

    @pytest.mark.parametrize("form", [{"number": "x", "text": "1"}, {"number": TESS, "text": " "}])
    def test_nonsense_goes_nowhere(self, sim: Simulator, site: Site, form: dict[str, str]) -> None:
        assert act(sim, "/phone/text", **form) == 303
        assert site.got == []

    def test_other_sites_can_press_nothing(self, sim: Simulator, site: Site) -> None:
        assert act(sim, "/phone/text", origin="https://evil.example", number=TESS, text="STOP") == 403
        assert site.got == []
        assert act(sim, "/phone/text", origin=sim.url, number=TESS, text="1") == 303


class TestCalls:
    def test_a_call_is_answered_and_a_key_pressed(self, client: Client, sim: Simulator, site: Site) -> None:
        def thanks(got: Got) -> tuple[int, str]:
            return 200, f"<Response><Say>You pressed {got.form.get('Digits')}</Say></Response>"

        site.answer = thanks
        made = client.calls.create(to=TESS, from_=FROM_NUMBER, twiml=CALL.format(url=site.url))
        sim.settle()
        assert "Ringing" in page(sim, "/")
        ringing = page(sim, "/thread", number=TESS)
        assert "Incoming call" in ringing
        assert "press 1" not in ringing
        assert 'http-equiv="refresh"' not in ringing
        assert act(sim, "/phone/call", sid=made.sid, do="answer") == 303
        assert "Asha &amp; you: press 1" in page(sim, "/thread", number=TESS)
        assert act(sim, "/phone/call", sid=made.sid, do="1") == 303
        over = page(sim, "/thread", number=TESS)
        assert "You pressed 1" in over
        assert "Hang up" not in over
        assert 'http-equiv="refresh"' in over

    @pytest.mark.parametrize(("do", "status"), [("decline", "busy"), ("voicemail", "in-progress"), ("x", "ringing")])
    def test_other_buttons(self, client: Client, sim: Simulator, site: Site, *, do: str, status: str) -> None:
        made = client.calls.create(to=TESS, from_=FROM_NUMBER, twiml=CALL.format(url=site.url))
        act(sim, "/phone/call", sid=made.sid, do=do)
        assert client.calls(made.sid).fetch().status == status

    def test_an_unknown_call_does_no_harm(self, sim: Simulator) -> None:
        assert act(sim, "/phone/call", sid="CA1", number=TESS, do="answer") == 303


class TestDoors:
    def test_the_journal_can_be_read_and_cleared(self, client: Client, sim: Simulator) -> None:
        send(client)
        found = requests.get(f"{sim.url}/journal", params={"phone": TESS}, timeout=10).json()
        assert [(m["text"], m["on_phone"]) for m in found["messages"]] == [("Hello", True)]
        assert [r["operation"] for r in found["requests"]] == ["create"]
        assert requests.get(f"{sim.url}/journal", params={"phone": "+1"}, timeout=10).json()["messages"] == []
        assert requests.delete(f"{sim.url}/journal", timeout=10).status_code == 204
        assert sim.journal.entries() == []

    def test_rules_can_be_added_read_and_cleared(self, client: Client, sim: Simulator, site: Site) -> None:
        steps = [{"callbacks": {"copies": 1}}, {"accepted": False, "status": 503, "times": 2}]
        assert self.rules(sim, {"to": TESS, "steps": steps}) == 204
        client.messages.create(to=TESS, body="Hello", from_=FROM_NUMBER, status_callback=f"{site.url}/hook")
        sim.settle()
        assert len(site.got) == 6
        left = requests.get(f"{sim.url}/rules", timeout=10).json()["rules"]
        assert [(rule["to"], rule["status"], rule["times"]) for rule in left] == [(TESS, 503, 2)]
        assert requests.delete(f"{sim.url}/rules", timeout=10).status_code == 204
        assert sim.rules.left() == []

    @pytest.mark.parametrize("wanted", [None, [], {}, {"steps": [{"color": "red"}]}, {"steps": [1]}, {"steps": 1}])
    def test_rules_that_are_none(self, sim: Simulator, wanted: Any) -> None:
        assert self.rules(sim, wanted) == 400
        assert sim.rules.left() == []

    def test_time_can_jump(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(undelivered(30003, callbacks=Callbacks(late=3600)))
        client.messages.create(to=TESS, body="Hello", from_=FROM_NUMBER, status_callback=f"{site.url}/hook")
        assert requests.post(f"{sim.url}/clock", json={"advance": 3600}, timeout=10).status_code == 200
        assert len(site.got) == 3
        assert requests.post(f"{sim.url}/clock", json={"advance": "soon"}, timeout=10).status_code == 400

    def rules(self, sim: Simulator, wanted: Any) -> int:
        return requests.post(f"{sim.url}/rules", data=json.dumps(wanted), timeout=10).status_code
