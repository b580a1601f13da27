"""Twilio's text messages: created, fetched, listed, told of, refused."""

import re
from typing import Any

import pytest
from twilio.base.exceptions import TwilioException, TwilioRestException
from twilio.rest import Client

from simulator import Simulator, accept, failed, refuse, sent_only, undelivered
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN, FROM_NUMBER, MESSAGING_SERVICE_SID
from simulator.tests.conftest import Redirected, Site, signed

RAVI = "+919988712345"
TESS = "+447700900123"


def send(client: Client, to: str = TESS, text: str = "Hello", **more: Any) -> Any:
    sender = {} if "messaging_service_sid" in more else {"from_": FROM_NUMBER}
    return client.messages.create(to=to, body=text, **sender, **more)


def hook(site: Site, fragment: str = "") -> str:
    return f"{site.url}/hooks/twilio/status/7{fragment}"


class TestCreating:
    def test_from_a_number_it_is_queued_and_from_a_service_accepted(self, client: Client, sim: Simulator) -> None:
        queued = send(client)
        accepted = send(client, messaging_service_sid=MESSAGING_SERVICE_SID)
        assert (queued.status, queued.num_segments) == ("queued", "1")
        assert (accepted.status, accepted.num_segments) == ("accepted", "0")
        sim.assert_exactly(TESS, ["Hello", "Hello"])

    def test_it_is_fetched_by_its_sid_and_listed_by_number_and_day(self, client: Client, sim: Simulator) -> None:
        mine, _ = send(client, text="to find"), send(client, RAVI)
        sim.settle()
        fetched = client.messages(mine.sid).fetch()
        assert (fetched.status, fetched.body) == ("delivered", "to find")
        day = fetched.date_sent.date()
        assert [m.sid for m in client.messages.list(to=TESS, date_sent_after=day)] == [mine.sid]
        assert [m.sid for m in client.messages.list(to=TESS, date_sent_after=fetched.date_created)] == [mine.sid]
        assert client.messages.list(to=TESS, date_sent_before="2020-01-01") == []

    def test_long_lists_come_in_pages_with_the_newest_first(self, client: Client, sim: Simulator) -> None:
        for number in range(5):
            send(client, text=str(number))
        assert [m.body for m in client.messages.list(to=TESS, page_size=2)] == ["4", "3", "2", "1", "0"]


