"""System checks of `manage.py check --deploy`: what this site must not go public without. Each hint says what to do.

Carriers are checked in `notifications/checks.py`, the promises to the person in `safety/checks.py`.
"""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks

PLACEHOLDERS = ("change-me", "changeme", "django-insecure-", "secret")


def leads_outside(url: str) -> bool:
    """Whether the URL's host is one that other machines can mean: a name with a dot, or a public address."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".localhost", ".local", ".internal", ".invalid", ".test"))


@checks.register(checks.Tags.security, deploy=True)
def public_address(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Links in texts start with PUBLIC_BASE_URL, and carriers call it."""
    public = settings.PUBLIC_BASE_URL
    if not public.startswith("https://"):
        yield checks.Error(
            f"PUBLIC_BASE_URL is {public}: passwords, positions and links of alerts would travel in the clear.",
            hint="Set it to the https:// address that people use.",
            id="casualmeet.E001",
        )
    if not leads_outside(public):
        yield checks.Error(
            f"PUBLIC_BASE_URL is {public}: a contact can't open a link that leads there, nor a carrier report to it.",
            hint="Set it to the address under which this site is reached from outside.",
            id="casualmeet.E002",
        )
    if "*" in settings.ALLOWED_HOSTS:
        yield checks.Error(
            "ALLOWED_HOSTS has a *: any page of any name that points here could open live sockets.",
            hint="List the names of this site.",
            id="casualmeet.E004",
        )
    if public.startswith("https://") and getattr(settings, "SECURE_PROXY_SSL_HEADER", None) is None:
        yield checks.Warning(
            "TRUST_X_FORWARDED_PROTO is off: behind a proxy that ends TLS every page redirects to itself for ever.",
            hint="Set it to on, and have the proxy overwrite X-Forwarded-Proto and X-Forwarded-For (deploy/nginx.conf).",
            id="casualmeet.W004",
        )


@checks.register(checks.Tags.security, deploy=True)
def secret_key(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """Django itself looks at the length (security.W009, W025)."""
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        if key.lower().startswith(PLACEHOLDERS):
            yield checks.Error(
                "SECRET_KEY or SECRET_KEY_FALLBACKS is still a placeholder: anybody could sign in as anybody.",
                hint='Make one: python -c "import secrets; print(secrets.token_urlsafe(48))".',
                id="casualmeet.E003",
            )


@checks.register(checks.Tags.database, deploy=True)
def many_processes(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """What more than one machine, or more than one process, needs."""
    if settings.DATABASE_URL.startswith("sqlite:"):
        yield checks.Warning(
            "The database is SQLite: one machine, one expiry worker, and its disk is all there is.",
            hint="Set DATABASE_URL to PostgreSQL or a MongoDB replica set.",
            id="casualmeet.W001",
        )
    elif not settings.REDIS_URL:
        yield checks.Warning(
            "REDIS_URL is not set: more than one process needs Redis for instant wake-ups; without it each one polls.",
            hint="Set REDIS_URL to a Redis that every process reaches.",
            id="casualmeet.W002",
        )


@checks.register(checks.Tags.security, deploy=True)
def somebody_notices(app_configs: Sequence[Any] | None, **_kwargs: Any) -> Iterator[checks.CheckMessage]:  # noqa: ARG001
    """An installation that fails in silence is worse than none."""
    if not settings.METRICS_TOKEN:
        yield checks.Warning(
            "METRICS_TOKEN is not set: /metrics is closed, so nothing can raise the alarms of deploy/prometheus.",
            hint="Make a long random token, and give it to Prometheus too.",
            id="casualmeet.W005",
        )
    if not settings.DEADMAN_URL:
        yield checks.Warning(
            "DEADMAN_URL is not set: nobody outside notices when this whole installation is gone.",
            hint="Set it to the ping address of a dead man's switch at another provider.",
            id="casualmeet.W006",
        )
