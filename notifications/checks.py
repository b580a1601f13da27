"""System checks: what would keep messages from leaving, said at start."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from notifications.carriers import routing


@checks.register(checks.Tags.security)
def half_credentials(app_configs: Sequence[Any] | None, **_kwargs: Any) -> list[checks.CheckMessage]:  # noqa: ARG001
    """A carrier with half its credentials is no carrier, and nothing is simulated in its place."""
    problems = (*routing.problems(), *routing.push_problems())
    hint = "Set all of its settings, or none; .env.example lists them."
    return [checks.Warning(problem, hint=hint, id="notifications.W002") for problem in problems]


@checks.register(checks.Tags.security, deploy=True)
def simulated_in_production(app_configs: Sequence[Any] | None, **_kwargs: Any) -> list[checks.CheckMessage]:  # noqa: ARG001
    """Without a carrier nobody is alerted, however well it looks."""
    if settings.DEBUG or routing.real_carrier_configured():
        return []
    return [
        checks.Warning(
            "No carrier is configured: texts are only simulated.",
            hint="Set the credentials of Twilio or Fast2SMS.",
            id="notifications.W001",
        )
    ]
