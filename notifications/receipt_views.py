"""Where carriers tell what became of a message. Twilio's word counts; Fast2SMS's, unsigned, only makes us ask it."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, QueryDict
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from casualmeet import clock
from notifications import hooks, polling, receipts
from notifications.carriers.twilio_status import call_status
from notifications.models import DeliveryAttempt

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_IDS: Final = 100


@hooks.twilio_webhook
def twilio_status(request: HttpRequest, attempt_id: UUID) -> HttpResponse:
    """A status callback for a message or a call: always 204, or Twilio would call again and log an error."""
    form = request.POST
    status, carrier = form.get("MessageStatus", ""), "twilio"
    if "CallSid" in form:
        status, carrier = call_status(form.get("CallStatus", ""), form.get("AnsweredBy")), receipts.CALLS
    code, message_id = form.get("ErrorCode", ""), form.get("CallSid") or form.get("MessageSid", "")
    recorded = receipts.record(attempt_id, status, code=code, carrier=carrier, now=clock.now(), message_id=message_id)
    known = recorded or DeliveryAttempt.objects.filter(pk=attempt_id).exists()
    hooks.count(request, "recorded" if recorded else "nothing_new" if known else "unknown_id")
    return HttpResponse(status=204)


@csrf_exempt
@require_http_methods(["POST", "PUT"])
def fast2sms_status(request: HttpRequest, secret: str) -> HttpResponse:
    """Fast2SMS's delivery webhook. It is not signed, so it decides nothing: what it names is asked for at once."""
    if not hooks.same_secret(secret, settings.FAST2SMS_WEBHOOK_SECRET):
        return hooks.refuse(request)
    request_ids = list(_request_ids(request))[:_MOST_IDS]
    if not request_ids:
        hooks.count(request, "unreadable")
        return HttpResponseBadRequest("No request_id.", content_type="text/plain")
    known = polling.ask_soon("fast2sms", request_ids, now=clock.now())
    hooks.count(request, "recorded" if known else "unknown_id")
    return HttpResponse(status=204)


def _request_ids(request: HttpRequest) -> Iterator[str]:
    """Every `request_id` in a JSON body or a form, whatever else is in there."""
    try:
        content: Any = json.loads(request.body)
    except (ValueError, RecursionError):
        content = request.POST if request.content_type == "multipart/form-data" else QueryDict(request.body)
    rows = content if isinstance(content, list) else [content]
    for row in rows:
        found = row.get("request_id") if isinstance(row, dict) else None
        if isinstance(found, str) and _REQUEST_ID.fullmatch(found.strip()):
            yield found.strip()
