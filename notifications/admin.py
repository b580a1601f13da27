"""The outbox and the in-app notifications in the admin: to look at, never to edit."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from casualmeet.admin import ReadOnlyAdmin
from casualmeet.logs import mask
from notifications.models import Delivery, DeliveryAttempt, Notification

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
else:
    TabularInline = admin.TabularInline


class AttemptInline(TabularInline):
    """The calls to carriers on the page of a delivery. Without the texts, which hold links, numbers and positions."""

    model = DeliveryAttempt
    fields = [
        "number",
        "carrier",
        "started_at",
        "finished_at",
        "outcome",
        "http_status",
        "error_class",
        "error_code",
        "detail",
        "receipt",
        "receipt_at",
    ]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever sees the delivery."""
        return True


class DeliveryAdmin(ReadOnlyAdmin):
    """The outbox. Registered by the sos room, which knows who may see it and what may be tried again."""

    list_display = [
        "created_at",
        "kind",
        "priority",
        "channel",
        "recipient_name",
        "to",
        "status",
        "carrier",
        "attempt_count",
        "simulated",
    ]
    list_filter = ["status", "kind", "priority", "channel", "carrier", "simulated"]
    # The link carries the secret of the recipient's own page; the facts hold numbers and positions.
    exclude = ["address", "facts", "link"]
    readonly_fields = ["to"]
    inlines = [AttemptInline]

    @admin.display(description="to")
    def to(self, delivery: Delivery) -> str:
        """The number with all but its last two digits hidden; moderators find it where they need it, on the incident."""
        return mask(delivery.address)


@admin.register(DeliveryAttempt)
class DeliveryAttemptAdmin(ReadOnlyAdmin):
    """What each carrier was asked and what it answered."""

    list_display = [
        "started_at",
        "delivery",
        "number",
        "carrier",
        "outcome",
        "http_status",
        "error_class",
        "error_code",
        "detail",
        "finished_at",
    ]
    list_filter = ["outcome", "carrier", "error_class"]
    list_select_related = ["delivery"]
    search_fields = ["carrier_message_id", "error_code"]
    search_help_text = "The carrier's message id or error code"
    ordering = ["-started_at"]


@admin.register(Notification)
class NotificationAdmin(ReadOnlyAdmin):
    """What people were told inside the app."""

    list_display = ["created_at", "recipient", "kind", "title", "read_at"]
    list_filter = ["kind"]
    list_select_related = ["recipient"]
    search_fields = ["title", "recipient__full_name", "recipient__username"]
    search_help_text = "Title, or the recipient's name"
