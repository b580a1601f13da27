"""What carriers call: texts that came in."""

import re
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.views.decorators.debug import sensitive_post_parameters

from notifications.hooks import count, twilio_webhook
from safety import replies

_MESSAGE_ID: Final = re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}")
_NUMBER: Final = re.compile(r"\+[1-9][0-9]{6,14}")


@twilio_webhook
@sensitive_post_parameters("Body")
def incoming_text(request: HttpRequest) -> HttpResponse:
    """A text to our number (Twilio docs, "Twilio's request to your application"): 204, or 403 for one dealt with before.

    What is answered goes through the outbox. A text without a number that one could answer is passed over.
    """
    message_id, sender = request.POST.get("MessageSid", ""), request.POST.get("From", "")
    if not _MESSAGE_ID.fullmatch(message_id) or not _NUMBER.fullmatch(sender):
        count(request, "unreadable")
        return HttpResponse(status=204)
    handled = replies.receive(
        message_id,
        sender=sender,
        body=request.POST.get("Body", ""),
        opt_out_type=request.POST.get("OptOutType", ""),
    )
    count(request, "recorded" if handled else "nothing_new")
    return HttpResponse(status=204) if handled else HttpResponseForbidden()
