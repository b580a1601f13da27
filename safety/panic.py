"""The SOS button, and the person's word that they are safe."""

from uuid import UUID, uuid4

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety import contacts, pins, positions, timers
from safety.models import User
from safety.wording import clean
from sos import incidents
from sos.models import SosEvent, Source
from sos.triggers import Fix, Trigger, person_of


def press(
    person: User, *, fix: Fix | None = None, location_name: str = "", key: UUID | None = None
) -> tuple[SosEvent, bool]:
    """Open an incident at once, or join the active one; True when it was opened. Works without a position.

    What a live timer knows fills in what the press doesn't say. The same `key` again gives the same incident.
    """
    timer = timers.live_timer(person)
    trigger = Trigger(
        key=key or uuid4(),
        person=person_of(person),
        source=Source.MANUAL,
        happened_at=clock.now(),
        recipients=contacts.recipients([person.pk]).get(person.pk, ()),
        place_name=clean(location_name, what="The place", limit=120) or (timer.location_name if timer else ""),
        meet_with=timer.meet_with if timer else "",
        planned_location=timer.meetup_location if timer else None,
        fix=fix or (positions.last_fix(timer) if timer else None),
    )
    return incidents.raise_alarm(trigger)


def confirm_safe(person: User, incident: SosEvent, *, pin: str = "") -> SosEvent:
    """The person ends their incident. Raises Refusal for a wrong PIN (403) and when it was over already (409)."""
    with_pin = pins.check(person, pin)
    closed = incidents.resolve(incident, with_pin=with_pin)
    incident.refresh_from_db()
    if not closed:
        raise Refusal("This alarm is already closed.", code="not_active", status=409, current=incident)
    return incident
