"""What is deleted when, what stays, and the receipts: complete whatever broke off where, and without a word too much."""

import importlib
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import serializers
from django.test import Client
from django.urls import reverse

from casualmeet import clock
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus, Notification
from ops.tests.runs import Lost, TestRun
from safety import expiry, panic, positions, purging, timers, tokens
from safety.jobs import purge_incidents, purge_positions
from safety.models import Deleted, DeletionReceipt, FailSafeAlert, MeetingTimer, Position, TimerStatus, User
from safety.tests.people import Clock, people, timers_for
from sos import incidents
from sos.models import AlertedContact, SosEvent, TimelineEntry
from sos.triggers import Fix

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


def track(timer: MeetingTimer, count: int) -> None:
    """So many positions, one second apart."""
    for n in range(count):
        at = clock.now() - timedelta(seconds=n)
        positions.record(timer, Fix(28.6139, 77.209 + n / 1000, 12.5, at), battery_percent=80)


def armed(person: User, *, tracked: int = 0) -> MeetingTimer:
    (timer,) = timers_for([person], escalates_at=clock.now() + timedelta(hours=1))
    track(timer, tracked)
    return MeetingTimer.objects.select_related("person").get(pk=timer.pk)


def ended(person: User, *, tracked: int = 3, verb: Callable[..., MeetingTimer] = timers.check_in) -> MeetingTimer:
    return verb(armed(person, tracked=tracked))


def missed(person: User, wall: Clock, *, tracked: int = 3) -> tuple[MeetingTimer, SosEvent]:
    """A timer that ran out, with its incident; one text of it was tried."""
    timer = armed(person, tracked=tracked)
    wall.move(hours=1)
    expiry.cycle()
    incident = SosEvent.objects.get(triggered_timer_id=timer.pk)
    delivery = Delivery.objects.filter(incident_id=incident.pk)[0]
    DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="twilio", text="SOS: Asha", raw='{"to": "+91"}', started_at=clock.now()
    )
    return timer, incident


def closed(person: User, wall: Clock, **options: Any) -> tuple[MeetingTimer, SosEvent]:
    timer, incident = missed(person, wall, **options)
    assert incidents.resolve(incident, with_pin=False)
    return timer, incident


def run_all() -> None:
    purge_positions(TestRun())
    purge_incidents(TestRun())


def receipts() -> list[tuple[str, int]]:
    rows = DeletionReceipt.objects.filter(deleted_at__isnull=False)
    return sorted(rows.values_list("what", "count"))


def fresh(row: Any) -> Any:
    return type(row).objects.get(pk=row.pk)


