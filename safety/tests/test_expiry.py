"""The expiry cycle: what it makes of due timers (P2), and of timers with something broken in them (P14)."""

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db.utils import OperationalError

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications.models import Delivery, DeliveryStatus, Notification
from safety import expiry, timers
from safety.models import MeetingTimer, TimerStatus, TrustedContact, User
from safety.tests.people import Clock, assert_alerted_once, assert_one_incident_each, befriend, people, timers_for
from sos import alerts, incidents
from sos.models import AlertedContact, SosEvent, Source, TimelineEntry

pytestmark = pytest.mark.django_db


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture(autouse=True)
def nothing_in_quarantine() -> Iterator[None]:
    yield
    expiry._quarantine.until.clear()


@pytest.fixture
def meera() -> User:
    """A moderator."""
    return User.objects.create(username=f"meera-{uuid.uuid4().hex[:8]}", full_name="Meera", is_staff=True)


def test_p2_a_timer_expires_at_its_escalation_time_and_not_a_millisecond_before(wall: Clock) -> None:
    """P2: the person's grace counts: the deadline alone does not raise the alarm."""
    armed = timers_for(people(1), escalates_at=wall.now + timedelta(minutes=10), grace=10)
    wall.move(minutes=10, milliseconds=-1)
    assert expiry.cycle() == expiry.CycleResult()
    wall.move(milliseconds=1)
    assert expiry.cycle() == expiry.CycleResult(processed=1, incidents_opened=1)
    (incident,) = assert_one_incident_each(armed)
    assert incident.happened_at == armed[0].expires_at == wall.now - timedelta(minutes=10)
    assert incident.late_by == 0


def test_p2_the_incident_takes_over_what_the_timer_knows(wall: Clock) -> None:
    asha = people(1, contacts=3)[0]
    (timer,) = timers_for([asha], escalates_at=wall.now)
    place = {"type": "Point", "coordinates": [72.8777, 19.076]}
    fix = {"latitude": 19.0, "longitude": 72.8, "accuracy_m": 12.5}
    MeetingTimer.objects.update(meetup_location=place, last_fix=fix, last_fix_at=wall.now - timedelta(minutes=3))
    expiry.cycle()
    (incident,) = assert_one_incident_each([timer], contacts=3)
    assert (incident.source, incident.person_id) == (Source.TIMER_EXPIRED, asha.pk)
    assert (incident.place_name, incident.meet_with) == ("Cafe Blue", "Rahul K")
    assert incident.planned_location == place
    assert incident.location == {"type": "Point", "coordinates": [72.8, 19.0]}
    assert (incident.location_accuracy_m, incident.location_at) == (12.5, wall.now - timedelta(minutes=3))
    assert [row.kind for row in TimelineEntry.objects.all()] == ["opened"]
    assert list(Notification.objects.values_list("recipient_id", "kind")) == [(asha.pk, "sos_triggered")]
    assert Counter(Delivery.objects.values_list("kind", "status", "priority")) == {
        ("missed_check_in", DeliveryStatus.QUEUED, 0): 3
    }


def test_p2_a_worker_that_was_down_for_three_hours_catches_up_and_says_how_late_it_is(wall: Clock) -> None:
    """P2: no look-back window: however long the stall, each timer gets its incident."""
    armed = timers_for(people(5), escalates_at=wall.now - timedelta(hours=3))
    assert expiry.cycle() == expiry.CycleResult(processed=5, incidents_opened=5)
    found = assert_one_incident_each(armed)
    assert {incident.late_by for incident in found} == {3 * 3600}
    assert {row.facts["late_seconds"] for row in Delivery.objects.all()} == {3 * 3600}
    assert all("3 h 00 min late" in row.text for row in TimelineEntry.objects.all())


def test_only_verified_contacts_are_alerted(wall: Clock) -> None:
    asha = people(1, contacts=4)[0]
    for slot, status in enumerate(["pending", "declined", "left"]):
        TrustedContact.objects.filter(person=asha, slot=slot).update(status=status)
    timers_for([asha], escalates_at=wall.now)
    expiry.cycle()
    assert list(AlertedContact.objects.values_list("name", flat=True)) == ["Ravi 3"]
    assert list(Delivery.objects.values_list("recipient_name", flat=True)) == ["Ravi 3"]


