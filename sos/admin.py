"""Incidents in the admin: the list, and the page of one incident that moderators work from."""

import math
import zoneinfo
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from casualmeet import clock
from casualmeet.admin import ReadOnlyAdmin
from notifications import outbox
from notifications.admin import DeliveryAdmin
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus
from sos import wording
from sos.console import (
    Card,
    active_count,
    cards_of,
    fragment,
    now_in_milliseconds,
)
from sos.console_access import may_moderate, may_requeue, requeue, worth_requeueing
from sos.models import SosEvent

EARTH_RADIUS_M = 6_371_000.0
FOUND_INCIDENTS = 100
STATUS_WORDS = {
    DeliveryStatus.HELD: "Written down, not released yet",
    DeliveryStatus.QUEUED: "Waiting to be sent",
    DeliveryStatus.SENDING: "Being sent now",
    DeliveryStatus.ACCEPTED: "Accepted by the carrier; whether it arrived is not known",
    DeliveryStatus.DELIVERED: "Delivered to the phone",
    DeliveryStatus.DEAD: "Not sent: we have given up (dead letter)",
    DeliveryStatus.CANCELLED: "Cancelled before it was sent",
}
STATUS_TONES = {
    DeliveryStatus.ACCEPTED: "good",
    DeliveryStatus.DELIVERED: "good",
    DeliveryStatus.DEAD: "bad",
    DeliveryStatus.CANCELLED: "off",
}
OUTCOME_WORDS = {
    AttemptOutcome.OPEN: "No answer yet",
    AttemptOutcome.ACCEPTED: "Accepted by the carrier",
    AttemptOutcome.TRANSIENT: "Not sent, can be tried again",
    AttemptOutcome.PERMANENT: "Refused for good",
    AttemptOutcome.UNKNOWN: "Answer lost: it may have been sent",
}
KIND_WORDS = {
    "missed_check_in": "Alert: missed check-in",
    "sos": "Alert: SOS",
    "duress": "Alert: SOS (do not call)",
    "update": "Update",
    "all_clear": "All-clear",
}


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """One call to a carrier, for the incident page."""

    attempt: DeliveryAttempt

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        return OUTCOME_WORDS[AttemptOutcome(self.attempt.outcome)]

    @property
    def took(self) -> str:
        """How long the carrier took; empty while it has not answered."""
        if self.attempt.finished_at is None:
            return ""
        return f"{(self.attempt.finished_at - self.attempt.started_at).total_seconds():.1f} s"


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    """A message with what became of it, for the incident page."""

    delivery: Delivery
    attempts: Sequence[AttemptLine]
    may_requeue: bool

    @property
    def kind(self) -> str:
        """What the message is for."""
        return KIND_WORDS.get(self.delivery.kind, self.delivery.kind.replace("_", " ").capitalize())

    @property
    def status(self) -> str:
        """Where it stands, in words (P13: accepted is not delivered)."""
        if self.delivery.status == DeliveryStatus.ACCEPTED and self.delivery.simulated:
            return "Simulated: nothing was really sent"
        if self.delivery.status == DeliveryStatus.QUEUED and self.delivery.attempt_count:
            return "Failed so far, will be tried again"
        return STATUS_WORDS[DeliveryStatus(self.delivery.status)]

    @property
    def tone(self) -> str:
        """For the eye: good, bad, off or wait."""
        if self.delivery.simulated:
            return "off"
        return STATUS_TONES.get(DeliveryStatus(self.delivery.status), "wait")


