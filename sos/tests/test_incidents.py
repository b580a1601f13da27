"""Incidents: one per person (P4), opened by any trigger, closed once; alerts and all-clears that fit (P3)."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from casualmeet import clock
from casualmeet.db import has_transactions
from casualmeet.refusal import Refusal
from notifications import dispatch, outbox
from notifications.models import Delivery, DeliveryStatus
from safety import expiry, panic, timers
from safety.models import TrustedContact, User
from safety.tests.people import Clock, assert_alerted_once, people, timers_for
from sos import alerts, incidents
from sos.models import AlertedContact, SosEvent, Source, TimelineEntry
from sos.triggers import Fix, Recipient, Trigger, person_of


@pytest.fixture
def asha(db: None) -> User:
    """A person with two contacts."""
    return people(1, contacts=2)[0]


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the carrier is asked to send, by kind."""
    journal: list[str] = []
    call = dispatch._call_carrier

    def note(job: Any) -> Any:
        journal.append(job.message.kind)
        return call(job)

    monkeypatch.setattr(dispatch, "_call_carrier", note)
    return journal


def dispatch_all() -> None:
    dispatcher = dispatch.Dispatcher(concurrency=2)
    dispatcher.drain()
    dispatcher.close()


def test_sos_works_without_a_timer_and_without_a_position(asha: User) -> None:
    incident, opened = panic.press(asha)
    assert opened
    assert (incident.source, incident.location, incident.triggered_timer_id) == (Source.MANUAL, None, None)
    assert_alerted_once([incident], contacts=2)
    assert incident.alerted_at


def test_p4_sos_during_a_timer_joins_what_the_timer_opens_later(asha: User, wall: Clock) -> None:
    """P4: timer and button: one incident, both on its timeline, an update to each contact, nothing dropped."""
    timer = timers_for([asha], escalates_at=wall.now + timedelta(minutes=1))[0]
    incident, opened = panic.press(asha, fix=Fix(19.0, 72.8, 20.0, wall.now))
    assert opened
    assert incident.place_name == timer.location_name
    wall.move(minutes=1)
    assert expiry.cycle() == expiry.CycleResult(processed=1, joined=1)
    assert SosEvent.objects.count() == 1
    assert Counter(incident.timeline.values_list("kind", flat=True)) == {"opened": 1, "joined": 1}
    assert Counter(Delivery.objects.values_list("kind", flat=True)) == {"sos": 2, "update": 2}
    again, opened = panic.press(asha, fix=Fix(19.5, 72.5, 5.0, wall.move(minutes=1)))
    assert (again.pk, opened) == (incident.pk, False)
    assert again.location == {"type": "Point", "coordinates": [72.5, 19.5]}
    assert Counter(Delivery.objects.values_list("kind", flat=True)) == {"sos": 2, "update": 4}


def test_p4_twenty_presses_at_once_are_one_incident_and_nineteen_that_joined_it(transactional_db: None) -> None:
    """P4: raced by threads, each with a connection of its own."""
    asha = people(1, contacts=2)[0]
    barrier = threading.Barrier(20)

    def press(_: int) -> tuple[SosEvent, bool]:
        try:
            barrier.wait()
            return panic.press(asha)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(press, range(20)))
    incident = SosEvent.objects.get()
    assert {answer.pk for answer, _ in answers} == {incident.pk}
    assert sum(opened for _, opened in answers) == 1
    assert Counter(incident.timeline.values_list("kind", flat=True)) == {"opened": 1, "joined": 19}
    assert Counter(Delivery.objects.values_list("kind", flat=True)) == {"sos": 2, "update": 38}
    assert set(Delivery.objects.values_list("status", flat=True)) == {DeliveryStatus.QUEUED}


def test_p4_sos_after_a_timer_for_the_moderators_only_alerts_the_contacts(asha: User, wall: Clock) -> None:
    """P4: the joining trigger is not dropped because the incident was opened without contacts."""
    timer = timers_for([asha], escalates_at=wall.now)[0]
    timer.moderators_only = True
    timer.save()
    expiry.cycle()
    assert not Delivery.objects.exists()
    incident, opened = panic.press(asha)
    assert not opened
    assert_alerted_once([incident], contacts=2)
    wall.move(minutes=1)
    panic.press(asha)
    assert Counter(Delivery.objects.values_list("kind", flat=True)) == {"missed_check_in": 2, "update": 2}


def test_p4_a_contact_who_accepted_after_the_opening_is_alerted_by_the_next_press(asha: User) -> None:
    incident, _ = panic.press(asha)
    TrustedContact.objects.create(
        person=asha, slot=5, name="Leela", phone="+919812312312", status="verified", token="t", invited_at=clock.now()
    )
    panic.press(asha)
    kinds = Delivery.objects.filter(incident_id=incident.pk).values_list("recipient_name", "kind")
    assert Counter(kinds) == {
        ("Ravi 0", "sos"): 1,
        ("Ravi 1", "sos"): 1,
        ("Ravi 0", "update"): 1,
        ("Ravi 1", "update"): 1,
        ("Leela", "sos"): 1,
    }


