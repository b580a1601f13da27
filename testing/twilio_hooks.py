"""Twilio's side of its webhooks: signed as the official library says."""

from typing import Any, Final

from django.conf import settings
from django.test import Client
from twilio.request_validator import RequestValidator

ACCOUNT: Final = "AC" + "0" * 32
TOKEN: Final = "0123456789abcdef0123456789abcdef"


def configure(site_settings: Any) -> None:
    """The account that the site knows; `site_settings` is pytest-django's fixture."""
    site_settings.TWILIO_ACCOUNT_SID = ACCOUNT
    site_settings.TWILIO_AUTH_TOKEN = TOKEN


def post(client: Client, path: str, fields: dict[str, str], *, token: str = TOKEN) -> Any:
    """Post the form to the site's `path` (with its query), signed with the token."""
    form = {"AccountSid": ACCOUNT, **fields}
    signature = RequestValidator(token).compute_signature(f"{settings.PUBLIC_BASE_URL}{path}", form)
    return client.post(path, form, headers={"X-Twilio-Signature": signature})
