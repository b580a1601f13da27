"""FCM: what is sent, and what each of its answers means."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from notifications.carriers import fcm, service_account
from notifications.carriers.base import Outcome, PushTarget
from notifications.carriers.fcm import FCMCarrier, classify, request_body
from notifications.carriers.service_account import ServiceAccount
from notifications.tests.pushing import ATTEMPT, INCIDENT, LINK, TOKEN, StandIn, message, reply
from notifications.tests.pushing import service_account as key_file

NOW = 1_800_000_000.4
TARGET = PushTarget("fcm", TOKEN)
OK = {"name": "projects/casualmeet-test/messages/0:1500415314455276%31bd1c9631bd1c96"}
FCM_ERROR = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


def error(status: str, *, code: str = "", message: str = "", fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """Google's error form."""
    details: list[dict[str, Any]] = [{"@type": FCM_ERROR, "errorCode": code}] if code else []
    if fields:
        details.append({"@type": BAD_REQUEST, "fieldViolations": [{"field": name} for name in fields]})
    return {"error": {"code": 0, "message": message, "status": status, "details": details}}


def body(**changes: Any) -> dict[str, Any]:
    """The message that is sent."""
    sent = json.loads(request_body(message(target=TARGET, **changes), now=NOW))
    assert set(sent) == {"message"}
    found: dict[str, Any] = sent["message"]
    return found


class TestBody:
    """What Google is given."""

    def test_an_alert(self) -> None:
        sent = body()
        assert sent["token"] == TOKEN
        assert sent["notification"] == {
            "title": "SOS: Priya Sharma",
            "body": "Priya Sharma pressed SOS 21:20 IST, 14 Mar. Dial 112.",
        }
        tag = f"inc-{INCIDENT.hex}"
        assert sent["data"] == {
            "kind": "sos",
            "receipt": str(ATTEMPT),
            "tag": tag,
            "link": LINK,
            "incident": str(INCIDENT),
        }
        assert sent["android"] == {
            "priority": "HIGH",
            "ttl": "600s",
            "collapse_key": tag,
            "direct_boot_ok": True,
            "notification": {"channel_id": "sos", "tag": tag},
        }
        assert sent["apns"]["headers"] == {
            "apns-priority": "10",
            "apns-expiration": "1800000600",
            "apns-collapse-id": tag,
        }
        assert sent["apns"]["payload"]["aps"]["interruption-level"] == "time-sensitive"
        assert sent["webpush"]["headers"] == {"Urgency": "high", "TTL": "600"}

    def test_a_check_prompt_wakes_the_phone_but_is_no_alarm(self) -> None:
        sent = body(kind="check_prompt", incident_id=None, link="")
        assert sent["android"]["priority"] == "HIGH"
        assert sent["android"]["notification"]["channel_id"] == "safety"
        assert sent["webpush"]["headers"]["Urgency"] == "normal"
        assert sent["data"] == {"kind": "check_prompt", "receipt": str(ATTEMPT), "tag": "check_prompt"}

    @pytest.mark.parametrize("incident", [INCIDENT, None])
    def test_p10_nothing_in_it_tells_of_duress(self, incident: Any) -> None:
        sent = request_body(message(target=TARGET, kind="duress", incident_id=incident), now=NOW)
        assert b"duress" not in sent
        assert json.loads(sent)["message"]["data"]["kind"] == "sos"

    def test_all_data_are_texts(self) -> None:
        assert all(isinstance(value, str) for value in body()["data"].values())

    @pytest.mark.parametrize("filler", ["x", "ख", "\x01", '"', "🆘"])
    def test_it_is_cut_to_what_fcm_takes(self, filler: str) -> None:
        sent = request_body(message(target=TARGET, text="SOS: Priya\n" + filler * 9000), now=NOW)
        assert 3900 < len(sent) <= 4096
        assert json.loads(sent)["message"]["notification"]["body"].endswith("…")
        assert json.loads(sent)["message"]["data"]["link"] == LINK

    def test_what_no_utf_8_can_hold_is_replaced(self) -> None:
        assert body(text="SOS\n\ud800")["notification"]["body"] == "?"


