"""An answer that was lost: the carrier is asked, and only what it does not know of is sent again (P6, P7)."""

from datetime import timedelta
from typing import Any

import pytest

from casualmeet import clock
from notifications import answers, claims, health, receipts, retrying
from notifications.claims import LEASE
from notifications.dispatch import Dispatcher
from notifications.models import Delivery, DeliveryAttempt
from notifications.tests.sending import BRITISH, INDIAN, Hands, drain, make, outcomes, seen
from simulator import rules
from simulator.server import Simulator

pytestmark = pytest.mark.django_db


def crash_after_the_call(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle of a dispatcher that dies after its calls, before it stores their answers."""
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher, "_store_answers", lambda: 0)
        dispatcher.cycle()
        dispatcher.close()


def test_p7_what_had_arrived_is_not_sent_again(sim: Simulator, at: Hands) -> None:
    sim.on(BRITISH).then(rules.reset(accepted=True))
    row = make()
    drain()
    assert (seen(row).status, outcomes(row)) == ("queued", [("twilio", "unknown")])
    at.forward(retrying.UNKNOWN_DELAY.total_seconds())
    drain()
    assert seen(row).status in {"accepted", "delivered"}
    assert outcomes(row) == [("twilio", "accepted")]
    assert DeliveryAttempt.objects.get().carrier_message_id == sim.journal.received(BRITISH)[0].message_id
    assert len(sim.texts(BRITISH)) == 1


def test_p6_what_had_not_arrived_is_sent_again_and_says_so(sim: Simulator, at: Hands) -> None:
    sim.on(BRITISH).then(rules.reset(accepted=False))
    row = make()
    drain()
    at.forward(retrying.UNKNOWN_DELAY.total_seconds())
    drain()
    assert outcomes(row) == [("twilio", "unknown"), ("twilio", "accepted")]
    (text,) = sim.texts(BRITISH)
    assert "2nd alert" in text


def test_p6_p7_a_dispatcher_that_died_between_call_and_answer(
    sim: Simulator, at: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make()
    crash_after_the_call(Dispatcher(concurrency=4), monkeypatch)
    assert seen(row).status == "sending"
    at.forward(LEASE.total_seconds() + 3)
    drain()
    at.forward(retrying.UNKNOWN_DELAY.total_seconds())
    drain()
    assert outcomes(row) == [("twilio", "accepted")]
    assert len(sim.texts(BRITISH)) == 1


def test_p7_a_carrier_that_can_not_be_asked_gets_one_extra_at_most_and_it_says_so(sim: Simulator, at: Hands) -> None:
    sim.on(INDIAN, carrier="fast2sms").then(rules.reset(accepted=True))
    row = make(INDIAN)
    drain()
    drain()
    assert outcomes(row) == [("fast2sms", "unknown"), ("twilio", "accepted")]
    texts = sim.texts(INDIAN)
    assert len(texts) == 2
    assert "2nd alert" in texts[1]


@pytest.mark.parametrize("dies", [False, True], ids=["answer lost", "dispatcher dead"])
def test_p7_a_failure_told_before_the_lost_answer_was_noticed_makes_no_repeat(
    sim: Simulator, at: Hands, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The first never reached anybody, so the other carrier's text is the first one that is read."""
    sim.on(INDIAN, carrier="fast2sms").then(rules.reset(accepted=False))
    row = make(INDIAN)
    with monkeypatch.context() as patch:
        store = answers.finish

        def told_before(answered: Any, *, now: Any) -> None:
            receipts.record(DeliveryAttempt.objects.get().pk, "failed", code="", carrier="fast2sms", now=now)
            if not dies:
                store(answered, now=now)

        patch.setattr("notifications.dispatch.finish", told_before)
        dispatcher = Dispatcher(concurrency=4)
        dispatcher.cycle()
        dispatcher.close()
    if dies:
        at.forward(LEASE.total_seconds() + 3)
    drain()
    assert outcomes(row) == [("fast2sms", "unknown"), ("twilio", "accepted")]
    (text,) = sim.texts(INDIAN)
    assert "2nd alert" not in text
    assert seen(row).repeat == 0


def test_a_carrier_that_does_not_answer_the_question_keeps_nothing_from_being_sent(sim: Simulator, at: Hands) -> None:
    sim.on(BRITISH).then(rules.reset(accepted=False))
    sim.on(operation="list").reply(500, 20500)
    row = make()
    drain()
    at.forward(retrying.UNKNOWN_DELAY.total_seconds())
    drain()
    assert outcomes(row) == [("twilio", "unknown"), ("twilio", "accepted")]


def test_p7_a_receipt_that_came_meanwhile_is_answer_enough(sim: Simulator, at: Hands) -> None:
    sim.on(BRITISH).then(rules.reset(accepted=True))
    row = make()
    drain()
    DeliveryAttempt.objects.update(receipt="sent", receipt_rank=3)
    asked = len(sim.requests())
    at.forward(retrying.UNKNOWN_DELAY.total_seconds())
    drain()
    assert Delivery.objects.get(pk=row.pk).status == "accepted"
    assert len(sim.requests()) == asked
    assert len(sim.texts(BRITISH)) == 1


def test_p7_a_dispatcher_that_wakes_up_late_sends_nothing_and_blames_no_carrier(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make() for _ in range(6)]
    with monkeypatch.context() as patch:
        # As if it had been frozen between the claim and the call until its lease was nearly over.
        patch.setattr(claims, "LONGEST_CALL", LEASE + timedelta(seconds=1))
        dispatcher = Dispatcher(concurrency=4)
        dispatcher.cycle()
        dispatcher.close()
    assert sim.requests() == []
    assert {seen(row).status for row in rows} == {"queued"}
    assert not health.circuits(clock.now()).open