def test_p4_the_same_press_sent_again_is_the_same_incident(asha: User) -> None:
    """P4: a client that got no answer repeats its request with the same key."""
    key = uuid4()
    first, opened = panic.press(asha, key=key)
    again, _ = panic.press(asha, key=key)
    assert (opened, again.pk) == (True, first.pk)
    assert Counter(first.timeline.values_list("kind", flat=True)) == {"opened": 1}
    assert Delivery.objects.count() == 2
    joining = uuid4()
    panic.press(asha, key=joining)
    panic.press(asha, key=joining)
    assert Counter(first.timeline.values_list("kind", flat=True)) == {"opened": 1, "joined": 1}
    assert Delivery.objects.count() == 4


def test_p4_after_a_resolved_incident_a_new_one_is_possible_and_the_old_one_stays_closed(asha: User) -> None:
    first, _ = panic.press(asha)
    panic.confirm_safe(asha, first)
    second, opened = panic.press(asha)
    assert opened
    assert second.pk != first.pk
    assert list(SosEvent.objects.active().values_list("pk", flat=True)) == [second.pk]
    first.refresh_from_db()
    assert (first.status, first.open_key) == ("resolved", None)


def test_resolving_twice_is_refused_and_changes_nothing(asha: User, wall: Clock) -> None:
    incident, _ = panic.press(asha)
    closed = panic.confirm_safe(asha, incident)
    resolved_at = closed.resolved_at
    wall.move(minutes=1)
    with pytest.raises(Refusal) as refused:
        panic.confirm_safe(asha, incident)
    assert (refused.value.status, refused.value.code) == (409, "not_active")
    assert SosEvent.objects.get().resolved_at == resolved_at
    assert Counter(incident.timeline.values_list("kind", flat=True)) == {"opened": 1, "resolved": 1}


