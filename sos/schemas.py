"""The shape of an incident in the JSON API and on the live sockets."""

from datetime import datetime
from typing import Any

from ninja import ModelSchema

from sos.models import AlertedContact, SosEvent, TimelineEntry


class TimelineOut(ModelSchema):
    """One line of the history."""

    class Meta:
        model = TimelineEntry
        fields = ["at", "kind", "text"]


class HelperOut(ModelSchema):
    """A contact who was alerted."""

    class Meta:
        model = AlertedContact
        fields = ["name", "opened_at", "acknowledged_at", "declined_at", "reached_person_at"]


class SosOut(ModelSchema):
    """An incident as its person and the moderators see it."""

    contacts_notified: int
    sms_sent: int
    last_dispatch_at: datetime | None
    dead_letters: int
    helping: list[str]
    reached_by: list[str]
    declined_by: list[str]
    opened_by: list[str]

    class Meta:
        model = SosEvent
        fields = [
            "id",
            "person",
            "source",
            "status",
            "reference",
            "triggered_timer",
            "happened_at",
            "late_by",
            "place_name",
            "meet_with",
            "location",
            "location_accuracy_m",
            "location_at",
            "opened_at",
            "wave",
            "next_wave_at",
            "nobody_reached_at",
            "resolved_at",
        ]


class SosDetailOut(SosOut):
    """An incident with its contacts and its timeline."""

    contacts: list[HelperOut]
    timeline: list[TimelineOut]

    @staticmethod
    def resolve_timeline(incident: SosEvent) -> list[TimelineEntry]:
        """Oldest first."""
        return list(incident.timeline.all())


def incident_data(incident: SosEvent) -> dict[str, Any]:
    """The incident as the live sockets send it; their encoder writes times and ids as the API does."""
    return SosOut.from_orm(incident).model_dump()
