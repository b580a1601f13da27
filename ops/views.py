"""Health, for load balancers and supervisors."""

from django.contrib.sessions.models import Session
from django.db.utils import DatabaseError, InterfaceError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@require_safe
@never_cache
def healthz(_request: HttpRequest) -> JsonResponse:
    """200 when this process serves and the database answers, else 503."""
    try:
        Session.objects.exists()
    except (DatabaseError, InterfaceError):
        return JsonResponse({"status": "database unavailable"}, status=503)
    return JsonResponse({"status": "ok"})
