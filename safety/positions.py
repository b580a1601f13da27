"""Positions: refused at the door when they can't be true, stored with the timer, passed on to an open incident."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from django.db import transaction
from django.db.models import Q

from casualmeet import clock
from casualmeet.db import insert_missing, retry_transient
from casualmeet.refusal import Refusal
from safety.models import MeetingTimer, Position, TimerStatus
from sos import incidents
from sos.models import SosEvent
from sos.triggers import Fix

NAMESPACE = UUID("9a3f2e0c-9c57-4f1e-8f5e-0f2b6f5d7a31")
# Phones are a little ahead at times; what is further in the future is wrong.
FUTURE_TOLERANCE = timedelta(seconds=60)
OLDEST = timedelta(hours=24)
MAX_ACCURACY_M = 100_000.0


def checked_fix(
    *, latitude: float, longitude: float, accuracy_m: float | None, captured_at: datetime | None, now: datetime
) -> Fix:
    """A believable position in degrees and metres; without a time it counts as taken now.

    Raises Refusal for coordinates out of range, 0,0 (what broken receivers report), NaN, a time in the future or
    more than a day ago, and a negative accuracy.
    """
    check_coordinates(latitude, longitude)
    if accuracy_m is not None and not 0 <= accuracy_m <= MAX_ACCURACY_M:
        raise Refusal("accuracy_m must be between 0 and 100,000 metres.", code="bad_accuracy")
    if captured_at is None:
        return Fix(latitude, longitude, accuracy_m, now)
    if captured_at.tzinfo is None:
        raise Refusal("captured_at needs a time zone, such as 2026-03-14T21:12:00Z.", code="bad_time")
    if captured_at > now + FUTURE_TOLERANCE:
        raise Refusal("captured_at lies in the future.", code="bad_time")
    if captured_at < now - OLDEST:
        raise Refusal("captured_at is more than 24 hours ago.", code="bad_time")
    # In UTC, so that the same moment is the same position whatever zone the phone writes it in.
    captured_at = captured_at.astimezone(UTC)
    milliseconds = captured_at.microsecond // 1000 * 1000
    return Fix(latitude, longitude, accuracy_m, min(captured_at.replace(microsecond=milliseconds), now))


def check_coordinates(latitude: float, longitude: float) -> None:
    """Raises Refusal unless they name a place on Earth that is not 0,0."""
    if not (math.isfinite(latitude) and math.isfinite(longitude)):
        raise Refusal("Coordinates must be numbers.", code="bad_coordinates")
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise Refusal("Latitude must be -90 to 90, longitude -180 to 180.", code="bad_coordinates")
    if abs(latitude) < 1e-6 and abs(longitude) < 1e-6:
        raise Refusal("0,0 is what a phone without a fix reports; send no position instead.", code="bad_coordinates")


@retry_transient
def record(timer: MeetingTimer, fix: Fix, *, battery_percent: int | None) -> Position:
    """Store a position of a live timer, or of one whose incident is still active. The same one twice is one.

    Raises Refusal when the timer is over.
    """
    incident = _incident_of(timer)
    if not timer.live and not (incident and incident.active):
        raise Refusal(
            "This timer is over; its positions are no longer recorded.", code="not_live", status=409, current=timer
        )
    position = Position(
        id=uuid5(NAMESPACE, f"{timer.pk}:{fix.captured_at.isoformat()}"),
        timer=timer,
        latitude=fix.latitude,
        longitude=fix.longitude,
        accuracy_m=fix.accuracy_m,
        battery_percent=battery_percent,
        captured_at=fix.captured_at,
        received_at=clock.now(),
    )
    with transaction.atomic():
        insert_missing(Position, [position])
        MeetingTimer.objects.filter(
            Q(last_fix_at__isnull=True) | Q(last_fix_at__lt=fix.captured_at), pk=timer.pk
        ).update(last_fix=_as_json(fix), last_fix_at=fix.captured_at)
    if incident is not None:
        incidents.move(incident, fix)
    return position


def _incident_of(timer: MeetingTimer) -> SosEvent | None:
    """The one that the timer led to; while it is live, one that SOS opened meanwhile: its positions help there too."""
    if timer.live:
        return incidents.active_incident(timer.person_id)
    return incidents.find_by_trigger(timer.pk) if timer.status == TimerStatus.EXPIRED else None


def last_fix(timer: MeetingTimer) -> Fix | None:
    """The newest position that the timer knows."""
    if not timer.last_fix or timer.last_fix_at is None:
        return None
    return Fix(timer.last_fix["latitude"], timer.last_fix["longitude"], timer.last_fix["accuracy_m"], timer.last_fix_at)


def _as_json(fix: Fix) -> dict[str, Any]:
    return {"latitude": fix.latitude, "longitude": fix.longitude, "accuracy_m": fix.accuracy_m}
