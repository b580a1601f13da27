"""The dispatcher against a local carrier that misbehaves the way carriers do (P5 to P8, P13, P14)."""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, connections
from django.db.utils import DataError, OperationalError

from casualmeet import clock
from casualmeet.db import is_transient
from notifications import answers, claims, dispatch, outbox, pacing, recovery, retrying, wake
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome, OutgoingMessage
from notifications.carriers.fast2sms import Fast2SMSCarrier
from notifications.carriers.twilio import TwilioCarrier
from notifications.claims import LEASE
from notifications.dispatch import Dispatcher
from notifications.models import Delivery, DeliveryAttempt, OptOut, Priority
from notifications.tests.sending import (
    BRITISH,
    INDIAN,
    Hands,
    StubCarrier,
    configure,
    drain,
    make,
    outcomes,
    seen,
    unsaved,
    use,
)
from notifications.texts import AlertFacts, Kind
from ops import worker
from safety import panic
from safety.models import User
from safety.tests.factories import ContactFactory, PersonFactory
from sos import incidents
from testing.carrier import ACCOUNT_SID, API_KEY, AUTH_TOKEN, FOREVER, LocalCarrier, Reply
from testing.processes import ManagedProcess, wait_until

pytestmark = pytest.mark.django_db


class TestSending:
    def test_an_alert_to_another_country_goes_to_twilio(self, carrier: LocalCarrier) -> None:
        row = make(BRITISH)
        drain()
        (entry,) = carrier.journal()
        assert (entry.carrier, entry.to, entry.accepted) == ("twilio", BRITISH, True)
        assert "Asha Rao" in entry.body
        done = seen(row)
        assert (done.status, done.carrier, done.simulated) == ("accepted", "twilio", False)
        attempt = done.attempts.get()
        assert (attempt.outcome, attempt.carrier_message_id) == ("accepted", entry.message_id)
        assert (attempt.text, attempt.number) == (entry.body, 1)

    def test_an_alert_to_india_goes_to_fast2sms(self, carrier: LocalCarrier) -> None:
        row = make(INDIAN)
        drain()
        assert [(entry.carrier, entry.to) for entry in carrier.accepted()] == [("fast2sms", INDIAN)]
        assert seen(row).carrier == "fast2sms"

    def test_p13_accepted_by_the_carrier_is_never_called_delivered(self, carrier: LocalCarrier) -> None:
        row = make()
        drain()
        assert seen(row).status == "accepted"
        assert not Delivery.objects.filter(status="delivered").exists()

    def test_nothing_is_sent_before_its_time(self, carrier: LocalCarrier, at: Hands) -> None:
        row = make()
        Delivery.objects.update(next_attempt_at=at.now() + timedelta(seconds=30))
        drain()
        assert carrier.journal() == []
        at.forward(30)
        drain()
        assert seen(row).status == "accepted"

    def test_without_credentials_it_is_simulated_and_marked_so(self) -> None:
        routing.reset()
        row = make()
        drain()
        done = seen(row)
        assert (done.status, done.carrier, done.simulated) == ("accepted", "simulated", True)

    def test_with_half_a_set_of_credentials_nothing_is_simulated(self, settings: Any) -> None:
        settings.TWILIO_ACCOUNT_SID = ACCOUNT_SID
        row = make()
        drain()
        done = seen(row)
        assert (done.status, done.simulated) == ("dead", False)
        assert done.attempts.get().error_class == "config"

    def test_with_a_real_carrier_a_number_that_it_cannot_serve_is_not_simulated(
        self, carrier: LocalCarrier, settings: Any
    ) -> None:
        configure(settings, carrier, twilio=False)
        row = make(BRITISH)
        drain()
        assert (seen(row).status, seen(row).simulated) == ("dead", False)
        assert carrier.journal() == []

    def test_a_carrier_refusing_everything_is_never_replaced_by_the_simulated_one(self, carrier: LocalCarrier) -> None:
        carrier.script(None, Reply.refuse(401, 20003, times=FOREVER), carrier="twilio")
        row = make()
        drain()
        assert (seen(row).status, seen(row).simulated) == ("dead", False)


@pytest.mark.django_db(transaction=True)
class TestP5NoCallInsideATransaction:
    def test_p5_the_attempt_is_committed_and_visible_to_others_before_the_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_the_dispatcher = connections["default"]
        found: list[tuple[bool, bool, list[tuple[str, str]]]] = []

        def look(message: OutgoingMessage) -> Answer:
            """In a thread of the pool, and so through a connection of its own."""
            attempts_ = DeliveryAttempt.objects.filter(pk=message.attempt_id).select_related("delivery")
            rows = [(one.outcome, one.delivery.status) for one in attempts_]
            found.append((of_the_dispatcher.in_atomic_block, connection.in_atomic_block, rows))
            connections.close_all()
            return Answer(Outcome.ACCEPTED, carrier_message_id="x")

        use(monkeypatch, StubCarrier(look))
        # No SOS: beside one, the dispatcher would claim others in a transaction of their own while the call is out.
        row = make(priority=Priority.NORMAL)
        dispatcher = Dispatcher(concurrency=1)
        assert dispatcher.cycle().claimed == 1
        wait_until(lambda: found)
        dispatcher.close()
        assert found == [(False, False, [("open", "sending")])]
        assert seen(row).status == "accepted"

    def test_p5_the_attempt_is_there_when_the_request_reaches_the_carrier(self, carrier: LocalCarrier) -> None:
        carrier.script(None, Reply.hang(accepted=True, times=FOREVER))
        row = make()
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        carrier.wait_for(1)
        assert outcomes(row) == [("twilio", "open")]
        carrier.stop()
        dispatcher.close()
        carrier.start()
        assert outcomes(row) == [("twilio", "unknown")]


