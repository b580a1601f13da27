"""Faults of the network and of callbacks."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import requests
from twilio.rest import Client

from simulator import Callbacks, Simulator, accept, hang, html, reset, slow, truncated
from simulator.callbacks import Patience, signature
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN, FROM_NUMBER, PREVIOUS_AUTH_TOKEN
from simulator.tests.conftest import Got, Site, signed

TESS = "+447700900123"
FORM = {"To": TESS, "From": FROM_NUMBER, "Body": "Hello"}


@pytest.fixture
def sim(site: Site) -> Iterator[Simulator]:
    with Simulator(site=site.url, frozen=True) as sim:
        yield sim


@pytest.fixture
def later() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def post(sim: Simulator, *, timeout: float = 10, url: str = "", **more: str) -> requests.Response:
    url = url or f"{sim.url}/2010-04-01/Accounts/{ACCOUNT_SID}/Messages.json"
    return requests.post(url, data={**FORM, **more}, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=timeout)


def hook(site: Site, fragment: str = "") -> str:
    return f"{site.url}/hooks/twilio/status/7{fragment}"


def in_flight(sim: Simulator, future: Future[Any], wait_until: Callable[..., Any]) -> None:
    """Wait until the simulator has the request."""
    wait_until(lambda: sim.requests(TESS) or future.done())
    assert not future.done()


class TestNetwork:
    def test_refused_connections(self, sim: Simulator) -> None:
        with requests.Session() as session:
            session.get(f"{sim.url}/")  # so that there is a connection to cut
            with sim.refusing_connections(), pytest.raises(requests.ConnectionError):
                post(sim)
            assert post(sim).status_code == 201
        assert len(sim.requests(TESS)) == 1

    def test_a_name_that_is_not_known(self, sim: Simulator) -> None:
        url = sim.environment(base_url="http://carrier.invalid")["TWILIO_API_BASE_URL"]
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(url.removeprefix("http://"), 80)

    @pytest.mark.parametrize("accepted", [True, False])
    def test_reset(self, sim: Simulator, accepted: bool) -> None:
        sim.on(to=TESS).then(reset(accepted=accepted))
        with pytest.raises(requests.ConnectionError, match=r"[Rr]eset"):
            post(sim)
        sim.assert_exactly(TESS, ["Hello"] if accepted else [])
        assert post(sim).status_code == 201

    @pytest.mark.parametrize("accepted", [True, False])
    def test_no_answer_ever(self, sim: Simulator, accepted: bool) -> None:
        sim.on(to=TESS).then(hang(accepted=accepted))
        with pytest.raises(requests.ReadTimeout):
            post(sim, timeout=0.2)
        sim.assert_exactly(TESS, ["Hello"] if accepted else [])

    @pytest.mark.parametrize("seconds", [3, 10, 30])
    def test_slow(
        self, sim: Simulator, later: ThreadPoolExecutor, wait_until: Callable[..., Any], seconds: float
    ) -> None:
        sim.on(to=TESS).then(slow(seconds))
        future = later.submit(post, sim)
        in_flight(sim, future, wait_until)
        sim.assert_exactly(TESS, ["Hello"])
        sim.advance(seconds - 0.1)
        assert not future.done()
        sim.advance(0.1)
        assert future.result(10).status_code == 201

    @pytest.mark.parametrize("accepted", [True, False])
    def test_half_an_answer(self, sim: Simulator, accepted: bool) -> None:
        sim.on(to=TESS).then(truncated(accepted=accepted, status=None if accepted else 500))
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            post(sim)
        sim.assert_exactly(TESS, ["Hello"] if accepted else [])

    @pytest.mark.parametrize("accepted", [True, False])
    def test_a_proxys_page(self, sim: Simulator, accepted: bool) -> None:
        sim.on(to=TESS).then(html(502, accepted=accepted))
        answer = post(sim)
        assert (answer.status_code, answer.headers["Content-Type"]) == (502, "text/html")
        assert "Bad Gateway" in answer.text
        sim.assert_exactly(TESS, ["Hello"] if accepted else [])

    def test_headers_and_any_body(self, sim: Simulator) -> None:
        sim.on(to=TESS).reply(status=429, headers={"Retry-After": "5"}).reply(200, body='{"return": false}')
        assert post(sim).headers["Retry-After"] == "5"
        assert post(sim).json() == {"return": False}
        sim.assert_exactly(TESS, [])


def told(sim: Simulator, site: Site, **faults: Any) -> list[Got]:
    """What the site is told of a text with these faults, at once."""
    sim.on(to=TESS).then(accept.but(callbacks=Callbacks(**faults)))
    post(sim, StatusCallback=hook(site))
    sim.settle()
    return site.got


class TestCallbackFaults:
    def test_duplicates_have_the_same_token_and_signature(self, sim: Simulator, site: Site) -> None:
        got = told(sim, site, copies=2)
        assert [g.status for g in got] == ["sending"] * 3 + ["sent"] * 3 + ["delivered"] * 3
        tokens = [g.headers["i-twilio-idempotency-token"] for g in got]
        assert len(set(tokens[:3])) == 1
        assert len(set(tokens)) == 3

    def test_out_of_order(self, sim: Simulator, site: Site) -> None:
        assert [g.status for g in told(sim, site, backwards=True)] == ["delivered", "sent", "sending"]

    def test_before_the_create_request_is_answered(
        self, sim: Simulator, site: Site, later: ThreadPoolExecutor, wait_until: Callable[..., Any]
    ) -> None:
        sim.on(to=TESS).then(slow(60, callbacks=Callbacks(early=True)))
        future = later.submit(post, sim, StatusCallback=hook(site))
        wait_until(lambda: len(site.got) == 3)
        sim.settle()
        assert not future.done()
        sim.advance(60)
        assert future.result(10).json()["sid"] == site.got[0].form["MessageSid"]

    def test_an_hour_late(self, sim: Simulator, site: Site, client: Client) -> None:
        assert told(sim, site, late=3600) == []
        assert client.messages.list(to=TESS)[0].status == "delivered"
        sim.advance(3599)
        assert site.got == []
        sim.advance(1)
        assert sorted(site.statuses()) == ["delivered", "sending", "sent"]

    def test_lost(self, sim: Simulator, site: Site, client: Client) -> None:
        assert told(sim, site, lost=True) == []
        sim.advance(86_400)
        assert site.got == []
        assert client.messages.list(to=TESS)[0].status == "delivered"

    def test_about_an_unknown_message(self, sim: Simulator, site: Site) -> None:
        got = told(sim, site, unknown_sid=True)
        assert not {g.form["MessageSid"] for g in got} & set(sim.twilio.messages)
        assert all(signed(hook(site), g) for g in got)

    def test_with_a_bad_signature(self, sim: Simulator, site: Site) -> None:
        got = told(sim, site, forged=True)
        assert len(got) == 3
        assert not any(signed(hook(site), g) for g in got)

    def test_with_the_token_before_rotation(self, sim: Simulator, site: Site) -> None:
        got = told(sim, site, old_token=True)
        assert not any(signed(hook(site), g) for g in got)
        assert all(signed(hook(site), g, PREVIOUS_AUTH_TOKEN) for g in got)

    def test_of_another_account(self, sim: Simulator, site: Site) -> None:
        got = told(sim, site, wrong_account=True)
        assert all(signed(hook(site), g) and g.form["AccountSid"] != ACCOUNT_SID for g in got)

    def test_replayed_to_the_letter(self, sim: Simulator, site: Site) -> None:
        told(sim, site)
        sim.replay(sim.callbacks.sent[-1])
        assert site.got[-1] == site.got[-2]

    def test_any_callback_can_be_made_up(self, sim: Simulator, site: Site) -> None:
        sent = sim.tell("/hooks/twilio/status/8", {"MessageSid": "SM1", "AccountSid": ACCOUNT_SID}, forged=True)
        assert (sent.status, site.got[-1].path) == (204, "/hooks/twilio/status/8")
        assert not signed(f"{site.url}/hooks/twilio/status/8", site.got[-1])


class TestProxies:
    """The address that Twilio knows is not the one where the site listens."""

    @pytest.mark.parametrize("public", ["https://safety.example.org", "https://safety.example.org:8443"])
    def test_signed_as_public_and_delivered_as_plain_http(self, site: Site, public: str) -> None:
        with Simulator(site.url, public_url=public) as sim:
            post(sim, StatusCallback=f"{public}/hooks/twilio/status/7?a=1")
            sim.settle()
            sim.text_from(TESS, "1")
        assert site.got[0].path == "/hooks/twilio/status/7?a=1"
        assert site.got[0].headers["host"] == public.removeprefix("https://")
        assert site.got[0].headers["x-forwarded-proto"] == "https"
        assert signed(f"{public}/hooks/twilio/status/7?a=1", site.got[0])
        assert signed(f"{public}/hooks/twilio/sms", site.got[-1])

    def test_the_port_may_be_part_of_what_is_signed(self, site: Site) -> None:
        public = "https://safety.example.org"
        with Simulator(site.url, public_url=public) as sim:
            sim.on(to=TESS).then(accept.but(callbacks=Callbacks(port_in_signature=True)))
            post(sim, StatusCallback=f"{public}/hooks/twilio/status/7")
            sim.settle()
        got = site.got[0]
        assert got.headers["x-twilio-signature"] == signature(f"{public}:443/hooks/twilio/status/7", got.form)
        assert signed(f"{public}/hooks/twilio/status/7", got)  # Twilio's validator tries both


class TestRetries:
    def test_by_default_only_what_could_not_connect_is_tried_again(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (500, "")
        told(sim, site)
        assert site.statuses() == ["sending", "sent", "delivered"]
        assert sim.callbacks.alerts == [11200] * 3

    def test_the_fragment_asks_for_more(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (500 if len(site.got) < 3 else 204, "")
        post(sim, StatusCallback=hook(site, "#rc=3&rp=5xx,ct,rt"))
        sim.settle()
        assert site.statuses() == ["sending"] * 3 + ["sent", "delivered"]
        tokens = [got.headers["i-twilio-idempotency-token"] for got in site.got]
        assert len(set(tokens[:3])) == 1
        assert all(signed(hook(site), got) for got in site.got)
        assert sim.callbacks.alerts == []

    def test_it_gives_up_after_as_many_tries(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (503, "")
        sent = sim.tell("/hooks/twilio/status/7#rc=2&rp=all", {"MessageSid": "SM1"})
        assert (sent.status, sent.tries, len(site.got)) == (503, 3, 3)

    def test_a_refusal_is_not_tried_again_unless_asked(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (403, "")
        assert sim.tell("/hook#rc=2&rp=5xx", {}).tries == 1
        assert sim.tell("/hook#rc=2&rp=4xx", {}).tries == 3

    def test_time_is_limited_over_all_tries(self, sim: Simulator, site: Site) -> None:
        release = threading.Event()
        site.answer = lambda _got: (204 if release.wait(30) else 500, "")
        try:
            sent = sim.tell("/hook#rt=200&tt=500&rc=5&rp=rt", {})
        finally:
            release.set()
        assert (sent.status, sent.trouble) == (0, "rt")
        assert sent.tries in {1, 2, 3}  # five retries would be six tries

    def test_the_limits_are_twilios(self) -> None:
        usual = Patience.of("")
        assert (usual.connect, usual.read, usual.total, usual.retries, usual.on) == (5, 15, 15, 1, ("ct",))
        most = Patience.of("ct=99999&rt=99999&tt=99999&rc=99")
        assert (most.connect, most.read, most.total, most.retries) == (10, 15, 15, 5)

    def test_nobody_there(self, site: Site) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with Simulator(f"http://127.0.0.1:{port}") as sim:
            sent = sim.tell("/hook", {})
            assert (sent.trouble, sent.tries, sim.callbacks.alerts) == ("ct", 2, [11205])


class TestClock:
    def test_a_frozen_clock_moves_only_when_told(self, sim: Simulator) -> None:
        before = sim.clock.now()
        assert sim.clock.now() == before
        sim.advance(3600)
        assert sim.clock.now() == before + 3600

    def test_a_running_clock_can_jump(self, site: Site) -> None:
        with Simulator(site.url, pace=600) as sim:
            post(sim, StatusCallback=hook(site))
            assert site.statuses() == []
            sim.advance(601)
            assert site.statuses() == ["sending"]
            sim.advance(1200)
            assert site.statuses() == ["sending", "sent", "delivered"]

    def test_a_running_clock_does_what_is_due_by_itself(self, site: Site, wait_until: Callable[..., Any]) -> None:
        with Simulator(site.url, pace=0.02) as sim:
            post(sim, StatusCallback=hook(site))
            wait_until(lambda: site.statuses() == ["sending", "sent", "delivered"])
            sim.settle()

    def test_a_failure_inside_is_reported(self, sim: Simulator) -> None:
        async def fail() -> None:
            raise RuntimeError("a bug")

        async def start() -> None:
            sim.clock.spawn(fail())

        sim.run(start())
        with pytest.raises(AssertionError, match="a bug"):
            sim.assert_nothing_unexpected()
