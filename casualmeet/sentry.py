"""Errors to Sentry, without personal data: nothing of a request, no variables, and every text masked."""

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from casualmeet.logs import mask

if TYPE_CHECKING:
    from sentry_sdk._types import DataCollectionUserOptions
    from sentry_sdk.types import Event, Hint

# What this version of the SDK asks in place of `send_default_pii=False`, which it deprecates.
COLLECTED: "DataCollectionUserOptions" = {
    "user_info": False,
    "cookies": {"mode": "off"},
    "http_headers": {"request": {"mode": "off"}},
    "http_bodies": [],
    "url_query_params": {"mode": "off"},
    "database_query_data": False,
    "queues": False,
    "stack_frame_variables": False,
}
POSITION_KEYS = {"latitude", "longitude", "lat", "lng", "lon", "position"}


def start(dsn: str, *, environment: str) -> None:
    """Send errors of this process to the Sentry project that `dsn` names. ImproperlyConfigured for a wrong one."""
    import sentry_sdk  # noqa: PLC0415 - takes a while, and few settings name a project
    from sentry_sdk.integrations.django import DjangoIntegration  # noqa: PLC0415
    from sentry_sdk.integrations.logging import ignore_logger  # noqa: PLC0415
    from sentry_sdk.utils import BadDsn  # noqa: PLC0415

    try:
        sentry_sdk.init(
            dsn=dsn,
            environment=environment,
            data_collection=COLLECTED,
            before_send=before_send,
            # They hold the addresses that carriers are called at.
            max_breadcrumbs=0,
            # Else every request to a carrier would carry headers of Sentry's.
            trace_propagation_targets=[],
            auto_session_tracking=False,
            auto_enabling_integrations=False,
            integrations=[DjangoIntegration(middleware_spans=False)],
        )
    except BadDsn as error:
        raise ImproperlyConfigured(f"SENTRY_DSN must be like https://key@host/number: {error}.") from None
    # What it logs, it has sent already.
    ignore_logger("ops.reporting")
    # Anybody can cause as many of these as they like.
    ignore_logger("django.security.DisallowedHost")


def before_send(event: "Event", _hint: "Hint") -> "Event":
    """The event without its request (addresses hold secrets) and user, every text in it masked."""
    kept: Event = masked(event)
    kept.pop("request", None)
    kept.pop("user", None)
    return kept


def masked(value: Any) -> Any:
    """The value with all texts in it masked, at any depth; positions under names that tell them are left out."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {
            key: "[position]" if str(key).lower() in POSITION_KEYS else masked(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(inner) for inner in value]
    return value
