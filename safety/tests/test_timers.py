"""The verbs of a meeting timer: what they store, what they refuse, and the arithmetic of deadlines (P1)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety import timers
from safety.models import MeetingTimer, TimerStatus, TrustedContact, User
from safety.tests.people import Clock, people, timers_for


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def asha(db: None) -> User:
    """A person with a verified contact."""
    return people(1)[0]


def arm(person: User, **changes: Any) -> MeetingTimer:
    return timers.arm(person, **{"location_name": "Cafe Blue", "duration_minutes": 60, **changes})


def refused(status: int, code: str, verb: Any, *args: Any, **kwargs: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        verb(*args, **kwargs)
    assert (caught.value.status, caught.value.code) == (status, code)
    return caught.value


def test_arming_stores_what_was_said_and_counts_from_now(asha: User, wall: Clock) -> None:
    ravi = people(1, name="ravi")[0]
    place = {"type": "Point", "coordinates": [72.8777, 19.076]}
    made = arm(
        asha, duration_minutes=90, grace_minutes=10, meet_with=ravi.username, note="Blue door", meetup_location=place
    )
    row = MeetingTimer.objects.get(pk=made.pk)
    assert (row.person_id, row.location_name, row.note) == (asha.pk, "Cafe Blue", "Blue door")
    assert (row.meet_with, row.meet_with_user_id, row.meetup_location) == (ravi.username, ravi.pk, place)
    assert (row.status, row.started_at) == (TimerStatus.ACTIVE, wall.now)
    assert row.expires_at == wall.now + timedelta(minutes=90)
    assert row.escalates_at == wall.now + timedelta(minutes=100)
    assert (row.resolved_at, row.check_sent_at, row.expiry_token) == (None, None, None)


def test_without_a_grace_the_persons_own_applies(asha: User, wall: Clock) -> None:
    asha.grace_minutes = 5
    assert arm(asha).escalates_at == wall.now + timedelta(minutes=65)
    timers.cancel(timers.live_timer(asha))  # type: ignore[arg-type]
    assert arm(asha, grace_minutes=0).escalates_at == wall.now + timedelta(minutes=60)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"duration_minutes": 14}, "bad_duration"),
    ({"duration_minutes": 0}, "bad_duration"),
    ({"duration_minutes": -60}, "bad_duration"),
    ({"duration_minutes": 721}, "bad_duration"),
    ({"grace_minutes": -1}, "bad_grace"),
    ({"grace_minutes": 16}, "bad_grace"),
    ({"location_name": ""}, "empty"),
    ({"location_name": " \t\n"}, "empty"),
    ({"location_name": "\x00\u202e"}, "empty"),
    ({"location_name": "x" * 121}, "too_long"),
    ({"meet_with": "x" * 121}, "too_long"),
    ({"note": "x" * 501}, "too_long"),
    ({"meetup_location": {"type": "Point", "coordinates": [0, 0]}}, "bad_coordinates"),
    ({"meetup_location": {"type": "Point", "coordinates": [19, 91]}}, "bad_coordinates"),
    ({"meetup_location": {"type": "Point", "coordinates": [float("nan"), 19]}}, "bad_coordinates"),
]


def test_arming_refuses_what_cannot_be_and_stores_nothing(asha: User, subtests: pytest.Subtests) -> None:
    for changes, code in REFUSED:
        with subtests.test(**{key: str(value)[:30] for key, value in changes.items()}):
            refused(422, code, arm, asha, **changes)
    assert not MeetingTimer.objects.exists()


@pytest.mark.parametrize("minutes", [15, 720])
def test_the_shortest_and_the_longest_timer_are_taken(asha: User, minutes: int) -> None:
    assert arm(asha, duration_minutes=minutes, grace_minutes=15).live


def test_while_debugging_a_minute_is_enough(asha: User, settings: Any) -> None:
    settings.MIN_TIMER_MINUTES = 1
    assert arm(asha, duration_minutes=1).live
    refused(422, "bad_duration", arm, asha, duration_minutes=0)


@pytest.mark.parametrize("status", ["pending", "declined", "left"])
def test_without_a_verified_contact_arming_needs_the_explicit_choice(asha: User, status: str) -> None:
    TrustedContact.objects.update(status=status)
    refused(422, "no_verified_contact", arm, asha)
    assert arm(asha, moderators_only=True).moderators_only


def test_a_second_timer_is_refused_with_the_first_one_as_the_reason(asha: User) -> None:
    first = arm(asha)
    refusal = refused(409, "timer_already_live", arm, asha)
    assert refusal.current.pk == first.pk
    timers.check_in(first)
    assert arm(asha).live


def test_of_ten_armed_at_once_one_is_live(transactional_db: None) -> None:
    """The unique constraint decides, on every database."""
    asha = people(1)[0]
    barrier = threading.Barrier(10)

    def try_to_arm(_: int) -> str:
        try:
            barrier.wait()
            arm(asha)
        except Refusal as refusal:
            return refusal.code
        finally:
            connections.close_all()
        return "armed"

    with ThreadPoolExecutor(10) as pool:
        answers = sorted(pool.map(try_to_arm, range(10)))
    assert answers == ["armed"] + ["timer_already_live"] * 9
    assert MeetingTimer.objects.live().count() == 1


def test_extending_adds_to_the_deadline_not_to_now(asha: User, wall: Clock) -> None:
    made = arm(asha, grace_minutes=5)
    wall.move(minutes=50)
    once = timers.extend(made)
    assert (once.status, once.expires_at) == (TimerStatus.EXTENDED, made.expires_at + timedelta(minutes=15))
    twice = timers.extend(once, minutes=60)
    assert twice.expires_at == made.expires_at + timedelta(minutes=75)
    assert twice.escalates_at == twice.expires_at + timedelta(minutes=5)
    assert (twice.started_at, twice.duration_minutes) == (made.started_at, 60)


@pytest.mark.parametrize("minutes", [0, -1, 61, 10**6])
def test_extending_by_less_than_a_minute_or_more_than_an_hour_is_refused(asha: User, minutes: int) -> None:
    made = arm(asha)
    refused(422, "bad_minutes", timers.extend, made, minutes=minutes)
    assert MeetingTimer.objects.get().expires_at == made.expires_at


def test_twelve_hours_in_all_are_the_limit_to_the_minute(asha: User) -> None:
    made = arm(asha, duration_minutes=700)
    refused(422, "too_long", timers.extend, made, minutes=21)
    full = timers.extend(made, minutes=20)
    assert full.expires_at - full.started_at == timedelta(hours=12)
    refused(422, "too_long", timers.extend, full, minutes=1)


def test_p1_in_the_grace_the_person_can_still_do_everything(asha: User, wall: Clock) -> None:
    """P1: the worker expires on the escalation time, so until then a success is safe."""
    made = arm(asha, grace_minutes=10)
    wall.move(minutes=65)
    extended = timers.extend(made, minutes=15)
    assert extended.expires_at == made.expires_at + timedelta(minutes=15)
    assert timers.check_in(extended).status == TimerStatus.SAFE


def test_p1_after_the_escalation_time_a_check_in_still_wins_if_the_worker_was_not_there_yet(
    asha: User, wall: Clock
) -> None:
    made = arm(asha)
    wall.move(hours=3)
    refused(409, "changed", timers.extend, made, minutes=60)
    assert timers.check_in(made).resolved_at == wall.now


@pytest.mark.parametrize("status", ["safe", "cancelled", "expired"])
def test_a_timer_that_is_over_stays_as_it_is(asha: User, wall: Clock, status: str) -> None:
    (timer,) = timers_for([asha], escalates_at=wall.now + timedelta(hours=1))
    MeetingTimer.objects.update(status=status, resolved_at=wall.now)
    before = MeetingTimer.objects.values().get()
    for verb in (timers.check_in, timers.cancel, timers.extend):
        for look in (timer, MeetingTimer.objects.select_related("person").get()):
            refusal = refused(409, "not_live", verb, look)
            assert refusal.current.status == status
    assert MeetingTimer.objects.values().get() == before


def test_ended_timers_know_when(asha: User, wall: Clock) -> None:
    made = arm(asha)
    wall.move(minutes=7)
    assert timers.cancel(made).resolved_at == wall.now
    assert timers.live_timer(asha) is None


def test_another_persons_timer_does_not_exist(asha: User) -> None:
    ravi = people(1, name="ravi")[0]
    made = arm(asha)
    assert timers.access_timer(asha, made.pk) == made
    for person, timer_id in ((ravi, made.pk), (asha, uuid4())):
        with pytest.raises(MeetingTimer.DoesNotExist):
            timers.access_timer(person, timer_id)


def test_markup_is_kept_as_text_and_what_cannot_be_seen_is_dropped(asha: User) -> None:
    made = arm(asha, location_name="<b>Cafe\x00</b>\u202e &amp;", note="a\nb\r\nc", meet_with='O\'Neil "R"')
    row = MeetingTimer.objects.get(pk=made.pk)
    assert (row.location_name, row.note, row.meet_with) == ("<b>Cafe</b> &amp;", "a b c", 'O\'Neil "R"')
