"""The moderators' console: the Django admin with the live board as its start page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from casualmeet import clock
from notifications import auditing, inbox
from notifications.carriers import routing
from notifications.models import Notification
from ops import audit
from ops.models import AuditFinding
from sos import rounds, wording
from sos.console_access import may_moderate
from sos.models import AlertedContact, SosEvent, SosStatus, Source, with_dispatch
from sos.triggers import Fix, fix_of

MOST = 200
MOST_RECENT = 50
MOST_ALARMS = 20
RECENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Card:
    """An incident with what a moderator sees of it at a glance."""

    incident: SosEvent
    contacts: Sequence[AlertedContact] = ()

    @property
    def dead_letters(self) -> int:
        """How many texts no carrier would take."""
        return self.incident.dead_letters

    @property
    def helpers(self) -> list[AlertedContact]:
        """The contacts who said "I'm helping", the first one first."""
        answered = [contact for contact in self.contacts if contact.acknowledged_at is not None]
        return sorted(answered, key=lambda contact: (contact.acknowledged_at, contact.name))

    @property
    def not_helping(self) -> list[AlertedContact]:
        """The contacts who said that they can't help, or looked at the alert and have not answered."""
        return [c for c in self.contacts if c.acknowledged_at is None and (c.declined_at or c.opened_at)]

    @property
    def unanswered(self) -> bool:
        """Nobody helps yet, as far as we know."""
        return self.incident.active and not self.helpers

    @property
    def nobody_reached(self) -> bool:
        """It is up to the moderators; false again once a contact has looked or answered."""
        heard = any(c.opened_at or c.acknowledged_at or c.declined_at or c.reached_person_at for c in self.contacts)
        return self.incident.active and self.incident.nobody_reached_at is not None and not heard

    @property
    def coming(self) -> rounds.Coming | None:
        """The next round of the escalation ladder."""
        return rounds.coming(self.incident)

    @property
    def duress(self) -> bool:
        """Somebody may be watching the person's phone."""
        return self.incident.source == Source.DURESS

    @property
    def late(self) -> str:
        """How late the alarm was, in words; empty when it was not."""
        return wording.in_words(self.incident.late_by) if self.incident.late_by >= wording.LATE_SECONDS else ""

    @property
    def fix(self) -> Fix | None:
        """The newest position."""
        return fix_of(self.incident)

    @property
    def coordinates(self) -> str:
        """Of the newest position, as one reads them out to the emergency services; empty without one."""
        return wording.coordinates(self.incident.location)

    @property
    def accuracy(self) -> str:
        """Of the newest position, in words; empty when the phone did not say."""
        return wording.accuracy(self.incident.location_accuracy_m)


@dataclass(frozen=True, slots=True)
class Board:
    """All that the live board shows to one moderator."""

    cards: Sequence[Card]
    active_count: int
    resolved: Sequence[Card]
    alarms: Sequence[Notification]
    findings: Sequence[AuditFinding] = ()
    warnings: Sequence[str] = ()

    @property
    def not_shown(self) -> int:
        """How many active incidents did not fit."""
        return self.active_count - len(self.cards)


def read_board(user: Any) -> Board:
    """The active incidents, those without a helper first and the newest first among them, and what was just resolved.

    The number of queries does not depend on the number of incidents.
    """
    active = list(SosEvent.objects.active().select_related("person").order_by("-opened_at")[: MOST + 1])
    count = len(active) if len(active) <= MOST else active_count()
    resolved = SosEvent.objects.filter(status=SosStatus.RESOLVED, all_clear_at__gt=clock.now() - RECENT)
    recent = resolved.select_related("person").order_by("-resolved_at")[:MOST_RECENT]
    cards = cards_of([*active[:MOST], *recent])
    alarms = list(Notification.objects.filter(recipient_id=user.pk, kind="alarm", read_at__isnull=True)[:MOST_ALARMS])
    return Board(
        cards=sorted((card for card in cards if card.incident.active), key=lambda card: not card.unanswered),
        active_count=count,
        resolved=[card for card in cards if not card.incident.active],
        alarms=alarms,
        findings=_findings(user, alarms),
        warnings=[*carrier_warnings(), *auditor_warnings()],
    )


