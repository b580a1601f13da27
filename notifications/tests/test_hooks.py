"""What carriers call: only what is signed with our token gets to the view."""

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from twilio.request_validator import RequestValidator

from notifications import hooks
from ops import metrics
from testing import measured

BASE = "https://safety.example.org"
PATH = "/hooks/twilio/status/0b5f7a52-5f5a-4d8e-9d51-0f8f5c1d2e3f"
ACCOUNT = "AC" + "0123456789abcdef" * 2
TOKEN, OLD_TOKEN = "the-token", "the-token-before"
FORM = {"AccountSid": ACCOUNT, "MessageSid": "SM1", "MessageStatus": "delivered", "To": "+447700900123"}


@pytest.fixture(autouse=True)
def _account(settings: Any) -> None:
    settings.PUBLIC_BASE_URL = BASE
    settings.TWILIO_ACCOUNT_SID = ACCOUNT
    settings.TWILIO_AUTH_TOKEN = TOKEN
    settings.TWILIO_AUTH_TOKEN_PREVIOUS = ""


@hooks.twilio_webhook
def view(request: HttpRequest) -> HttpResponse:
    """Says which status it was given, so that a call is seen."""
    return HttpResponse(request.POST["MessageStatus"])


def sign(url: str, form: Any, token: str = TOKEN) -> str:
    return str(RequestValidator(token).compute_signature(url, form))


def call(
    form: Any = FORM, *, path: str = PATH, url: str = BASE + PATH, token: str = TOKEN, **more: Any
) -> HttpResponse:
    """Call the view at `path` with a form that was signed for `url`."""
    headers = {"X-Twilio-Signature": sign(url, form, token), **more.pop("headers", {})}
    return view(RequestFactory().post(path, form, headers=headers, **more))


def test_what_twilio_signed_gets_through() -> None:
    assert call().content == b"delivered"


@pytest.mark.parametrize("signature", ["", "AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "é" * 28, sign(BASE + "/other", FORM)])
def test_a_forged_signature_is_refused_and_counted(signature: str) -> None:
    before = measured.value(metrics.CALLBACKS, result="forged")
    assert call(headers={"X-Twilio-Signature": signature}).status_code == 403
    assert measured.value(metrics.CALLBACKS, result="forged") == before + 1


def test_a_missing_signature_is_refused() -> None:
    assert view(RequestFactory().post(PATH, FORM)).status_code == 403


@pytest.mark.parametrize("change", [{"MessageStatus": "failed"}, {"More": "1"}, {"To": ""}])
def test_a_form_that_was_changed_is_refused(change: dict[str, str]) -> None:
    request = RequestFactory().post(PATH, FORM | change, headers={"X-Twilio-Signature": sign(BASE + PATH, FORM)})
    assert view(request).status_code == 403


@pytest.mark.parametrize("account", ["AC" + "f" * 32, "", [ACCOUNT, "AC" + "f" * 32], ["AC" + "f" * 32, ACCOUNT]])
def test_the_form_of_another_account_is_refused_however_it_is_signed(account: Any) -> None:
    # Repeated names are signed as a set, so the form has to be one that a QueryDict reads back.
    request = RequestFactory().post(PATH, FORM | {"AccountSid": account})
    request.META["HTTP_X_TWILIO_SIGNATURE"] = sign(BASE + PATH, request.POST)
    assert view(request).status_code == 403


def test_a_form_without_an_account_is_refused() -> None:
    assert call({"MessageStatus": "delivered"}).status_code == 403


def test_during_rotation_the_old_token_still_counts(settings: Any) -> None:
    assert call(token=OLD_TOKEN).status_code == 403
    settings.TWILIO_AUTH_TOKEN_PREVIOUS = OLD_TOKEN
    assert call(token=OLD_TOKEN).status_code == 200
    assert call(token=TOKEN).status_code == 200


@pytest.mark.parametrize("unset", ["TWILIO_AUTH_TOKEN", "TWILIO_ACCOUNT_SID"])
def test_without_credentials_nothing_gets_through(settings: Any, unset: str) -> None:
    setattr(settings, unset, "")
    form = FORM | {"AccountSid": settings.TWILIO_ACCOUNT_SID}
    assert call(form, token=settings.TWILIO_AUTH_TOKEN).status_code == 403


@pytest.mark.parametrize(
    ("base", "signed_for"),
    [
        (BASE, f"{BASE}:443"),
        ("http://safety.example.org", "http://safety.example.org:80"),
        (f"{BASE}:8443", f"{BASE}:8443"),
        (f"{BASE}:8443", BASE),
    ],
)
def test_the_port_may_be_signed_or_not(settings: Any, base: str, signed_for: str) -> None:
    settings.PUBLIC_BASE_URL = base
    assert call(url=signed_for + PATH).status_code == 200


def test_behind_a_proxy_the_public_address_counts_not_the_host_header() -> None:
    assert call(headers={"Host": "web:8000", "X-Forwarded-Host": "elsewhere.example"}).status_code == 200
    forged = "https://attacker.example"
    assert call(url=forged + PATH, headers={"Host": "attacker.example"}).status_code == 403


def test_the_query_string_is_signed_too() -> None:
    query = "?n=2&name=a%20b+c"
    assert call(path=PATH + query, url=BASE + PATH + query).status_code == 200
    assert call(path=PATH + "?n=3", url=BASE + PATH + query).status_code == 403
    assert call(path=PATH, url=BASE + PATH + query).status_code == 403


def test_repeated_and_foreign_parameters_are_signed_as_twilio_signs_them() -> None:
    request = RequestFactory().post(PATH, FORM | {"Media": ["b", "a", "b"], "Body": "नमस्ते 🙂", "Empty": ""})
    request.META["HTTP_X_TWILIO_SIGNATURE"] = sign(BASE + PATH, request.POST)
    assert view(request).status_code == 200


def test_a_body_that_is_no_form_is_refused() -> None:
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        request = RequestFactory().post(PATH, b'{"\xff\x00', content_type=content_type)
        request.META["HTTP_X_TWILIO_SIGNATURE"] = sign(BASE + PATH, {})
        assert view(request).status_code == 403


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_other_methods_are_not_allowed(method: str) -> None:
    request = getattr(RequestFactory(), method)(PATH, headers={"X-Twilio-Signature": sign(BASE + PATH, {})})
    assert view(request).status_code == 405


def test_no_form_token_of_the_site_is_asked_for() -> None:
    assert getattr(view, "csrf_exempt", False)


def test_an_empty_secret_is_never_right() -> None:
    assert not hooks.same_secret("", "")
    assert not hooks.same_secret("a", "")
    assert not hooks.same_secret("\udcff", "a")
    assert hooks.same_secret("a-b", "a-b")


def test_the_log_does_not_tell_the_secret_of_a_path(caplog: pytest.LogCaptureFixture) -> None:
    hooks.refuse(RequestFactory().post("/hooks/fast2sms/not-the-secret"))
    assert "/hooks/fast2sms" in caplog.text
    assert "not-the-secret" not in caplog.text