def test_a_timer_for_the_moderators_only_alerts_no_contact(wall: Clock) -> None:
    armed = timers_for(people(1, contacts=2), escalates_at=wall.now)
    MeetingTimer.objects.update(moderators_only=True)
    expiry.cycle()
    assert_one_incident_each(armed, contacts=0)
    assert not Delivery.objects.exists()


def test_a_batch_takes_the_longest_overdue_first_and_a_full_one_asks_for_more(wall: Clock) -> None:
    armed = timers_for(people(5), escalates_at=wall.now - timedelta(minutes=5), apart=timedelta(minutes=1))
    assert expiry.due_ids(3, now=wall.now) == [timer.pk for timer in armed[:3]]
    assert expiry.cycle(batch=3) == expiry.CycleResult(processed=3, incidents_opened=3, full=True)
    assert expiry.cycle(batch=3) == expiry.CycleResult(processed=2, incidents_opened=2)
    assert_one_incident_each(armed)


def test_the_next_deadline_is_the_earliest_of_the_live_timers(wall: Clock) -> None:
    assert expiry.next_deadline() is None
    armed = timers_for(people(3), escalates_at=wall.now + timedelta(minutes=5), apart=timedelta(minutes=1))
    timers.cancel(armed[0])
    assert expiry.next_deadline() == armed[1].escalates_at


def test_p4_the_alarm_of_a_second_timer_joins_the_active_incident(wall: Clock) -> None:
    """P4: one incident, an entry on its timeline, the newest position, an update to each contact."""
    asha = people(1, contacts=2)[0]
    first = timers_for([asha], escalates_at=wall.now)[0]
    expiry.cycle()
    wall.move(minutes=30)
    second = timers_for([asha], escalates_at=wall.now)[0]
    fix = {"latitude": 19.5, "longitude": 72.5, "accuracy_m": 8.0}
    MeetingTimer.objects.filter(pk=second.pk).update(last_fix=fix, last_fix_at=wall.now)
    assert expiry.cycle() == expiry.CycleResult(processed=1, joined=1)
    incident = SosEvent.objects.get()
    assert incident.triggered_timer_id == first.pk
    assert incident.location == {"type": "Point", "coordinates": [72.5, 19.5]}
    assert sorted(incident.timeline.values_list("kind", flat=True)) == ["joined", "opened"]
    assert Counter(Delivery.objects.values_list("kind", flat=True)) == {"missed_check_in": 2, "update": 2}
    assert incidents.find_by_trigger(second.pk) == incident


def test_p4_a_timer_after_a_resolved_incident_opens_a_new_one(wall: Clock) -> None:
    asha = people(1)[0]
    first = timers_for([asha], escalates_at=wall.now)[0]
    expiry.cycle()
    assert incidents.resolve(SosEvent.objects.get(), with_pin=False)
    second = timers_for([asha], escalates_at=wall.now)[0]
    assert expiry.cycle() == expiry.CycleResult(processed=1, incidents_opened=1)
    assert_one_incident_each([first, second])


def broken_fix(timer: MeetingTimer) -> None:
    """A position that is none: reading it raises."""
    MeetingTimer.objects.filter(pk=timer.pk).update(last_fix={"lat": "?"}, last_fix_at=clock.now())


def test_p14_a_timer_with_a_broken_position_alerts_its_contacts_without_it(wall: Clock) -> None:
    """P14: the others go out in the same cycle, and the broken one loses only what is broken."""
    armed = timers_for(people(6, contacts=2), escalates_at=wall.now)
    broken_fix(armed[2])
    result = expiry.cycle()
    assert (result.processed, result.incidents_opened) == (6, 6)
    found = assert_one_incident_each(armed, contacts=2)
    places = {incident.triggered_timer_id: incident.place_name for incident in found}
    if has_transactions():
        assert places.pop(armed[2].pk) == ""
        assert set(places.values()) == {"Cafe Blue"}
    assert expiry.cycle() == expiry.CycleResult()


