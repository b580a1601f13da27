"""The escalation ladder: rounds driven by reach (P13), each once, none lost (P3), none after an answer."""

import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from casualmeet import clock
from casualmeet import settings as settings_module
from casualmeet.db import has_transactions
from notifications import optouts, outbox
from notifications.carriers import routing
from notifications.models import Channel, Delivery, DeliveryStatus, Notification, OptOut, PushSubscription
from safety import expiry, panic
from safety.models import TrustedContact, User
from safety.tests.people import Clock, people, timers_for
from safety.tests.steps import Step, die_at
from sos import alerts, contact_answers, escalation, incidents
from sos.console import Card, read_board
from sos.console_access import requeue, worth_requeueing
from sos.models import AlertedContact, SosEvent, TimelineEntry
from testing.database import in_hand
from testing.processes import PYTHON_MODULE, ManagedProcess

CALLS = {"voice": 1}
AGAIN = {"sms": 1, "voice": 1}
ROUNDS = {2: 60, 3: 180, 4: 300, 5: 600}
OVER = 690


class Death(BaseException):
    """Passes every `except Exception`, as a SIGKILL does; only a transaction is still rolled back."""


@pytest.fixture
def wall(db: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def asha(db: None) -> User:
    """A person with two contacts, Ravi 0 and Ravi 1."""
    return people(1, contacts=2)[0]


@pytest.fixture
def incident(asha: User, wall: Clock) -> SosEvent:
    """Opened now by SOS; its texts have been accepted."""
    opened = panic.press(asha)[0]
    accept()
    return opened


def accept(**which: Any) -> None:
    """A carrier takes what is queued; that is all that is known of it."""
    queued = Delivery.objects.filter(status=DeliveryStatus.QUEUED, **which)
    queued.update(status=DeliveryStatus.ACCEPTED, finished_at=clock.now())


def deliver(**which: Any) -> None:
    """The phone confirms it."""
    Delivery.objects.filter(**which).update(status=DeliveryStatus.DELIVERED, delivered_at=clock.now())


def bury(**which: Any) -> None:
    """No carrier would take it."""
    Delivery.objects.filter(**which).update(status=DeliveryStatus.DEAD, finished_at=clock.now())


def contact_of(incident: SosEvent, name: str = "Ravi 0") -> AlertedContact:
    """The contact of this name."""
    return AlertedContact.objects.get(incident=incident, name=name)


def subscribe(contact_id: UUID) -> PushSubscription:
    """A browser that takes pushes for the contact."""
    tag = uuid4().hex
    return PushSubscription.objects.create(
        owner_id=contact_id, kind="webpush", endpoint=tag, endpoint_digest=tag * 2, created_at=clock.now()
    )


def at(wall: Clock, incident: SosEvent, seconds: float) -> int:
    """Let this much time have passed since the opening, and let the ladder look."""
    wall.now = incident.opened_at + timedelta(seconds=seconds)
    return escalation.advance_due(wall.now)


def sent(incident: SosEvent, wave: int, *, name: str | None = None) -> dict[str, int]:
    """What the round queued, by channel."""
    rows = Delivery.objects.filter(incident_id=incident.pk, wave=wave)
    rows = rows.filter(recipient_name=name) if name else rows
    return dict(Counter(rows.values_list("channel", flat=True)))


def seconds_to_next(incident: SosEvent) -> float | None:
    """From the opening."""
    incident.refresh_from_db()
    return (incident.next_wave_at - incident.opened_at).total_seconds() if incident.next_wave_at else None


def history(incident: SosEvent) -> list[str]:
    """The timeline's lines on rounds."""
    lines = incident.timeline.filter(kind__in=["wave", "nobody_reached"])
    return [entry.text for entry in lines.order_by("at")]


def alarms() -> list[str]:
    """What the moderators were told."""
    return list(Notification.objects.filter(kind="alarm").order_by("created_at").values_list("title", flat=True))


@pytest.fixture
def moderator(db: None) -> User:
    """Somebody who is told."""
    user = User.objects.create(username="mod", is_staff=True, password="!")
    user.user_permissions.add(*Permission.objects.filter(codename="view_sosevent"))
    return user


# The rounds


def test_nobody_reached_climbs_every_rung_and_ends_with_the_moderators(
    incident: SosEvent, wall: Clock, moderator: User
) -> None:
    """P13: accepted by the carrier is not reached; each round on its second, then a task for the moderators."""
    assert sent(incident, 1) == {"sms": 2}
    assert seconds_to_next(incident) == 60
    following = dict(zip(ROUNDS, [180, 300, 600, OVER], strict=True))
    for wave, seconds in ROUNDS.items():
        assert at(wall, incident, seconds - 0.001) == 0
        assert at(wall, incident, seconds) == 1
        assert at(wall, incident, seconds) == 0
        assert sent(incident, wave) == ({"voice": 2} if wave < 4 else {"sms": 2, "voice": 2})
        assert (seconds_to_next(incident), incident.wave) == (following[wave], wave)
        accept()
    assert alarms() == []
    assert at(wall, incident, OVER) == 1
    assert seconds_to_next(incident) is None
    assert incident.nobody_reached_at == wall.now
    assert alarms() == [f"Nobody reached: {incident.reference}"]
    name = incident.person.get_full_name()
    assert history(incident) == [
        f"Second round: calling {name}'s 2 contacts.",
        f"Third round: calling {name}'s 2 contacts.",
        f"Fourth round: alerting {name}'s 2 contacts again.",
        f"Fifth round: alerting {name}'s 2 contacts again.",
        "No contact was reached. The moderators are told.",
    ]
    assert at(wall, incident, 10_000) == 0
    assert Delivery.objects.count() == 2 + 2 + 2 + 4 + 4


def test_p7_a_realert_says_that_it_is_a_repeat_only_where_an_earlier_one_may_have_arrived(
    incident: SosEvent, wall: Clock
) -> None:
    """P7: Ravi 1's first text never left; to him the re-alert is the first one."""
    bury(recipient_name="Ravi 1")
    for wave, seconds in ROUNDS.items():
        at(wall, incident, seconds)
        accept(wave=wave)
    texts = Delivery.objects.filter(channel="sms").order_by("wave").values_list("recipient_name", "repeat")
    assert [repeat for name, repeat in texts if name == "Ravi 0"] == [0, 1, 2]
    assert [repeat for name, repeat in texts if name == "Ravi 1"] == [0, 0, 1]
    calls = Delivery.objects.filter(channel="voice", recipient_name="Ravi 0").order_by("wave")
    assert list(calls.values_list("repeat", flat=True)) == [0, 1, 2, 3]


REACH: dict[str, Callable[[], object]] = {
    "delivered": lambda: deliver(recipient_name="Ravi 0"),
    "known to be delivered": lambda: Delivery.objects.filter(recipient_name="Ravi 0").update(delivered_at=clock.now()),
    "looked": lambda: AlertedContact.objects.filter(name="Ravi 0").update(opened_at=clock.now()),
    "declined": lambda: AlertedContact.objects.filter(name="Ravi 0").update(declined_at=clock.now()),
}


@pytest.mark.parametrize("how", REACH)
def test_p13_who_is_reached_is_not_called_but_alerted_again_unless_they_answered(
    how: str, incident: SosEvent, wall: Clock
) -> None:
    """P13: each kind of reach; calls are for those not reached, re-alerts for all who have not answered."""
    REACH[how]()
    for wave, seconds in ROUNDS.items():
        at(wall, incident, seconds)
        accept()
        assert sent(incident, wave, name="Ravi 1") == (CALLS if wave < 4 else AGAIN)
        expected = {} if wave < 4 or how == "declined" else AGAIN
        assert sent(incident, wave, name="Ravi 0") == expected
    assert "Second round: calling 1 of" in history(incident)[0]
    assert at(wall, incident, OVER) == 1
    assert seconds_to_next(incident) is None
    assert incident.nobody_reached_at is None
    assert history(incident)[-1].startswith("All rounds are over: 1 of 2 contacts reached")


@pytest.mark.parametrize("simulated", [False, True])
def test_p13_sent_and_simulated_are_not_reached(simulated: bool, incident: SosEvent, wall: Clock) -> None:
    """P13: the simulated carrier confirms nothing either."""
    Delivery.objects.update(simulated=simulated)
    at(wall, incident, 60)
    assert sent(incident, 2) == {"voice": 2}


def test_a_round_with_nobody_to_address_passes_in_silence(incident: SosEvent, wall: Clock) -> None:
    deliver(incident_id=incident.pk)
    assert at(wall, incident, 60) == 1
    assert (sent(incident, 2), history(incident), seconds_to_next(incident)) == ({}, [], 180)


@pytest.mark.parametrize("wave", [1, *ROUNDS])
def test_one_acknowledgement_stops_the_ladder_at_any_round(wave: int, incident: SosEvent, wall: Clock) -> None:
    for earlier in range(2, wave + 1):
        at(wall, incident, ROUNDS[earlier])
    assert contact_answers.acknowledge(contact_of(incident))
    assert seconds_to_next(incident) is None
    count = Delivery.objects.count()
    for seconds in (*ROUNDS.values(), OVER):
        assert at(wall, incident, seconds) == 0
    assert Delivery.objects.count() == count
    assert not Delivery.objects.filter(wave__gte=2, status=DeliveryStatus.QUEUED).exists()
    assert escalation.next_wave() is None


def test_a_decline_by_all_keeps_it_going_until_the_moderators_are_told(
    incident: SosEvent, wall: Clock, moderator: User
) -> None:
    AlertedContact.objects.update(declined_at=wall.now)
    for seconds in ROUNDS.values():
        assert at(wall, incident, seconds) == 1
    assert not Delivery.objects.filter(wave__gte=2).exists()
    assert at(wall, incident, OVER) == 1
    assert alarms() == [f"Nobody is helping: {incident.reference}"]


def test_pushes_go_with_the_texts_and_never_instead_of_them(asha: User, wall: Clock) -> None:
    """Each subscription gets one, the disabled ones none; a re-alert has them again."""
    ravi = TrustedContact.objects.get(person=asha, slot=0)
    phone, laptop, old = subscribe(ravi.pk), subscribe(ravi.pk), subscribe(ravi.pk)
    PushSubscription.objects.filter(pk=old.pk).update(disabled_at=wall.now)
    subscribe(uuid4())
    incident = panic.press(asha)[0]
    assert sent(incident, 1) == {"sms": 2, "push": 2}
    pushed = Delivery.objects.filter(channel="push")
    assert {row.address for row in pushed} == {str(phone.pk), str(laptop.pk)}
    assert {row.recipient_id for row in pushed} == {contact_of(incident).pk}
    text = Delivery.objects.get(channel="sms", recipient_name="Ravi 0")
    assert {(row.kind, row.link) for row in pushed} == {(text.kind, text.link)}
    assert pushed[0].facts == text.facts
    panic.press(asha)
    assert Delivery.objects.filter(channel="push").count() == 2
    accept()
    at(wall, incident, 300)
    assert sent(incident, 4, name="Ravi 0") == {"sms": 1, "push": 2, "voice": 1}


def test_p14_what_is_wrong_with_pushes_costs_no_text(asha: User, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(TrustedContact.objects.filter(person=asha)[0].pk)

    intact = alerts.alert_by

    def broken(*args: Any, channel: Channel, **more: Any) -> Delivery:
        if channel == Channel.PUSH:
            raise ValueError("broken")
        return intact(*args, channel=channel, **more)

    monkeypatch.setattr(alerts, "alert_by", broken)
    incident = panic.press(asha)[0]
    assert sent(incident, 1) == {"sms": 2}


def test_the_pushes_of_a_batch_cost_as_many_queries_as_those_of_one(wall: Clock, db: None) -> None:
    counts = []
    for size in (1, 20):
        persons = people(size, contacts=2)
        for contact in TrustedContact.objects.filter(person__in=persons):
            subscribe(contact.pk)
        timers_for(persons, escalates_at=wall.now)
        with CaptureQueriesContext(connection) as captured:
            assert expiry.cycle().incidents_opened == size
        about_pushes = [q for q in captured.captured_queries if "pushsubscription" in str(q["sql"])]
        counts.append(len(about_pushes))
    assert counts == [1, 1]
    assert Delivery.objects.filter(channel="push").count() == 42


def test_a_round_of_many_incidents_costs_as_many_queries_as_of_one(wall: Clock, db: None) -> None:
    counts = []
    for size in (1, 20):
        timers_for(people(size, contacts=2), escalates_at=wall.now)
        expiry.cycle()
        accept()
        wall.move(seconds=60)
        with CaptureQueriesContext(connection) as captured:
            assert escalation.advance_due(wall.now) == size
        counts.append(len(captured))
        wall.move(hours=1)
        SosEvent.objects.update(next_wave_at=None)
    assert counts[0] == counts[1] or not has_transactions()
    assert Delivery.objects.filter(channel="voice").count() == 42


def test_the_limit_leaves_the_rest_for_the_next_look(wall: Clock, db: None) -> None:
    timers_for(people(3), escalates_at=wall.now)
    expiry.cycle()
    wall.move(seconds=60)
    assert [escalation.advance_due(wall.now, 2) for _ in range(3)] == [2, 1, 0]


def test_a_stopped_number_gets_calls_and_no_text(incident: SosEvent, wall: Clock) -> None:
    OptOut.objects.create(phone=contact_of(incident).phone, stopped_at=wall.now, source="reply")
    for wave, seconds in ROUNDS.items():
        at(wall, incident, seconds)
        accept()
        assert sent(incident, wave, name="Ravi 0") == CALLS
    assert sent(incident, 5, name="Ravi 1") == AGAIN


def test_no_second_one_is_queued_while_the_first_has_not_left(asha: User, wall: Clock) -> None:
    """A carrier that is away for ten minutes must not be followed by three texts and four calls at once."""
    incident = panic.press(asha)[0]
    for seconds in ROUNDS.values():
        at(wall, incident, seconds)
    assert Counter(Delivery.objects.values_list("channel", "wave")) == {("sms", 1): 2, ("voice", 2): 2}


def test_no_calls_where_no_carrier_can_make_them(
    incident: SosEvent, wall: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "configured", lambda: {"fast2sms": object()})
    for seconds in ROUNDS.values():
        at(wall, incident, seconds)
        accept()
    assert Counter(Delivery.objects.values_list("channel", "wave")) == {("sms", wave): 2 for wave in (1, 4, 5)}


# Late workers and settings


def test_a_late_worker_begins_only_the_latest_round_and_leaves_the_next_some_time(
    incident: SosEvent, wall: Clock
) -> None:
    assert at(wall, incident, 290) == 1
    assert (sent(incident, 2), sent(incident, 3)) == ({}, {"voice": 2})
    assert seconds_to_next(incident) == 350
    accept()
    assert at(wall, incident, 350) == 1
    assert (sent(incident, 4), seconds_to_next(incident)) == ({"sms": 2, "voice": 2}, 600)


def test_a_worker_that_was_down_for_an_hour_still_alerts_again_before_it_gives_up(
    incident: SosEvent, wall: Clock
) -> None:
    assert at(wall, incident, 3600) == 1
    assert Counter(Delivery.objects.values_list("wave", flat=True)) == {1: 2, 5: 4}
    accept()
    assert seconds_to_next(incident) == 3690
    assert at(wall, incident, 3690) == 1
    assert incident.timeline.filter(kind="nobody_reached").exists()


def test_p2_an_incident_opened_late_counts_from_its_opening(wall: Clock, db: None) -> None:
    """P2: the worker was down for three hours; the contacts still get a minute before they are called."""
    timers_for(people(1), escalates_at=wall.now - timedelta(hours=3))
    expiry.cycle()
    incident = SosEvent.objects.get()
    assert (incident.opened_at, seconds_to_next(incident)) == (wall.now, 60)
    assert escalation.advance_due(wall.now) == 0
    assert escalation.next_wave() == wall.now + timedelta(seconds=60)


def test_changed_settings_hold_for_incidents_that_are_under_way(incident: SosEvent, wall: Clock, settings: Any) -> None:
    settings.ESCALATION_CALL_SECONDS = 90
    assert at(wall, incident, 60) == 1
    assert (sent(incident, 2), seconds_to_next(incident)) == ({}, 90)
    assert at(wall, incident, 90) == 1
    settings.ESCALATION_CALL_AGAIN_SECONDS, settings.ESCALATION_REALERT_SECONDS = 100, [200]
    accept()
    assert at(wall, incident, 180) == 1
    assert (sent(incident, 2), sent(incident, 3)) == ({"voice": 2}, {"voice": 2})
    accept()
    at(wall, incident, 230)
    assert (incident.nobody_reached_at, sent(incident, 4)) == (None, {"sms": 2, "voice": 2})
    settings.ESCALATION_REALERT_SECONDS = []
    at(wall, incident, 320)
    incident.refresh_from_db()
    assert incident.nobody_reached_at == wall.now


def test_settings_that_do_not_rise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCALATION_CALL_AGAIN_SECONDS", "30")
    with pytest.raises(ImproperlyConfigured, match="must rise"):
        importlib.reload(settings_module)
    monkeypatch.undo()
    importlib.reload(settings_module)


# Nobody to reach


def test_without_contacts_the_moderators_are_told_at_once(wall: Clock, moderator: User) -> None:
    timer = timers_for(people(1, contacts=2), escalates_at=wall.now)[0]
    timer.moderators_only = True
    timer.save()
    expiry.cycle()
    assert escalation.next_wave() == wall.now
    assert escalation.advance_due(wall.now) == 1
    incident = SosEvent.objects.get()
    assert (incident.nobody_reached_at, incident.next_wave_at) == (wall.now, None)
    assert alarms() == [f"Nobody reached: {incident.reference}"]
    assert history(incident) == ["There is no contact to alert. The moderators are told."]
    assert Card(incident).nobody_reached


def test_contacts_that_a_second_trigger_brings_get_the_whole_ladder(wall: Clock, moderator: User) -> None:
    """P4: a timer for the moderators only, then SOS twenty minutes later."""
    asha = people(1, contacts=1)[0]
    timer = timers_for([asha], escalates_at=wall.now)[0]
    timer.moderators_only = True
    timer.save()
    expiry.cycle()
    escalation.advance_due(wall.now)
    pressed = wall.move(minutes=20)
    incident = panic.press(asha)[0]
    accept()
    assert (incident.next_wave_at, incident.nobody_reached_at) == (pressed + timedelta(seconds=60), None)
    for wave, seconds in ROUNDS.items():
        wall.now = pressed + timedelta(seconds=seconds)
        assert escalation.advance_due(wall.now) == 1
        accept()
        assert sent(incident, wave) == (CALLS if wave < 4 else AGAIN)
    wall.now = pressed + timedelta(seconds=OVER)
    assert escalation.advance_due(wall.now) == 1
    assert len(alarms()) == 2


def test_a_contact_who_is_added_when_the_ladder_is_over_is_alerted_again_and_the_others_are_not(
    asha: User, incident: SosEvent, wall: Clock
) -> None:
    for seconds in (*ROUNDS.values(), OVER):
        at(wall, incident, seconds)
        accept()
    before = Delivery.objects.filter(wave__gte=2).count()
    TrustedContact.objects.create(
        person=asha, slot=5, name="Leela", phone="+919812312312", status="verified", token="t", invited_at=wall.now
    )
    panic.press(asha)
    accept()
    assert at(wall, incident, OVER + 60) == 1
    assert sent(incident, 5, name="Leela") == AGAIN
    assert Delivery.objects.filter(wave__gte=2).count() == before + 2
    assert at(wall, incident, OVER + 150) == 1
    panic.press(asha)
    assert seconds_to_next(incident) is None


@pytest.mark.parametrize("calls", [True, False])
def test_when_no_message_can_reach_anybody_the_moderators_are_told_at_once(
    calls: bool, incident: SosEvent, wall: Clock, moderator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts are dead letters: with calls there is hope until those are dead too. The ladder goes on trying."""
    if not calls:
        monkeypatch.setattr(routing, "configured", lambda: {"fast2sms": object()})
    wall.move(seconds=5)
    bury(recipient_name="Ravi 0")
    assert escalation.advance_due(wall.now) == 0
    bury(incident_id=incident.pk)
    assert escalation.advance_due(wall.now) == (0 if calls else 1)
    if calls:
        at(wall, incident, 60)
        bury(channel="voice")
        assert at(wall, incident, 61) == 1
    incident.refresh_from_db()
    assert incident.nobody_reached_at == wall.now
    assert alarms() == [f"Nobody reached: {incident.reference}"]
    assert escalation.advance_due(wall.now) == 0
    assert at(wall, incident, 300) == 1
    accept()
    assert sent(incident, 4)["sms"] == 2


def test_a_contact_who_looks_after_all_ends_the_alarm_on_the_board(
    incident: SosEvent, wall: Clock, moderator: User
) -> None:
    at(wall, incident, 600)
    at(wall, incident, OVER)
    assert [card.nobody_reached for card in read_board(moderator).cards] == [True]
    AlertedContact.objects.filter(name="Ravi 0").update(opened_at=wall.now)
    assert [card.nobody_reached for card in read_board(moderator).cards] == [False]


# P14


def test_p14_a_broken_incident_holds_up_no_other_and_is_tried_again(
    wall: Clock, moderator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers_for(people(3), escalates_at=wall.now)
    expiry.cycle()
    poison = SosEvent.objects.order_by("pk")[1]
    make = alerts.alert_facts

    def facts(incident: SosEvent, **more: Any) -> Any:
        if incident.pk == poison.pk:
            raise ValueError("broken")
        return make(incident, **more)

    monkeypatch.setattr(alerts, "alert_facts", facts)
    assert at(wall, poison, 60) == 2
    assert at(wall, poison, 60) == 0
    assert len(alarms()) == 1
    assert sent(poison, 2) == {}
    monkeypatch.setattr(alerts, "alert_facts", make)
    assert at(wall, poison, 91) == 1
    assert sent(poison, 2) == CALLS
    assert seconds_to_next(poison) == 180


def test_p14_a_batch_that_fails_in_the_database_is_done_one_by_one(
    wall: Clock, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers_for(people(3), escalates_at=wall.now)
    expiry.cycle()
    poison = SosEvent.objects.order_by("pk")[1]
    hold = outbox.hold

    def holding(deliveries: list[Delivery]) -> None:
        if any(delivery.incident_id == poison.pk for delivery in deliveries):
            raise ValueError("broken")
        hold(deliveries)

    monkeypatch.setattr(outbox, "hold", holding)
    assert at(wall, poison, 60) == 2
    assert Counter(Delivery.objects.filter(channel="voice").values_list("status", flat=True)) == {"queued": 2}
    monkeypatch.setattr(outbox, "hold", hold)
    assert at(wall, poison, 91) == 1
    assert sent(poison, 2) == CALLS


# Races


def meddle(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, then: Callable[[], object]) -> None:
    """Let something happen just before the first call of this function."""
    original = getattr(place, name)
    done = False

    def meddled(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            then()
        return original(*args, **kwargs)

    monkeypatch.setattr(place, name, meddled)


def no_answers_sent(incident: SosEvent) -> None:
    """Nothing of a later round can leave any more."""
    assert not Delivery.objects.filter(wave__gte=2, status__in=["held", "queued", "sending"]).exists()


ENDS: dict[str, Callable[[SosEvent], object]] = {
    "acknowledged": lambda incident: contact_answers.acknowledge(contact_of(incident)),
    "resolved": lambda incident: incidents.resolve(incident, with_pin=False),
}
# On MongoDB the incident may change between any two writes; on SQL the round is one transaction.
BETWEEN = {
    "look-up and swap": (escalation, "_begin"),
    "swap and queueing": (outbox, "hold"),
    "queueing and release": (outbox, "release"),
    "release and the end": (escalation, "insert_missing"),
}


@pytest.mark.parametrize("between", list(BETWEEN)[:1] if has_transactions() else BETWEEN)
@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_ladder_in_the_middle_of_a_round_keeps_it_from_going_out(
    end: str, between: str, incident: SosEvent, wall: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = BETWEEN[between]
    meddle(monkeypatch, place, name, lambda: ENDS[end](incident))
    at(wall, incident, 60)
    no_answers_sent(incident)
    assert at(wall, incident, 180) == 0
    no_answers_sent(incident)


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_ladder_between_queueing_and_claim_keeps_calls_from_being_made(
    end: str, incident: SosEvent, wall: Clock
) -> None:
    """Others still get their first text when somebody helps: one helper may not be enough."""
    Delivery.objects.filter(recipient_name="Ravi 1").update(status=DeliveryStatus.QUEUED)
    at(wall, incident, 60)
    assert sent(incident, 2) == {"voice": 2}
    ENDS[end](incident)
    no_answers_sent(incident)
    first = Delivery.objects.get(wave=1, kind="sos", recipient_name="Ravi 1")
    assert first.status == ("queued" if end == "acknowledged" else "cancelled")


def test_a_call_that_is_being_made_when_somebody_helps_is_not_tried_again(incident: SosEvent, wall: Clock) -> None:
    at(wall, incident, 60)
    Delivery.objects.filter(wave=2).update(status=DeliveryStatus.SENDING, lease_token=uuid4())
    contact_answers.acknowledge(contact_of(incident))
    assert set(Delivery.objects.filter(wave=2).values_list("status", "cancel_requested")) == {("sending", True)}


def test_a_helper_who_cant_after_all_sets_the_rounds_going_again(incident: SosEvent, wall: Clock) -> None:
    contact_answers.acknowledge(contact_of(incident))
    at(wall, incident, 60)
    assert sent(incident, 2) == {}
    contact_answers.decline(contact_of(incident))
    at(wall, incident, 61)
    assert sent(incident, 2) == sent(incident, 2, name="Ravi 1") == CALLS


def test_while_another_one_helps_no_round_begins(incident: SosEvent, wall: Clock) -> None:
    contact_answers.acknowledge(contact_of(incident))
    contact_answers.report_reached(contact_of(incident, "Ravi 1"))
    contact_answers.decline(contact_of(incident))
    assert seconds_to_next(incident) is None
    at(wall, incident, 60)
    assert sent(incident, 2) == {}


def test_a_number_that_sends_stop_between_two_rounds_gets_no_further_text(incident: SosEvent, wall: Clock) -> None:
    at(wall, incident, 180)
    accept()
    OptOut.objects.create(phone=contact_of(incident).phone, stopped_at=wall.now, source="reply")
    at(wall, incident, 300)
    assert sent(incident, 4, name="Ravi 0") == CALLS


def test_a_number_that_sends_stop_between_queueing_and_claim_gets_its_call_only(
    incident: SosEvent, wall: Clock
) -> None:
    for seconds in (180, 300):
        at(wall, incident, seconds)
        accept(wave=3)
    optouts.stop(contact_of(incident).phone, "reply", wall.now)
    rows = Delivery.objects.filter(wave=4).values_list("recipient_name", "channel", "status")
    assert set(rows) == {
        ("Ravi 0", "sms", "cancelled"),
        ("Ravi 0", "voice", "queued"),
        ("Ravi 1", "sms", "queued"),
        ("Ravi 1", "voice", "queued"),
    }


def test_resolving_cancels_every_channel_of_every_round_and_the_all_clear_goes_by_text(asha: User, wall: Clock) -> None:
    """Also to a contact whom only a push has reached."""
    ravi = TrustedContact.objects.get(person=asha, slot=0)
    subscribe(ravi.pk)
    incident = panic.press(asha)[0]
    bury(channel="sms")
    accept(channel="push")
    at(wall, incident, 300)
    incidents.resolve(incident, with_pin=False)
    assert not Delivery.objects.filter(kind="sos", status=DeliveryStatus.QUEUED).exists()
    told = Delivery.objects.get(kind="all_clear")
    assert (told.channel, told.address, told.recipient_name) == ("sms", ravi.phone, "Ravi 0")


def test_a_crash_between_the_answer_and_the_end_of_the_ladder_is_made_good(incident: SosEvent, wall: Clock) -> None:
    AlertedContact.objects.filter(name="Ravi 0").update(acknowledged_at=wall.now)
    assert at(wall, incident, 60) == 1
    assert (sent(incident, 2), seconds_to_next(incident)) == ({}, None)


def test_workers_that_race_begin_each_round_once(transactional_db: None, wall: Clock) -> None:
    """Four workers, twenty incidents; every row and every line exactly once."""
    timers_for(people(20), escalates_at=wall.now)
    expiry.cycle()
    accept()
    opened_at = wall.now
    for wave, seconds in ROUNDS.items():
        wall.now = opened_at + timedelta(seconds=seconds)
        barrier = threading.Barrier(4)

        def work(_: int, barrier: threading.Barrier = barrier) -> int:
            try:
                barrier.wait()
                return escalation.advance_due(wall.now)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(work, range(4)))
        assert sum(done) == 20 or not has_transactions()
        assert set(SosEvent.objects.values_list("wave", flat=True)) == {wave}
        rows = Counter(Delivery.objects.filter(wave=wave).values_list("recipient_id", "channel"))
        assert (len(rows), set(rows.values())) == (20 if wave < 4 else 40, {1})
        assert set(Delivery.objects.filter(wave=wave).values_list("status", flat=True)) == {"queued"}
        accept()
    assert TimelineEntry.objects.filter(kind="wave").count() == 20 * len(ROUNDS)


def test_p14_an_incident_that_another_transaction_holds_keeps_no_other_ladder_waiting(
    transactional_db: None, wall: Clock
) -> None:
    timers_for(people(4), escalates_at=wall.now)
    expiry.cycle()
    accept()
    held = SosEvent.objects.order_by("pk")[0]
    wall.now += timedelta(seconds=ROUNDS[2])
    with in_hand(SosEvent.objects.filter(pk=held.pk), place_name="Frozen"):
        assert escalation.advance_due(wall.now) == 3
        assert set(SosEvent.objects.exclude(pk=held.pk).values_list("wave", flat=True)) == {2}
    assert escalation.advance_due(wall.now) == 1
    assert set(SosEvent.objects.values_list("wave", flat=True)) == {2}


# Crashes

STEPS = {
    "before the swap": Step("sos.escalation._begin", "before"),
    "after the swap": Step("notifications.outbox.hold", "before"),
    "amid the deliveries": Step("notifications.outbox.insert_missing", "half"),
    "after the deliveries": Step("notifications.outbox.hold"),
    "after the release": Step("notifications.outbox.release"),
    "before the timeline": Step("sos.escalation.insert_missing", "before"),
    "after the timeline": Step("sos.escalation.insert_missing"),
}
# Where nothing is rolled back, these leave the round on its way.
RELEASED = set() if has_transactions() else {"after the release", "before the timeline", "after the timeline"}


def die() -> None:
    """As a process does."""
    raise Death


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Step], Callable[[], None]]]:
    """Kill at a step; what puts it back runs at the end in any case."""
    undo: list[Callable[[], None]] = []

    def kill_at(step: Step) -> Callable[[], None]:
        undo.append(die_at(step, die))
        return undo[-1]

    yield kill_at
    for back in reversed(undo):
        back()


@pytest.fixture
def crash_test(transactional_db: None, wall: Clock, dying: Any) -> tuple[Clock, Any]:
    """A clock, and what kills, over a database that commits."""
    return wall, dying


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wave", [2, 5])
@pytest.mark.parametrize("step", STEPS)
def test_p3_a_crash_at_any_step_of_a_round_neither_loses_nor_doubles_it(
    step: str, wave: int, late: bool, crash_test: tuple[Clock, Any]
) -> None:
    """P3: the next look, a second or an hour later, completes the round or begins the latest one."""
    wall, dying = crash_test
    incident = panic.press(people(1, contacts=2)[0])[0]
    for earlier in range(1, wave):
        accept()
        if earlier > 1:
            at(wall, incident, ROUNDS[earlier])
            accept()
    back = dying(STEPS[step])
    with pytest.raises(Death):
        at(wall, incident, ROUNDS[wave])
    back()
    at(wall, incident, ROUNDS[wave] + (3600 if late else 1))
    reached = 5 if late else wave
    overtaken = reached != wave
    channels = {2: ["voice"], 5: ["sms", "voice"]}[reached]
    if overtaken and step in RELEASED:
        channels = ["sms"]  # the call of the second round has not left yet
    rows = Counter(Delivery.objects.filter(wave=reached).values_list("recipient_name", "channel", "status"))
    assert rows == {(name, channel, "queued"): 1 for name in ("Ravi 0", "Ravi 1") for channel in channels}
    if overtaken:
        # What was written of the round before the crash is not sent beside the one that replaces it.
        stale = set(Delivery.objects.filter(wave=wave).values_list("status", flat=True))
        assert stale <= ({"queued"} if step in RELEASED else {"cancelled"})
    following = seconds_to_next(incident)
    assert incident.wave == reached
    if late and wave == 5 and step in RELEASED:
        assert following is None  # the last round has had an hour
        return
    assert incident.timeline.filter(text__contains=" round: ").exists()
    assert following in ({ROUNDS[wave] + 3690} if late else {180} if wave == 2 else {OVER, OVER + 1})


@pytest.mark.parametrize("wave", [2, 5])
def test_p3_a_crash_after_a_round_does_not_repeat_it(
    wave: int, transactional_db: None, wall: Clock, dying: Any
) -> None:
    incident = panic.press(people(1, contacts=2)[0])[0]
    accept()
    back = dying(Step("sos.escalation._begin"))
    with pytest.raises(Death):
        at(wall, incident, ROUNDS[wave])
    back()
    accept()
    count = Delivery.objects.count()
    assert at(wall, incident, ROUNDS[wave] + 1) == 0
    assert Delivery.objects.count() == count
    assert incident.timeline.filter(kind="wave").count() == 1


@pytest.mark.parametrize(
    "step",
    [
        Step("sos.escalation.insert_missing"),
        Step("notifications.inbox.alarm_moderators"),
        Step("sos.escalation._finish"),
    ],
    ids=["after the timeline", "after the alarm", "after the end"],
)
def test_p3_a_crash_while_the_moderators_are_told_tells_them_once(
    step: Step, transactional_db: None, wall: Clock, dying: Any
) -> None:
    User.objects.create(username="mod", is_staff=True, password="!")
    incident = panic.press(people(1)[0])[0]
    at(wall, incident, 600)
    back = dying(step)
    with pytest.raises(Death):
        at(wall, incident, OVER)
    back()
    at(wall, incident, OVER + 5)
    incident.refresh_from_db()
    assert incident.nobody_reached_at
    assert incident.next_wave_at is None
    assert len(alarms()) == 1
    assert incident.timeline.filter(kind="nobody_reached").count() == 1


def test_p3_an_opening_that_a_crash_left_half_done_has_its_ladder_once_it_is_repaired(
    transactional_db: None, wall: Clock, dying: Any
) -> None:
    timers_for(people(1, contacts=1), escalates_at=wall.now)
    back = dying(Step("notifications.outbox.hold", "before"))
    with pytest.raises(Death):
        expiry.cycle()
    back()
    wall.move(minutes=30)
    assert escalation.advance_due(wall.now) == 0
    assert escalation.next_wave() is None
    expiry.cycle()
    accept()
    incident = SosEvent.objects.get()
    repaired_at = wall.now
    escalation.advance_due(wall.now)
    assert sent(incident, 1) == {"sms": 1}
    assert Delivery.objects.count() == 1
    wall.now = repaired_at + timedelta(seconds=60)
    assert escalation.advance_due(wall.now) == 1
    assert sent(incident, 2) == CALLS


@pytest.mark.processes
def test_p3_workers_that_race_and_one_that_is_killed_climb_to_the_top(
    database_url: str, wait_until: Callable[..., Any], settings: Any
) -> None:
    """P3: two processes with a dispatcher beside them; one dies amid the rounds. Nothing lost, nothing twice."""
    times = {"ESCALATION_CALL_SECONDS": 1, "ESCALATION_CALL_AGAIN_SECONDS": 2}
    for name, seconds in times.items():
        setattr(settings, name, seconds)
    env = {"DATABASE_URL": database_url, "ESCALATION_REALERT_SECONDS": "3"}
    env |= {name: str(seconds) for name, seconds in times.items()}
    climbers = [ManagedProcess(["sos.tests.climber"], env, program=PYTHON_MODULE) for _ in range(2)]
    with climbers[0], climbers[1], ManagedProcess(["run_dispatch_worker"], env):
        for climber in climbers:
            climber.wait_for_line("climbing", timeout=60)
        timers_for(people(6, contacts=2), escalates_at=clock.now())
        expiry.cycle()
        wait_until(lambda: SosEvent.objects.filter(wave__gte=2).exists(), timeout=30)
        climbers[0].kill()
        top = Delivery.objects.filter(wave=4, channel="sms", status=DeliveryStatus.ACCEPTED)
        wait_until(lambda: top.count() == 12, timeout=60)
        assert "Traceback" not in climbers[1].output
    assert set(SosEvent.objects.values_list("wave", flat=True)) == {4}
    rows = Counter(Delivery.objects.values_list("recipient_id", "channel", "wave"))
    assert set(rows.values()) == {1}
    assert Counter(channel for _, channel, _ in rows)["sms"] == 24
    lines = Counter(TimelineEntry.objects.filter(kind="wave").values_list("incident_id", "text"))
    assert set(lines.values()) == {1}


# What moderators see


def test_the_board_and_the_page_show_the_round_the_next_one_and_the_end(
    incident: SosEvent, wall: Clock, client: Any, settings: Any
) -> None:
    client.force_login(User.objects.create(username="root", is_staff=True, is_superuser=True, password="!"))
    pages = ["/admin/board/", f"/admin/sos/sosevent/{incident.pk}/live/"]

    def shown() -> list[str]:
        return [client.get(page).text for page in pages]

    for text in shown():
        assert "Round 1: calling all not reached yet in" in text
        assert f'data-until="{incident.next_wave_at:%Y-%m-%dT%H:%M:%S}' in text
    at(wall, incident, 180)
    for text in shown():
        assert "Round 3: alerting and calling all who have not answered in" in text
    assert "Third round: calling" in shown()[1]
    at(wall, incident, 600)
    for text in shown():
        assert "Round 5: the end of the rounds in" in text
        assert "Nobody reached." not in text
    at(wall, incident, OVER)
    for text in shown():
        assert "Round 5, the last one" in text
        assert "<strong>Nobody reached.</strong> No contact had been reached by" in text
    contact_answers.acknowledge(contact_of(incident))
    for text in shown():
        assert "somebody is helping" in text
        assert "Nobody reached." not in text
    incidents.resolve(incident, with_pin=False)
    for text in shown():
        assert "Round 5" not in text


def test_a_dead_letter_is_not_tried_again_once_somebody_helps(incident: SosEvent, wall: Clock) -> None:
    at(wall, incident, 60)
    bury(wave=2)
    contact_answers.acknowledge(contact_of(incident))
    dead = Delivery.objects.filter(wave=2)[0]
    assert not worth_requeueing(dead, incident_active=True)
    assert not requeue(dead)
