"""The faces of FCM and of a Web Push service."""

import json
from typing import Any

import pytest
import requests
from google.auth.transport.requests import Request
from google.oauth2.service_account import Credentials
from py_vapid import Vapid02
from pywebpush import WebPushException, webpush

from simulator import Simulator, refuse
from simulator.credentials import FCM_PROJECT, FCM_TOKEN
from simulator.webpush import Browser

MESSAGE = {"token": "app-1", "notification": {"title": "Help", "body": "Asha needs you"}}
CLAIMS = {"sub": "mailto:safety@example.org"}


def push(sim: Simulator, message: object = MESSAGE, *, token: str = FCM_TOKEN, **more: Any) -> requests.Response:
    project = more.pop("project", FCM_PROJECT)
    return requests.post(
        f"{sim.url}/v1/projects/{project}/messages:send",
        json={"message": message, **more},
        headers={"Authorization": f"Bearer {token}"},
        timeout=10,
    )


def error_code(answer: requests.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    codes = [detail["errorCode"] for detail in error.get("details", []) if "errorCode" in detail]
    return answer.status_code, codes[0] if codes else error["status"]


class TestFCM:
    def test_a_push_is_taken(self, sim: Simulator) -> None:
        answer = push(sim)
        assert answer.json()["name"].startswith(f"projects/{FCM_PROJECT}/messages/0:")
        sim.assert_exactly("app-1", ["Help\nAsha needs you"])

    def test_trying_it_out_sends_nothing(self, sim: Simulator) -> None:
        assert push(sim, validate_only=True).json()["name"].endswith("/fake_message_id")
        sim.assert_exactly("app-1", [])

    def test_googles_own_library_gets_a_token(self, sim: Simulator) -> None:
        credentials = Credentials.from_service_account_info(
            json.loads(sim.service_account()), scopes=["https://www.googleapis.com/auth/firebase.messaging"]
        )
        with requests.Session() as session:
            credentials.refresh(Request(session))
        assert push(sim, token=credentials.token).ok
        assert len(sim.requests(operation="token")) == 1
        sim.advance(3601)
        assert error_code(push(sim, token=credentials.token)) == (401, "UNAUTHENTICATED")

    def test_the_token_endpoint_may_fail(self, sim: Simulator) -> None:
        sim.on(operation="token").then(refuse(503))
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "x.y.z"}
        statuses = [requests.post(f"{sim.url}/token", data=form, timeout=10).status_code for _ in range(2)]
        assert statuses == [503, 200]
        assert requests.post(f"{sim.url}/token", data={}, timeout=10).json()["error"] == "invalid_grant"

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (404, "UNREGISTERED"),
            (400, "INVALID_ARGUMENT"),
            (403, "SENDER_ID_MISMATCH"),
            (401, "UNAUTHENTICATED"),
            (429, "QUOTA_EXCEEDED"),
            (500, "INTERNAL"),
            (503, "UNAVAILABLE"),
        ],
    )
    def test_scripted_errors(self, sim: Simulator, status: int, code: str) -> None:
        sim.on(to="app-1").reply(status=status, headers={"Retry-After": "7"})
        answer = push(sim)
        assert error_code(answer) == (status, code)
        assert answer.headers["Retry-After"] == "7"
        assert push(sim).ok

    def test_another_error_can_be_named(self, sim: Simulator) -> None:
        sim.on(to="app-1").reply(status=401, message="THIRD_PARTY_AUTH_ERROR")
        assert error_code(push(sim)) == (401, "THIRD_PARTY_AUTH_ERROR")

    def test_a_token_may_be_gone_for_good(self, sim: Simulator) -> None:
        sim.fcm.gone.add("app-1")
        assert [error_code(push(sim)) for _ in range(2)] == [(404, "UNREGISTERED")] * 2

    def test_another_project_is_a_404_without_an_error_of_fcm(self, sim: Simulator) -> None:
        assert error_code(push(sim, project="other")) == (404, "NOT_FOUND")

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ("text", "message"),
            ({}, "message.token"),
            ({**MESSAGE, "data": {"number": 1}}, "message.data"),
            ({**MESSAGE, "data": {"long": "x" * 4096}}, "message.size"),
            ({**MESSAGE, "android": {"ttl": "600"}}, "message.android.ttl"),
            ({**MESSAGE, "android": {"priority": "urgent"}}, "message.android.priority"),
        ],
    )
    def test_what_is_wrong_with_it(self, sim: Simulator, message: object, field: str) -> None:
        answer = push(sim, message)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"][1]["fieldViolations"][0]["field"] == field