def test_p14_a_contact_whose_alert_cannot_be_made_does_not_hold_up_the_others(
    wall: Clock, meera: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P14: the person's other contacts and the other persons are alerted; the moderators learn whom to call."""
    asha, *others = people(3, contacts=3)
    TrustedContact.objects.filter(person=asha, slot=1).update(name="Broken")
    armed = timers_for([asha, *others], escalates_at=wall.now)
    fail_for_broken(monkeypatch)
    assert expiry.cycle() == expiry.CycleResult(processed=3, incidents_opened=3)
    mine, *theirs = sorted(assert_expired(armed), key=lambda incident: incident.person_id != asha.pk)
    assert_alerted_once([mine], contacts=2)
    assert_alerted_once(theirs, contacts=3)
    alarm = Notification.objects.get(recipient=meera)
    assert (alarm.kind, "Broken" in alarm.body) == ("alarm", True)


def test_p14_a_timer_of_whose_contacts_none_can_be_alerted_still_opens_an_incident(
    wall: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P14: an incident that only the moderators see beats none."""
    asha, ravi = people(2, contacts=1)
    TrustedContact.objects.filter(person=asha).update(name="Broken")
    armed = timers_for([asha, ravi], escalates_at=wall.now)
    fail_for_broken(monkeypatch)
    result = expiry.cycle()
    assert (result.processed, result.incidents_opened) == (2, 2)
    mine, theirs = sorted(assert_expired(armed), key=lambda incident: incident.person_id != asha.pk)
    assert_alerted_once([mine], contacts=0)
    assert_alerted_once([theirs], contacts=1)
    assert mine.alerted_at


def test_p14_a_row_that_fails_even_alone_is_left_out_for_a_while_and_shown_to_the_moderators(
    wall: Clock, meera: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P14: no cycle spins on it, the others pass, one alarm tells about it, and it is tried again later."""
    armed = timers_for(people(4), escalates_at=wall.now)
    poison = armed[0]
    hand_over = incidents.open_or_join

    def open_or_join(triggers: Sequence[Any], **kwargs: Any) -> incidents.Opened:
        if any(trigger.timer_id == poison.pk for trigger in triggers):
            raise ValueError("poison")
        return hand_over(triggers, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(incidents, "open_or_join", open_or_join)
        result = expiry.cycle(batch=2)
        assert result.full
        assert expiry._quarantine.current() == [poison.pk]
        expiry.cycle(batch=2)
        assert_one_incident_each(armed[1:])
        assert expiry.cycle(batch=2) == expiry.CycleResult()
        assert expiry.next_deadline() is None
    assert not SosEvent.objects.filter(person_id=poison.person_id).exists()
    assert Notification.objects.filter(recipient=meera, kind="alarm").count() == 1
    expiry._quarantine.until[poison.pk] = 0.0
    expiry.cycle()
    assert_one_incident_each(armed)


def test_a_transient_error_is_not_taken_for_poison(wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock conflict means "again", never "one by one" or "left out"."""
    armed = timers_for(people(2), escalates_at=wall.now)

    def locked(*_args: Any, **_kwargs: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("casualmeet.db.FIRST_WAIT_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(incidents, "open_or_join", locked)
        # On MongoDB the second try finds its rows stamped and leaves them to the next cycle's repair.
        with pytest.raises(OperationalError) if has_transactions() else contextlib.nullcontext():
            expiry.cycle()
    assert expiry._quarantine.current() == []
    expiry.cycle()
    assert_one_incident_each(armed)


def test_a_contact_added_while_the_alarm_opens_changes_nothing_about_who_was_alerted(wall: Clock) -> None:
    asha = people(1, contacts=1)[0]
    armed = timers_for([asha], escalates_at=wall.now)
    expiry.cycle()
    TrustedContact.objects.all().delete()
    befriend([asha], 3)
    expiry.cycle()
    assert_one_incident_each(armed, contacts=1)


def assert_expired(armed: Sequence[MeetingTimer]) -> list[SosEvent]:
    """One incident each, whatever became of the alerts."""
    ids = [timer.pk for timer in armed]
    assert set(MeetingTimer.objects.values_list("status", "expiry_token")) == {(TimerStatus.EXPIRED.value, None)}
    found = list(SosEvent.objects.filter(triggered_timer_id__in=ids))
    assert Counter(incident.triggered_timer_id for incident in found) == Counter(ids)
    return found


def fail_for_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the alert of the contact called Broken raises."""
    make = alerts.alerted_contact

    def alerted_contact(incident: SosEvent, recipient: Any) -> AlertedContact:
        if recipient.name == "Broken":
            raise ValueError("broken contact")
        return make(incident, recipient)

    monkeypatch.setattr(alerts, "alerted_contact", alerted_contact)
