"""System checks: settings under which a promise to the person could not be kept."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from safety import failsafe
from safety.failsafe_alerts import LEAD


@checks.register(checks.Tags.security)
def fail_safe(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Backup alerts need a carrier that keeps them, and the time to hand them over."""
    if not settings.FAIL_SAFE:
        return
    if missing := failsafe.missing_settings():
        yield checks.Error(
            f"FAIL_SAFE is on, but no backup alert can be scheduled: {', '.join(missing)} is not set.",
            hint="Only a Twilio Messaging Service keeps messages. Set it up, or turn FAIL_SAFE off.",
            id="safety.E001",
        )
    if LEAD.total_seconds() > settings.FAIL_SAFE_MARGIN_SECONDS:
        yield checks.Warning(
            f"FAIL_SAFE_MARGIN_SECONDS is under {LEAD.total_seconds():.0f}: Twilio takes nothing that is nearer than "
            "five minutes, so a short timer, or one extended near its end, would have no backup alert.",
            hint="600 is the default.",
            id="safety.W001",
        )


@checks.register(checks.Tags.security)
def check_prompts(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """A prompt at the deadline or after it would come too late."""
    stray = set(settings.CHECK_PROMPT_SMS_MINUTES) - set(settings.CHECK_PROMPT_MINUTES)
    if stray or min(settings.CHECK_PROMPT_MINUTES, default=1) < 1:
        yield checks.Warning(
            "Some check prompts are never sent.",
            hint="CHECK_PROMPT_MINUTES are whole minutes from 1 up; CHECK_PROMPT_SMS_MINUTES are some of them.",
            id="safety.W002",
        )
