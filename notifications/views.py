"""The person's notifications, and the phone that stands in for everybody's while no carrier is configured."""

from typing import cast
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from casualmeet import clock
from casualmeet.pages import missing_is_404
from notifications import inbox
from notifications.carriers import routing
from notifications.models import AttemptOutcome, DeliveryAttempt, Notification

NEWEST = 100


@require_safe
@login_required
@never_cache
def notifications_page(request: HttpRequest) -> HttpResponse:
    """The newest hundred."""
    rows = Notification.objects.filter(recipient_id=request.user.pk)[:NEWEST]
    return render(request, "notifications/notifications.html", {"notifications": rows, "now": clock.now()})


@require_POST
@login_required
@missing_is_404
def read_notification(request: HttpRequest, notification_id: UUID) -> HttpResponse:
    """Mark one read; again does no harm."""
    person_id = cast("UUID", request.user.pk)
    inbox.mark_read(inbox.access_notification(person_id, notification_id))
    messages.success(request, "Marked as read.")
    return redirect("notifications")


@require_safe
@never_cache
def simulated_phone(request: HttpRequest) -> HttpResponse:
    """The texts that the simulated carrier took, a thread for each number, the newest first."""
    if not phone_exists():
        raise Http404
    attempts = DeliveryAttempt.objects.filter(outcome=AttemptOutcome.ACCEPTED, delivery__simulated=True)
    threads: dict[str, list[DeliveryAttempt]] = {}
    for attempt in attempts.select_related("delivery").order_by("-started_at")[:NEWEST]:
        threads.setdefault(attempt.delivery.address, []).append(attempt)
    context = {"threads": threads, "simulator": settings.CARRIER_SIMULATOR_URL}
    return render(request, "notifications/phone.html", context)


def phone_exists() -> bool:
    """Only while developing, and only while no text can leave this installation."""
    return bool(settings.DEBUG) and not routing.real_carrier_configured()