@dataclass(frozen=True, slots=True)
class IncidentPage:
    """All that the page of one incident shows."""

    card: Card
    deliveries: Sequence[DeliveryLine]
    active_count: int
    tile_url: str = field(default_factory=lambda: settings.MAP_TILE_URL)

    @property
    def incident(self) -> SosEvent:
        """The incident."""
        return self.card.incident

    @property
    def elsewhere(self) -> int:
        """How many other incidents are active."""
        return self.active_count - self.incident.active

    @property
    def local_time(self) -> str:
        """When it happened by the person's clock; empty where that agrees with the moderator's."""
        try:
            there = self.incident.happened_at.astimezone(zoneinfo.ZoneInfo(self.incident.person.time_zone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return ""
        here = timezone.localtime(self.incident.happened_at)
        return f"{there:%H:%M %Z}" if there.utcoffset() != here.utcoffset() else ""

    @property
    def planned(self) -> str:
        """The coordinates of the planned place; empty without one."""
        return wording.coordinates(self.incident.planned_location)

    @property
    def from_planned(self) -> str:
        """How far the newest position is from the planned place, in words; empty where one is not known."""
        if not self.incident.location or not self.incident.planned_location:
            return ""
        metres = distance_m(self.incident.location["coordinates"], self.incident.planned_location["coordinates"])
        return wording.distance(metres)

    @property
    def timer_facts(self) -> list[tuple[str, Any]]:
        """What the timer that ran out was set to: (label, value), empty values left out; times as datetimes."""
        timer = self.incident.triggered_timer
        if timer is None:
            return []
        facts = [
            ("Started", timer.started_at),
            ("Deadline", timer.expires_at),
            ("Alarm due", timer.escalates_at if timer.escalates_at != timer.expires_at else None),
            ("Asked “are you OK?”", timer.check_sent_at),
            ("Length", wording.in_words(timer.duration_minutes * 60)),
            ("Grace", wording.in_words(timer.grace_minutes * 60) if timer.grace_minutes else ""),
            ("Meeting (member)", str(timer.meet_with_user) if timer.meet_with_user else ""),
            ("Note", timer.note),
            ("Alert", "Moderators only, by the person's choice" if timer.moderators_only else ""),
        ]
        return [(label, value) for label, value in facts if value]


def read_page(incident_id: UUID, *, user: Any) -> IncidentPage:
    """The page of one incident in a fixed number of queries; raises SosEvent.DoesNotExist."""
    incident = SosEvent.objects.select_related("person", "triggered_timer__meet_with_user").get(pk=incident_id)
    deliveries = list(Delivery.objects.filter(incident_id=incident.pk).order_by("created_at", "recipient_name", "id"))
    attempts: dict[UUID, list[AttemptLine]] = defaultdict(list)
    for attempt in DeliveryAttempt.objects.filter(delivery_id__in=[row.pk for row in deliveries]):
        attempts[attempt.delivery_id].append(AttemptLine(attempt))
    allowed = may_requeue(user)
    return IncidentPage(
        card=cards_of([incident])[0],
        deliveries=[
            DeliveryLine(
                row,
                attempts=attempts[row.pk],
                may_requeue=allowed and worth_requeueing(row, incident_active=incident.active),
            )
            for row in deliveries
        ],
        active_count=active_count(),
    )


def distance_m(one: Sequence[float], other: Sequence[float]) -> float:
    """Metres between two points (longitude, latitude) over the ground."""
    (lng1, lat1), (lng2, lat2) = ([math.radians(degrees) for degrees in point[:2]] for point in (one, other))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lng2 - lng1) / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(half, 1.0)))


