"""Web Push: whom it may call, what is sent, that only the browser can read it, and what each answer means."""

import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from django.core.management import call_command
from py_vapid import Vapid

from notifications.carriers import webpush
from notifications.carriers.base import Outcome, PushTarget
from notifications.carriers.webpush import WebPushCarrier, classify, endpoint_origin, headers_for, payload
from notifications.tests.pushing import (
    ATTEMPT,
    INCIDENT,
    LINK,
    SUBJECT,
    TOKEN,
    VAPID_PRIVATE_KEY,
    VAPID_PUBLIC_KEY,
    Browser,
    StandIn,
    message,
    reply,
    vapid,
)

GOOD_ENDPOINTS = {
    "https://fcm.googleapis.com/fcm/send/abc:APA91b-_": "https://fcm.googleapis.com",
    "https://updates.push.services.mozilla.com/wpush/v2/gAAA": "https://updates.push.services.mozilla.com",
    "https://wns2-par02p.notify.windows.com/w/?token=BQYAAAB%2bX": "https://wns2-par02p.notify.windows.com",
    "https://web.push.apple.com/QGuQyavXutnMH": "https://web.push.apple.com",
    "https://fcm.googleapis.com:443/fcm/send/abc": "https://fcm.googleapis.com:443",
}
BAD_ENDPOINTS = [
    "",
    "fcm.googleapis.com/x",
    "http://fcm.googleapis.com/fcm/send/abc",
    "ftp://fcm.googleapis.com/x",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "https://127.0.0.1/x",
    "https://[::1]/x",
    "https://169.254.169.254/latest/meta-data",
    "https://localhost/x",
    "https://metadata.google.internal/x",
    "https://fcm.googleapis.com",
    "https://fcm.googleapis.com/",
    "https://fcm.googleapis.com:8443/x",
    "https://fcm.googleapis.com:99999/x",
    "https://fcm.googleapis.com.evil.example/x",
    "https://evilfcm.googleapis.com/x",
    "https://fcm.googleapis.com./x",
    "https://push.services.mozilla.com/x",
    "https://.push.services.mozilla.com/x",
    "https://a..push.services.mozilla.com/x",
    "https://evilpush.services.mozilla.com/x",
    "https://evil.example/?.notify.windows.com/",
    "https://evil.example\\.notify.windows.com/x",
    "https://evil.example#.notify.windows.com/x",
    "https://fcm.googleapis.com@evil.example/x",
    "https://user:password@fcm.googleapis.com/x",
    "https://evil.example@fcm.googleapis.com/x",
    "https://fcm.googleapis.com/x\nHost: evil.example",
    "https://fcm.googleapis.com/x y",
    " https://fcm.googleapis.com/x",
    "https://fcm.googleapis.com/x\x00",
    "https://fcm.googleapis.com/ü",
    "https://ｆcm.googleapis.com/x",
    "https://fcm.googleapis.com/" + "x" * 1000,
    "http://127.0.0.1:9100/push/x",
]


class TestEndpoints:
    """Where we may be sent by whoever subscribes."""

    @pytest.mark.parametrize(("endpoint", "origin"), GOOD_ENDPOINTS.items())
    def test_known_services(self, endpoint: str, origin: str) -> None:
        assert endpoint_origin(endpoint) == origin

    @pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
    def test_anything_else_is_refused(self, endpoint: str) -> None:
        assert endpoint_origin(endpoint) is None

    def test_the_simulator_only_where_there_is_one_and_only_its_origin(self, settings: Any) -> None:
        settings.CARRIER_SIMULATOR_URL = "http://127.0.0.1:9100"
        assert endpoint_origin("http://127.0.0.1:9100/push/x") == "http://127.0.0.1:9100"
        assert endpoint_origin("http://127.0.0.1:9101/push/x") is None
        assert endpoint_origin("https://127.0.0.1:9100/push/x") is None

    def test_the_list_is_a_setting(self, settings: Any) -> None:
        settings.WEB_PUSH_HOSTS = ["push.example.org"]
        assert endpoint_origin("https://push.example.org/x") == "https://push.example.org"
        assert endpoint_origin("https://fcm.googleapis.com/x") is None