# (status, body, Retry-After) -> (outcome, class, seconds to wait)
ROWS = {
    "accepted": ((200, OK, ""), (Outcome.ACCEPTED, "", None)),
    "unregistered": ((404, error("NOT_FOUND", code="UNREGISTERED"), ""), (Outcome.PERMANENT, "gone", None)),
    "404 of the project": ((404, error("NOT_FOUND"), ""), (Outcome.PERMANENT, "config", None)),
    "404 page": ((404, "<html>Not Found</html>", ""), (Outcome.PERMANENT, "config", None)),
    "bad token, by its words": (
        (
            400,
            error(
                "INVALID_ARGUMENT",
                code="INVALID_ARGUMENT",
                message="The registration token is not a valid FCM registration token",
            ),
            "",
        ),
        (Outcome.PERMANENT, "gone", None),
    ),
    "bad token, by its field": (
        (400, error("INVALID_ARGUMENT", code="INVALID_ARGUMENT", fields=("message.token",)), ""),
        (Outcome.PERMANENT, "gone", None),
    ),
    "bad payload": (
        (400, error("INVALID_ARGUMENT", code="INVALID_ARGUMENT", fields=("message.data[0].value",)), ""),
        (Outcome.PERMANENT, "content", None),
    ),
    "bad payload and token": (
        (400, error("INVALID_ARGUMENT", code="INVALID_ARGUMENT", fields=("message.token", "message.android")), ""),
        (Outcome.PERMANENT, "content", None),
    ),
    "too big": (
        (400, error("INVALID_ARGUMENT", code="INVALID_ARGUMENT", message="Android message is too big"), ""),
        (Outcome.PERMANENT, "content", None),
    ),
    "invalid without FCM's own error": (
        (400, error("INVALID_ARGUMENT", fields=("message.token",)), ""),
        (Outcome.PERMANENT, "content", None),
    ),
    "other project's token": (
        (403, error("PERMISSION_DENIED", code="SENDER_ID_MISMATCH"), ""),
        (Outcome.PERMANENT, "bad_recipient", None),
    ),
    "403 of the API": ((403, error("PERMISSION_DENIED"), ""), (Outcome.PERMANENT, "auth", None)),
    "key of APNs": (
        (401, error("UNAUTHENTICATED", code="THIRD_PARTY_AUTH_ERROR"), ""),
        (Outcome.PERMANENT, "config", None),
    ),
    "our token": ((401, error("UNAUTHENTICATED"), ""), (Outcome.PERMANENT, "auth", None)),
    "quota": ((429, error("RESOURCE_EXHAUSTED", code="QUOTA_EXCEEDED"), ""), (Outcome.TRANSIENT, "throttled", 60.0)),
    "quota, told how long": (
        (429, error("RESOURCE_EXHAUSTED", code="QUOTA_EXCEEDED"), "90"),
        (Outcome.TRANSIENT, "throttled", 90.0),
    ),
    "429 page": ((429, "slow down", ""), (Outcome.TRANSIENT, "throttled", 60.0)),
    "unavailable": ((503, error("UNAVAILABLE", code="UNAVAILABLE"), ""), (Outcome.TRANSIENT, "transient", 10.0)),
    "unavailable, told how long": (
        (503, error("UNAVAILABLE", code="UNAVAILABLE"), "17"),
        (Outcome.TRANSIENT, "transient", 17.0),
    ),
    "internal": ((500, error("INTERNAL", code="INTERNAL"), ""), (Outcome.TRANSIENT, "transient", 10.0)),
    "unspecified": (
        (500, error("UNKNOWN", code="UNSPECIFIED_ERROR"), ""),
        (Outcome.TRANSIENT, "transient", 10.0),
    ),
    "a new code": ((502, error("UNKNOWN", code="SOMETHING_NEW"), ""), (Outcome.TRANSIENT, "transient", 10.0)),
    "a new code that says no": ((403, error("UNKNOWN", code="SOMETHING_NEW"), ""), (Outcome.PERMANENT, "auth", None)),
    "gateway page": ((502, "<html>Bad Gateway</html>", ""), (Outcome.UNKNOWN, "", None)),
    "200 without a name": ((200, {}, ""), (Outcome.UNKNOWN, "", None)),
    "200 of somebody else": ((200, "<html>hotel wifi</html>", ""), (Outcome.UNKNOWN, "", None)),
    "half JSON": ((200, '{"name": "projects/p/mess', ""), (Outcome.UNKNOWN, "", None)),
    "redirect": ((302, "", ""), (Outcome.PERMANENT, "config", None)),
    "nonsense in the details": (
        (400, {"error": {"details": [1, {"@type": FCM_ERROR, "errorCode": 7}], "status": 4}}, ""),
        (Outcome.PERMANENT, "content", None),
    ),
}


