"""`manage.py check --deploy`: every check speaks when it should, is silent when all is well, and says what to do."""

from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks

from casualmeet.checks import leads_outside
from notifications.carriers import routing

# Django's own checks look at what test runs change too.
OURS = ("casualmeet.", "notifications.", "safety.")
KEY = "k3y-" + "".join(chr(97 + number * 7 % 26) for number in range(60))


@pytest.fixture
def production(settings: Any) -> Any:
    """Settings with which nothing is wrong."""
    settings.DEBUG = False
    settings.PUBLIC_BASE_URL = "https://safety.example.org"
    settings.ALLOWED_HOSTS = ["safety.example.org"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SECRET_KEY = KEY
    settings.SECRET_KEY_FALLBACKS = []
    settings.DATABASE_URL = "postgres://casualmeet:x@db/casualmeet"
    settings.REDIS_URL = "redis://redis:6379/0"
    settings.METRICS_TOKEN = "m" * 40
    settings.DEADMAN_URL = "https://ping.example.net/1"
    settings.TWILIO_ACCOUNT_SID = "AC" + "0" * 32
    settings.TWILIO_AUTH_TOKEN = "x" * 32
    settings.TWILIO_FROM = "+15005550006"
    settings.FAST2SMS_API_KEY = "f" * 40
    settings.FAST2SMS_WEBHOOK_SECRET = "w" * 43
    return settings


def found() -> list[CheckMessage]:
    routing.reset()
    messages = run_checks(include_deployment_checks=True)
    return [message for message in messages if str(message.id).startswith(OURS)]


def ids() -> set[str]:
    return {str(message.id) for message in found()}


def test_nothing_is_said_when_all_is_well(production: Any) -> None:
    assert found() == []


WRONG = {
    "casualmeet.E001": {"PUBLIC_BASE_URL": "http://safety.example.org"},
    "casualmeet.E002": {"PUBLIC_BASE_URL": "https://localhost"},
    "casualmeet.E003": {"SECRET_KEY": "change-me-to-a-long-random-text"},
    "casualmeet.E004": {"ALLOWED_HOSTS": ["safety.example.org", "*"]},
    "casualmeet.W001": {"DATABASE_URL": "sqlite:///var/casualmeet.sqlite3"},
    "casualmeet.W002": {"REDIS_URL": ""},
    "casualmeet.W004": {"SECURE_PROXY_SSL_HEADER": None},
    "casualmeet.W005": {"METRICS_TOKEN": ""},
    "casualmeet.W006": {"DEADMAN_URL": ""},
    "notifications.E001": {
        "TWILIO_ACCOUNT_SID": "",
        "TWILIO_AUTH_TOKEN": "",
        "TWILIO_FROM": "",
        "FAST2SMS_API_KEY": "",
    },
    "notifications.E002": {"TWILIO_API_BASE_URL": "http://localhost:8001"},
    "notifications.W002": {"VAPID_PRIVATE_KEY": "not a key"},
    "notifications.W003 notifications.W004": {"TWILIO_ACCOUNT_SID": "", "TWILIO_AUTH_TOKEN": "", "TWILIO_FROM": ""},
    "notifications.W004": {"TWILIO_FROM": "SAFETY"},
    "notifications.W005": {"FAST2SMS_WEBHOOK_SECRET": "short"},
}


@pytest.mark.parametrize(("expected", "wrong"), WRONG.items(), ids=WRONG.keys())
def test_what_is_wrong_is_said_alone_and_with_what_to_do(production: Any, expected: str, wrong: dict[str, Any]) -> None:
    for name, value in wrong.items():
        setattr(production, name, value)
    messages = found()
    assert {message.id for message in messages} == set(expected.split())
    assert all(message.hint for message in messages)


@pytest.mark.parametrize("name", ["TWILIO_API_BASE_URL", "FAST2SMS_API_BASE_URL", "FCM_API_BASE_URL"])
@pytest.mark.parametrize(
    "url", ["http://api.twilio.com", "https://127.0.0.1", "https://carrier", "https://10.0.0.8:8001"]
)
def test_no_carrier_in_production_is_a_simulator_but_one_on_a_developers_machine_may_be(
    production: Any, name: str, url: str
) -> None:
    setattr(production, name, url)
    assert ids() == {"notifications.E002"}
    production.DEBUG = True
    assert ids() == set()


def test_a_placeholder_among_the_old_keys_counts_too(production: Any) -> None:
    production.SECRET_KEY_FALLBACKS = ["django-insecure-" + "x" * 40]
    assert ids() == {"casualmeet.E003"}


def test_no_secret_is_ever_printed(production: Any) -> None:
    production.SECRET_KEY = "change-me-" + "s3cr3t" * 9
    production.FAST2SMS_WEBHOOK_SECRET = "hunter2"
    assert not [message for message in found() if "s3cr3t" in str(message) or "hunter2" in str(message)]


@pytest.mark.parametrize(
    ("url", "outside"),
    [
        ("https://safety.example.org", True),
        ("https://safety.example.org:8443/x", True),
        ("https://93.184.216.34", True),
        ("https://[2606:2800:220:1::1]", True),
        ("https://localhost", False),
        ("https://web.localhost", False),
        ("https://web", False),
        ("https://printer.local", False),
        ("https://192.168.1.2", False),
        ("https://[::1]:8000", False),
        ("https://", False),
    ],
)
def test_which_addresses_lead_outside(url: str, outside: bool) -> None:
    assert leads_outside(url) is outside