class TestKeys:
    """What a browser's keys look like."""

    def test_a_browsers(self) -> None:
        browser = Browser()
        assert webpush.keys_are_valid(browser.p256dh, browser.auth)
        assert webpush.keys_are_valid(browser.p256dh + "=", browser.auth + "==")

    @pytest.mark.parametrize("wrong", ["", "=", "A", "é", "BA" + "A" * 85, "A" * 87, "B" * 3000, "ab\ncd"])
    def test_others(self, wrong: str) -> None:
        browser = Browser()
        assert not webpush.keys_are_valid(wrong, browser.auth)
        assert not webpush.keys_are_valid(browser.p256dh, wrong)


class TestRequest:
    """Payload and headers."""

    def test_payload(self) -> None:
        assert json.loads(payload(message())) == {
            "title": "SOS: Priya Sharma",
            "body": "Priya Sharma pressed SOS 21:20 IST, 14 Mar. Dial 112.",
            "link": LINK,
            "tag": f"inc-{INCIDENT.hex}",
            "receipt": str(ATTEMPT),
        }

    @pytest.mark.parametrize("filler", ["x", "ख", "🆘", "\x01"])
    def test_it_stays_below_3_kb(self, filler: str) -> None:
        made = payload(message(text="SOS: Priya\n" + filler * 9000))
        assert 2900 < len(made) <= 3000
        assert json.loads(made)["receipt"] == str(ATTEMPT)

    @pytest.mark.parametrize("kind", ["sos", "missed_check_in", "duress"])
    def test_an_alert_wakes_the_phone_and_is_kept_ten_minutes(self, kind: str) -> None:
        headers = headers_for(message(kind=kind))
        assert (headers["TTL"], headers["Urgency"]) == ("600", "high")

    @pytest.mark.parametrize("kind", ["update", "all_clear", "check_prompt"])
    def test_the_rest_does_not(self, kind: str) -> None:
        headers = headers_for(message(kind=kind))
        assert (headers["TTL"], headers["Urgency"]) == ("600", "normal")

    @pytest.mark.parametrize("incident", [INCIDENT, None])
    @pytest.mark.parametrize("kind", ["sos", "duress", "check_prompt", "missed_check_in"])
    def test_a_topic_is_short_base64url_and_tells_no_duress(self, kind: str, incident: Any) -> None:
        topic = headers_for(message(kind=kind, incident_id=incident))["Topic"]
        assert 0 < len(topic) <= 32
        assert set(topic) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        assert "duress" not in topic
        assert b"duress" not in payload(message(kind=kind, incident_id=incident))


ROWS = {
    201: (Outcome.ACCEPTED, ""),
    200: (Outcome.ACCEPTED, ""),
    202: (Outcome.ACCEPTED, ""),
    404: (Outcome.PERMANENT, "gone"),
    410: (Outcome.PERMANENT, "gone"),
    400: (Outcome.PERMANENT, "config"),
    401: (Outcome.PERMANENT, "auth"),
    403: (Outcome.PERMANENT, "auth"),
    413: (Outcome.PERMANENT, "content"),
    429: (Outcome.TRANSIENT, "throttled"),
    500: (Outcome.TRANSIENT, "transient"),
    502: (Outcome.TRANSIENT, "transient"),
    503: (Outcome.TRANSIENT, "transient"),
    504: (Outcome.TRANSIENT, "transient"),
    301: (Outcome.PERMANENT, "config"),
    308: (Outcome.PERMANENT, "config"),
    418: (Outcome.PERMANENT, ""),
}


@pytest.mark.parametrize(("status", "expected"), ROWS.items())
def test_each_status_means_one_thing(status: int, expected: tuple[Outcome, str]) -> None:
    answer = classify(reply(status, "whatever"))
    assert (answer.outcome, answer.error_class) == expected
    assert (answer.http_status, answer.raw) == (status, "whatever")


