"""Timers, contacts, positions and the SOS button over the JSON API."""

from typing import cast
from uuid import UUID

from django.contrib.auth import authenticate
from ninja import Router, Status

from casualmeet import clock
from casualmeet.api_auth import ApiRequest, LoginThrottle
from casualmeet.refusal import Refusal
from safety import contacts, panic, positions, purging, timers, tokens
from safety.models import DeletionReceipt, MeetingTimer, Position, TrustedContact, User
from safety.schemas import (
    ContactIn,
    ContactOut,
    Credentials,
    DeletionOut,
    ExtendIn,
    PinIn,
    PositionIn,
    PositionOut,
    SosIn,
    TimerIn,
    TimerOut,
    TokenOut,
)
from sos import incidents
from sos.models import SosEvent
from sos.schemas import SosDetailOut
from sos.triggers import Fix

router = Router(tags=["safety"])

NEWEST = 100


@router.post("/tokens", response={201: TokenOut}, auth=None, throttle=[LoginThrottle("10/m")])
def create_token(request: ApiRequest, body: Credentials) -> Status[dict[str, str]]:
    """Exchange a user name and password for a bearer token."""
    user = authenticate(request, username=body.username, password=body.password)
    if user is None:
        raise Refusal("The user name or the password is wrong.", code="wrong_credentials", status=401)
    return Status(201, {"token": tokens.issue(user)})


@router.post("/timers", response={201: TimerOut})
def arm_timer(request: ApiRequest, body: TimerIn) -> Status[MeetingTimer]:
    """Arm a timer. One can be live at a time."""
    return Status(201, timers.arm(request.auth, **body.model_dump()))


@router.get("/timers", response=list[TimerOut])
def list_timers(request: ApiRequest) -> list[MeetingTimer]:
    """The newest hundred."""
    return list(MeetingTimer.objects.filter(person=request.auth)[:NEWEST])


@router.get("/timers/{timer_id}", response=TimerOut)
def get_timer(request: ApiRequest, timer_id: UUID) -> MeetingTimer:
    """One timer."""
    return timers.access_timer(request.auth, timer_id)


@router.put("/timers/{timer_id}/safe", response=TimerOut)
def check_in(request: ApiRequest, timer_id: UUID, body: PinIn | None = None) -> MeetingTimer:
    """I'm safe."""
    return timers.check_in(timers.access_timer(request.auth, timer_id), pin=_pin(body))


@router.put("/timers/{timer_id}/cancel", response=TimerOut)
def cancel_timer(request: ApiRequest, timer_id: UUID, body: PinIn | None = None) -> MeetingTimer:
    """The meeting is off."""
    return timers.cancel(timers.access_timer(request.auth, timer_id), pin=_pin(body))


@router.put("/timers/{timer_id}/extend", response=TimerOut)
def extend_timer(request: ApiRequest, timer_id: UUID, body: ExtendIn | None = None) -> MeetingTimer:
    """More time."""
    timer = timers.access_timer(request.auth, timer_id)
    return timers.extend(timer, minutes=body.minutes if body else timers.EXTENSION_MINUTES)


@router.post("/timers/{timer_id}/positions", response={201: PositionOut})
def record_position(request: ApiRequest, timer_id: UUID, body: PositionIn) -> Status[Position]:
    """Where the phone is; also while the timer's incident is active."""
    timer = timers.access_timer(request.auth, timer_id)
    fix = positions.checked_fix(
        latitude=body.latitude,
        longitude=body.longitude,
        accuracy_m=body.accuracy_m,
        captured_at=body.captured_at,
        now=clock.now(),
    )
    return Status(201, positions.record(timer, fix, battery_percent=body.battery_percent))


@router.post("/sos", response={200: SosDetailOut, 201: SosDetailOut})
def press_sos(request: ApiRequest, body: SosIn | None = None) -> Status[SosEvent]:
    """SOS, at once: 201 when it opened an incident, 200 when it joined the active one."""
    body = body or SosIn()
    incident, opened = panic.press(request.auth, fix=_fix(body), location_name=body.location_name)
    return Status(201 if opened else 200, incident)


@router.get("/sos/{incident_id}", response=SosDetailOut)
def get_sos(request: ApiRequest, incident_id: UUID) -> SosEvent:
    """One incident."""
    return incidents.access_incident(request.auth.pk, incident_id)


@router.put("/sos/{incident_id}/safe", response=SosDetailOut)
def confirm_safe(request: ApiRequest, incident_id: UUID, body: PinIn | None = None) -> SosEvent:
    """I'm safe: ends the incident and sends the all-clear."""
    return panic.confirm_safe(request.auth, incidents.access_incident(request.auth.pk, incident_id), pin=_pin(body))


@router.get("/contacts", response=list[ContactOut])
def list_contacts(request: ApiRequest) -> list[TrustedContact]:
    """All, in the order of the list."""
    return contacts.listed(request.auth)


@router.post("/contacts", response={201: ContactOut})
def invite_contact(request: ApiRequest, body: ContactIn) -> Status[TrustedContact]:
    """Invite somebody; they are pending until they accept."""
    return Status(201, contacts.invite(request.auth, **body.model_dump()))


@router.delete("/contacts/{contact_id}", response={204: None})
def remove_contact(request: ApiRequest, contact_id: UUID) -> Status[None]:
    """Take a contact off the list."""
    contacts.remove(contacts.access_contact(request.auth, contact_id))
    return Status(204, None)


@router.get("/safety/deletions", response=list[DeletionOut])
def list_deletions(request: ApiRequest) -> list[DeletionReceipt]:
    """What was deleted about you: the newest hundred receipts."""
    return purging.receipts_of(cast("User", request.auth), most=NEWEST)


def _pin(body: PinIn | None) -> str:
    return body.pin if body else ""


def _fix(body: SosIn) -> Fix | None:
    if body.latitude is None and body.longitude is None:
        return None
    if body.latitude is None or body.longitude is None:
        raise Refusal("Send latitude and longitude, or neither.", code="bad_coordinates")
    return positions.checked_fix(
        latitude=body.latitude,
        longitude=body.longitude,
        accuracy_m=body.accuracy_m,
        captured_at=body.captured_at,
        now=clock.now(),
    )
