"""The page that a contact's alert links to: what happened, where, and who helps. No login; the link is the key.

And what Twilio asks while a contact is on the phone.
"""

import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.shortcuts import redirect, render
from django.utils import timezone, translation
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST

from casualmeet import clock
from casualmeet.pages import missing_is_404, secret_link
from notifications import push_views
from notifications.carriers import twiml
from notifications.hooks import count, twilio_webhook
from notifications.texts import Ending, compose_ending, moments
from sos import contact_answers, incidents, voice
from sos.models import AlertedContact, Source

logger = logging.getLogger(__name__)

ANSWERS: Final[dict[str, Callable[[AlertedContact], bool]]] = {
    "helping": contact_answers.acknowledge,
    "reached": contact_answers.report_reached,
    "declined": contact_answers.decline,
}


@require_http_methods(["GET", "HEAD", "POST"])
@secret_link
@missing_is_404
def alert_page(request: HttpRequest, token: str) -> HttpResponse:
    """GET shows the incident, POST says "I'm helping" or another answer; times are those of the person in danger.

    It speaks the language of the contact's texts.
    """
    contact = incidents.access_alert_page(token, now=clock.now())
    if request.method == "POST":
        verb = ANSWERS.get(request.POST.get("answer", "helping"))
        if verb is None:
            return HttpResponse("There is no such answer.", status=400, content_type="text/plain")
        verb(contact)
        return redirect("alert", token=token)
    incident = contact.incident
    others = AlertedContact.objects.filter(incident=incident, acknowledged_at__isnull=False).exclude(pk=contact.pk)
    facts = {
        "contact": contact,
        "incident": incident,
        "person": incident.person,
        "others": others.order_by("acknowledged_at"),
        "missed_check_in": incident.source == Source.TIMER_EXPIRED,
        # Their phone may be in the wrong hands; the page says so without saying why.
        "may_call": incident.source != Source.DURESS and bool(incident.person.phone),
        "tile_url": settings.MAP_TILE_URL,
        "push": push_views.offer(contact.contact_id),
        "now": clock.now(),
    }
    with translation.override(contact.language), timezone.override(moments.zone(incident.person.time_zone)):
        return render(request, "sos/alert.html", facts)


@csrf_exempt
@require_POST
@secret_link
@missing_is_404
def push_to_contact(request: HttpRequest, token: str) -> HttpResponse:
    """Have the contact's browser alerted too, about this incident and later ones."""
    contact = incidents.access_alert_page(token, now=clock.now())
    return push_views.subscribed(request, contact.contact_id)


@csrf_exempt
@require_POST
@secret_link
@missing_is_404
def no_push_to_contact(request: HttpRequest, token: str) -> HttpResponse:
    """End the notifications in the contact's browser, about this incident and later ones."""
    contact = incidents.access_alert_page(token, now=clock.now())
    return push_views.left(request, contact.contact_id)


@require_POST
@secret_link
@missing_is_404
def alert_opened(request: HttpRequest, token: str) -> HttpResponse:  # noqa: ARG001 - as Django calls it
    """The page's script says that somebody looks at it; opening the page itself changes nothing (P9)."""
    contact_answers.record_opened(incidents.access_alert_page(token, now=clock.now()))
    return HttpResponse(status=204)


@twilio_webhook
def voice_key(request: HttpRequest, attempt_id: UUID) -> HttpResponse:
    """A key was pressed in a call, or none in time; the answer is what the call does next.

    Whatever fails, the contact hears words, not a carrier's "application error".
    """
    typed = request.GET.get("n", "")
    said = int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 4 else 1
    try:
        document = voice.answer(
            attempt_id,
            key=request.POST.get("Digits", "")[:1],
            answered_by=request.POST.get("AnsweredBy", ""),
            said=said,
        )
    except voice.Replayed:
        count(request, "nothing_new")
        return HttpResponseForbidden()
    except voice.UnknownCall:
        document = twiml.say(compose_ending(Ending.OUT_OF_DATE, "en"), language="en")
        count(request, "unknown_id")
    except Exception:
        logger.exception("A key pressed in a call could not be dealt with")
        document = twiml.say(compose_ending(Ending.NOT_SAVED, "en"), language="en")
        count(request, "failed")
    else:
        count(request, "recorded")
    return HttpResponse(document, content_type="text/xml; charset=utf-8")