def test_retry_after_and_the_services_own_words_are_kept() -> None:
    assert classify(reply(429, "", Retry_After="30")).retry_after == 30.0
    date = {"Retry_After": "Sat, 14 Mar 2026 21:01:00 GMT", "Date": "Sat, 14 Mar 2026 21:00:00 GMT"}
    assert classify(reply(429, "", **date)).retry_after == 60.0
    mozilla = classify(reply(410, {"code": 410, "errno": 106, "message": "No such subscription"}))
    assert (mozilla.error_code, mozilla.detail) == ("106", "No such subscription")
    assert classify(reply(403, {"reason": "BadJwtToken"})).error_code == "BadJwtToken"
    location = "https://updates.push.services.mozilla.com/m/gAAA-message"
    assert classify(reply(201, "", Location=location)).carrier_message_id == "gAAA-message"


@pytest.fixture
async def service(settings: Any) -> AsyncIterator[StandIn]:
    """A push service, here, which only counts as one because it is the simulator."""
    async with StandIn() as server:
        settings.CARRIER_SIMULATOR_URL = server.url
        yield server


@pytest.fixture
async def carrier() -> AsyncIterator[WebPushCarrier]:
    """The carrier with this site's keys."""
    made = WebPushCarrier(vapid(), SUBJECT)
    yield made
    await made.close()


def claims_of(authorization: str) -> dict[str, Any]:
    """What our signature says, once it is proved to be ours."""
    assert Vapid.verify(authorization)
    token, key = authorization.removeprefix("vapid ").split(",")
    assert key == f"k={VAPID_PUBLIC_KEY}"
    middle = token.removeprefix("t=").split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return found


class TestSending:
    """Through real HTTP, with real encryption."""

    async def test_the_browser_can_read_it(self, service: StandIn, carrier: WebPushCarrier) -> None:
        service.answers = [web.Response(status=201, headers={"Location": f"{service.url}/m/1234"})]
        browser = Browser()
        answer = await carrier.send(message(target=browser.target(f"{service.url}/push/abc?d=%2Bx")))
        assert (answer.outcome, answer.carrier_message_id) == (Outcome.ACCEPTED, "1234")
        (seen,) = service.seen
        assert seen.path == "/push/abc?d=%2Bx"
        assert seen.headers["Content-Encoding"] == "aes128gcm"
        assert (seen.headers["TTL"], seen.headers["Urgency"], seen.headers["Topic"]) == ("600", "high", INCIDENT.hex)
        assert b"Priya" not in seen.body
        assert browser.read(seen.body) == json.loads(payload(message()))

    async def test_the_longest_message_fits_what_services_take(self, service: StandIn, carrier: WebPushCarrier) -> None:
        service.answers = [web.Response(status=201)]
        await carrier.send(message(target=Browser().target(f"{service.url}/push/abc"), text="SOS\n" + "ख" * 5000))
        assert len(service.seen[0].body) <= 4096

    async def test_each_service_gets_a_signature_for_itself(self, settings: Any, carrier: WebPushCarrier) -> None:
        async with StandIn() as one, StandIn() as other:
            for service in (one, other):
                settings.CARRIER_SIMULATOR_URL = service.url
                service.answers = [web.Response(status=201)]
                await carrier.send(message(target=Browser().target(f"{service.url}/push/abc")))
            for service in (one, other):
                claims = claims_of(service.seen[0].headers["Authorization"])
                assert claims["aud"] == service.url
                assert claims["sub"] == SUBJECT
                assert 0 < claims["exp"] - time.time() < 24 * 3600

    async def test_a_redirect_is_not_followed(self, service: StandIn, carrier: WebPushCarrier) -> None:
        service.answers = [web.Response(status=307, headers={"Location": f"{service.url}/internal"})]
        answer = await carrier.send(message(target=Browser().target(f"{service.url}/push/abc")))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "config")
        assert [seen.path for seen in service.seen] == ["/push/abc"]

    async def test_too_big_is_shortened_once(self, service: StandIn, carrier: WebPushCarrier) -> None:
        service.answers = [web.Response(status=413), web.Response(status=413)]
        browser = Browser()
        long = message(target=browser.target(f"{service.url}/push/abc"), text="SOS\n" + "x" * 5000)
        answer = await carrier.send(long)
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "content")
        assert [len(json.dumps(browser.read(seen.body))) > 800 for seen in service.seen] == [True, False]
        assert browser.read(service.seen[1].body)["link"] == LINK

    async def test_the_list_is_looked_at_again_when_sending(self, settings: Any, carrier: WebPushCarrier) -> None:
        async with StandIn() as service:  # not the simulator: nobody we may call
            answer = await carrier.send(message(target=Browser().target(f"{service.url}/push/abc")))
            assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "bad_recipient")
            assert not service.seen

    @pytest.mark.parametrize("keys", [("", ""), ("AAAA", "AAAA"), ("!", "?"), ("ü", "ü")])
    async def test_keys_that_cant_be_do_not_raise(
        self, service: StandIn, carrier: WebPushCarrier, keys: tuple[str, str]
    ) -> None:
        answer = await carrier.send(message(target=PushTarget("webpush", f"{service.url}/push/abc", *keys)))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "bad_recipient")
        assert not service.seen

    async def test_nobody_listens(self, settings: Any, carrier: WebPushCarrier) -> None:
        settings.CARRIER_SIMULATOR_URL = "http://127.0.0.1:1"
        answer = await carrier.send(message(target=Browser().target("http://127.0.0.1:1/push/abc")))
        assert answer.outcome is Outcome.TRANSIENT

    async def test_a_lost_answer_is_unknown(self, service: StandIn, carrier: WebPushCarrier) -> None:
        service.answers = [None]
        answer = await carrier.send(message(target=Browser().target(f"{service.url}/push/abc")))
        assert answer.outcome is Outcome.UNKNOWN

    async def test_many_services_at_once(self, settings: Any, monkeypatch: Any, carrier: WebPushCarrier) -> None:
        """Beyond the limit connections are closed after use instead of kept."""
        monkeypatch.setattr(webpush, "MAX_ORIGINS", 1)
        async with StandIn() as one, StandIn() as other:
            for service in (one, other, other):
                settings.CARRIER_SIMULATOR_URL = service.url
                service.answers = [web.Response(status=201)]
                answer = await carrier.send(message(target=Browser().target(f"{service.url}/push/abc")))
                assert answer.outcome is Outcome.ACCEPTED
            assert list(carrier._transports) == [one.url]

    @pytest.mark.parametrize("target", [None, PushTarget("fcm", TOKEN)])
    async def test_what_is_no_browser_is_not_sent(self, carrier: WebPushCarrier, target: Any) -> None:
        answer = await carrier.send(message(target=target))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "")