@pytest.mark.parametrize(("given", "expected"), ROWS.values(), ids=list(ROWS))
def test_each_answer_means_one_thing(given: tuple[int, object, str], expected: tuple[Any, ...]) -> None:
    status, sent, wait = given
    came = reply(status, sent, **({"Retry_After": wait} if wait else {}))
    answer = classify(came)
    assert (answer.outcome, answer.error_class, answer.retry_after) == expected
    assert answer.http_status == status
    assert answer.raw == came.text


def test_the_code_and_the_message_are_kept() -> None:
    answer = classify(reply(404, error("NOT_FOUND", code="UNREGISTERED", message="Requested entity was not found.")))
    assert (answer.error_code, answer.detail) == ("UNREGISTERED", "Requested entity was not found.")
    assert classify(reply(200, OK)).carrier_message_id == "0:1500415314455276%31bd1c9631bd1c96"


@pytest.fixture(scope="module")
def account() -> dict[str, Any]:
    """A key, which takes a moment to make."""
    return key_file("http://127.0.0.1:1/token")


@pytest.fixture
async def google() -> AsyncIterator[StandIn]:
    """Google, here."""
    async with StandIn() as server:
        yield server


@pytest.fixture
async def carrier(google: StandIn, account: dict[str, Any]) -> AsyncIterator[FCMCarrier]:
    """The carrier of the settings, at the stand-in."""
    source = ServiceAccount({**account, "token_uri": f"{google.url}/token"}, scope=fcm.SCOPE)
    made = FCMCarrier(source, base_url=google.url)
    yield made
    await made.close()


UNAUTHENTICATED = error("UNAUTHENTICATED")


def json_response(status: int, sent: object) -> web.Response:
    return web.json_response(sent, status=status)


