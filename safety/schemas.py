"""The shapes of the JSON API of the safety room. Names are the models' field names; times are ISO 8601 UTC."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from ninja import Field, ModelSchema, Schema
from pydantic import Strict, StrictBool, StringConstraints

from safety.models import DeletionReceipt, MeetingTimer, Position, TrustedContact
from sos import incidents

# Strict: a number in quotes or a list where a text belongs is a mistake to be told, not to be guessed at.
Text = Annotated[str, StringConstraints(strict=True, max_length=2000)]
# PostgreSQL takes no NUL, not even to look for it.
UserName = Annotated[str, StringConstraints(strict=True, max_length=2000, pattern=r"^[^\x00]*$")]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]


class Point(Schema):
    """A GeoJSON point (RFC 7946): longitude first."""

    type: Literal["Point"]
    coordinates: Annotated[list[Number], Field(min_length=2, max_length=2)]


class Credentials(Schema):
    """Who asks for a token."""

    username: UserName
    password: Text


class TokenOut(Schema):
    """A bearer token, shown once."""

    token: str


class TimerIn(Schema):
    """A timer to arm."""

    location_name: Text
    duration_minutes: Whole
    meetup_location: Point | None = None
    meet_with: Text = ""
    note: Text = ""
    grace_minutes: Whole | None = None
    moderators_only: StrictBool = False


class TimerOut(ModelSchema):
    """A timer as its person sees it."""

    incident: UUID | None = None

    class Meta:
        model = MeetingTimer
        fields = [
            "id",
            "status",
            "location_name",
            "meetup_location",
            "meet_with",
            "note",
            "duration_minutes",
            "grace_minutes",
            "moderators_only",
            "started_at",
            "expires_at",
            "escalates_at",
            "check_sent_at",
            "resolved_at",
        ]

    @staticmethod
    def resolve_incident(timer: MeetingTimer) -> UUID | None:
        """The incident that the timer opened or joined."""
        incident = incidents.find_by_trigger(timer.pk) if timer.status == "expired" else None
        return incident.pk if incident else None


class PinIn(Schema):
    """Needed where the person has set a PIN."""

    pin: Text = ""


class ExtendIn(Schema):
    """How far to move the deadline."""

    minutes: Whole = 15


class PositionIn(Schema):
    """Where the phone is."""

    latitude: Number
    longitude: Number
    accuracy_m: Number | None = None
    captured_at: datetime | None = None
    battery_percent: Annotated[Whole, Field(ge=0, le=100)] | None = None


class PositionOut(ModelSchema):
    """A stored position."""

    class Meta:
        model = Position
        fields = ["id", "latitude", "longitude", "accuracy_m", "battery_percent", "captured_at", "received_at"]


class SosIn(Schema):
    """SOS, with or without a position."""

    latitude: Number | None = None
    longitude: Number | None = None
    accuracy_m: Number | None = None
    captured_at: datetime | None = None
    location_name: Text = ""


class ContactIn(Schema):
    """Somebody to invite."""

    name: Text
    phone: Text
    language: Text = "en"


class ContactOut(ModelSchema):
    """A contact as their person sees them. `sms_stopped`: they sent STOP, so that no text reaches them."""

    sms_stopped: bool

    class Meta:
        model = TrustedContact
        fields = ["id", "name", "phone", "language", "status", "invited_at", "answered_at"]


class DeletionOut(ModelSchema):
    """That something was deleted: how many records, from when to when they were, and by which rule."""

    class Meta:
        model = DeletionReceipt
        fields = ["id", "what", "count", "period_from", "period_to", "policy", "deleted_at"]


def timer_data(timer: MeetingTimer) -> dict[str, Any]:
    """The timer as the API and the live sockets send it; their encoders write times and ids alike."""
    return TimerOut.from_orm(timer).model_dump()
