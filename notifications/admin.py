"""The outbox and the in-app notifications in the admin: to look at, never to edit."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from notifications.models import DeliveryAttempt, Notification

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Rows that only the product writes: listed, searched and shown, never added, changed or deleted by hand."""

    list_per_page = 50
    # Counting the whole table only to say "of 1,000,000" is not worth it.
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class DeliveryAdmin(ReadOnlyAdmin):
    """The outbox. Registered by the sos room, which knows what may be tried again."""

    list_display = [
        "created_at",
        "kind",
        "recipient_name",
        "address",
        "status",
        "carrier",
        "attempt_count",
        "simulated",
    ]
    list_filter = ["status", "kind", "channel", "carrier", "simulated"]
    search_fields = ["recipient_name", "address"]
    search_help_text = "Name or phone number of the recipient"
    # The link carries the secret of the recipient's own page.
    exclude = ["link"]


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
    search_fields = ["carrier_message_id", "error_code", "delivery__recipient_name", "delivery__address"]
    search_help_text = "The carrier's message id or error code, or the recipient's name or number"
    ordering = ["-started_at"]


@admin.register(Notification)
class NotificationAdmin(ReadOnlyAdmin):
    """What people were told inside the app."""

    list_display = ["created_at", "recipient", "kind", "title", "read_at"]
    list_filter = ["kind"]
    list_select_related = ["recipient"]
    search_fields = ["title", "recipient__full_name", "recipient__username"]
    search_help_text = "Title, or the recipient's name"
