"""The chaos bench finds what it looks for: a course of events that keeps every promise, and each promise broken in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from bench.chaos_checks import Evidence, check
from bench.chaos_people import Act
from casualmeet import clock
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from safety.models import MeetingTimer, TimerStatus, TrustedContact, User
from sos import alerts
from sos.models import AlertedContact, SosEvent, Source
from sos.triggers import Recipient, incident_id_for, person_of

pytestmark = pytest.mark.django_db
PHONE = "+447710000001"


@dataclass
class Course:
    """A timer that was missed, and its one alert."""

    timer: MeetingTimer
    incident: SosEvent
    alert: Delivery
    at: datetime
    acts: list[Act] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def send(self, delivery: Delivery, *, text: str = "Help", seconds: float = 2.0, **attempt: Any) -> DeliveryAttempt:
        """The carrier takes it at `seconds` after the deadline."""
        begun = self.at + timedelta(seconds=seconds)
        fields = {"outcome": AttemptOutcome.ACCEPTED, "finished_at": begun + timedelta(seconds=0.1), **attempt}
        row = DeliveryAttempt.objects.create(
            delivery=delivery, number=1, carrier="twilio", text=text, started_at=begun, **fields
        )
        self.ask(row.pk, text=text, at=begun.timestamp() + 0.05)
        return row

    def ask(self, attempt_id: UUID, *, text: str = "Help", at: float = 0.0) -> None:
        """A request of which the carrier took the message."""
        callback = f"http://safety.example.org/hooks/twilio/status/{attempt_id}#rc=3"
        fields = {"Body": text, "StatusCallback": callback}
        request = {"carrier": "twilio", "operation": "create", "phone": PHONE, "accepted": True}
        self.requests.append({**request, "at": at, "fields": fields})

    def act(self, verb: str, *, seconds: float = 0.0, **about: Any) -> None:
        """A success that the person was told."""
        at = self.at.timestamp() + seconds
        self.acts.append(Act(0, verb, "done", 201, at, at, **about))

    def broken(self) -> set[str]:
        """The promises that the checks find broken."""
        messages = [{"author": "site"} for _ in self.requests]
        found = check(Evidence(self.acts, {"messages": messages, "requests": self.requests}))
        return {promise for promise, sentences in found.broken.items() if sentences}

    def other_delivery(self, **changes: Any) -> Delivery:
        """Another one of the same incident."""
        values = {name: getattr(self.alert, name) for name in ("kind", "priority", "address", "facts", "incident_id")}
        moments = {"created_at": self.at, "next_attempt_at": self.at}
        return Delivery.objects.create(**{**values, **moments, "status": DeliveryStatus.ACCEPTED, **changes})


@pytest.fixture
def course() -> Course:
    """The product kept all its promises."""
    at = clock.now() - timedelta(minutes=5)
    person = User.objects.create(username="person0", full_name="Asha Rao", phone="+919710000000")
    moments = {"invited_at": at, "answered_at": at}
    friend = TrustedContact.objects.create(
        person=person, slot=0, name="Tom", phone=PHONE, status=TrustedContact.Status.VERIFIED, token="x", **moments
    )
    timer = MeetingTimer.objects.create(
        person=person,
        location_name="Café",
        duration_minutes=15,
        started_at=at - timedelta(minutes=1),
        expires_at=at,
        escalates_at=at,
        status=TimerStatus.EXPIRED,
    )
    later = at + timedelta(seconds=1)
    incident = SosEvent.objects.create(
        id=incident_id_for(timer.pk),
        open_key=person.pk,
        person=person,
        source=Source.TIMER_EXPIRED,
        reference="K7Q",
        triggered_timer=timer,
        happened_at=at,
        opened_at=later,
        alerted_at=later,
    )
    alerted = alerts.alerted_contact(incident, Recipient(friend.pk, "Tom", PHONE, "en"))
    alerted.save()
    (alert,) = alerts.alerts(incident, person=person_of(person), contacts=[alerted], now=later)
    alert.status = DeliveryStatus.ACCEPTED
    alert.save()
    told = Course(timer, incident, alert, at)
    told.act("(deadline moved)", seconds=-60, timer=timer.pk, deadline=at)
    told.send(alert)
    return told


def confirm_safe(course: Course) -> None:
    course.act("safe", seconds=-1, timer=course.timer.pk)


def extend(course: Course) -> None:
    course.act("extend", seconds=-1, timer=course.timer.pk, deadline=course.at + timedelta(minutes=5))


def lose_the_incident(course: Course) -> None:
    SosEvent.objects.all().delete()
    Delivery.objects.all().delete()
    course.requests.clear()


def expire_early(course: Course) -> None:
    SosEvent.objects.update(opened_at=course.at - timedelta(seconds=1))


def lose_the_alert(course: Course) -> None:
    course.alert.delete()
    course.requests.clear()


def forget_the_contact(course: Course) -> None:
    AlertedContact.objects.all().delete()


def open_a_second_incident(course: Course) -> None:
    SosEvent.objects.create(
        person=course.incident.person, source=Source.MANUAL, happened_at=course.at, opened_at=course.at, reference="A2B"
    )
    course.act("sos", incident=SosEvent.objects.get(source=Source.MANUAL).pk)


def call_without_an_attempt(course: Course) -> None:
    course.ask(uuid4(), at=course.at.timestamp())


def write_the_attempt_later(course: Course) -> None:
    DeliveryAttempt.objects.update(started_at=course.at + timedelta(minutes=1))


def leave_it_queued(course: Course) -> None:
    course.other_delivery(kind="update", status=DeliveryStatus.QUEUED)


def bury_it_for_no_reason(course: Course) -> None:
    course.other_delivery(kind="update", status=DeliveryStatus.DEAD)


def send_twice_for_no_reason(course: Course) -> None:
    course.send(course.alert, text="Help, 2nd alert", seconds=9.0)


def send_twice_without_a_word(course: Course) -> None:
    DeliveryAttempt.objects.update(outcome=AttemptOutcome.UNKNOWN)
    course.send(course.alert, seconds=9.0)


def let_bulk_overtake(course: Course) -> None:
    sos = SosEvent.objects.create(
        person=course.incident.person, source=Source.MANUAL, happened_at=course.at, opened_at=course.at, reference="A2B",
        status="resolved", resolved_at=course.at,
    )  # fmt: skip
    SosEvent.objects.filter(pk=sos.pk).update(opened_at=course.at - timedelta(minutes=2))
    course.act("sos", incident=sos.pk)
    course.send(course.other_delivery(kind="digest", priority=Priority.BULK, incident_id=None), seconds=3.0)
    course.send(course.other_delivery(kind="sos", incident_id=sos.pk), seconds=6.0)
    friend = TrustedContact.objects.get()
    alerts.alerted_contact(sos, Recipient(friend.pk, "Tom", PHONE, "en")).save()
    Delivery.objects.filter(kind="sos").update(recipient_id=AlertedContact.objects.get(incident=sos).pk)


def test_a_course_that_keeps_every_promise(course: Course):
    assert course.broken() == set()


@pytest.mark.parametrize(
    ("promise", "sabotage"),
    [
        ("P1", confirm_safe),
        ("P1", extend),
        ("P2", lose_the_incident),
        ("P2", expire_early),
        ("P3", lose_the_alert),
        ("P3", forget_the_contact),
        ("P4", open_a_second_incident),
        ("P5", call_without_an_attempt),
        ("P5", write_the_attempt_later),
        ("P6", leave_it_queued),
        ("P6", bury_it_for_no_reason),
        ("P7", send_twice_for_no_reason),
        ("P7", send_twice_without_a_word),
        ("P8", let_bulk_overtake),
    ],
)
def test_each_broken_promise_is_found(course: Course, promise: str, sabotage: Callable[[Course], None]):
    sabotage(course)
    assert promise in course.broken()


def test_a_repeat_after_a_lost_answer_is_none(course: Course):
    DeliveryAttempt.objects.update(outcome=AttemptOutcome.UNKNOWN)
    course.send(course.alert, text="Help, 2nd alert", seconds=9.0)
    assert course.broken() == set()


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"status": "resolved", "alerted_at": None, "open_key": None}, set()),
        ({"status": "resolved", "open_key": None}, {"P3"}),
        ({"alerted_at": None}, {"P3"}),
    ],
)
def test_no_alert_is_missed_where_all_was_well_before_it_could_be_made(
    course: Course, changes: dict[str, Any], broken: set[str]
):
    """A crash amid the opening, and the person said safe before the repair; but never of an alarm that is on."""
    course.alert.delete()
    course.requests.clear()
    SosEvent.objects.update(**changes, resolved_at=course.at + timedelta(seconds=5))
    assert course.broken() == broken
