"""The page that a contact's alert links to: what happened, where, and who helps. No login; the link is the key."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST

from casualmeet import clock
from casualmeet.pages import missing_is_404, secret_link
from notifications import push_views
from notifications.texts import moments
from sos import incidents
from sos.models import AlertedContact, Source


@require_http_methods(["GET", "HEAD", "POST"])
@secret_link
@missing_is_404
def alert_page(request: HttpRequest, token: str) -> HttpResponse:
    """GET shows the incident, POST says "I'm helping"; times are those of the person in danger."""
    contact = incidents.access_alert_page(token, now=clock.now())
    if request.method == "POST":
        incidents.acknowledge(contact)
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
    with timezone.override(moments.zone(incident.person.time_zone)):
        return render(request, "sos/alert.html", facts)


@csrf_exempt
@require_POST
@secret_link
@missing_is_404
def push_to_contact(request: HttpRequest, token: str) -> HttpResponse:
    """Have the contact's browser alerted too, about this incident and later ones."""
    contact = incidents.access_alert_page(token, now=clock.now())
    return push_views.subscribed(request, contact.contact_id)