class TestP6DeadDispatchers:
    def crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A dispatcher that claims what is due, and dies before its calls."""
        with monkeypatch.context() as patch:
            dispatcher = Dispatcher(concurrency=8)
            patch.setattr(dispatcher, "_submit", lambda *_, **__: None)
            dispatcher.cycle()
            dispatcher._calls.close()

    def test_p6_a_lease_that_ran_out_is_taken_over_and_the_text_says_that_it_may_be_a_repeat(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make()
        self.crash(monkeypatch)
        assert seen(row).status == "sending"
        at.forward(LEASE.total_seconds() + 1)
        drain()
        at.forward(retrying.UNKNOWN_DELAY.total_seconds())
        drain()
        (entry,) = carrier.accepted()
        assert "2nd alert" in entry.body
        assert outcomes(row) == [("twilio", "unknown"), ("twilio", "accepted")]
        assert seen(row).status == "accepted"

    def test_p6_a_lease_that_still_runs_is_left_alone(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make()
        self.crash(monkeypatch)
        at.forward(LEASE.total_seconds() - 1)
        drain()
        assert carrier.journal() == []
        assert seen(row).status == "sending"

    def test_p6_a_lease_without_an_attempt_is_taken_over_without_a_word_about_repeats(
        self, carrier: LocalCarrier, at: Hands
    ) -> None:
        row = make()
        Delivery.objects.update(status="sending", lease_token=uuid4(), lease_until=at.now() - timedelta(seconds=1))
        drain()
        (entry,) = carrier.accepted()
        assert "2nd alert" not in entry.body
        assert outcomes(row) == [("twilio", "accepted")]

    @pytest.mark.parametrize(
        ("to", "outcome", "status", "carrier_next", "repeat"),
        [
            (BRITISH, "unknown", "queued", "twilio", 1),
            (BRITISH, "transient", "queued", "twilio", 0),
            (BRITISH, "permanent", "dead", "", 0),
            (INDIAN, "unknown", "queued", "twilio", 1),
            (INDIAN, "permanent", "queued", "twilio", 0),
        ],
    )
    def test_p7_a_crash_between_an_answer_and_what_follows_from_it_costs_neither_the_try_nor_the_word_about_repeats(
        self,
        *,
        to: str,
        outcome: str,
        status: str,
        carrier_next: str,
        repeat: int,
        carrier: LocalCarrier,
        at: Hands,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Where nothing rolls back: the attempt has its outcome, the delivery is still held."""
        row = make(to)
        self.crash(monkeypatch)
        row.attempts.update(outcome=outcome, finished_at=at.now())
        at.forward(LEASE.total_seconds() + 1)
        assert recovery.recover_leases(at.now()) == 1
        now = seen(row)
        assert (now.status, now.carrier, now.repeat, now.lease_token) == (status, carrier_next, repeat, None)
        assert now.attempt_count == (status == "queued")
        if status == "queued":
            at.forward(60)
            drain()
            (entry,) = carrier.accepted()
            assert ("2nd alert" in entry.body) == bool(repeat)
            assert [(one.number, one.outcome) for one in row.attempts.order_by("number")] == [
                (1, outcome),
                (2, "accepted"),
            ]

    def test_p6_p7_a_crash_amid_the_take_over_leaves_no_attempt_open_and_keeps_the_word_about_repeats(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make()
        self.crash(monkeypatch)
        at.forward(LEASE.total_seconds() + 1)
        with monkeypatch.context() as patched:
            patched.setattr(recovery, "put_back", mock.Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                recovery.recover_leases(at.now())
        assert recovery.recover_leases(at.now()) == 1
        assert (seen(row).status, seen(row).repeat, seen(row).attempt_count) == ("queued", 1, 1)
        assert outcomes(row) == [("twilio", "unknown")]

    def test_p6_a_take_over_leaves_the_attempt_of_a_later_lease_alone(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever looked before another one took the delivery over and claimed it anew."""
        row = make()
        self.crash(monkeypatch)
        at.forward(LEASE.total_seconds() + 1)
        stale = seen(row)
        recovery.recover_leases(at.now())
        at.forward(retrying.UNKNOWN_DELAY.total_seconds() + 1)
        self.crash(monkeypatch)
        assert recovery._recover(stale, now=at.now()) == 0
        assert outcomes(row) == [("twilio", "unknown"), ("twilio", "open")]
        assert seen(row).status == "sending"

    def test_p6_what_earlier_leases_were_answered_does_not_count_for_one_without_an_attempt(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A dead letter that a moderator tries again counts its tries from the start."""
        row = make()
        self.crash(monkeypatch)
        row.attempts.update(outcome="unknown", finished_at=at.now())
        at.forward(1)
        Delivery.objects.update(lease_token=uuid4(), lease_until=at.now() + LEASE, attempt_count=0)
        at.forward(LEASE.total_seconds() + 1)
        assert recovery.recover_leases(at.now()) == 1
        assert (seen(row).status, seen(row).repeat, seen(row).attempt_count) == ("queued", 0, 0)

    def test_p6_in_india_the_take_over_goes_through_the_other_carrier_at_once(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make(INDIAN)
        self.crash(monkeypatch)
        at.forward(LEASE.total_seconds() + 1)
        drain()
        assert outcomes(row) == [("fast2sms", "unknown"), ("twilio", "accepted")]

    def test_an_answer_that_comes_after_the_take_over_is_kept_as_history_only(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called, release = threading.Event(), threading.Event()

        def slow(_message: OutgoingMessage) -> Answer:
            called.set()
            release.wait(10)
            return Answer(Outcome.TRANSIENT, error_class="transient")

        use(monkeypatch, StubCarrier(slow))
        row = make()
        frozen = Dispatcher(concurrency=1)
        frozen.cycle()
        assert called.wait(10)
        at.forward(LEASE.total_seconds() + 1)
        routing.reset()
        drain()
        at.forward(retrying.UNKNOWN_DELAY.total_seconds())
        drain()
        assert seen(row).status == "accepted"
        release.set()
        frozen.close()
        assert seen(row).status == "accepted"
        assert len(carrier.accepted()) == 1

    def test_an_acceptance_that_comes_before_the_repeat_spares_it(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        release = threading.Event()

        def slow(_message: OutgoingMessage) -> Answer:
            release.wait(10)
            return Answer(Outcome.ACCEPTED, carrier_message_id="late")

        use(monkeypatch, StubCarrier(slow))
        row = make()
        frozen = Dispatcher(concurrency=1)
        frozen.cycle()
        at.forward(LEASE.total_seconds() + 1)
        recovery.recover_leases(at.now())
        release.set()
        frozen.close()
        routing.reset()
        at.forward(60)
        drain()
        assert seen(row).status == "accepted"
        assert carrier.journal() == []


class TestP7Repeats:
    def test_p7_a_reset_after_the_carrier_accepted_makes_one_extra_text_that_says_so(
        self, carrier: LocalCarrier, at: Hands
    ) -> None:
        carrier.script(BRITISH, Reply.reset(accepted=True))
        row = make()
        drain()
        waiting = seen(row)
        assert (waiting.status, waiting.repeat) == ("queued", 1)
        assert waiting.next_attempt_at == at.now() + retrying.UNKNOWN_DELAY
        at.forward(10)
        drain()
        at.forward(3600)
        drain()
        first, second = carrier.accepted()
        assert "2nd alert" not in first.body
        assert "2nd alert" in second.body
        assert seen(row).status == "accepted"

    def test_p7_each_lost_answer_counts_up(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(BRITISH, Reply.reset(accepted=True, times=2))
        make()
        for _ in range(3):
            drain()
            at.forward(10)
        assert "3rd alert" in carrier.accepted()[-1].body

    @pytest.mark.parametrize("status", [503, 429])
    def test_p7_a_clean_failure_never_makes_a_duplicate(self, carrier: LocalCarrier, at: Hands, status: int) -> None:
        carrier.script(BRITISH, Reply.refuse(status, times=3))
        row = make()
        for _ in range(6):
            drain()
            at.forward(120)
        (entry,) = carrier.accepted()
        assert "alert" not in entry.body.split("SOS")[0]
        assert "2nd" not in entry.body
        assert "4th" not in entry.body
        assert seen(row).repeat == 0
        assert len(carrier.journal()) == 4

    def test_p7_a_refused_connection_is_a_clean_failure(self, carrier: LocalCarrier, at: Hands) -> None:
        row = make()
        carrier.stop()
        drain()
        assert outcomes(row) == [("twilio", "transient")]
        carrier.start()
        at.forward(5)
        drain()
        assert "2nd alert" not in carrier.accepted()[0].body

    def test_a_carrier_that_raises_may_have_sent_it(self, at: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_message: OutgoingMessage) -> Answer:
            raise ZeroDivisionError

        use(monkeypatch, StubCarrier(fail))
        row = make()
        drain()
        assert outcomes(row) == [("twilio", "unknown")]
        assert (seen(row).status, seen(row).repeat) == ("queued", 1)


class TestP8Priority:
    def test_p8_an_sos_overtakes_a_thousand_older_invitations(self, carrier: LocalCarrier) -> None:
        hour_ago = clock.now() - timedelta(hours=1)
        facts = AlertFacts(kind=Kind.INVITATION, person_name="Asha Rao", happened_at=hour_ago).to_json()
        invitations = [
            outbox.text_to(
                outbox.Addressee(uuid4(), "N", BRITISH, "en"),
                key="invitation",
                kind=Kind.INVITATION,
                facts=facts,
                now=hour_ago,
                priority=Priority.NORMAL,
            )
            for _ in range(1000)
        ]
        outbox.queue(invitations)
        alert = make("+447700900999")
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        dispatcher.close()
        assert [entry.to for entry in carrier.journal()] == ["+447700900999"]
        assert seen(alert).status == "accepted"

    def test_p8_an_sos_goes_while_slow_carriers_hold_everything_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        release, sent = threading.Event(), []

        def slow_but_for_an_sos(message: OutgoingMessage) -> Answer:
            if message.kind == Kind.INVITATION:
                release.wait(20)
            sent.append(message.kind)
            return Answer(Outcome.ACCEPTED, carrier_message_id="SM1")

        use(monkeypatch, StubCarrier(slow_but_for_an_sos))
        for _ in range(5):
            make(kind=Kind.INVITATION, priority=Priority.NORMAL)
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        alert = make("+447700900999")
        wait_until(lambda: dispatcher.cycle().finished and seen(alert).status == "accepted")
        assert sent == [Kind.SOS]
        release.set()
        dispatcher.close()

    def test_p8_an_sos_reaches_the_carrier_before_the_answers_of_others_are_stored(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = make("+447700900001")
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        wait_until(lambda: not dispatcher._answers.empty())
        make("+447700900999")
        finish = answers.finish
        before: list[str] = []

        def slow(answered: Any, **more: Any) -> None:
            with contextlib.suppress(TimeoutError):
                before.extend(entry.to for entry in carrier.wait_for(2, timeout=5))
            finish(answered, **more)

        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "finish", slow)
            assert dispatcher.cycle() == dispatch.Counts(claimed=1, finished=1)
        assert before == ["+447700900001", "+447700900999"]
        assert seen(first).status == "accepted"
        dispatcher.close()

    def test_p8_all_clears_go_between_alerts_and_invitations(self, carrier: LocalCarrier) -> None:
        make("+447700900003", kind=Kind.INVITATION, priority=Priority.NORMAL)
        make("+447700900002", kind=Kind.ALL_CLEAR, priority=Priority.SAFETY)
        make("+447700900001")
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.drain()
        dispatcher.close()
        assert [entry.to[-1] for entry in carrier.journal()] == ["1", "2", "3"]


class TestOptOuts:
    def test_who_sent_stop_after_an_alert_was_queued_gets_no_text(self, carrier: LocalCarrier) -> None:
        row, other = make(), make(INDIAN)
        OptOut.objects.create(phone=BRITISH, source="reply", stopped_at=clock.now())
        drain()
        assert [entry.to for entry in carrier.journal()] == [INDIAN]
        assert (seen(row).status, seen(other).status) == ("dead", "accepted")
        assert row.attempts.get().error_class == "opt_out"

    def test_a_carrier_that_knows_of_a_stop_is_believed_from_then_on(self, carrier: LocalCarrier) -> None:
        carrier.script(BRITISH, Reply.refuse(400, 21610))
        make()
        drain()
        make()
        drain()
        assert len(carrier.journal()) == 1


class TestRetries:
    def test_the_backoff_grows_to_two_minutes_and_an_sos_gets_ten_tries(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(random, "uniform", lambda _low, high: high)
        carrier.script(None, Reply.refuse(503, times=FOREVER))
        row = make()
        waits = []
        while True:
            drain()
            if seen(row).status != "queued":
                break
            waits.append((seen(row).next_attempt_at - at.now()).total_seconds())
            at.forward(waits[-1])
        assert waits == [2, 4, 8, 16, 30, 60, 120, 120, 120]
        assert seen(row).status == "dead"
        assert len(carrier.journal()) == 10
        assert carrier.accepted() == []

    def test_what_is_no_sos_gets_four_tries(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=FOREVER))
        row = make(kind=Kind.INVITATION, priority=Priority.NORMAL)
        for _ in range(6):
            drain()
            at.forward(200)
        assert seen(row).status == "dead"
        assert len(carrier.journal()) == 4

    def test_the_wait_is_random_from_zero_so_that_many_do_not_return_at_once(
        self, carrier: LocalCarrier, at: Hands
    ) -> None:
        carrier.script(None, Reply.refuse(503, times=FOREVER))
        rows = [make() for _ in range(12)]
        drain()
        waits = {(seen(row).next_attempt_at - at.now()).total_seconds() for row in rows}
        assert len(waits) > 1
        assert all(0 <= wait <= 2 for wait in waits)

    @pytest.mark.parametrize(
        ("said", "priority", "expected"),
        [
            ("7", Priority.SOS, 7),
            ("3600", Priority.SOS, 60),
            ("3600", Priority.NORMAL, 3600),
            ("86400", Priority.NORMAL, 3600),
            ("0", Priority.SOS, 0),
        ],
    )
    def test_retry_after_is_honoured_up_to_a_limit(
        self, carrier: LocalCarrier, at: Hands, said: str, priority: Priority, expected: int
    ) -> None:
        replies = [Reply.refuse(429, headers={"Retry-After": said}), Reply.refuse(503)]
        carrier.script(None, *(replies if said == "0" else replies[:1]))
        row = make(priority=priority)
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        dispatcher.close()
        assert seen(row).next_attempt_at - at.now() == timedelta(seconds=expected)

    def test_a_nonsense_retry_after_is_an_ordinary_wait(self, carrier: LocalCarrier, at: Hands) -> None:
        for said in ("soon", "-5", "1e9", "9" * 400, ""):
            carrier.script(None, Reply.refuse(503, headers={"Retry-After": said}))
            row = make()
            dispatcher = Dispatcher(concurrency=1)
            dispatcher.cycle()
            dispatcher.close()
            wait = seen(row).next_attempt_at - at.now()
            assert timedelta(0) <= wait <= timedelta(seconds=60), said
            Delivery.objects.all().delete()

    def test_p6_a_permanent_refusal_goes_to_the_other_carrier_at_once(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(400, 411, times=FOREVER), carrier="fast2sms")
        row = make(INDIAN)
        drain()
        assert outcomes(row) == [("fast2sms", "permanent"), ("twilio", "accepted")]
        assert (seen(row).status, seen(row).carrier) == ("accepted", "twilio")
        assert "2nd alert" not in carrier.accepted()[0].body

    def test_p6_when_every_carrier_refused_it_is_a_dead_letter(self, carrier: LocalCarrier) -> None:
        carrier.script(None, Reply.refuse(400, 411, times=FOREVER), carrier="fast2sms")
        carrier.script(None, Reply.refuse(400, 21211, times=FOREVER), carrier="twilio")
        row = make(INDIAN)
        drain()
        assert outcomes(row) == [("fast2sms", "permanent"), ("twilio", "permanent")]
        assert seen(row).status == "dead"
        assert seen(row).finished_at

    def test_a_carrier_that_refused_for_good_is_not_asked_again_in_the_same_round(
        self, carrier: LocalCarrier, at: Hands
    ) -> None:
        carrier.script(None, Reply.refuse(400, 411, times=FOREVER), carrier="fast2sms")
        carrier.script(None, Reply.refuse(503, times=4), carrier="twilio")
        make(INDIAN)
        for _ in range(6):
            drain()
            at.forward(200)
        assert [entry.carrier for entry in carrier.journal()] == ["fast2sms", *["twilio"] * 5]

    def test_after_three_failures_the_other_carrier_gets_a_turn(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=FOREVER), carrier="fast2sms")
        row = make(INDIAN, priority=Priority.SAFETY)
        for _ in range(4):
            drain()
            at.forward(200)
        assert [name for name, _ in outcomes(row)] == ["fast2sms"] * 3 + ["twilio"]
        assert seen(row).status == "accepted"

    def test_p8_an_sos_turns_to_the_other_carrier_after_one_failure(self, carrier: LocalCarrier) -> None:
        carrier.script(None, Reply.refuse(429, 995, times=FOREVER, headers={"Retry-After": "50"}), carrier="fast2sms")
        row = make(INDIAN)
        drain()
        assert [name for name, _ in outcomes(row)] == ["fast2sms", "twilio"]
        assert (seen(row).status, seen(row).repeat) == ("accepted", 0)

    def test_p6_a_requeued_dead_letter_is_sent(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(503, times=10))
        row = make()
        for _ in range(10):
            drain()
            at.forward(200)
        assert seen(row).status == "dead"
        assert outbox.requeue_dead(row.pk, now=at.now())
        drain()
        assert seen(row).status == "accepted"
        assert len(carrier.accepted()) == 1

    def test_p6_a_requeued_dead_letter_may_fail_over_again(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(400, 411, times=FOREVER), carrier="fast2sms")
        carrier.script(None, Reply.refuse(401, 20003), carrier="twilio")
        row = make(INDIAN)
        drain()
        assert seen(row).status == "dead"
        at.forward(60)
        assert outbox.requeue_dead(row.pk, now=at.now())
        drain()
        assert [entry.carrier for entry in carrier.accepted()] == ["twilio"]
        assert seen(row).status == "accepted"

    def test_p6_a_requeued_dead_letter_gets_all_its_tries_again(self, carrier: LocalCarrier, at: Hands) -> None:
        carrier.script(None, Reply.refuse(401, 20003), Reply.refuse(503, times=3), carrier="twilio")
        row = make()
        drain()
        assert seen(row).status == "dead"
        at.forward(60)
        outbox.requeue_dead(row.pk, now=at.now())
        for _ in range(5):
            drain()
            at.forward(200)
        assert seen(row).status == "accepted"


GARBAGE = {
    "an HTML page": Reply(accepted=True, status=200, body="<html><body>Bad gateway</body></html>"),
    "half a JSON": Reply(accepted=True, status=201, body='{"sid": "SM0123'),
    "a cut answer": Reply(accepted=True, fault="truncate"),
    "nothing": Reply(accepted=True, status=200, body=""),
    "null": Reply(accepted=True, status=200, body="null"),
    "a list": Reply(accepted=True, status=200, body="[]"),
    "a number": Reply(accepted=True, status=200, body="42"),
    "another type": Reply(accepted=True, status=200, body='{"sid": 7, "return": "yes", "request_id": []}'),
    "bytes": Reply(accepted=True, status=200, body=b"\x00\xff\xfe{\x80\x00}"),
    "a NUL in JSON": Reply(accepted=True, status=200, body='{"message": "\\u0000\\ud800", "sid": "\\u0000"}'),
    "deep nesting": Reply(accepted=True, status=200, body="[" * 60_000),
    "a megabyte": Reply(accepted=True, status=200, body="x" * 1_000_000),
    "a bare 502": Reply(accepted=True, status=502, body="<html>502</html>"),
    "a bare 504": Reply(accepted=True, status=504, body=""),
}


class TestGarbage:
    @pytest.mark.parametrize("to", [BRITISH, INDIAN], ids=["twilio", "fast2sms"])
    @pytest.mark.parametrize("reply", GARBAGE.values(), ids=GARBAGE.keys())
    def test_p7_an_unreadable_answer_is_a_lost_answer(
        self, carrier: LocalCarrier, at: Hands, reply: Reply, to: str
    ) -> None:
        carrier.script(to, reply)
        row = make(to)
        drain()
        at.forward(10)
        drain()
        first, second = carrier.accepted()
        assert "2nd alert" not in first.body
        assert "2nd alert" in second.body
        assert seen(row).status == "accepted"
        assert [outcome for _, outcome in outcomes(row)] == ["unknown", "accepted"]

    @pytest.mark.parametrize("status", [400, 403, 404, 301])
    def test_an_unreadable_refusal_is_a_refusal(self, carrier: LocalCarrier, status: int) -> None:
        carrier.script(BRITISH, Reply(status=status, body="<html>no</html>"))
        row = make()
        drain()
        assert outcomes(row) == [("twilio", "permanent")]
        assert seen(row).status == "dead"

    @pytest.mark.parametrize("fault", ["hang", "drip"])
    def test_p7_no_answer_in_time_is_a_lost_answer(
        self, carrier: LocalCarrier, at: Hands, monkeypatch: pytest.MonkeyPatch, fault: Any
    ) -> None:
        short: dict[str, Any] = {"base_url": carrier.url, "connect_timeout": 5, "read_timeout": 0.2}
        use(
            monkeypatch,
            Fast2SMSCarrier(API_KEY, **short),
            TwilioCarrier(ACCOUNT_SID, AUTH_TOKEN, sender="+15005550006", **short),
        )
        rows = [make(BRITISH), make(INDIAN)]
        for row in rows:
            carrier.script(row.address, Reply(accepted=True, fault=fault))
        drain()
        assert [outcomes(row)[0] for row in rows] == [("twilio", "unknown"), ("fast2sms", "unknown")]
        at.forward(10)
        drain()
        assert [seen(row).status for row in rows] == ["accepted", "accepted"]
        assert all("2nd alert" in carrier.accepted(row.address)[-1].body for row in rows)


class TestCancelling:
    def test_cancelled_between_queue_and_claim_never_reaches_a_carrier(self, carrier: LocalCarrier) -> None:
        incident = uuid4()
        row = make(incident_id=incident)
        outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now())
        drain()
        assert carrier.journal() == []
        assert seen(row).status == "cancelled"
        assert not row.attempts.exists()

    def test_cancelled_between_the_look_up_and_the_claim_never_reaches_a_carrier(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        incident = uuid4()
        row = make(incident_id=incident)
        fresh = uuid4

        def cancel_first() -> UUID:
            """Called for the lease's token, just between the two."""
            outbox.cancel([incident], kinds=[Kind.SOS], now=clock.now())
            return fresh()

        monkeypatch.setattr(claims, "uuid4", cancel_first)
        drain()
        assert carrier.journal() == []
        assert seen(row).status == "cancelled"

    @pytest.mark.parametrize("outcome", [Outcome.TRANSIENT, Outcome.UNKNOWN, Outcome.PERMANENT, Outcome.ACCEPTED])
    def test_cancelled_while_a_call_is_out_is_not_tried_again(
        self, monkeypatch: pytest.MonkeyPatch, at: Hands, outcome: Outcome
    ) -> None:
        calls: list[UUID] = []
        release = threading.Event()

        def slow(message: OutgoingMessage) -> Answer:
            calls.append(message.attempt_id)
            release.wait(10)
            return Answer(outcome)

        use(monkeypatch, StubCarrier(slow))
        incident = uuid4()
        row = make(incident_id=incident)
        dispatcher = Dispatcher(concurrency=1)
        dispatcher.cycle()
        outbox.cancel([incident], kinds=[Kind.SOS], now=at.now())
        release.set()
        dispatcher.drain()
        at.forward(600)
        dispatcher.drain()
        dispatcher.close()
        assert len(calls) == 1
        assert seen(row).status == ("accepted" if outcome is Outcome.ACCEPTED else "cancelled")
        assert outcomes(row) == [("twilio", outcome.value)]

    def test_cancelled_while_a_dispatcher_was_dying_is_not_tried_again(self, carrier: LocalCarrier, at: Hands) -> None:
        incident = uuid4()
        row = make(incident_id=incident)
        Delivery.objects.update(status="sending", lease_token=uuid4(), lease_until=at.now() - timedelta(seconds=1))
        outbox.cancel([incident], kinds=[Kind.SOS], now=at.now())
        drain()
        assert carrier.journal() == []
        assert seen(row).status == "cancelled"


class TestAllClears:
    @pytest.fixture
    def asha(self) -> User:
        person = PersonFactory.create(username="asha", full_name="Asha Rao", phone="+447700900000")
        for number in (1, 2):
            ContactFactory.create(person=person, phone=f"+44770090012{number}")
        return person

    def test_all_clears_go_exactly_to_those_who_were_alerted_and_after_their_alert(
        self, carrier: LocalCarrier, asha: User, at: Hands
    ) -> None:
        carrier.script("+447700900122", Reply.refuse(503, times=FOREVER))
        incident, _ = panic.press(asha)
        drain()
        incidents.resolve(incident, with_pin=False)
        at.forward(300)
        drain()
        texts = [(entry.to, "safe" in entry.body.lower()) for entry in carrier.accepted()]
        assert [to for to, _ in texts] == ["+447700900121", "+447700900121"]
        assert texts[-1][1]
        alert, all_clear = carrier.accepted()
        assert alert.body != all_clear.body

    def test_nobody_who_was_not_alerted_hears_anything(self, carrier: LocalCarrier, asha: User) -> None:
        incident, _ = panic.press(asha)
        incidents.resolve(incident, with_pin=False)
        drain()
        assert carrier.journal() == []
        assert not Delivery.objects.filter(kind=Kind.ALL_CLEAR).exists()

    @pytest.mark.parametrize("lost", [True, False])
    def test_those_whose_alert_may_have_arrived_get_one(
        self, carrier: LocalCarrier, asha: User, at: Hands, *, lost: bool
    ) -> None:
        asha.contacts.filter(phone="+447700900122").delete()
        carrier.script("+447700900121", Reply.reset(accepted=True) if lost else Reply.refuse(503))
        incident, _ = panic.press(asha)
        drain()
        incidents.resolve(incident, with_pin=False)
        at.forward(60)
        drain()
        kinds = [attempt.delivery.kind for attempt in DeliveryAttempt.objects.filter(outcome="accepted")]
        assert kinds == (["all_clear"] if lost else [])

    @pytest.mark.parametrize(
        ("leader", "follower"),
        [("accepted", "accepted"), ("delivered", "accepted"), ("dead", "cancelled"), ("cancelled", "cancelled")],
    )
    def test_an_all_clear_waits_for_its_alert_and_falls_with_it(
        self, carrier: LocalCarrier, at: Hands, leader: str, follower: str
    ) -> None:
        alert = make()
        Delivery.objects.update(status="sending", lease_token=uuid4(), lease_until=at.now() + timedelta(hours=1))
        all_clear = make(kind=Kind.ALL_CLEAR, priority=Priority.SAFETY, follows_id=alert.pk)
        drain()
        assert seen(all_clear).status == "queued"
        assert carrier.journal() == []
        Delivery.objects.filter(pk=alert.pk).update(status=leader, lease_token=None)
        at.forward(2)
        drain()
        assert seen(all_clear).status == follower
        assert len(carrier.accepted()) == (follower == "accepted")

    def test_of_many_in_one_claim_each_all_clear_follows_its_own_alert(self, carrier: LocalCarrier, at: Hands) -> None:
        fates = {"accepted": "accepted", "dead": "cancelled", "cancelled": "cancelled", "sending": "queued"}
        alerts = {fate: make(f"+44770090010{number}") for number, fate in enumerate(fates)}
        for fate, alert in alerts.items():
            later = at.now() + timedelta(hours=1)
            Delivery.objects.filter(pk=alert.pk).update(status=fate, lease_token=uuid4(), lease_until=later)
        all_clears = {
            fate: make(alert.address, kind=Kind.ALL_CLEAR, priority=Priority.SAFETY, follows_id=alert.pk)
            for fate, alert in alerts.items()
        }
        alone = make("+447700900109", priority=Priority.SAFETY)
        drain()
        assert {fate: seen(row).status for fate, row in all_clears.items()} == fates
        assert seen(alone).status == "accepted"
        assert {entry.to for entry in carrier.accepted()} == {alerts["accepted"].address, alone.address}
        waits = seen(all_clears["sending"])
        assert (waits.lease_token, waits.lease_until) == (None, None)
        assert waits.next_attempt_at == at.now() + claims.FOLLOW_DELAY

    def test_waiting_for_an_alert_costs_no_tries(self, carrier: LocalCarrier, at: Hands) -> None:
        alert = make()
        Delivery.objects.update(status="sending", lease_token=uuid4(), lease_until=at.now() + timedelta(hours=1))
        all_clear = make(kind=Kind.ALL_CLEAR, priority=Priority.SAFETY, follows_id=alert.pk)
        for _ in range(10):
            drain()
            at.forward(2)
        assert (seen(all_clear).status, seen(all_clear).attempt_count) == ("queued", 0)
        assert not all_clear.attempts.exists()


POISON: dict[str, dict[str, Any]] = {
    "no facts": {"facts": {}},
    "facts of another shape": {"facts": ["a", "list"]},
    "an unknown kind": {"facts": {"kind": "party", "person_name": "A", "happened_at": "2026-11-29T10:00:00+00:00"}},
    "a broken time": {"facts": {"kind": "sos", "person_name": "A", "happened_at": "yesterday"}},
    "a naive time": {"facts": {"kind": "sos", "person_name": "A", "happened_at": "2026-11-29T10:00:00"}},
    "a latitude of letters": {
        "facts": {
            "kind": "sos",
            "person_name": "A",
            "happened_at": "2026-11-29T10:00:00+00:00",
            "latitude": "north",
            "longitude": 1,
        }
    },
}


class TestP14Poison:
    @pytest.mark.parametrize("broken", POISON.values(), ids=POISON.keys())
    def test_p14_one_broken_row_ends_alone_as_a_dead_letter(
        self, carrier: LocalCarrier, broken: dict[str, Any]
    ) -> None:
        before, poison, after = make(), make("+447700900666"), make()
        Delivery.objects.filter(pk=poison.pk).update(**broken)
        drain()
        assert [seen(row).status for row in (before, poison, after)] == ["accepted", "dead", "accepted"]
        assert carrier.journal("+447700900666") == []
        attempt = poison.attempts.get()
        assert (attempt.outcome, attempt.error_class, attempt.text) == ("permanent", "content", "")

    def test_p14_an_answer_that_cannot_be_stored_does_not_hold_up_the_others(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poison, good = make("+447700900666"), make()
        real = answers.finish

        def finish(answered: Any, *, now: datetime) -> None:
            if any(job.delivery.pk == poison.pk for job, _ in answered):
                raise DataError("this value does not fit")
            real(answered, now=now)

        monkeypatch.setattr(dispatch, "finish", finish)
        drain()
        assert [seen(row).status for row in (poison, good)] == ["sending", "accepted"]


def unreachable_database() -> OperationalError:
    """What Django raises when nothing listens where PostgreSQL was."""
    error = OperationalError("connection failed")
    try:
        psycopg.connect("postgres://postgres@127.0.0.1:1/nothing", connect_timeout=1)
    except psycopg.OperationalError as cause:
        error.__cause__ = cause
    return error


class TestDatabaseAway:
    @pytest.mark.parametrize(
        "failure",
        [
            pytest.param(lambda: OperationalError("server closed the connection unexpectedly"), id="dropped"),
            pytest.param(lambda: OperationalError("database is locked"), id="locked"),
            pytest.param(unreachable_database, id="unreachable"),
        ],
    )
    def test_p7_answers_wait_for_the_database_and_are_not_lost(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch, failure: Callable[[], OperationalError]
    ) -> None:
        error = failure()
        assert is_transient(error)
        rows = [make() for _ in range(3)]
        left = [1, 2]
        real = answers.finish

        def finish(answered: Any, *, now: datetime) -> None:
            if left:
                left.pop()
                raise error
            real(answered, now=now)

        monkeypatch.setattr(dispatch, "finish", finish)
        dispatcher = Dispatcher(concurrency=8)
        dispatcher.cycle()
        carrier.wait_for(3)
        for _ in range(2):
            wait_until(lambda: not dispatcher._answers.empty() or dispatcher._unstored)
            with pytest.raises(OperationalError):
                dispatcher.cycle()
            assert dispatcher.busy
        dispatcher.drain()
        dispatcher.close()
        assert [seen(row).status for row in rows] == ["accepted"] * 3
        assert len(carrier.journal()) == 3
        assert DeliveryAttempt.objects.filter(outcome="accepted").count() == 3

    @pytest.mark.django_db(transaction=True)
    def test_a_running_dispatcher_rides_out_a_database_that_is_away(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "FAILURE_WAIT_SECONDS", 0.01)
        row = make()
        left = [1, 2, 3]
        real = claims.claim_jobs

        def claim(*args: Any, **kwargs: Any) -> Any:
            if left:
                left.pop()
                raise OperationalError("server closed the connection unexpectedly")
            return real(*args, **kwargs)

        monkeypatch.setattr(dispatch, "claim_jobs", claim)
        with running_dispatcher():
            carrier.wait_for(1)
            wait_until(lambda: seen(row).status == "accepted")


class running_dispatcher:  # noqa: N801 - reads as a statement
    """`dispatch.run` in a thread, stopped and joined at the end."""

    def __init__(self, poll_seconds: float = 0.02) -> None:
        self.stop = threading.Event()
        self.poll_seconds = poll_seconds
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            dispatch.run(self.stop, poll_seconds=self.poll_seconds, concurrency=8)
        finally:
            connections.close_all()

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        wake.work.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.mark.django_db(transaction=True)
class TestRunning:
    def test_what_is_queued_while_it_runs_goes_out(self, carrier: LocalCarrier) -> None:
        with running_dispatcher():
            rows = [make() for _ in range(5)]
            carrier.wait_for(5)
            wait_until(lambda: all(seen(row).status == "accepted" for row in rows))

    def test_a_hint_wakes_it_before_its_poll_interval(self, carrier: LocalCarrier) -> None:
        with running_dispatcher(poll_seconds=60):
            time_of_first = make()
            wake.dispatcher()
            carrier.wait_for(1, timeout=10)
            make()
            wake.dispatcher()
            carrier.wait_for(2, timeout=10)
        assert seen(time_of_first).status == "accepted"

    def test_stopping_waits_for_calls_that_are_out_and_stores_their_answers(self, carrier: LocalCarrier) -> None:
        carrier.latency = 0.3
        row = make()
        with running_dispatcher():
            wait_until(carrier.journal)
        assert seen(row).status == "accepted"

    def test_p6_two_dispatchers_share_150_deliveries_and_each_goes_out_once(self, carrier: LocalCarrier) -> None:
        rows = [unsaved(f"+4477009{number:05d}") for number in range(150)]
        outbox.queue(rows)
        start = threading.Barrier(2)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                start.wait(10)
                dispatcher = Dispatcher(concurrency=25)
                dispatcher.drain()
                dispatcher.close()
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                errors.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert errors == []
        assert sorted(entry.to for entry in carrier.journal()) == sorted(row.address for row in rows)
        assert not Delivery.objects.exclude(status="accepted").exists()
        assert DeliveryAttempt.objects.count() == 150


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
class TestProcesses:
    def worker(self, carrier: LocalCarrier, database_url: str) -> ManagedProcess:
        env = {"DATABASE_URL": database_url, "REDIS_URL": "", **carrier.environment()}
        return ManagedProcess(["run_dispatch_worker"], env=env)

    def test_p6_two_worker_processes_send_each_delivery_once_and_sigterm_waits_for_the_last_call(
        self, carrier: LocalCarrier, database_url: str
    ) -> None:
        rows = [unsaved(f"+4477009{number:05d}") for number in range(60)]
        outbox.queue(rows)
        with self.worker(carrier, database_url) as one, self.worker(carrier, database_url) as two:
            carrier.wait_for(60, timeout=60)
            wait_until(lambda: not Delivery.objects.exclude(status="accepted").exists())
            carrier.latency = 0.5
            last = make("+447700900999")
            carrier.wait_for(61, timeout=30)
            assert (one.terminate(), two.terminate()) == (0, 0), one.output + two.output
        assert sorted(entry.to for entry in carrier.journal()) == sorted(row.address for row in [*rows, last])
        assert not Delivery.objects.exclude(status="accepted").exists()

    def test_p6_what_a_killed_worker_was_sending_is_sent_by_the_next_as_a_repeat(
        self, carrier: LocalCarrier, database_url: str
    ) -> None:
        carrier.script(BRITISH, Reply.hang(accepted=True))
        row = make()
        with self.worker(carrier, database_url) as process:
            carrier.wait_for(1, timeout=60)
            process.kill()
        assert outcomes(row) == [("twilio", "open")]
        Delivery.objects.filter(pk=row.pk).update(lease_until=clock.now() - timedelta(seconds=1))
        drain()
        assert outcomes(row) == [("twilio", "unknown")]
        Delivery.objects.filter(pk=row.pk).update(next_attempt_at=clock.now())
        drain()
        assert "2nd alert" in carrier.accepted()[-1].body
        assert outcomes(row) == [("twilio", "unknown"), ("twilio", "accepted")]


class TestASlowDatabase:
    """A call is begun within 14 s of its claim or not at all; what was not begun is handed back, and claimed again."""

    @pytest.fixture
    def seconds(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The clock of the dispatcher, which the test puts forward."""
        elapsed = [0.0]
        slow = SimpleNamespace(monotonic=lambda: elapsed[0], sleep=time.sleep)
        for module in (dispatch, claims, pacing):
            monkeypatch.setattr(module, "time", slow)
        return elapsed

    def test_p8_claims_get_so_small_that_their_calls_are_begun_in_time(
        self, carrier: LocalCarrier, seconds: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or all would be claimed and handed back for ever: fifty at a second each."""
        rows = [make(f"+4477009001{number:02d}", priority=Priority.SAFETY) for number in range(60)]
        open_attempt = claims._open_attempt

        def slowly(*args: Any, **more: Any) -> Any:
            seconds[0] += 1
            return open_attempt(*args, **more)

        monkeypatch.setattr(claims, "_open_attempt", slowly)
        dispatcher = Dispatcher(concurrency=25)
        assert dispatcher._claim(urgent=False, now=clock.now()) == 50
        # Of calls that can't be begun any more no attempt is written, which a crash could leave open.
        assert not DeliveryAttempt.objects.exists()
        claimed = [50]
        while claimed[-1] or dispatcher.busy:
            # The clock stands still until the calls are over: here it goes in claims only.
            wait_until(lambda: dispatcher._answers.qsize() == sum(dispatcher._in_flight.values()), timeout=30)
            claimed.append(dispatcher.cycle().claimed)
        dispatcher.close()
        assert claimed[1:4] == [3, 6, 3]
        assert sorted(entry.to for entry in carrier.accepted()) == sorted(row.address for row in rows)
        assert not Delivery.objects.exclude(status="accepted").exists()
        assert seconds[0] == 50 + len(rows)

    def test_p8_claims_that_the_database_gives_up_get_smaller_too(
        self, carrier: LocalCarrier, seconds: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As PostgreSQL does with a statement that takes longer than 10 s."""
        rows = [make(f"+4477009001{number:02d}") for number in range(40)]
        take = claims._take
        asked: list[int] = []

        def given_up(limit: int, **more: Any) -> list[Delivery]:
            asked.append(limit)
            if limit > 3:
                raise DataError("canceling statement due to statement timeout")
            return take(limit, **more)

        monkeypatch.setattr(claims, "_take", given_up)
        dispatcher = Dispatcher(concurrency=25)
        for _ in range(5):
            with contextlib.suppress(DataError):
                dispatcher.cycle()
        assert [limit for limit in asked if limit > 3] == [50, 25, 12, 6]
        wait_until(carrier.accepted, timeout=10)
        dispatcher.close()
        assert {entry.to for entry in carrier.accepted()} <= {row.address for row in rows}

    def test_what_was_not_begun_is_handed_back_together(
        self, carrier: LocalCarrier, seconds: list[float], django_assert_max_num_queries: Any
    ) -> None:
        rows = [make(f"+4477009001{number:02d}") for number in range(20)]
        dispatcher = Dispatcher(concurrency=25)
        jobs = claims.claim_jobs(25, urgent=True, now=clock.now())
        with django_assert_max_num_queries(8):
            dispatch._store([dispatch.Result(job) for job in jobs])
        dispatcher.close()
        assert {(seen(row).status, seen(row).lease_token) for row in rows} == {("queued", None)}
        assert not DeliveryAttempt.objects.exists()
        assert carrier.journal() == []


@pytest.mark.parametrize(
    ("course", "most"),
    [
        ([], pacing.MOST_CLAIMED),
        ([(50, 50.0)], 3),
        ([(50, 50.0), (3, 3.0)], 6),
        ([(50, 50.0), (3, 3.0), (6, 6.0)], 3),
        ([(1, 60.0)], 1),
        ([(0, 60.0)], 1),
        ([(50, 50.0), *[(3, 0.1)] * 20], pacing.MOST_CLAIMED),
        ([(50, None)], 25),
        ([(50, None)] * 20, 1),
    ],
)
def test_a_portion_follows_the_time_that_claims_take(course: list[tuple[int, float | None]], most: int) -> None:
    portion = pacing.Portion()
    for count, seconds in course:
        if seconds is None:
            portion.failed(count)
        else:
            portion.claimed(count, seconds=seconds)
    assert portion.most == most


def test_the_drain_does_not_spin_while_a_slow_call_is_out(carrier: LocalCarrier) -> None:
    carrier.latency = 0.3
    make()
    before = time.process_time()
    drain()
    assert time.process_time() - before < 0.25


@pytest.mark.parametrize(
    ("stocked", "advised", "rest"),
    [(False, 0.0, dispatch.GATHER_SECONDS), (False, 0.02, 0.02), (False, 9.0, 0.2), (True, 9.0, 0.03)],
)
def test_the_rest_before_the_next_cycle_is_as_advised_but_not_long(
    stocked: bool, advised: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("notifications.dispatch.time.sleep", slept.append)
    monkeypatch.setattr("notifications.dispatch.time.monotonic", lambda: 1000.0)
    monkeypatch.setattr(Dispatcher, "stocked", stocked)
    dispatcher = Dispatcher()
    wake.work.set()
    dispatch._wait(0.25, dispatcher, advised)
    assert slept == [rest]
    assert not wake.work.is_set()
    dispatcher.close()