def _findings(user: Any, alarms: Sequence[Notification]) -> list[AuditFinding]:
    """What the auditor finds wrong just now, without what the moderator sees as an alarm."""
    shown = {alarm.pk for alarm in alarms}
    found = AuditFinding.objects.open(since=clock.now() - audit.FRESH).order_by("severity", "first_seen_at")
    return [f for f in found if inbox.notice_id(inbox.alarm_key(auditing.alarm_key(f), user.pk)) not in shown]


def auditor_warnings() -> list[str]:
    """That nobody looks whether all is well."""
    since = audit.blind_since(clock.now())
    if since is None:
        return []
    ago = wording.in_words(int((clock.now() - since).total_seconds()))
    return [f"The auditor has not looked for {ago}: faults may go unseen. Tell the operators."]


def carrier_warnings() -> list[str]:
    """What keeps messages from leaving, as sentences: a moderator must not count on contacts that nobody reaches."""
    if routing.real_carrier_configured():
        return list(routing.problems())
    why = "messages are simulated" if routing.configured() else "no message is sent"
    return [f"No carrier is set up: {why}, and no contact is reached.", *routing.problems()]


def active_count() -> int:
    """How many incidents are active."""
    return SosEvent.objects.active().count()


def cards_of(incidents: Sequence[SosEvent]) -> list[Card]:
    """The incidents as cards, in few queries however many there are."""
    return [Card(incident, contacts=incident.contacts) for incident in with_dispatch(incidents)]


def fragment(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A view for part of a live page: 403 for those who may not moderate, as a script can't use the log-in page."""

    @never_cache
    @require_safe
    def checked(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not may_moderate(request.user):
            raise PermissionDenied
        response = view(request, **kwargs)
        # Lets the script show ages by the server's clock, whatever the moderator's computer believes.
        response["X-Server-Now"] = now_in_milliseconds()
        return response

    return checked


def now_in_milliseconds() -> int:
    """The server's clock as JavaScript counts time."""
    return int(clock.now().timestamp() * 1000)


class ConsoleSite(AdminSite):
    """The admin site of this project."""

    site_header = "CasualMeet Safety"
    site_title = "CasualMeet Safety"
    index_title = "Live board"

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """The admin's addresses, and the board's own."""
        return [
            path("board/", fragment(self.board_fragment), name="board-fragment"),
            path("alarms/<uuid:alarm_id>/read/", self.admin_view(require_POST(self.read_alarm)), name="alarm-read"),
            *super().get_urls(),
        ]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The live board for moderators, the list of apps for other staff."""
        if not may_moderate(request.user):
            return super().index(request, {"title": "Administration", **(extra_context or {})})
        request.current_app = self.name
        context = {
            **self.each_context(request),
            "title": self.index_title,
            "app_list": self.get_app_list(request),
            "board": read_board(request.user),
            "fragment_url": reverse("admin:board-fragment"),
            "now_ms": now_in_milliseconds(),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "console/board.html", context)

    def board_fragment(self, request: HttpRequest) -> HttpResponse:
        """The body of the board, for the script that keeps it up to date."""
        return TemplateResponse(request, "console/board_fragment.html", {"board": read_board(request.user)})

    def read_alarm(self, request: HttpRequest, alarm_id: UUID) -> HttpResponse:
        """Mark one of the moderator's own alarms as read."""
        user: Any = request.user
        try:
            inbox.mark_read(inbox.access_notification(user.pk, alarm_id))
        except Notification.DoesNotExist:
            raise Http404 from None
        return HttpResponseRedirect(reverse("admin:index"))
