"""What every page's header and footer show."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from notifications.models import Notification
from notifications.views import phone_exists


def unread(request: HttpRequest) -> dict[str, Any]:
    """`unread_count`, looked up only where a template shows it, and whether there is a simulated phone."""
    user = getattr(request, "user", None)

    def count() -> int:
        if user is None or not user.is_authenticated:
            return 0
        return Notification.objects.filter(recipient_id=user.pk, read_at__isnull=True).count()

    return {"unread_count": SimpleLazyObject(count), "simulated_phone": SimpleLazyObject(phone_exists)}
