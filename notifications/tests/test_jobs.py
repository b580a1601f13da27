"""Jobs: invitations, notices and digests. Four tries, waits that double from two seconds, and none in another's way."""

from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command

from casualmeet import clock
from notifications import outbox
from notifications.carriers import routing
from notifications.models import Delivery, Priority
from notifications.tests.sending import Hands, configure
from notifications.texts import AlertFacts, Kind
from testing.carrier import FOREVER, LocalCarrier, Reply

pytestmark = pytest.mark.django_db

JOBS = [Priority.NORMAL, Priority.BULK]


def number(i: int) -> str:
    return f"+4477{10_000_000 + i}"


def job(i: int = 1, *, priority: Priority = Priority.NORMAL, **changes: Any) -> Delivery:
    """A text of no incident, not yet written."""
    now = clock.now()
    facts = AlertFacts(kind=Kind.INVITATION, person_name="Asha Rao", happened_at=now).to_json()
    addressee = outbox.Addressee(uuid4(), "Ravi Iyer", number(i), "en", "https://safety.example.org/c/abc")
    given = {"kind": "notice", "facts": facts, "priority": priority, **changes}
    return outbox.text_to(addressee, key=str(uuid4()), now=now, **given)


def queue(*rows: Delivery) -> None:
    outbox.queue(rows)


def send_due(**options: Any) -> None:
    """Everything that is due now."""
    call_command("run_dispatch_worker", "--once", **options)


def seen(row: Delivery) -> Delivery:
    return Delivery.objects.get(pk=row.pk)


class TestTries:
    @pytest.mark.parametrize("priority", JOBS)
    def test_four_with_waits_of_two_four_and_eight_seconds(
        self, carrier: LocalCarrier, at: Hands, priority: Priority
    ) -> None:
        carrier.script(None, Reply.refuse(503, times=FOREVER))
        row = job(priority=priority)
        queue(row)
        waits = []
        send_due()
        while seen(row).status == "queued":
            waits.append((seen(row).next_attempt_at - at.now()).total_seconds())
            at.forward(waits[-1] - 0.001)
            send_due()
            assert len(carrier.journal()) == len(waits)
            at.forward(0.001)
            send_due()
        assert waits == [2, 4, 8]
        assert seen(row).status == "dead"
        assert len(carrier.journal()) == 4
        assert carrier.accepted() == []

    def test_the_fourth_may_succeed(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=3))
        row = job()
        queue(row)
        for seconds in (2, 4, 8, 0):
            send_due()
            at.forward(seconds)
        assert (seen(row).status, len(carrier.accepted())) == ("accepted", 1)

    def test_an_all_clear_does_not_wait_like_a_job(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=FOREVER))
        rows = [job(i, priority=Priority.SAFETY) for i in range(12)]
        queue(*rows)
        send_due()
        waits = {(seen(row).next_attempt_at - at.now()).total_seconds() for row in rows}
        assert len(waits) > 1
        assert all(0 <= wait <= 2 for wait in waits)

    def test_a_job_tried_again_by_hand_gets_four_more(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=7))
        row = job()
        queue(row)
        for _ in range(4):
            send_due()
            at.forward(60)  # longer than a failing carrier is passed over
        assert seen(row).status == "dead"
        assert outbox.requeue_dead(row.pk, now=at.now())
        for _ in range(4):
            send_due()
            at.forward(60)  # longer than a failing carrier is passed over
        assert (seen(row).status, len(carrier.journal())) == ("accepted", 8)


class TestIsolation:
    def test_p14_dead_and_broken_jobs_hold_up_no_other(self, carrier: LocalCarrier, at: Hands) -> None:
        refused, broken, down = job(1), job(2, facts={"kind": "nonsense"}), job(3)
        carrier.script(number(1), Reply.refuse(400, 21211, times=FOREVER))
        carrier.script(number(3), Reply.refuse(503, times=FOREVER))
        good = [job(i) for i in range(10, 20)]
        queue(refused, broken, down, *good)
        send_due(concurrency=2)
        assert [seen(row).status for row in (refused, broken, down)] == ["dead", "dead", "queued"]
        assert {seen(row).status for row in good} == {"accepted"}
        for _ in range(4):
            at.forward(8)
            send_due()
        assert seen(down).status == "dead"
        tried = len(carrier.journal())
        later = job(4)
        queue(later)
        send_due()
        assert seen(later).status == "accepted"
        assert len(carrier.journal()) == tried + 1

    def test_a_job_that_waits_for_its_next_try_takes_no_place(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(number(1), Reply.refuse(503, times=FOREVER))
        first = job(1)
        queue(first)
        send_due(concurrency=1)
        second = job(2)
        queue(second)
        send_due(concurrency=1)
        assert [seen(row).status for row in (first, second)] == ["queued", "accepted"]

    def test_no_more_than_25_calls_at_once(self, settings: Any) -> None:
        latency = 0.4
        with LocalCarrier(latency=latency) as carrier:
            configure(settings, carrier)
            queue(*(job(i) for i in range(60)))
            send_due()
            times = [entry.at for entry in carrier.accepted()]
        routing.reset()
        assert len(times) == 60
        at_once = max(sum(start <= other < start + latency for other in times) for start in times)
        assert settings.DISPATCH_CONCURRENCY == 25
        # All 25, or the four fifths of them that are not kept for an SOS.
        assert 20 <= at_once <= 25


class TestDiscard:
    def dead(self, **changes: Any) -> Delivery:
        row = job(**changes)
        queue(row)
        Delivery.objects.filter(pk=row.pk).update(status="dead", finished_at=clock.now())
        return row

    def test_a_discarded_job_is_over_and_is_not_tried_again(self, carrier: LocalCarrier) -> None:
        row = self.dead()
        assert outbox.discard(row.pk, now=clock.now())
        assert seen(row).status == "cancelled"
        assert not outbox.requeue_dead(row.pk, now=clock.now())
        send_due()
        assert carrier.journal() == []

    def test_it_ended_when_it_was_discarded(self, at: Hands) -> None:
        row = self.dead()
        at.forward(60)
        outbox.discard(row.pk, now=at.now())
        assert seen(row).finished_at == at.now()

    def test_only_once(self) -> None:
        row = self.dead()
        assert [outbox.discard(row.pk, now=clock.now()) for _ in range(2)] == [True, False]

    def test_not_when_it_was_tried_again_meanwhile(self) -> None:
        row = self.dead()
        assert outbox.requeue_dead(row.pk, now=clock.now())
        assert not outbox.discard(row.pk, now=clock.now())
        assert seen(row).status == "queued"

    @pytest.mark.parametrize(
        "changes",
        [{"incident_id": uuid4()}, {"priority": Priority.SOS}, {"priority": Priority.SAFETY}],
        ids=["of an incident", "SOS", "safety"],
    )
    def test_what_is_no_job_stays_a_dead_letter(self, changes: dict[str, Any]) -> None:
        row = self.dead(**changes)
        assert not outbox.discard(row.pk, now=clock.now())
        assert seen(row).status == "dead"

    def test_an_unknown_one_is_no_error(self) -> None:
        assert not outbox.discard(uuid4(), now=clock.now())
