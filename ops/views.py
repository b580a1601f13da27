"""Health, for load balancers and supervisors; metrics, for Prometheus."""

import hmac

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from casualmeet import shutdown
from ops import health
from ops.health import Health


@require_safe
@never_cache
def healthz(_request: HttpRequest) -> JsonResponse:
    """200: this process serves. It asks nobody else: one that is restarted because of its database helps nobody."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(_request: HttpRequest) -> JsonResponse:
    """200 when the database answers and is migrated, else 503 with the reasons; also while this process is stopped."""
    if shutdown.stopping.is_set():
        return _answer(Health(("This process is being stopped.",)))
    return _answer(health.ready.health())


@require_safe
@never_cache
def worker(_request: HttpRequest) -> JsonResponse:
    """200 when a timer worker and a dispatcher finished a cycle in the last 10 s and an audit in the last 90 s."""
    return _answer(health.working.health())


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """This process's counters and what the database knows, for the bearer of METRICS_TOKEN; without one 404."""
    if not settings.METRICS_TOKEN:
        raise Http404
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    expected = settings.METRICS_TOKEN.encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(REGISTRY), content_type=content_type)


def _answer(found: Health) -> JsonResponse:
    if found.reasons:
        return JsonResponse({"status": "failing", "reasons": found.reasons, **found.details}, status=503)
    return JsonResponse({"status": "ok", **found.details})