class TestPositions:
    @pytest.mark.parametrize("verb", [timers.check_in, timers.cancel])
    def test_they_go_a_day_after_the_end_and_not_a_millisecond_before(
        self, wall: Clock, verb: Callable[..., MeetingTimer]
    ) -> None:
        timer = ended(people(1)[0], verb=verb)
        wall.move(hours=24, milliseconds=-1)
        purge_positions(TestRun())
        assert (Position.objects.count(), receipts()) == (3, [])
        wall.move(milliseconds=1)
        assert purge_positions(TestRun()) == "1 purged, 1 receipts"
        assert not Position.objects.exists()
        kept = fresh(timer)
        assert (kept.last_fix, kept.last_fix_at, kept.location_name) == (None, None, "Cafe Blue")
        receipt = DeletionReceipt.objects.get()
        assert (receipt.what, receipt.count, receipt.deleted_at) == ("positions", 3, wall.now)
        assert (receipt.period_from, receipt.period_to) == (timer.started_at, timer.resolved_at)
        assert receipt.policy == "24 hours after the timer ended"
        assert purge_positions(TestRun()) == "0 purged, 0 receipts"

    def test_a_timer_without_any_leaves_no_receipt(self, wall: Clock) -> None:
        ended(people(1)[0], tracked=0)
        wall.move(hours=24)
        assert purge_positions(TestRun()) == "1 purged, 0 receipts"

    def test_those_of_a_live_timer_and_of_one_that_ran_out_stay(self, wall: Clock) -> None:
        asha, ravi = people(2)
        missed(asha, wall)
        armed(ravi, tracked=2)
        MeetingTimer.objects.filter(person=ravi).update(escalates_at=wall.now + timedelta(days=9))
        wall.move(days=3)
        purge_positions(TestRun())
        assert Position.objects.count() == 5

    def test_while_the_person_has_an_active_incident_all_stay(self, wall: Clock) -> None:
        asha = people(1)[0]
        ended(asha)
        incident, _ = panic.press(asha)
        wall.move(days=2)
        assert purge_positions(TestRun()) == "0 purged, 0 receipts"
        assert incidents.resolve(incident, with_pin=False)
        assert purge_positions(TestRun()) == "1 purged, 1 receipts"

    def test_more_than_a_batch_goes_though_some_stay(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(purging, "BATCH", 2)
        persons = people(7)
        for person in persons:
            ended(person, tracked=1)
        for person in persons[:3]:
            panic.press(person)
        wall.move(days=1)
        assert purge_positions(TestRun()) == "4 purged, 4 receipts"
        assert Position.objects.count() == 3


class TestIncidents:
    def test_after_30_days_what_is_personal_is_gone_and_what_happened_stays(self, wall: Clock) -> None:
        asha = people(1, contacts=2)[0]
        timer, incident = closed(asha, wall)
        MeetingTimer.objects.update(note="grey car", meet_with_user=people(1)[0])
        FailSafeAlert.objects.create(
            timer=timer, contact_id=uuid4(), phone="+919800000001", language="en", settled=True
        )
        entries = list(TimelineEntry.objects.values_list("kind", "text"))
        wall.move(days=30, milliseconds=-1)
        run_all()
        assert Position.objects.count() == 3
        assert fresh(incident).details_gone_at is None
        wall.move(milliseconds=1)
        run_all()
        kept = fresh(incident)
        assert (kept.place_name, kept.meet_with, kept.location, kept.location_at) == ("", "", None, None)
        assert (kept.reference, kept.source, kept.details_gone_at) == (incident.reference, "timer_expired", wall.now)
        ran_out = fresh(timer)
        assert (ran_out.location_name, ran_out.meet_with, ran_out.note, ran_out.last_fix) == ("", "", "", None)
        assert ran_out.meet_with_user is None
        assert not Position.objects.exists()
        assert not FailSafeAlert.objects.exists()
        assert set(AlertedContact.objects.values_list("phone", flat=True)) == {""}
        assert set(Delivery.objects.values_list("address", "link")) == {("", "")}
        assert [row.facts for row in Delivery.objects.all()] == [{}] * Delivery.objects.count()
        assert list(DeliveryAttempt.objects.values_list("text", "raw", "detail")) == [("", "", "")]
        assert list(TimelineEntry.objects.values_list("kind", "text")) == entries
        # Itself, two alerts, two contacts, three positions; no all-clear, since no alert went out.
        assert receipts() == [("incident_details", 8)]

    def test_none_of_its_messages_can_be_sent_any_more(self, wall: Clock) -> None:
        _, incident = closed(people(1, contacts=2)[0], wall)
        Delivery.objects.filter(incident_id=incident.pk).update(status=DeliveryStatus.DEAD, cancel_requested=False)
        late = Delivery.objects.filter(incident_id=incident.pk).values_list("pk", flat=True)[0]
        Delivery.objects.filter(pk=late).update(status=DeliveryStatus.QUEUED)
        wall.move(days=30)
        run_all()
        rows = Delivery.objects.filter(incident_id=incident.pk).values_list("status", "cancel_requested")
        assert Counter(rows) == {("cancelled", True): 1, ("dead", True): 1}

    def test_after_90_days_all_is_gone_with_its_timers_and_the_receipts_stay(self, wall: Clock) -> None:
        asha, ravi = people(2, contacts=2)
        _, incident = missed(asha, wall)
        joined = armed(asha, tracked=1)
        wall.move(hours=1)
        expiry.cycle()
        assert incidents.find_by_trigger(joined.pk) == incident
        assert incidents.resolve(incident, with_pin=False)
        _, other = missed(ravi, wall)
        tried_again = list(Delivery.objects.filter(incident_id=incident.pk))[:1]
        LogEntry.objects.log_actions(ravi.pk, tried_again, CHANGE, change_message="Tried again")
        wall.move(days=30)
        run_all()
        wall.move(days=60)
        run_all()
        assert list(SosEvent.objects.all()) == [other]
        assert set(MeetingTimer.objects.values_list("person_id", flat=True)) == {ravi.pk}
        assert set(Delivery.objects.values_list("incident_id", flat=True)) == {other.pk}
        assert set(AlertedContact.objects.values_list("incident_id", flat=True)) == {other.pk}
        assert set(TimelineEntry.objects.values_list("incident_id", flat=True)) == {other.pk}
        assert not Notification.objects.filter(incident_id=incident.pk).exists()
        assert DeliveryAttempt.objects.count() == 1
        assert [what for what, _ in receipts()] == ["incident", "incident_details"]
        assert list(LogEntry.objects.values_list("object_repr", "change_message")) == [("a message", "Tried again")]

    def test_an_active_incident_is_never_touched_however_old(self, wall: Clock) -> None:
        asha = people(1)[0]
        missed(asha, wall)
        before = serializers.serialize(
            "json", [*SosEvent.objects.all(), *Delivery.objects.all(), *Position.objects.all()]
        )
        wall.move(days=400)
        run_all()
        after = serializers.serialize(
            "json", [*SosEvent.objects.all(), *Delivery.objects.all(), *Position.objects.all()]
        )
        assert json.loads(after) == json.loads(before)
        assert MeetingTimer.objects.get().note == ""
        assert receipts() == []

    def test_one_whose_closing_a_crash_broke_off_waits_until_that_is_done(self, wall: Clock) -> None:
        _, incident = closed(people(1)[0], wall)
        SosEvent.objects.update(all_clear_at=None)
        wall.move(days=100)
        run_all()
        assert fresh(incident).place_name == "Cafe Blue"

    def test_p11_the_contacts_page_is_whole_until_it_closes(self, wall: Clock, settings: Any) -> None:
        """P11: with the shortest setting what is personal goes only when the page is gone already."""
        settings.PURGE_INCIDENT_DETAILS_DAYS = 1
        _, incident = closed(people(1)[0], wall)
        token = AlertedContact.objects.get().token
        wall.move(hours=24, milliseconds=-1)
        run_all()
        assert incidents.access_alert_page(token, now=wall.now).incident.place_name == "Cafe Blue"
        wall.move(milliseconds=1)
        run_all()
        assert fresh(incident).place_name == ""
        with pytest.raises(AlertedContact.DoesNotExist):
            incidents.access_alert_page(token, now=wall.now)


class TestTimers:
    def test_they_go_90_days_after_their_end_and_an_orphan_too(self, wall: Clock) -> None:
        asha, ravi = people(2)
        ended(asha)
        (orphan,) = timers_for([ravi], escalates_at=wall.now)
        MeetingTimer.objects.filter(pk=orphan.pk).update(status=TimerStatus.EXPIRED, resolved_at=wall.now)
        wall.move(days=1)
        run_all()
        wall.move(days=89, milliseconds=-1)
        run_all()
        assert MeetingTimer.objects.count() == 2
        wall.move(milliseconds=1)
        run_all()
        assert not MeetingTimer.objects.exists()
        assert receipts() == [("positions", 3), ("timer", 1), ("timer", 1)]

    def test_one_that_ran_out_stays_as_long_as_its_incident(self, wall: Clock) -> None:
        _, incident = missed(people(1)[0], wall)
        wall.move(days=80)
        assert incidents.resolve(incident, with_pin=False)
        wall.move(days=31)
        run_all()
        assert (MeetingTimer.objects.count(), SosEvent.objects.count()) == (1, 1)
        wall.move(days=59)
        run_all()
        assert (MeetingTimer.objects.count(), SosEvent.objects.count()) == (0, 0)


# Where a deletion breaks off: each is the last thing that is done.
BREAKS = {
    Deleted.POSITIONS: ["safety.purging.insert_missing", "safety.purging.delete_in_batches", "safety.purging._delete_positions"],
    Deleted.INCIDENT_DETAILS: ["safety.purging.insert_missing", "safety.purging._delete_positions", "notifications.retention.forget"],
    Deleted.INCIDENT: [
        "safety.purging.insert_missing",
        "safety.purging._delete_timers",
        "notifications.retention.delete",
        "sos.purging.delete_in_batches",
    ],
}  # fmt: skip


class TestBrokenOff:
    @pytest.mark.parametrize(("what", "place"), [(what, place) for what, places in BREAKS.items() for place in places])
    def test_the_next_run_completes_both_and_the_receipt_says_what_there_was(
        self, wall: Clock, monkeypatch: pytest.MonkeyPatch, what: Deleted, place: str
    ) -> None:
        asha = people(1, contacts=2)[0]
        if what is Deleted.POSITIONS:
            ended(asha)
            wall.move(days=1)
        else:
            closed(asha, wall)
            wall.move(days=30)
        if what is Deleted.INCIDENT:
            run_all()
            wall.move(days=60)
        expected = {Deleted.POSITIONS: 3, Deleted.INCIDENT_DETAILS: 8, Deleted.INCIDENT: 8}[what]
        with monkeypatch.context() as patched:
            die_after(patched, place)
            with pytest.raises(KeyboardInterrupt):
                run_all()
        assert what.value not in dict(receipts()), "shown before it is true"
        run_all()
        assert dict(receipts())[what.value] == expected
        if what is Deleted.INCIDENT:
            left = [
                model.objects.count() for model in (SosEvent, MeetingTimer, Delivery, TimelineEntry, AlertedContact)
            ]
            assert left == [0] * 5
        assert not Position.objects.exists()
        assert not DeletionReceipt.objects.filter(deleted_at__isnull=True).exists()

    def test_p14_a_row_that_cannot_be_deleted_is_left_out(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [ended(person, tracked=1) for person in people(4)]
        bad = rows[1].pk
        real = purging._DELETE[Deleted.POSITIONS]

        def broken(ids: Any, now: Any) -> None:
            if bad in ids:
                raise ValueError("broken")
            real(ids, now)

        monkeypatch.setitem(purging._DELETE, Deleted.POSITIONS, broken)
        wall.move(days=1)
        assert purge_positions(TestRun()) == "3 purged, 3 receipts, 1 left out (see the log)"
        assert "left out" in purge_positions(TestRun())
        assert list(Position.objects.values_list("timer_id", flat=True)) == [bad]
        assert receipts() == [("positions", 1)] * 3

    def test_a_run_that_was_taken_over_deletes_nothing_more(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(purging, "BATCH", 2)
        for person in people(5):
            ended(person, tracked=1)
        wall.move(days=1)
        with pytest.raises(Lost):
            purge_positions(TestRun(steps=1))
        assert Position.objects.count() == 3


class TestReceipts:
    def test_they_hold_nothing_of_what_was_deleted(self, wall: Clock) -> None:
        asha = people(1, contacts=2)[0]
        closed(asha, wall)
        wall.move(days=30)
        run_all()
        held = serializers.serialize("json", DeletionReceipt.objects.all())
        for personal in ("Cafe", "Rahul", "Ravi", "28.6", "77.2", "+91", "Asha"):
            assert personal not in held

    def test_they_go_a_year_later(self, wall: Clock) -> None:
        ended(people(1)[0])
        wall.move(days=1)
        run_all()
        wall.move(days=365)
        run_all()
        assert receipts() == [("positions", 3), ("timer", 1)]
        wall.move(milliseconds=1)
        run_all()
        assert receipts() == [("timer", 1)]

    def test_the_person_sees_theirs_and_nobody_elses(self, wall: Clock, client: Client) -> None:
        asha, ravi = people(2)
        ended(asha, tracked=4)
        ended(ravi, tracked=7)
        wall.move(days=1)
        run_all()
        DeletionReceipt.objects.create(
            id=uuid4(), person=asha, what="timer", subject_id=uuid4(), count=99, policy="-",
            period_from=wall.now, period_to=wall.now, begun_at=wall.now,
        )  # fmt: skip
        client.force_login(asha)
        page = client.get(reverse("deletions")).content.decode()
        assert "4 positions" in page
        assert "7 positions" not in page
        assert "99 record" not in page, "not complete, and so not true yet"
        for name in ("history", "settings"):
            assert reverse("deletions") in client.get(reverse(name)).content.decode()
        answer = client.get("/api/safety/deletions", HTTP_AUTHORIZATION=f"Bearer {tokens.issue(asha)}")
        assert [(row["what"], row["count"]) for row in answer.json()] == [("positions", 4)]
        assert set(answer.json()[0]) == {"id", "what", "count", "period_from", "period_to", "policy", "deleted_at"}
        assert Client().get("/api/safety/deletions").status_code == 401

    def test_the_pages_bear_what_is_gone(self, wall: Clock, client: Client) -> None:
        asha = people(1, contacts=1)[0]
        _, incident = closed(asha, wall)
        wall.move(days=30)
        run_all()
        client.force_login(asha)
        assert "Place deleted" in client.get(reverse("history")).content.decode()
        assert "<dd>deleted</dd>" in client.get(reverse("incident", args=[incident.pk])).content.decode()


def die_after(patched: pytest.MonkeyPatch, place: str) -> None:
    """The first call of the function at `place` is the last thing that this process does."""
    module_name, _, name = place.rpartition(".")
    module = importlib.import_module(module_name)
    real = getattr(module, name)

    def dying(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise KeyboardInterrupt

    patched.setattr(module, name, dying)
    # What is looked up in a table is replaced there too.
    for key, function in purging._DELETE.items():
        if function is real:
            patched.setitem(purging._DELETE, key, dying)
