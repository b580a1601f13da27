"""The guard of the addresses that Twilio calls: what is not signed with our token changes nothing.

Twilio docs, "Security" (validating requests): HMAC-SHA1 with the account's auth token over the URL that Twilio called,
query included, and every parameter of the form; with or without the port in the URL.
"""

import hmac
import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from twilio.request_validator import RequestValidator

from ops import metrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")


def twilio_webhook(
    view: Callable[Concatenate[HttpRequest, P], HttpResponse],
) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """A view that only Twilio can call: POST (else 405), signed and for our account (else 403, view not called).

    A callback that comes again has the same signature: the view itself must bear repeats.
    """

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not is_from_twilio(request):
            return refuse(request)
        return view(request, *args, **kwargs)

    return csrf_exempt(require_POST(guarded))


def is_from_twilio(request: HttpRequest) -> bool:
    """Whether the form was signed with our token, or with the one before it, and names our account.

    The URL is rebuilt from PUBLIC_BASE_URL: behind a proxy Host is another one, and anybody can send any.
    """
    url = settings.PUBLIC_BASE_URL + request.get_full_path()
    signature = request.headers.get("X-Twilio-Signature", "")
    account = settings.TWILIO_ACCOUNT_SID
    # An empty token is no secret: with it anybody could sign.
    tokens = [token for token in (settings.TWILIO_AUTH_TOKEN, settings.TWILIO_AUTH_TOKEN_PREVIOUS) if token]
    signed = any(RequestValidator(token).validate(url, request.POST, signature) for token in tokens)
    return signed and bool(account) and request.POST.getlist("AccountSid") == [account]


def same_secret(given: str, expected: str) -> bool:
    """Compared in constant time; never equal when none is expected."""
    return bool(expected) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def count(request: HttpRequest, result: str) -> None:
    """A call of a hook, by the name of its address and what we made of it."""
    match = request.resolver_match
    metrics.callback(match.url_name if match and match.url_name else "unknown", result)


def refuse(request: HttpRequest) -> HttpResponse:
    """403, counted. The log names the kind of hook only: the rest of the path may hold a secret."""
    count(request, "forged")
    kind = "/".join(request.path.split("/")[:3])
    logger.warning("Refused a webhook on %s: it is not from the carrier", kind)
    return HttpResponseForbidden()