class TestSettings:
    """Which carrier an installation has."""

    def test_nothing_is_offered_without_keys(self) -> None:
        assert webpush.configured() is None
        assert webpush.public_key() == ""
        assert webpush.problem() == ""

    @pytest.mark.parametrize("subject", [SUBJECT, "https://safety.example.org"])
    def test_with_keys(self, settings: Any, subject: str) -> None:
        settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = VAPID_PRIVATE_KEY, subject
        assert isinstance(webpush.configured(), WebPushCarrier)
        assert webpush.public_key() == VAPID_PUBLIC_KEY
        assert webpush.problem() == ""

    @pytest.mark.parametrize("subject", ["", "safety@example.org", "mailto:me@localhost", "http://example.org"])
    def test_a_subject_that_apple_refuses(self, settings: Any, subject: str) -> None:
        settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = VAPID_PRIVATE_KEY, subject
        assert webpush.configured() is None
        assert webpush.public_key() == ""
        assert "VAPID_SUBJECT" in webpush.problem()

    @pytest.mark.parametrize("key", ["x", "0" * 20, "é", "-----BEGIN PRIVATE KEY-----"])
    def test_a_key_that_is_none(self, settings: Any, key: str) -> None:
        settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = key, SUBJECT
        assert webpush.configured() is None
        assert key not in webpush.problem()
        assert "VAPID_PRIVATE_KEY" in webpush.problem()

    def test_the_command_prints_a_line_that_works(self, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
        call_command("make_vapid_keys")
        public, private = capsys.readouterr().out.splitlines()
        settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = private.removeprefix("VAPID_PRIVATE_KEY="), SUBJECT
        assert public.endswith(webpush.public_key())
        assert webpush.public_key() != VAPID_PUBLIC_KEY
