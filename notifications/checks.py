"""System checks: what would keep messages from leaving, said at start."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from casualmeet.checks import leads_outside
from notifications.carriers import routing

CARRIER_ADDRESSES = ("TWILIO_API_BASE_URL", "FAST2SMS_API_BASE_URL", "FCM_API_BASE_URL")
SHORTEST_WEBHOOK_SECRET = 20


@checks.register(checks.Tags.security)
def half_credentials(app_configs: Sequence[Any] | None, **_kwargs: Any) -> list[checks.CheckMessage]:  # noqa: ARG001
    """A carrier with half its credentials is no carrier, and nothing is simulated in its place."""
    problems = (*routing.problems(), *routing.push_problems())
    hint = "Set all of its settings, or none; .env.example lists them."
    return [checks.Warning(problem, hint=hint, id="notifications.W002") for problem in problems]


@checks.register(checks.Tags.security, deploy=True)
def carriers(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Without a carrier nobody is alerted, however well it looks."""
    if settings.DEBUG:
        return
    found = routing.configured()
    if not routing.real_carrier_configured():
        yield checks.Error(
            "No carrier is configured: no text leaves this installation.",
            hint="Set the credentials of Twilio or Fast2SMS.",
            id="notifications.E001",
        )
        return
    if "twilio" not in found:
        yield checks.Warning(
            "Texts go to +91 only: Twilio, the carrier of all other countries, is not configured.",
            hint="Set the credentials of Twilio, unless all your contacts are in India.",
            id="notifications.W003",
        )
    if "twilio-voice" not in found:
        yield checks.Warning(
            "Nobody is called: contacts who are not reached by text are only texted again.",
            hint="Set Twilio's credentials and TWILIO_VOICE_FROM (or a number in TWILIO_FROM).",
            id="notifications.W004",
        )


@checks.register(checks.Tags.security, deploy=True)
def carrier_addresses(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Another address is for tests: there, alerts end in a simulator, and credentials travel in the clear."""
    if settings.DEBUG:
        return
    for name in CARRIER_ADDRESSES:
        url = getattr(settings, name)
        if not url.startswith("https://") or not leads_outside(url):
            yield checks.Error(
                f"{name} is {url}: that is no carrier.",
                hint="Leave it unset in production.",
                id="notifications.E002",
            )


@checks.register(checks.Tags.security, deploy=True)
def webhook_secret(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Fast2SMS signs nothing; the secret part of the address is all that tells it from anybody."""
    if settings.FAST2SMS_API_KEY and len(settings.FAST2SMS_WEBHOOK_SECRET) < SHORTEST_WEBHOOK_SECRET:
        yield checks.Warning(
            "FAST2SMS_WEBHOOK_SECRET is not set, or short: what became of a text is known minutes later, or told by "
            "anybody.",
            hint='Make one: python -c "import secrets; print(secrets.token_urlsafe(32))". docs/operators.md says where '
            "to enter it at Fast2SMS.",
            id="notifications.W005",
        )
