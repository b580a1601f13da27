"""The verbs of a meeting timer. Each is one conditional update on the status and the deadline that it was decided on:
the row count decides between the person and the expiry worker, and is what the person is told (P1).
"""

from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from casualmeet import clock
from casualmeet.db import has_transactions, insert_one, retry_transient
from casualmeet.refusal import Refusal
from notifications import live
from safety import contacts, failsafe_alerts, pins, prompts
from safety.models import MAX_GRACE_MINUTES, MeetingTimer, TimerStatus, User
from safety.positions import check_coordinates
from safety.wording import clean

MAX_MINUTES = 720
EXTENSION_MINUTES = 15
MAX_EXTENSION_MINUTES = 60


def arm(
    person: User,
    *,
    location_name: str,
    duration_minutes: int,
    meetup_location: dict[str, Any] | None = None,
    meet_with: str = "",
    note: str = "",
    grace_minutes: int | None = None,
    moderators_only: bool = False,
) -> MeetingTimer:
    """Start a timer that runs from now. Without `grace_minutes` the person's own applies.

    Raises Refusal for bad values (422), without a verified contact (422), and while another timer is live (409).
    """
    grace = person.grace_minutes if grace_minutes is None else grace_minutes
    _check_minutes(duration_minutes, grace)
    if not moderators_only and not contacts.has_verified(person):
        raise Refusal(
            "None of your contacts has accepted yet, so nobody could be alerted. Add a contact, "
            "or choose that only the moderators are alerted.",
            code="no_verified_contact",
        )
    meet_with = clean(meet_with, what="Whom you meet", limit=120)
    now = clock.now()
    expires_at = now + timedelta(minutes=duration_minutes)
    timer = MeetingTimer(
        person=person,
        location_name=clean(location_name, what="The place", limit=120, required=True),
        meetup_location=_checked_point(meetup_location),
        meet_with=meet_with,
        meet_with_user=User.objects.filter(username=meet_with, is_active=True).first() if meet_with else None,
        note=clean(note, what="The note", limit=500),
        duration_minutes=duration_minutes,
        grace_minutes=grace,
        moderators_only=moderators_only,
        started_at=now,
        expires_at=expires_at,
        escalates_at=expires_at + timedelta(minutes=grace),
        next_prompt_at=prompts.first_prompt_at(now, expires_at),
    )
    if not _insert(timer):
        raise Refusal(
            "You have a timer running. Extend it, or end it before you start another.",
            code="timer_already_live",
            status=409,
            current=live_timer(person),
        )
    _announce(timer)
    return timer


def check_in(timer: MeetingTimer, *, pin: str = "") -> MeetingTimer:
    """The person is safe. Raises Refusal for a wrong PIN (403) and when the timer changed meanwhile (409)."""
    pins.check(timer.person, pin)
    return _transition(timer, status=TimerStatus.SAFE, resolved_at=clock.now())


def cancel(timer: MeetingTimer, *, pin: str = "") -> MeetingTimer:
    """The meeting is off. Raises Refusal for a wrong PIN (403) and when the timer changed meanwhile (409)."""
    pins.check(timer.person, pin)
    return _transition(timer, status=TimerStatus.CANCELLED, resolved_at=clock.now())


def extend(timer: MeetingTimer, *, minutes: int = EXTENSION_MINUTES) -> MeetingTimer:
    """Move the deadline by 1 to 60 minutes, to at most 12 hours after the start.

    Raises Refusal for bad minutes (422) and when the timer is over, due, or changed meanwhile (409).
    """
    if not 1 <= minutes <= MAX_EXTENSION_MINUTES:
        raise Refusal(f"Extend by 1 to {MAX_EXTENSION_MINUTES} minutes at a time.", code="bad_minutes")
    expires_at = timer.expires_at + timedelta(minutes=minutes)
    escalates_at = timer.escalates_at + timedelta(minutes=minutes)
    if timer.live and expires_at - timer.started_at > timedelta(minutes=MAX_MINUTES):
        raise Refusal("A timer runs for at most 12 hours in all.", code="too_long")
    now = clock.now()
    if escalates_at <= now:
        raise _lost(timer)
    return _transition(
        timer,
        status=TimerStatus.EXTENDED,
        expires_at=expires_at,
        escalates_at=escalates_at,
        next_prompt_at=prompts.first_prompt_at(now, expires_at),
    )