@admin.register(SosEvent)
class SosEventAdmin(ReadOnlyAdmin):
    """Incidents: the product opens and closes them, moderators read them."""

    list_display = ["reference", "person", "source", "status", "opened_at", "late", "place_name", "resolved_at"]
    list_filter = ["status", "source"]
    list_select_related = ["person"]
    search_fields = ["reference", "place_name", "person__full_name", "person__username", "person__phone"]
    search_help_text = "Reference, place, or the person's name or number"

    @admin.display(description="late by", ordering="late_by")
    def late(self, incident: SosEvent) -> str:
        """In words."""
        return Card(incident).late or "–"

    def has_view_permission(self, request: HttpRequest, obj: SosEvent | None = None) -> bool:
        """Moderators."""
        return may_moderate(request.user)

    def get_urls(self) -> list[URLPattern]:
        """The list, the page, its live part, and the way to try a dead letter again."""
        return [
            path("<uuid:incident_id>/live/", fragment(self.live_part), name="sos_sosevent_live"),
            path(
                "<uuid:incident_id>/deliveries/<uuid:delivery_id>/requeue/",
                self.admin_site.admin_view(require_POST(self.requeue_view)),
                name="sos_sosevent_requeue",
            ),
            *super().get_urls(),
        ]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one incident. It has no form, so there is nothing to post to it."""
        if not self.has_view_permission(request) or request.method not in {"GET", "HEAD"}:
            raise PermissionDenied
        found = self.get_object(request, unquote(object_id))
        if found is None:
            return super().change_view(request, object_id)  # says that there is none
        page = read_page(found.pk, user=request.user)
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": f"{page.incident.reference} {page.incident.person.get_full_name()}",
            "opts": self.opts,
            "page": page,
            "fragment_url": reverse("admin:sos_sosevent_live", args=[found.pk]),
            "now_ms": now_in_milliseconds(),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "console/incident.html", context)

    def live_part(self, request: HttpRequest, incident_id: UUID) -> HttpResponse:
        """The part of the page that changes, for the script that keeps it up to date."""
        try:
            page = read_page(incident_id, user=request.user)
        except SosEvent.DoesNotExist:
            raise Http404 from None
        return TemplateResponse(request, "console/incident_fragment.html", {"page": page})

    def requeue_view(self, request: HttpRequest, incident_id: UUID, delivery_id: UUID) -> HttpResponse:
        """Try one dead letter of the incident again."""
        if not may_moderate(request.user) or not may_requeue(request.user):
            raise PermissionDenied
        delivery = Delivery.objects.filter(pk=delivery_id, incident_id=incident_id).first()
        if delivery is None:
            raise Http404
        if requeue(delivery):
            messages.success(request, f"The message to {delivery.recipient_name} is being sent again.")
        else:
            messages.warning(request, "Not sent again: it is no dead letter any more, or the incident is over.")
        return HttpResponseRedirect(reverse("admin:sos_sosevent_change", args=[incident_id]))


@admin.register(Delivery)
class IncidentDeliveryAdmin(DeliveryAdmin):
    """The outbox for moderators: found by incident; dead letters may be tried again, dead jobs given up.

    What may be tried again depends on whether the incident is still active, so this lives here.
    """

    actions = ["try_again", "discard"]
    list_display = [*DeliveryAdmin.list_display, "incident"]
    # Never by number or name, which would then stand in addresses and logs.
    search_fields = ["incident_id"]
    search_help_text = "The reference of an incident"

    @admin.display(description="incident")
    def incident(self, delivery: Delivery) -> str:
        """A link to its page."""
        if delivery.incident_id is None:
            return "–"
        return format_html('<a href="{}">open</a>', reverse("admin:sos_sosevent_change", args=[delivery.incident_id]))

    def has_view_permission(self, request: HttpRequest, obj: Delivery | None = None) -> bool:
        """Moderators with the permission to view deliveries."""
        return may_moderate(request.user) and super().has_view_permission(request, obj)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Who sees the actions, and whose are carried out."""
        return may_moderate(request.user) and may_requeue(request.user)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Delivery], search_term: str
    ) -> tuple[QuerySet[Delivery], bool]:
        """Those of the newest incidents with this reference, which is not unique for ever."""
        if reference := search_term.strip().upper():
            found = SosEvent.objects.filter(reference=reference).order_by("-opened_at")
            queryset = queryset.filter(incident_id__in=list(found.values_list("pk", flat=True)[:FOUND_INCIDENTS]))
        return queryset, False

    @admin.action(description="Try the selected dead letters again", permissions=["requeue"])
    def try_again(self, request: HttpRequest, deliveries: QuerySet[Delivery]) -> None:
        """Queue them again, except alarms of incidents that are over."""
        rows = list(deliveries)
        done = [row for row in rows if requeue(row)]
        self._note(request, done, "Tried again")
        messages.success(request, f"{len(done)} being sent again.")
        if left := len(rows) - len(done):
            messages.warning(request, f"{left} left alone: no dead letter, or an alarm of an incident that is over.")

    @admin.action(description="Discard the selected dead letters", permissions=["requeue"])
    def discard(self, request: HttpRequest, deliveries: QuerySet[Delivery]) -> None:
        """Give dead jobs up, so that what is still to be looked at stands out. Those of incidents stay."""
        rows = list(deliveries)
        done = [row for row in rows if outbox.discard(row.pk, now=clock.now())]
        self._note(request, done, "Discarded")
        messages.success(request, f"{len(done)} discarded.")
        if left := len(rows) - len(done):
            messages.warning(
                request, f"{left} left alone: no dead letter, or of an incident, which keeps its messages."
            )

    def _note(self, request: HttpRequest, rows: list[Delivery], what: str) -> None:
        """Who did it, in the history of each."""
        if rows:
            LogEntry.objects.log_actions(str(request.user.pk), rows, CHANGE, change_message=what)