@pytest.fixture(scope="module")
def vapid() -> Vapid02:
    key = Vapid02()
    key.generate_keys()
    return key


def tell(browser: Browser, vapid: Vapid02, text: str = "Help\nAsha", **changes: Any) -> int:
    """Push with the library, and return the status."""
    given = {"vapid_claims": dict(CLAIMS), "ttl": 600, "timeout": 10, **changes}
    try:
        return int(webpush(browser.subscription(), text, vapid_private_key=vapid, **given).status_code)
    except WebPushException as error:
        return int(error.status_code or 0)


class TestWebPush:
    def test_the_browser_can_read_it(self, sim: Simulator, vapid: Vapid02) -> None:
        browser = sim.subscribe()
        assert tell(browser, vapid, headers={"Urgency": "high", "Topic": "inc-1"}) == 201
        sim.assert_exactly(browser.endpoint, ["Help\nAsha"])

    @pytest.mark.parametrize("status", [404, 410, 413, 429, 500, 503])
    def test_scripted_errors(self, sim: Simulator, vapid: Vapid02, status: int) -> None:
        browser = sim.subscribe()
        sim.on(to=browser.endpoint).reply(status=status)
        assert [tell(browser, vapid) for _ in range(2)] == [status, 201]

    def test_a_browser_that_unsubscribed_is_gone(self, sim: Simulator, vapid: Vapid02) -> None:
        browser = sim.subscribe()
        browser.gone = True
        assert tell(browser, vapid) == 410
        browser.endpoint += "x"
        assert tell(browser, vapid) == 404

    def test_the_wrong_audience_or_lifetime_is_refused(self, sim: Simulator, vapid: Vapid02) -> None:
        browser = sim.subscribe()
        assert tell(browser, vapid, vapid_claims={**CLAIMS, "aud": "https://fcm.googleapis.com"}) == 403
        late = int(sim.clock.now()) + 25 * 3600
        assert tell(browser, vapid, vapid_claims={**CLAIMS, "exp": late}) == 403
        assert tell(browser, vapid, vapid_claims={"sub": "mailto:root@localhost"}) == 403
        sim.assert_exactly(browser.endpoint, [])

    def test_the_key_must_be_that_of_the_subscription(self, sim: Simulator, vapid: Vapid02) -> None:
        assert tell(sim.subscribe(vapid_key="another"), vapid) == 403

    @pytest.mark.parametrize(
        ("headers", "status"), [({"Urgency": "soon"}, 400), ({"Topic": "a b"}, 400), ({"Topic": "x" * 33}, 400)]
    )
    def test_headers_are_checked(self, sim: Simulator, vapid: Vapid02, headers: dict[str, str], status: int) -> None:
        assert tell(sim.subscribe(), vapid, headers=headers) == status

    def test_size_and_encryption_are_checked(self, sim: Simulator, vapid: Vapid02) -> None:
        browser = sim.subscribe()
        assert tell(browser, vapid, "x" * 4090) == 413
        browser.secret = b"another secret.."
        other = sim.subscribe()
        other.endpoint = browser.endpoint
        assert tell(other, vapid) == 400

    def test_without_a_signature_nothing_is_taken(self, sim: Simulator) -> None:
        browser = sim.subscribe()
        assert requests.post(browser.endpoint, data=b"x", headers={"TTL": "1"}, timeout=10).status_code == 403