def live_timer(person: User) -> MeetingTimer | None:
    """The person's running timer."""
    return MeetingTimer.objects.live().filter(person=person).first()


def access_timer(person: User, timer_id: UUID) -> MeetingTimer:
    """The person's own timer; raises MeetingTimer.DoesNotExist when it is missing or somebody else's."""
    return MeetingTimer.objects.select_related("person").get(pk=timer_id, person=person)


def _transition(timer: MeetingTimer, *, status: TimerStatus, **changes: datetime | None) -> MeetingTimer:
    """The compare-and-swap: on the status and on the deadline, as this timer was read."""
    if not timer.live or not _swap(timer, status=status, **changes):
        raise _lost(timer)
    changed = MeetingTimer.objects.get(pk=timer.pk)
    changed.person = timer.person
    _announce(changed)
    return changed


@retry_transient
def _swap(timer: MeetingTimer, **changes: Any) -> bool:
    """The update and what follows from it, in one transaction where there are any; else one after the other."""
    as_read = MeetingTimer.objects.filter(pk=timer.pk, status=timer.status, escalates_at=timer.escalates_at)
    with transaction.atomic() if has_transactions() else nullcontext():
        won = bool(as_read.update(**changes))
        if won:
            prompts.take_back(timer, now=clock.now())
            failsafe_alerts.follow(timer, escalates_at=changes.get("escalates_at"))
    return won


@retry_transient
def _insert(timer: MeetingTimer) -> bool:
    with transaction.atomic() if has_transactions() else nullcontext():
        inserted = insert_one(timer)
        if inserted:
            failsafe_alerts.want(timer)
    return inserted


def _lost(timer: MeetingTimer) -> Refusal:
    """What the loser of a race is told: what holds now."""
    current = MeetingTimer.objects.get(pk=timer.pk)
    reasons = {
        TimerStatus.SAFE.value: "This timer is already ended: you checked in as safe.",
        TimerStatus.CANCELLED.value: "This timer is already cancelled.",
        TimerStatus.EXPIRED.value: "This timer ran out and your alarm is on. If you are safe, say so on the alarm.",
    }
    detail = reasons.get(current.status)
    if detail is None:
        detail = (
            "Your deadline has passed and the alarm is about to start. If you are safe, tap I'm Safe now."
            if current.escalates_at <= clock.now()
            else "Your timer was changed at the same moment. Look at it and try again."
        )
    return Refusal(detail, code="not_live" if current.status in reasons else "changed", status=409, current=current)


def _check_minutes(duration: int, grace: int) -> None:
    if not settings.MIN_TIMER_MINUTES <= duration <= MAX_MINUTES:
        raise Refusal(f"A timer runs for {settings.MIN_TIMER_MINUTES} to {MAX_MINUTES} minutes.", code="bad_duration")
    if not 0 <= grace <= MAX_GRACE_MINUTES:
        raise Refusal(f"The grace is 0 to {MAX_GRACE_MINUTES} minutes.", code="bad_grace")


def _checked_point(point: dict[str, Any] | None) -> dict[str, Any] | None:
    """A GeoJSON point with longitude and latitude (RFC 7946, section 3.1.2)."""
    if point is None:
        return None
    longitude, latitude = point["coordinates"]
    check_coordinates(latitude, longitude)
    return {"type": "Point", "coordinates": [longitude, latitude]}


def _announce(timer: MeetingTimer) -> None:
    live.publish(live.person_group(timer.person_id))