def test_resolving_before_anything_was_sent_cancels_the_alerts_and_sends_no_all_clear(
    asha: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = sent(monkeypatch)
    incident, _ = panic.press(asha)
    panic.confirm_safe(asha, incident)
    assert Counter(Delivery.objects.values_list("kind", "status")) == {("sos", "cancelled"): 2}
    monkeypatch.undo()
    assert journal == []


def test_the_all_clear_goes_to_exactly_those_who_were_alerted(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asha = people(1, contacts=3)[0]
    journal = sent(monkeypatch)
    incident, _ = panic.press(asha)
    spared = Delivery.objects.order_by("pk")[0]
    Delivery.objects.filter(pk=spared.pk).update(status=DeliveryStatus.DEAD)
    dispatch_all()
    panic.confirm_safe(asha, incident)
    dispatch_all()
    told = Delivery.objects.filter(kind="all_clear")
    assert set(told.values_list("status", flat=True)) == {DeliveryStatus.ACCEPTED}
    alerted = set(incident.alerted_contacts.values_list("pk", flat=True))
    assert set(told.values_list("recipient_id", flat=True)) == alerted - {spared.recipient_id}
    assert Counter(journal) == {"sos": 2, "all_clear": 2}


def test_an_older_position_never_replaces_a_newer_one(asha: User, wall: Clock) -> None:
    incident, _ = panic.press(asha, fix=Fix(19.0, 72.8, 10.0, wall.now))
    assert not incidents.move(incident, Fix(1.0, 1.0, 1.0, wall.now - timedelta(seconds=1)))
    assert incidents.move(incident, Fix(19.1, 72.9, None, wall.move(seconds=1)))
    incident.refresh_from_db()
    assert incident.location == {"type": "Point", "coordinates": [72.9, 19.1]}
    panic.confirm_safe(asha, incident)
    assert not incidents.move(incident, Fix(2.0, 2.0, 1.0, wall.move(seconds=1)))


def test_p11_the_contacts_page_is_open_until_a_day_after_the_end(asha: User, wall: Clock) -> None:
    """P11: to the millisecond; and never for another secret."""
    incident, _ = panic.press(asha)
    token = AlertedContact.objects.all()[0].token
    wall.move(days=30)
    assert incidents.access_alert_page(token, now=wall.now).incident_id == incident.pk
    panic.confirm_safe(asha, incident)
    incidents.access_alert_page(token, now=wall.now + timedelta(hours=24, milliseconds=-1))
    with pytest.raises(AlertedContact.DoesNotExist):
        incidents.access_alert_page(token, now=wall.now + timedelta(hours=24))
    with pytest.raises(AlertedContact.DoesNotExist):
        incidents.access_alert_page("a" * 24, now=wall.now)


def test_another_persons_incident_does_not_exist(asha: User) -> None:
    incident, _ = panic.press(asha)
    ravi = people(1)[0]
    assert incidents.access_incident(asha.pk, incident.pk) == incident
    with pytest.raises(SosEvent.DoesNotExist):
        incidents.access_incident(ravi.pk, incident.pk)


def test_the_timeline_is_append_only(asha: User) -> None:
    panic.press(asha)
    with pytest.raises(NotImplementedError):
        TimelineEntry.objects.update(text="another story")


def test_the_reference_is_short_and_cannot_be_misread(asha: User) -> None:
    incident, _ = panic.press(asha)
    first, middle, last = list(incident.reference)
    assert first in incidents.LETTERS
    assert middle in incidents.DIGITS
    assert last in incidents.LETTERS


def trigger_of(asha: User, count: int = 1) -> Trigger:
    recipients = tuple(Recipient(uuid4(), f"Ravi {n}", f"+9198000000{n:02d}", "en") for n in range(count))
    return Trigger(
        key=uuid4(), person=person_of(asha), source=Source.MANUAL, happened_at=clock.now(), recipients=recipients
    )


def resolve_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """The person says they are safe just before this step of an opening."""
    step = getattr(module, name)

    def resolved_first(*args: Any, **kwargs: Any) -> Any:
        for incident in SosEvent.objects.active():
            assert incidents.resolve(incident, with_pin=False)
        return step(*args, **kwargs)

    monkeypatch.setattr(module, name, resolved_first)


@pytest.mark.parametrize(("module", "name"), [(incidents, "_alert"), (outbox, "hold"), (incidents, "_release")])
def test_p1_without_transactions_an_incident_resolved_amid_its_opening_sends_nothing(
    module: Any, name: str, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MongoDB order: the alerts are held until another look shows that the incident is still active."""
    if has_transactions():
        return  # Nobody sees an incident before its alerts are written: the commit shows both at once.
    asha = people(1)[0]
    with monkeypatch.context() as patched:
        resolve_before(patched, module, name)
        incidents.open_or_join([trigger_of(asha, 2)], now=clock.now())
    journal = sent(monkeypatch)
    expiry.cycle()
    dispatch_all()
    assert SosEvent.objects.get().status == "resolved"
    assert journal == []
    assert set(Delivery.objects.values_list("status", flat=True)) <= {DeliveryStatus.CANCELLED}


def test_p3_without_transactions_a_resolving_cut_short_is_completed_by_the_next_cycle(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: resolved, but the worker's alerts not yet cancelled and no all-clear queued: any database, one code path."""
    asha = people(1, contacts=2)[0]
    incident, _ = panic.press(asha)
    first = Delivery.objects.order_by("pk")[0]
    Delivery.objects.filter(pk=first.pk).update(status=DeliveryStatus.ACCEPTED)
    SosEvent.objects.update(status="resolved", open_key=None, resolved_at=clock.now(), resolution="app")
    expiry.cycle()
    assert Counter(Delivery.objects.values_list("kind", "status")) == {
        ("sos", "accepted"): 1,
        ("sos", "cancelled"): 1,
        ("all_clear", "queued"): 1,
    }
    assert Counter(incident.timeline.values_list("kind", flat=True)) == {"opened": 1, "resolved": 1}


def test_p3_an_incident_without_its_alerts_gets_them_from_the_next_cycle(transactional_db: None) -> None:
    """P3: what a crash between the incident and its deliveries leaves."""
    asha = people(1, contacts=2)[0]
    incident = SosEvent.objects.create(
        open_key=asha.pk,
        person=asha,
        source=Source.MANUAL,
        reference="K7Q",
        happened_at=clock.now(),
        opened_at=clock.now(),
    )
    expiry.cycle()
    expiry.cycle()
    assert_alerted_once([incident], contacts=2)
    assert set(Delivery.objects.values_list("status", flat=True)) == {DeliveryStatus.QUEUED}
    incident.refresh_from_db()
    assert incident.alerted_at


def test_p3_on_sql_an_error_amid_the_opening_leaves_nothing_behind(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: one transaction; where there is none, what is left is completed by the next cycle."""
    asha = people(1, contacts=2)[0]

    def broken(deliveries: Sequence[Delivery]) -> None:
        raise ValueError("no")

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "hold", broken)
        with pytest.raises(ValueError, match="no"):
            panic.press(asha)
    assert SosEvent.objects.count() == (0 if has_transactions() else 1)
    expiry.cycle()
    assert Delivery.objects.count() == (0 if has_transactions() else 2)
    _, opened = panic.press(asha)
    assert opened == has_transactions()


def test_a_link_is_secret_stable_and_survives_text_apps(asha: User) -> None:
    """The same contact of the same incident has the same link each time, and no two contacts share one."""
    incident, _ = panic.press(asha)
    tokens = list(AlertedContact.objects.values_list("token", flat=True))
    assert len(set(tokens)) == 2
    assert all(len(token) == 24 and token.isalnum() and token.islower() for token in tokens)
    for contact in AlertedContact.objects.all():
        recipient = Recipient(contact.contact_id, contact.name, contact.phone, contact.language)
        assert alerts.alerted_contact(incident, recipient).token == contact.token


def test_a_live_timer_fills_in_what_the_press_does_not_say(asha: User) -> None:
    timers.arm(asha, location_name="Marine Drive", duration_minutes=60, meet_with="Rahul K")
    incident, _ = panic.press(asha)
    assert (incident.place_name, incident.meet_with) == ("Marine Drive", "Rahul K")
