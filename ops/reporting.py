"""Tells the operators, outside the product, what they should look at: Sentry, and whoever is on call.

On call means PagerDuty's Events API v2, or anything that takes the same (developer.pagerduty.com, "Send an alert
event"): a POST of JSON, answered 202; 429 and 5xx may be sent again, another 4xx never.
"""

import logging
import socket
import time
from collections.abc import Mapping
from typing import Literal

import requests
from django.conf import settings

from casualmeet.logs import mask
from casualmeet.sentry import masked
from ops.threads import in_thread

logger = logging.getLogger(__name__)

Severity = Literal["critical", "error", "warning", "info"]

# How long a call may hold up its caller, whatever the other side does.
LIMIT_SECONDS = 5.0
FLUSH_SECONDS = 2.0
FIRST_WAIT_SECONDS = 0.3
# PagerDuty's own limits.
SUMMARY_LENGTH = 1024
KEY_LENGTH = 255

_LEVELS = {"critical": logging.CRITICAL, "error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
_SENTRY_LEVELS = {"critical": "fatal"}


def report(title: str, *, key: str, severity: Severity = "error", details: Mapping[str, object] | None = None) -> None:
    """Tell the operators. What has the same `key` is one matter: told again, it alarms nobody a second time.

    Always logged; to Sentry and to whoever is on call where these are configured. Never raises, and holds the caller
    up for 5 s at most. Phone numbers and positions are masked.
    """
    title = mask(title)
    told: dict[str, object] = masked(dict(details or {}))
    logger.log(_LEVELS[severity], "%s [%s] %s", title, key, told or "")
    try:
        _to_sentry(title, key, severity, told)
    except Exception:
        logger.exception("Sentry was not told")
    payload = {
        "summary": title[:SUMMARY_LENGTH],
        "source": socket.gethostname() or "casualmeet",
        "severity": severity,
        "component": "casualmeet",
        "custom_details": told,
    }
    _on_call("trigger", key, payload=payload, client="CasualMeet Safety", client_url=settings.PUBLIC_BASE_URL)


def acknowledge(key: str) -> None:
    """Tell whoever is on call that somebody works on the matter. Never raises."""
    _on_call("acknowledge", key)


def resolve(key: str) -> None:
    """Tell whoever is on call that the matter is over. Never raises; of a matter never reported, nothing comes."""
    _on_call("resolve", key)


def flush() -> None:
    """Wait until Sentry has what it was told, for a process that ends without a word to it. At most 2 s."""
    if settings.SENTRY_DSN:
        import sentry_sdk  # noqa: PLC0415 - takes a while, and few settings name a project

        sentry_sdk.flush(FLUSH_SECONDS)


def _to_sentry(title: str, key: str, severity: Severity, details: dict[str, object]) -> None:
    """Leave it with Sentry's own thread."""
    if not settings.SENTRY_DSN:
        return
    import sentry_sdk  # noqa: PLC0415 - takes a while, and few settings name a project

    with sentry_sdk.new_scope() as scope:
        scope.fingerprint = [key]
        scope.set_tag("report", key)
        scope.set_context("details", details)
        sentry_sdk.capture_message(title, level=_SENTRY_LEVELS.get(severity, severity))  # type: ignore[arg-type]


def _on_call(action: str, key: str, **more: object) -> None:
    if settings.PAGERDUTY_ROUTING_KEY:
        event = {
            "routing_key": settings.PAGERDUTY_ROUTING_KEY,
            "event_action": action,
            "dedup_key": mask(key)[:KEY_LENGTH],
            **more,
        }
        _within_limit(event)


def _post(event: dict[str, object]) -> None:
    """Send the event, again after what passes. Says in the log, without the routing key, if it could not."""
    deadline = time.monotonic() + LIMIT_SECONDS
    wait = FIRST_WAIT_SECONDS
    while True:
        trouble, passing = _post_once(event, deadline - time.monotonic())
        if not trouble:
            return
        if not passing or time.monotonic() + wait >= deadline:
            logger.error(
                "Whoever is on call was not told (%s, %s): %s", event["event_action"], event["dedup_key"], trouble
            )
            return
        time.sleep(wait)
        wait *= 2


def _post_once(event: dict[str, object], seconds: float) -> tuple[str, bool]:
    """What went wrong, or nothing, and whether it may pass."""
    try:
        answer = requests.post(
            settings.PAGERDUTY_EVENTS_URL, json=event, timeout=max(seconds, 0.1), allow_redirects=False
        )
    except requests.RequestException as error:
        return type(error).__name__, True
    if answer.ok and not answer.is_redirect:
        return "", False
    return f"status {answer.status_code}", answer.status_code == 429 or answer.status_code >= 500


def _within_limit(event: dict[str, object]) -> None:
    """Post it in a thread, and go on without it after the limit: a server that drips its answer byte by byte meets
    no time limit of the HTTP client.
    """
    try:
        in_thread(lambda: _post(event)).result(LIMIT_SECONDS)
    except TimeoutError:
        pass  # the thread says what becomes of it
    except Exception:
        logger.exception("Whoever is on call was not told")
