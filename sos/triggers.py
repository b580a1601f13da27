"""What opens an incident, in values: the sos room takes these from its callers and asks nobody back."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from sos.models import SosEvent, Source

NAMESPACE = UUID("0c5e1c42-5c8f-4d52-a7c9-52a52a6f0b11")


@dataclass(frozen=True, slots=True)
class Fix:
    """A position in degrees, with its accuracy in metres and the time it was taken (UTC)."""

    latitude: float
    longitude: float
    accuracy_m: float | None
    captured_at: datetime

    def point(self) -> dict[str, Any]:
        """As GeoJSON."""
        return {"type": "Point", "coordinates": [self.longitude, self.latitude]}


@dataclass(frozen=True, slots=True)
class Recipient:
    """A verified contact at the moment of the alarm; `phone` in E.164."""

    contact_id: UUID
    name: str
    phone: str
    language: str


@dataclass(frozen=True, slots=True)
class Person:
    """What the texts say about the person in danger; `time_zone` is an IANA name."""

    id: UUID
    name: str
    phone: str
    time_zone: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """Something that opens an incident. The same `key` never opens a second one. `late_by` in seconds."""

    key: UUID
    person: Person
    source: Source
    happened_at: datetime
    recipients: tuple[Recipient, ...] = ()
    late_by: int = 0
    timer_id: UUID | None = None
    place_name: str = ""
    meet_with: str = ""
    planned_location: dict[str, Any] | None = None
    fix: Fix | None = None

    @property
    def incident_id(self) -> UUID:
        """The key of the incident that this trigger opens."""
        return incident_id_for(self.key)

    @property
    def joined_id(self) -> UUID:
        """The key of the timeline entry that records that this trigger joined another incident."""
        return joined_id_for(self.key)


@lru_cache(maxsize=1024)
def incident_id_for(key: UUID) -> UUID:
    """The id of the incident that a trigger with this key opens."""
    return uuid5(NAMESPACE, f"incident:{key}")


@lru_cache(maxsize=1024)
def joined_id_for(key: UUID) -> UUID:
    """The id of the timeline entry that a trigger with this key leaves when it joins an incident."""
    return uuid5(NAMESPACE, f"joined:{key}")


def person_of(user: Any) -> Person:
    """The person in danger, from their account."""
    return Person(id=user.pk, name=user.get_full_name(), phone=user.phone, time_zone=user.time_zone)


def fix_of(incident: SosEvent) -> Fix | None:
    """The newest position known for an incident."""
    if not incident.location or incident.location_at is None:
        return None
    longitude, latitude = incident.location["coordinates"]
    return Fix(latitude, longitude, incident.location_accuracy_m, incident.location_at)
