"""The auditor among incidents: contacts who were not told, and ladders that stand still."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from casualmeet import clock
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus
from ops import beats
from ops.audit import Check, Finding
from ops.beats import Beat
from ops.models import Severity
from safety.models import User
from safety.tests.people import people
from sos import audits, contact_answers, escalation, incidents, timeline
from sos.consumers import ModerationConsumer
from sos.models import SosEvent, Source, TimelineKind
from sos.triggers import Recipient, Trigger, person_of

pytestmark = pytest.mark.django_db(transaction=True)


def look(check: Check) -> list[Finding]:
    return list(check(clock.now()))


def incident(*, minutes_ago: float = 2, contacts: int = 2, person: User | None = None, **changes: Any) -> SosEvent:
    """An incident opened so long ago, with an alert queued to each contact."""
    trigger = Trigger(
        key=uuid4(),
        person=person_of(person or people(1)[0]),
        source=Source.MANUAL,
        happened_at=clock.now(),
        recipients=tuple(Recipient(uuid4(), f"Ravi {n}", f"+9198123456{n:02}", "en") for n in range(contacts)),
    )
    opened, _ = incidents.raise_alarm(trigger)
    ago = clock.now() - timedelta(minutes=minutes_ago)
    Delivery.objects.filter(incident_id=opened.pk).update(created_at=ago)
    SosEvent.objects.filter(pk=opened.pk).update(**{"opened_at": ago, "alerted_at": ago, **changes})
    opened.refresh_from_db()
    return opened


def deliveries(of: SosEvent) -> Any:
    return Delivery.objects.filter(incident_id=of.pk)


def attempt(delivery: Delivery, **fields: Any) -> None:
    DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="twilio", text="…", started_at=clock.now(), **fields
    )


class TestNobodyTold:
    def test_of_whom_no_carrier_took_a_message_is_found(self) -> None:
        silent, told = incident(), incident()
        incident(minutes_ago=0.5)
        Delivery.objects.filter(pk=deliveries(told)[0].pk).update(status=DeliveryStatus.ACCEPTED)
        (found,) = look(audits.nobody_told)
        assert (found.key, found.severity) == (f"nobody-told:{silent.pk}", Severity.CRITICAL)
        assert silent.reference in found.title

    def test_p13_one_that_was_accepted_and_given_up_later_was_tried(self) -> None:
        failed = incident()
        attempt(deliveries(failed)[0], outcome=AttemptOutcome.ACCEPTED)
        assert look(audits.nobody_told) == []

    def test_without_contacts_or_known_to_the_moderators_or_over_it_is_none(self) -> None:
        incident(contacts=0)
        incident(nobody_reached_at=clock.now())
        incidents.resolve(incident(), with_pin=False)
        assert look(audits.nobody_told) == []

    def test_on_a_bad_day_the_first_are_named_and_the_others_counted(self) -> None:
        for person in people(7):
            incident(person=person)
        *named, rest = look(audits.nobody_told)
        assert (len(named), rest.title) == (5, "No carrier has taken a message of 2 more incidents")


class TestLadders:
    def test_one_that_lost_its_next_round_gets_it_back(self) -> None:
        stopped = incident(next_wave_at=None)
        over = incident(next_wave_at=None, wave=5)
        helped = incident(next_wave_at=None)
        contact = helped.alerted_contacts.order_by("name")[0]
        contact_answers.acknowledge(contact)
        ended = incident(next_wave_at=None, wave=3)
        timeline.note(ended.pk, TimelineKind.WAVE, "Over.", key=escalation.OVER, at=clock.now())
        Beat(beats.TIMER).cycle_finished(0)
        assert look(audits.ladders) == []
        going_on = set(SosEvent.objects.filter(next_wave_at__isnull=False).values_list("pk", flat=True))
        assert going_on == {stopped.pk}
        assert over.pk not in going_on

    def test_a_round_long_due_is_found_while_a_timer_worker_lives(self) -> None:
        incident(next_wave_at=clock.now() - timedelta(minutes=3))
        Beat(beats.TIMER).cycle_finished(0)
        (found,) = look(audits.ladders)
        assert found.key == "ladders-overdue"
        assert "does not get to them" in found.body
        assert SosEvent.objects.get().wave == 1

    def test_without_a_timer_worker_the_auditor_begins_it(self) -> None:
        due = incident(next_wave_at=clock.now() - timedelta(minutes=3))
        assert look(audits.ladders) == []
        due.refresh_from_db()
        assert due.wave == 2
        assert due.next_wave_at
        assert due.next_wave_at > clock.now()


class TestDeadLetters:
    def bury(self, of: SosEvent, *, error_class: str, count: int = 1) -> None:
        for delivery in deliveries(of).order_by("recipient_name")[:count]:
            Delivery.objects.filter(pk=delivery.pk).update(status=DeliveryStatus.DEAD, finished_at=clock.now())
            attempt(delivery, outcome=AttemptOutcome.PERMANENT, error_class=error_class)

    def test_a_contact_with_nothing_but_dead_letters_is_a_warning(self) -> None:
        lost = incident(contacts=3)
        self.bury(lost, error_class="bad_recipient", count=2)
        (found,) = look(audits.dead_letters)
        assert (found.key, found.severity) == (f"dead-letters:{lost.pk}", Severity.WARNING)
        assert found.title == f"2 contacts of incident {lost.reference} could not be told"

    def test_it_is_critical_when_our_own_account_is_refused(self) -> None:
        self.bury(incident(), error_class="auth")
        (found,) = look(audits.dead_letters)
        assert found.severity == Severity.CRITICAL

    def test_a_contact_with_another_message_under_way_is_none_nor_one_of_an_incident_that_is_over(self) -> None:
        called, over = incident(contacts=1), incident(contacts=1)
        for one in (called, over):
            self.bury(one, error_class="bad_recipient")
        row = deliveries(called).get()
        row.pk, row.channel, row.status = uuid4(), "voice", DeliveryStatus.QUEUED
        row.save(force_insert=True)
        incidents.resolve(over, with_pin=False)
        assert look(audits.dead_letters) == []


def test_the_moderators_sockets_tell_of_findings_that_come_change_and_go() -> None:
    one, other = ({"id": "k", "title": "No dispatcher is running", "body": body} for body in ("1 waits", "2 wait"))
    events = ModerationConsumer().events
    assert events({"findings": []}, {"findings": [one]}) == [("finding", one)]
    assert events({"findings": [one]}, {"findings": [other]}) == [("finding", other)]
    assert events({"findings": [other]}, {"findings": []}) == [("finding_gone", other)]
