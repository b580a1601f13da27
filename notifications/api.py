"""In-app notifications over the JSON API."""

from uuid import UUID

from ninja import ModelSchema, Router

from casualmeet.api_auth import ApiRequest
from notifications import inbox
from notifications.models import Notification

router = Router(tags=["notifications"])

NEWEST = 100


class NotificationOut(ModelSchema):
    """An in-app notification."""

    class Meta:
        model = Notification
        fields = ["id", "kind", "title", "body", "incident_id", "created_at", "read_at"]


@router.get("/notifications", response=list[NotificationOut])
def list_notifications(request: ApiRequest) -> list[Notification]:
    """The newest hundred."""
    return list(Notification.objects.filter(recipient_id=request.auth.pk)[:NEWEST])


@router.put("/notifications/{notification_id}/read", response=NotificationOut)
def read_notification(request: ApiRequest, notification_id: UUID) -> Notification:
    """Mark one read; again does no harm."""
    notification = inbox.access_notification(request.auth.pk, notification_id)
    inbox.mark_read(notification)
    return notification