class TestCallbacks:
    def test_there_is_one_for_each_state_but_the_first(self, client: Client, sim: Simulator, site: Site) -> None:
        message = send(client, messaging_service_sid=MESSAGING_SERVICE_SID, status_callback=hook(site))
        sim.settle()
        assert site.statuses() == ["sending", "sent", "delivered"]
        last = site.got[-1]
        assert last.form == {
            "AccountSid": ACCOUNT_SID,
            "ApiVersion": "2010-04-01",
            "From": FROM_NUMBER,
            "MessageSid": message.sid,
            "MessageStatus": "delivered",
            "MessagingServiceSid": MESSAGING_SERVICE_SID,
            "RawDlrDoneDate": last.form["RawDlrDoneDate"],
            "SmsSid": message.sid,
            "SmsStatus": "delivered",
            "To": TESS,
        }
        assert re.fullmatch("[0-9]{10}", last.form["RawDlrDoneDate"])
        assert last.headers["user-agent"] == "TwilioProxy/1.1"
        assert re.fullmatch("[0-9a-f]{32}", last.headers["i-twilio-idempotency-token"])
        assert all(signed(hook(site), got) for got in site.got)

    @pytest.mark.parametrize("code", [30003, 30005, 30006, 30007, 30008])
    def test_undelivered(self, client: Client, sim: Simulator, site: Site, code: int) -> None:
        sim.on(to=TESS).then(undelivered(code))
        send(client, status_callback=hook(site))
        sim.settle()
        assert site.statuses() == ["sending", "sent", "undelivered"]
        assert site.got[-1].form["ErrorCode"] == str(code)
        sim.assert_exactly(TESS, [])

    @pytest.mark.parametrize("code", [30001, 30002, 21610])
    def test_failed(self, client: Client, sim: Simulator, site: Site, code: int) -> None:
        sim.on(to=TESS).then(failed(code))
        message = send(client, status_callback=hook(site))
        sim.settle()
        assert [(got.status, got.form["ErrorCode"]) for got in site.got] == [("failed", str(code))]
        assert client.messages(message.sid).fetch().error_code == code
        sim.assert_exactly(TESS, [])

    def test_the_error_code_may_be_there_while_still_sending(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(undelivered(30003, code_from_start=True))
        send(client, status_callback=hook(site))
        sim.settle()
        assert (site.got[0].status, site.got[0].form["ErrorCode"]) == ("sending", "30003")

    def test_a_route_without_receipts_stops_at_sent(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(sent_only())
        send(client, status_callback=hook(site))
        sim.settle()
        assert site.statuses() == ["sending", "sent"]
        sim.assert_exactly(TESS, ["Hello"])

    def test_delivered_after_all(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).then(undelivered(30003, after_all=True))
        send(client, status_callback=hook(site))
        sim.settle()
        assert site.statuses() == ["sending", "sent", "undelivered", "delivered"]
        sim.assert_exactly(TESS, ["Hello"])


class TestScripts:
    def test_steps_are_used_in_turn(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.on(to=TESS).reply(status=503, times=2).then(accept).then(undelivered(30003))
        for _ in range(2):
            with pytest.raises(TwilioRestException) as caught:
                send(client)
            assert (caught.value.status, caught.value.code) == (503, 20503)
        sids = [send(client, text=text).sid for text in ("first", "second", "third")]
        sim.settle()
        assert [client.messages(sid).fetch().status for sid in sids] == ["delivered", "undelivered", "delivered"]
        sim.assert_exactly(TESS, ["first", "third"])
        assert [request.accepted for request in sim.requests(TESS)] == [False, False, True, True, True]
        assert sim.rules.left() == []

    def test_the_most_specific_comes_first(self, client: Client, sim: Simulator) -> None:
        sim.on().then(refuse(500))
        sim.on(carrier="twilio").then(refuse(502))
        sim.on(to=TESS).then(refuse(503))
        sim.on(to=TESS, carrier="twilio").then(refuse(429))
        seen = []
        for _ in range(4):
            with pytest.raises(TwilioRestException) as caught:
                send(client)
            seen.append(caught.value.status)
        assert seen == [429, 503, 502, 500]

    def test_other_operations_have_scripts_of_their_own(self, client: Client, sim: Simulator) -> None:
        sim.on(operation="list").then(refuse(500))
        send(client)
        with pytest.raises(TwilioException):
            client.messages.list(to=TESS)
        assert len(client.messages.list(to=TESS)) == 1


class TestJournal:
    def test_what_was_not_named_is_unexpected(self, client: Client, sim: Simulator) -> None:
        send(client)
        send(client, RAVI, "Are you there? SOS-1")
        sim.assert_exactly(RAVI, [re.compile("SOS-[0-9]")])
        with pytest.raises(AssertionError, match=r"sms to \+447700900123: Hello"):
            sim.assert_nothing_unexpected()
        sim.assert_exactly(TESS, [lambda text: text.startswith("Hell")])
        sim.assert_nothing_unexpected()

    @pytest.mark.parametrize("wanted", [[], ["Hello", "Hello"], ["hello"], [re.compile("Goodbye")]])
    def test_exactly_means_exactly(self, client: Client, sim: Simulator, wanted: list[str]) -> None:
        send(client)
        with pytest.raises(AssertionError, match=r"but shows[^a-z]*\[sms\] Hello"):
            sim.assert_exactly(TESS, wanted)

    def test_a_request_that_no_carrier_knows_is_unexpected(self, client: Client, sim: Simulator) -> None:
        with pytest.raises(TwilioException):
            client.queues.list()
        with pytest.raises(AssertionError, match=r"stray request: GET .*Queues"):
            sim.assert_nothing_unexpected()

    def test_a_strict_one_looks_at_its_end(self, site: Site) -> None:
        with pytest.raises(AssertionError, match="Hello"), Simulator(site.url, strict=True) as sim:
            self.hello(sim)
        with Simulator(site.url, strict=True) as sim:
            self.hello(sim)
            sim.assert_exactly(TESS, ["Hello"])
        sim = Simulator(site.url, strict=True).__enter__()
        self.hello(sim)
        sim.__exit__(ValueError, ValueError(), None)  # a test that failed already is not told a second thing

    def test_a_failure_in_a_handler_is_unexpected(self, client: Client, sim: Simulator) -> None:
        with pytest.raises(TwilioRestException):
            send(client, validity_period="soon")
        with pytest.raises(AssertionError, match="failure: ValueError"):
            sim.assert_nothing_unexpected()

    def test_it_can_be_pointed_elsewhere(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.point_at(site.url, public_url="https://safety.example.org")
        sim.text_from(TESS, "1")
        assert site.got[-1].headers["host"] == "safety.example.org"

    def hello(self, sim: Simulator) -> None:
        http = Redirected(sim)
        send(Client(ACCOUNT_SID, AUTH_TOKEN, http_client=http))
        if http.session is not None:
            http.session.close()

    def test_one_can_wait_for_it(self, client: Client, sim: Simulator) -> None:
        send(client)
        assert [entry.text for entry in sim.wait_for(1, TESS)] == ["Hello"]
        with pytest.raises(TimeoutError, match="1 of 2"):
            sim.wait_for(2, TESS, timeout=0.05)
