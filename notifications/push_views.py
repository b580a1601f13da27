"""What browsers need for pushes: the service worker, the receipt it posts, and subscribing without a login."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from casualmeet.refusal import Refusal
from notifications import hooks, subscriptions
from notifications.carriers import webpush
from notifications.models import PushSubscription


@require_safe
@never_cache
def service_worker(request: HttpRequest) -> HttpResponse:
    """At the root, so that its scope is the whole site; never cached, so that a new one is used at once."""
    return render(request, "notifications/sw.js", content_type="text/javascript; charset=utf-8")


@csrf_exempt
@require_POST
def push_receipt(request: HttpRequest) -> HttpResponse:
    """A phone says that it has shown a push: `{"receipt": id}`. An unknown id, or garbage, gets the same answer."""
    receipt = _fields(request).get("receipt")
    try:
        attempt_id = UUID(receipt) if isinstance(receipt, str) else None
    except ValueError:
        attempt_id = None
    if attempt_id is None:
        hooks.count(request, "unreadable")
    else:
        hooks.count(request, "recorded" if subscriptions.note_shown(attempt_id) else "nothing_new")
    return HttpResponse(status=204)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a page needs to offer pushes to an owner.

    `key` is our public key, `owner` a name for the browser's own memory, `known` the SHA-256 digests of the endpoints
    that are subscribed, `lost` whether earlier ones stopped.
    """

    key: str
    owner: str
    known: str
    lost: bool


def offer(owner_id: UUID) -> Offer | None:
    """The offer to this owner; None where this site sends no pushes to browsers."""
    key = webpush.public_key()
    if not key:
        return None
    known, lost = subscriptions.standing(owner_id)
    return Offer(key, owner=hashlib.sha256(owner_id.bytes).hexdigest()[:16], known=" ".join(known), lost=lost)


def subscribed(request: HttpRequest, owner_id: UUID) -> JsonResponse:
    """Subscribe the browser that the request's JSON describes, for an owner whose secret link was called.

    For views that are exempt from the CSRF check: the secret is in the address, no cookie gives access.
    """
    fields = _fields(request)
    keys = fields.get("keys")
    given = [fields.get("endpoint"), *(keys.get(name) for name in ("p256dh", "auth"))] if isinstance(keys, dict) else []
    if len(given) != 3 or not all(isinstance(value, str) for value in given):
        return JsonResponse({"detail": "Send endpoint and keys.", "code": "invalid"}, status=422)
    endpoint, p256dh, auth = map(str, given)
    try:
        row = subscriptions.subscribe(
            owner_id, kind=PushSubscription.Kind.WEB_PUSH, endpoint=endpoint, p256dh=p256dh, auth=auth
        )
    except Refusal as refusal:
        return refused(refusal)
    return JsonResponse({"id": str(row.pk)}, status=201)


def left(request: HttpRequest, owner_id: UUID) -> HttpResponse:
    """End the pushes for this owner in the browser that the request's JSON names: `{"endpoint": …}`.

    For the same views as `subscribed`.
    """
    endpoint = _fields(request).get("endpoint")
    if not isinstance(endpoint, str):
        return JsonResponse({"detail": "Send the endpoint.", "code": "invalid"}, status=422)
    subscriptions.leave_browser(owner_id, endpoint)
    return HttpResponse(status=204)


def refused(refusal: Refusal) -> JsonResponse:
    """A refusal as JSON."""
    return JsonResponse({"detail": refusal.detail, "code": refusal.code}, status=refusal.status)


def _fields(request: HttpRequest) -> dict[str, Any]:
    try:
        fields = json.loads(request.body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
