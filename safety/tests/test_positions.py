"""Positions: what is believed, what is stored, and how it reaches an open incident."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety import expiry, positions, timers
from safety.models import MeetingTimer, Position, User
from safety.tests.people import Clock, people, timers_for
from sos import incidents
from sos.models import SosEvent

NOW = datetime(2026, 3, 14, 15, 42, 10, 123_000, tzinfo=UTC)
FIX: dict[str, Any] = {"latitude": 19.076, "longitude": 72.8777, "accuracy_m": 12.0, "captured_at": NOW, "now": NOW}


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(NOW)
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def timer(db: None, wall: Clock) -> MeetingTimer:
    """Asha's, for another hour."""
    return timers_for(people(1), escalates_at=wall.now + timedelta(hours=1))[0]


def fix_at(at: datetime, latitude: float = 19.0) -> Any:
    return positions.checked_fix(**{**FIX, "latitude": latitude, "captured_at": at, "now": max(at, clock.now())})


@pytest.mark.parametrize(
    ("latitude", "longitude"),
    [
        (0, 0),
        (0.0000001, -0.0000001),
        (90.0001, 0),
        (-90.0001, 10),
        (10, 180.5),
        (10, -181),
        (math.nan, 10),
        (10, math.nan),
        (math.inf, 10),
        (10, -math.inf),
        (1e308, 1e308),
    ],
)
def test_coordinates_that_name_no_place_are_refused(latitude: float, longitude: float) -> None:
    with pytest.raises(Refusal) as refused:
        positions.checked_fix(**{**FIX, "latitude": latitude, "longitude": longitude})
    assert (refused.value.status, refused.value.code) == (422, "bad_coordinates")


@pytest.mark.parametrize(
    ("latitude", "longitude"), [(90, 180), (-90, -180), (0, 10), (10, 0), (0.00001, 0), (-33.8, 151.2)]
)
def test_edges_of_the_earth_are_taken(latitude: float, longitude: float) -> None:
    fix = positions.checked_fix(**{**FIX, "latitude": latitude, "longitude": longitude})
    assert fix.point() == {"type": "Point", "coordinates": [longitude, latitude]}


@pytest.mark.parametrize("accuracy", [-0.1, 100_000.1, math.nan, math.inf, -math.inf])
def test_an_accuracy_that_cannot_be_is_refused(accuracy: float) -> None:
    with pytest.raises(Refusal) as refused:
        positions.checked_fix(**{**FIX, "accuracy_m": accuracy})
    assert refused.value.code == "bad_accuracy"


@pytest.mark.parametrize("accuracy", [None, 0, 0.5, 100_000])
def test_any_other_accuracy_is_taken(accuracy: float | None) -> None:
    assert positions.checked_fix(**{**FIX, "accuracy_m": accuracy}).accuracy_m == accuracy


@pytest.mark.parametrize(
    "captured_at",
    [
        NOW + timedelta(seconds=60, milliseconds=1),
        NOW + timedelta(days=365),
        NOW - timedelta(hours=24, milliseconds=1),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        NOW.replace(tzinfo=None),
    ],
)
def test_times_in_the_future_or_too_old_or_without_a_zone_are_refused(captured_at: datetime) -> None:
    with pytest.raises(Refusal) as refused:
        positions.checked_fix(**{**FIX, "captured_at": captured_at})
    assert refused.value.code == "bad_time"


@pytest.mark.parametrize(
    ("captured_at", "taken"),
    [
        (None, NOW),
        (NOW - timedelta(hours=24), NOW - timedelta(hours=24)),
        (NOW + timedelta(seconds=60), NOW),
        (NOW - timedelta(seconds=1) + timedelta(microseconds=999), NOW - timedelta(seconds=1)),
        ((NOW - timedelta(hours=1)).astimezone(timezone(timedelta(hours=5.5))), NOW - timedelta(hours=1)),
    ],
)
def test_other_times_are_cut_to_milliseconds_and_never_lie_in_the_future(
    captured_at: datetime | None, taken: datetime
) -> None:
    """Phones run a little ahead at times: what they say is in a moment counts as now."""
    assert positions.checked_fix(**{**FIX, "captured_at": captured_at}).captured_at == taken


def test_a_position_is_stored_with_the_timer_and_the_newest_one_is_known(timer: MeetingTimer, wall: Clock) -> None:
    early, late = wall.now - timedelta(minutes=10), wall.now - timedelta(minutes=1)
    positions.record(timer, fix_at(late, 19.2), battery_percent=55)
    positions.record(timer, fix_at(early, 19.1), battery_percent=None)
    row = MeetingTimer.objects.get()
    assert row.last_fix_at == late
    known = positions.last_fix(row)
    assert known is not None
    assert (known.latitude, known.captured_at, known.accuracy_m) == (19.2, late, 12.0)
    stored = Position.objects.order_by("captured_at").values_list("latitude", "battery_percent", "received_at")
    assert list(stored) == [(19.1, None, wall.now), (19.2, 55, wall.now)]


def test_the_same_position_twice_is_one_also_in_another_time_zone(timer: MeetingTimer, wall: Clock) -> None:
    """A phone with a bad line sends again what was taken already."""
    at = wall.now - timedelta(minutes=5)
    for same in (at, at, at.astimezone(timezone(timedelta(hours=5.5)))):
        positions.record(timer, fix_at(same), battery_percent=50)
    assert Position.objects.count() == 1


@pytest.mark.parametrize("verb", [timers.check_in, timers.cancel])
def test_a_timer_that_is_over_takes_no_positions(timer: MeetingTimer, wall: Clock, verb: Any) -> None:
    ended = verb(timer)
    with pytest.raises(Refusal) as refused:
        positions.record(ended, fix_at(wall.now), battery_percent=None)
    assert (refused.value.status, refused.value.code) == (409, "not_live")
    assert not Position.objects.exists()


def test_while_the_alarm_is_on_positions_move_the_incident_and_after_it_they_are_refused(
    timer: MeetingTimer, wall: Clock
) -> None:
    wall.move(hours=1)
    expiry.cycle()
    expired = MeetingTimer.objects.get()
    positions.record(expired, fix_at(wall.move(minutes=1), 19.5), battery_percent=9)
    positions.record(expired, fix_at(wall.now - timedelta(minutes=30), 19.4), battery_percent=9)
    incident = SosEvent.objects.get()
    assert incident.location == {"type": "Point", "coordinates": [72.8777, 19.5]}
    assert (incident.location_at, incident.location_accuracy_m) == (wall.now, 12.0)
    incidents.resolve(incident, with_pin=False)
    with pytest.raises(Refusal):
        positions.record(expired, fix_at(wall.move(minutes=1)), battery_percent=9)
    assert Position.objects.count() == 2


@pytest.mark.django_db
def test_a_timer_without_a_position_knows_none() -> None:
    assert positions.last_fix(MeetingTimer(person=User())) is None
