"""The outbox: what is queued once, held, cancelled, counted and tried again, without a carrier in sight."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications import outbox
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.texts import AlertFacts, Kind

pytestmark = pytest.mark.django_db

RAVI = outbox.Addressee(UUID(int=1), "Ravi Iyer", "+919988700001", "en", "https://safety.example.org/i/abc")
MEERA = outbox.Addressee(UUID(int=2), "Meera Nair", "+447700900123", "hi")


def text(addressee: outbox.Addressee = RAVI, *, key: str = "alert", **changes: Any) -> Delivery:
    """An unsaved SOS text."""
    now: datetime = changes.pop("now", None) or clock.now()
    facts = AlertFacts(kind=Kind.SOS, person_name="Asha Rao", reference="K7Q", happened_at=now).to_json()
    given: dict[str, Any] = {"kind": Kind.SOS.value, "facts": facts, "priority": Priority.SOS, **changes}
    return outbox.text_to(addressee, key=key, now=now, **given)


def queued(*deliveries: Delivery) -> list[Delivery]:
    """The deliveries, written to the outbox."""
    outbox.queue(deliveries)
    return [Delivery.objects.get(pk=delivery.pk) for delivery in deliveries]


def set_status(delivery: Delivery, status: str, **changes: Any) -> None:
    Delivery.objects.filter(pk=delivery.pk).update(status=status, **changes)


def status_of(delivery: Delivery) -> str:
    return Delivery.objects.get(pk=delivery.pk).status


class TestQueueing:
    def test_a_queued_text_is_due_at_once_and_says_whom_it_is_for(self) -> None:
        (row,) = queued(text())
        assert (row.status, row.channel, row.wave, row.attempt_count, row.repeat) == ("queued", "sms", 1, 0, 0)
        assert (row.address, row.recipient_id, row.recipient_name) == (RAVI.phone, RAVI.id, RAVI.name)
        assert (row.language, row.link) == (RAVI.language, RAVI.link)
        assert row.next_attempt_at == row.created_at <= clock.now()

    def test_p3_queueing_the_same_thing_twice_is_once_and_leaves_the_first_as_it_is(self) -> None:
        first = text()
        outbox.queue([first])
        set_status(first, "accepted")
        outbox.queue([text(), text(MEERA)])
        assert Delivery.objects.count() == 2
        assert status_of(first) == "accepted"

    def test_another_key_addressee_or_wave_is_another_text(self) -> None:
        outbox.queue([text(), text(key="update"), text(MEERA), text(wave=2)])
        assert Delivery.objects.count() == 4

    def test_queueing_nothing_is_nothing(self) -> None:
        outbox.queue([])
        outbox.hold([])
        assert not Delivery.objects.exists()

    def test_a_held_text_goes_only_after_its_release(self) -> None:
        incident = uuid4()
        held = text(incident_id=incident)
        outbox.hold([held])
        assert status_of(held) == ("queued" if has_transactions() else "held")
        outbox.release([uuid4()])
        assert status_of(held) == ("queued" if has_transactions() else "held")
        outbox.release([incident])
        assert status_of(held) == "queued"

    def test_a_release_brings_nothing_back_that_was_cancelled(self) -> None:
        incident = uuid4()
        held = text(incident_id=incident)
        outbox.hold([held])
        outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now())
        outbox.release([incident])
        assert status_of(held) == "cancelled"


class TestCancelling:
    @pytest.mark.parametrize(
        ("before", "after", "requested"),
        [
            ("held", "cancelled", True),
            ("queued", "cancelled", True),
            ("sending", "sending", True),
            ("accepted", "accepted", True),
            ("delivered", "delivered", False),
            ("dead", "dead", True),
            ("cancelled", "cancelled", False),
        ],
    )
    def test_what_was_not_sent_is_taken_back_and_what_went_out_stays(
        self, before: str, after: str, *, requested: bool
    ) -> None:
        incident = uuid4()
        (row,) = queued(text(incident_id=incident))
        set_status(row, before)
        met = outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now())
        row.refresh_from_db()
        assert (row.status, row.cancel_requested, met) == (after, requested, int(requested))

    def test_other_kinds_and_other_incidents_are_left_alone(self) -> None:
        incident = uuid4()
        rows = queued(text(incident_id=incident, kind=Kind.ALL_CLEAR.value), text(MEERA, incident_id=uuid4()))
        assert outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now()) == 0
        assert [status_of(row) for row in rows] == ["queued", "queued"]

    def test_cancelling_for_no_incident_is_nothing(self) -> None:
        (row,) = queued(text())
        assert outbox.cancel([], kinds=[Kind.SOS], now=clock.now()) == 0
        assert status_of(row) == "queued"


def attempt(delivery: Delivery, outcome: str) -> None:
    DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="twilio", text="x", started_at=clock.now(), outcome=outcome
    )


class TestWhoMayHaveBeenAlerted:
    @pytest.mark.parametrize(
        ("status", "outcome", "counts"),
        [
            ("queued", "", False),
            ("queued", "transient", False),
            ("queued", "permanent", False),
            ("queued", "unknown", True),
            ("sending", "open", True),
            ("accepted", "accepted", True),
            ("delivered", "accepted", True),
            ("dead", "permanent", False),
            ("dead", "unknown", True),
            ("cancelled", "unknown", True),
            ("cancelled", "", False),
        ],
    )
    def test_it_is_everybody_whose_text_went_out_or_may_have(self, status: str, outcome: str, *, counts: bool) -> None:
        incident = uuid4()
        (row,) = queued(text(incident_id=incident))
        set_status(row, status)
        if outcome:
            attempt(row, outcome)
        found = outbox.possibly_sent(incident, kinds=[Kind.SOS])
        assert [one.pk for one in found] == ([row.pk] if counts else [])

    def test_each_recipient_counts_once_by_their_first_text(self) -> None:
        incident, now = uuid4(), clock.now()
        first, second, other = queued(
            text(incident_id=incident, now=now - timedelta(minutes=2)),
            text(incident_id=incident, wave=2, now=now),
            text(MEERA, incident_id=incident, now=now),
        )
        for row in (first, second, other):
            set_status(row, "accepted")
            for outcome in ("unknown", "accepted"):
                attempt(row, outcome)
        found = outbox.possibly_sent(incident, kinds=[Kind.SOS])
        assert {one.pk for one in found} == {first.pk, other.pk}


class TestSummaries:
    def test_p13_only_what_a_carrier_accepted_counts(self) -> None:
        incident = uuid4()
        rows = queued(
            text(incident_id=incident),
            text(incident_id=incident, wave=2),
            text(MEERA, incident_id=incident),
            text(incident_id=uuid4(), key="other"),
        )
        at = clock.now()
        set_status(rows[0], "accepted", finished_at=at - timedelta(seconds=9))
        set_status(rows[1], "delivered", finished_at=at)
        set_status(rows[2], "sending", finished_at=at + timedelta(seconds=9))
        summary = outbox.dispatch_summaries([incident])[incident]
        assert (summary.contacts_notified, summary.sms_sent, summary.last_dispatch_at) == (1, 2, at)

    def test_dead_letters_are_counted_beside_what_was_accepted(self) -> None:
        incident, other = uuid4(), uuid4()
        rows = queued(text(incident_id=incident), text(MEERA, incident_id=incident), text(key="o", incident_id=other))
        set_status(rows[0], "accepted", finished_at=clock.now())
        set_status(rows[1], "dead")
        set_status(rows[2], "dead")
        found = outbox.dispatch_summaries([incident, other])
        assert (found[incident].sms_sent, found[incident].dead_letters) == (1, 1)
        assert (found[other].sms_sent, found[other].dead_letters) == (0, 1)

    def test_an_incident_without_accepted_texts_has_none(self) -> None:
        incident = uuid4()
        queued(text(incident_id=incident))
        assert outbox.dispatch_summaries([incident]) == {}
        assert outbox.dispatch_summaries([]) == {}


class TestTryingADeadLetterAgain:
    def test_p6_it_starts_from_the_beginning(self) -> None:
        (row,) = queued(text())
        set_status(row, "dead", attempt_count=10, carrier="twilio", finished_at=clock.now())
        now = clock.now()
        assert outbox.requeue_dead(row.pk, now=now)
        row.refresh_from_db()
        assert (row.status, row.attempt_count, row.carrier, row.finished_at) == ("queued", 0, "", None)
        assert row.next_attempt_at == now

    @pytest.mark.parametrize("status", [status.value for status in DeliveryStatus if status != DeliveryStatus.DEAD])
    def test_what_is_not_dead_stays_as_it_is(self, status: str) -> None:
        (row,) = queued(text())
        set_status(row, status)
        assert not outbox.requeue_dead(row.pk, now=clock.now())
        assert status_of(row) == status

    def test_two_moderators_at_once_requeue_it_once(self) -> None:
        (row,) = queued(text())
        set_status(row, "dead")
        assert [outbox.requeue_dead(row.pk, now=clock.now()) for _ in range(2)] == [True, False]

    def test_what_was_cancelled_after_it_died_is_not_sent_any_more(self) -> None:
        incident = uuid4()
        (row,) = queued(text(incident_id=incident))
        died = clock.now() - timedelta(minutes=5)
        set_status(row, "dead", finished_at=died)
        outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now())
        assert not outbox.requeue_dead(row.pk, now=clock.now())
        row.refresh_from_db()
        assert (row.status, row.finished_at) == ("dead", died)

    def test_an_unknown_id_is_false(self) -> None:
        assert not outbox.requeue_dead(uuid4(), now=clock.now())
