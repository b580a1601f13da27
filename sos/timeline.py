"""Lines of an incident's history. A line's key follows from what it tells, so that writing it twice is the same as once."""

from datetime import datetime
from uuid import UUID, uuid5

from casualmeet.db import insert_missing
from sos.models import TimelineEntry, TimelineKind
from sos.triggers import NAMESPACE

MOST_LETTERS = 300


def entry(incident_id: UUID, kind: TimelineKind, text: str, *, key: str, at: datetime) -> TimelineEntry:
    """An unsaved line; `key` decides its identity within the incident."""
    return TimelineEntry(
        id=entry_id(incident_id, key), incident_id=incident_id, at=at, kind=kind, text=text[:MOST_LETTERS]
    )


def entry_id(incident_id: UUID, key: str) -> UUID:
    """The identity of a line."""
    return uuid5(NAMESPACE, f"timeline:{incident_id}:{key}")


def note(incident_id: UUID, kind: TimelineKind, text: str, *, key: str, at: datetime) -> None:
    """Write a line, unless it is there."""
    insert_missing(TimelineEntry, [entry(incident_id, kind, text, key=key, at=at)])