class TestSending:
    """Through real HTTP."""

    async def test_one_token_serves_many_messages(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.answers = [json_response(200, OK) for _ in range(12)]
        answers = await asyncio.gather(*(carrier.send(message(target=TARGET)) for _ in range(12)))
        assert {answer.outcome for answer in answers} == {Outcome.ACCEPTED}
        assert google.tokens == 1
        assert {one.path for one in google.seen} == {"/v1/projects/casualmeet-test/messages:send"}
        assert {one.headers["Authorization"] for one in google.seen} == {"Bearer token-1"}
        assert google.seen[0].json["message"]["token"] == TOKEN

    async def test_a_token_that_ends_soon_is_renewed_early(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.lifetime = int(service_account.RENEW_BEFORE) - 10
        google.answers = [json_response(200, OK), json_response(200, OK)]
        await carrier.send(message(target=TARGET))
        await carrier.send(message(target=TARGET))
        assert [one.headers["Authorization"] for one in google.seen] == ["Bearer token-1", "Bearer token-2"]

    async def test_a_token_that_cant_be_renewed_is_used_to_its_end(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.lifetime = int(service_account.RENEW_BEFORE) - 10
        google.answers = [json_response(200, OK), json_response(200, OK)]
        await carrier.send(message(target=TARGET))
        google.refuse_tokens = json_response(400, {"error": "invalid_grant"})
        assert (await carrier.send(message(target=TARGET))).outcome is Outcome.ACCEPTED

    async def test_unauthenticated_gets_one_new_token(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.answers = [json_response(401, UNAUTHENTICATED), json_response(200, OK)]
        assert (await carrier.send(message(target=TARGET))).outcome is Outcome.ACCEPTED
        assert [one.headers["Authorization"] for one in google.seen] == ["Bearer token-1", "Bearer token-2"]

    async def test_but_only_one(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.answers = [json_response(401, UNAUTHENTICATED), json_response(401, UNAUTHENTICATED)]
        answer = await carrier.send(message(target=TARGET))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "auth")
        assert len(google.seen) == 2

    async def test_a_fault_of_apns_is_not_our_token(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.answers = [json_response(401, error("UNAUTHENTICATED", code="THIRD_PARTY_AUTH_ERROR"))]
        assert (await carrier.send(message(target=TARGET))).error_class == "config"
        assert google.tokens == 1

    async def test_an_account_that_google_refuses_sends_nothing(self, google: StandIn, carrier: FCMCarrier) -> None:
        google.refuse_tokens = json_response(400, {"error": "invalid_grant", "error_description": "Invalid JWT"})
        answer = await carrier.send(message(target=TARGET))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "auth")
        assert not google.seen

    async def test_no_way_to_the_token_endpoint_is_transient(self, google: StandIn, account: dict[str, Any]) -> None:
        source = ServiceAccount(account, scope=fcm.SCOPE)  # nobody listens on port 1
        made = FCMCarrier(source, base_url=google.url)
        answer = await made.send(message(target=TARGET))
        assert (answer.outcome, answer.error_class) == (Outcome.TRANSIENT, "transient")
        await made.close()

    async def test_nobody_listens(self, account: dict[str, Any]) -> None:
        made = FCMCarrier(service_account.FixedToken("p", "t"), base_url="http://127.0.0.1:1")
        assert (await made.send(message(target=TARGET))).outcome is Outcome.TRANSIENT
        await made.close()

    @pytest.mark.parametrize("target", [None, PushTarget("webpush", "https://fcm.googleapis.com/x")])
    async def test_what_is_no_token_is_not_sent(self, google: StandIn, carrier: FCMCarrier, target: Any) -> None:
        answer = await carrier.send(replace(message(), target=target))
        assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "")
        assert not google.seen


class TestSettings:
    """Which carrier an installation has."""

    def test_none_without_an_account(self) -> None:
        assert fcm.configured() is None
        assert fcm.problem() == ""

    def test_the_key_as_text_or_as_a_file(self, settings: Any, account: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "key.json"
        path.write_text(json.dumps(account))
        for given in (json.dumps(account), str(path)):
            settings.FCM_SERVICE_ACCOUNT = given
            made = fcm.configured()
            assert made is not None
            assert not made.simulated

    @pytest.mark.parametrize("given", ["/no/such/file", "{", "{}", '{"type": "service_account"}', "[1]"])
    def test_a_key_that_is_none_is_a_problem_that_is_told_without_it(self, settings: Any, given: str) -> None:
        settings.FCM_SERVICE_ACCOUNT = given
        assert fcm.configured() is None
        assert fcm.problem().startswith("FCM is not used: FCM_SERVICE_ACCOUNT is not a service account's key")

    async def test_the_simulator_takes_googles_place(self, settings: Any, google: StandIn) -> None:
        settings.CARRIER_SIMULATOR_URL = google.url
        google.answers = [json_response(200, OK)]
        made = fcm.configured()
        assert made is not None
        assert (await made.send(message(target=TARGET))).outcome is Outcome.ACCEPTED
        await made.close()


def test_one_account_serves_several_event_loops_one_after_the_other(account: dict[str, Any]) -> None:
    source = ServiceAccount(account, scope=fcm.SCOPE)  # nobody listens on port 1

    async def ask() -> list[Any]:
        return await asyncio.gather(*(source.token() for _ in range(3)), return_exceptions=True)

    for _ in range(2):
        assert {type(error).__name__ for error in asyncio.run(ask())} == {"TransportError"}
