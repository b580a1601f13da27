"""In-app notifications and push subscriptions over the JSON API."""

from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import ModelSchema, Router, Schema, Status
from pydantic import StringConstraints

from casualmeet.api_auth import ApiRequest
from casualmeet.refusal import Refusal
from notifications import inbox, subscriptions
from notifications.carriers import webpush
from notifications.models import Notification, PushSubscription

router = Router(tags=["notifications"])

NEWEST = 100
Text = Annotated[str, StringConstraints(strict=True, max_length=2000)]


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


class PushKeys(Schema):
    """A browser's keys, as PushSubscription.toJSON() has them: base64url."""

    p256dh: Text
    auth: Text


class PushSubscriptionIn(Schema):
    """A browser (endpoint and keys) or an app (its FCM token)."""

    kind: Literal["webpush", "fcm"]
    endpoint: Text = ""
    keys: PushKeys | None = None
    token: Text = ""


class PushSubscriptionOut(ModelSchema):
    """A subscription; where it leads is not told again."""

    class Meta:
        model = PushSubscription
        fields = ["id", "kind", "created_at"]


class PushKeyOut(Schema):
    """What a browser subscribes with."""

    public_key: str


@router.get("/push-key", response=PushKeyOut, auth=None)
def push_key(request: HttpRequest) -> PushKeyOut:  # noqa: ARG001 - as Ninja calls it
    """The public key for PushManager.subscribe(), base64url; 404 where this site sends no pushes to browsers."""
    key = webpush.public_key()
    if not key:
        raise Refusal("This site sends no pushes.", code="no_push", status=404)
    return PushKeyOut(public_key=key)


@router.post("/push-subscriptions", response={201: PushSubscriptionOut})
def subscribe(request: ApiRequest, body: PushSubscriptionIn) -> Status[PushSubscription]:
    """Get pushes on this browser or app; again renews it. The oldest go beyond ten."""
    keys = body.keys or PushKeys(p256dh="", auth="")
    endpoint = body.token if body.kind == "fcm" else body.endpoint
    row = subscriptions.subscribe(
        request.auth.pk, kind=body.kind, endpoint=endpoint, p256dh=keys.p256dh, auth=keys.auth
    )
    return Status(201, row)


class EndpointIn(Schema):
    """What a browser knows of its subscription."""

    endpoint: Text


@router.post("/push-subscriptions/off", response={204: None})
def leave_browser(request: ApiRequest, body: EndpointIn) -> Status[None]:
    """No more pushes in this browser, whether or not there were some."""
    subscriptions.leave_browser(request.auth.pk, body.endpoint)
    return Status(204, None)


@router.delete("/push-subscriptions/{subscription_id}", response={204: None})
def unsubscribe(request: ApiRequest, subscription_id: UUID) -> Status[None]:
    """No more pushes there."""
    subscriptions.unsubscribe(request.auth.pk, subscription_id)
    return Status(204, None)
