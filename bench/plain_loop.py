"""The loop as one would first write it, for comparison: look up 50 due timers, and for each update it, check for an
incident, insert what follows, and call the carrier inside. It keeps none of the promises; it is here for its speed.
"""

from datetime import datetime
from uuid import uuid4

from django.conf import settings
from django.db import transaction

from casualmeet import clock
from notifications import texts
from notifications.carriers import routing
from notifications.carriers.base import Outcome, OutgoingMessage
from notifications.carriers.loop import CarrierLoop
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus, Notification, Priority
from notifications.texts import Kind
from safety import positions
from safety.models import MeetingTimer, TimerStatus, TrustedContact
from sos import alerts
from sos.models import AlertedContact, SosEvent, SosStatus, Source, TimelineEntry, TimelineKind
from sos.triggers import person_of

LOOK_UP = 50


def expire_due() -> int:
    """Deal with all due timers; how many there were."""
    done = 0
    calls = CarrierLoop()
    while batch := list(MeetingTimer.objects.due(clock.now()).select_related("person")[:LOOK_UP]):
        for timer in batch:
            with transaction.atomic():
                _expire(timer, calls, now=clock.now())
        done += len(batch)
    calls.close()
    return done


def _expire(timer: MeetingTimer, calls: CarrierLoop, *, now: datetime) -> None:
    timer.status = TimerStatus.EXPIRED
    timer.resolved_at = now
    timer.save(update_fields=["status", "resolved_at"])
    if SosEvent.objects.filter(person=timer.person, status=SosStatus.ACTIVE).exists():
        return
    incident = SosEvent.objects.create(
        open_key=timer.person_id,
        person=timer.person,
        source=Source.TIMER_EXPIRED,
        reference="K7Q",
        triggered_timer=timer,
        happened_at=timer.expires_at,
        place_name=timer.location_name,
        meet_with=timer.meet_with,
        planned_location=timer.meetup_location,
        location=fix.point() if (fix := positions.last_fix(timer)) else None,
        location_at=timer.last_fix_at,
        opened_at=now,
        alerted_at=now,
    )
    TimelineEntry.objects.create(incident=incident, at=now, kind=TimelineKind.OPENED, text="Missed check-in.")
    Notification.objects.create(
        recipient=timer.person, kind="sos_triggered", title="Your alarm is on", incident_id=incident.pk, created_at=now
    )
    for contact in TrustedContact.objects.filter(person=timer.person, status=TrustedContact.Status.VERIFIED):
        _alert(contact, incident, calls, now=now)


def _alert(contact: TrustedContact, incident: SosEvent, calls: CarrierLoop, *, now: datetime) -> None:
    token = uuid4().hex
    AlertedContact.objects.create(
        incident=incident,
        contact_id=contact.pk,
        name=contact.name,
        phone=contact.phone,
        language=contact.language,
        token=token,
    )
    facts = alerts.facts_of(incident, person=person_of(incident.person), kind=Kind.MISSED_CHECK_IN)
    delivery = Delivery.objects.create(
        kind=Kind.MISSED_CHECK_IN,
        priority=Priority.SOS,
        address=contact.phone,
        recipient_id=contact.pk,
        recipient_name=contact.name,
        language=contact.language,
        facts=facts.to_json(),
        incident_id=incident.pk,
        person_id=incident.person_id,
        created_at=now,
        next_attempt_at=now,
    )
    link = f"{settings.PUBLIC_BASE_URL}/i/{token}"
    text = texts.compose(facts, language=contact.language, link=link, now=now)
    attempt = DeliveryAttempt.objects.create(delivery=delivery, number=1, carrier="", text=text, started_at=now)
    carrier = routing.configured()[routing.route(contact.phone)[0]]
    message = OutgoingMessage(
        to=contact.phone,
        text=text,
        kind=Kind.MISSED_CHECK_IN,
        variables=(),
        language=contact.language,
        attempt_id=attempt.pk,
    )
    answer = calls.run(carrier.send(message))
    if answer.outcome is not Outcome.ACCEPTED:
        raise RuntimeError(f"The local carrier answered {answer}.")
    delivery.status = DeliveryStatus.ACCEPTED
    delivery.carrier = carrier.name
    delivery.finished_at = now
    delivery.save(update_fields=["status", "carrier", "finished_at"])
    attempt.outcome = "accepted"
    attempt.save(update_fields=["outcome"])
