"""Receipts: in any order, early, late and twice, they end in the right state, and a failure moves on (P6, P7, P13)."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator

from casualmeet import clock
from notifications import answers, claims, outbox, receipts, recovery, wake
from notifications.carriers import routing
from notifications.carriers.base import Answer, Outcome
from notifications.models import Delivery, DeliveryAttempt, OptOut
from notifications.tests.deliveries import BRITISH, INDIAN, SID, accepted, attempt, delivery, seen
from ops import metrics
from testing import measured
from testing.database import sample

pytestmark = pytest.mark.django_db

ACCOUNT = "AC" + "0123456789abcdef" * 2
TOKEN, OLD_TOKEN, SECRET = "the-token", "the-token-before", "a-long-random-text"
BASE = "https://safety.example.org"
KINDS = ["application/json", "application/x-www-form-urlencoded", "", "multipart/form-data"]
GARBAGE = [
    b"",
    b"\xff\xfe\x00",
    b"<html>Bad gateway</html>",
    b'{"request_id": "lwdtp7',
    b'{"request_id": 7}',
    b'{"request_id": "\\u0000"}',
    b'{"request_id": {"$ne": ""}}',
    b"null",
    b"[[[]]]",
    b"[" * 5000,
    b"request_id=%00&request_id=a%20b",
    b"NaN",
]
WORDS = ["queued", "sending", "sent", "delivered", "undelivered", "failed", "canceled", "read"]


@pytest.fixture(autouse=True)
def _carriers(settings: Any) -> Iterator[None]:
    """Both carriers are configured; nothing here calls them."""
    settings.PUBLIC_BASE_URL = BASE
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.TWILIO_ACCOUNT_SID, settings.TWILIO_AUTH_TOKEN, settings.TWILIO_FROM = ACCOUNT, TOKEN, "+15005550006"
    settings.FAST2SMS_API_KEY, settings.FAST2SMS_WEBHOOK_SECRET = "key", SECRET
    routing.reset()
    yield
    routing.reset()


def record(one: DeliveryAttempt, status: str, code: str = "", *, carrier: str = "") -> bool:
    return receipts.record(one.pk, status, code=code, carrier=carrier or one.carrier, now=clock.now())


def status_of(one: DeliveryAttempt) -> str:
    return Delivery.objects.get(pk=one.delivery_id).status


def claim() -> claims.Job:
    """The one delivery that is due, taken by a dispatcher whose call is out."""
    (job,) = claims.claim_jobs(10, urgent=True, now=clock.now())
    return job


def expected(words: list[str]) -> str:
    """The receipt that stays: read, else delivered, else the first end, else the furthest."""
    for best in ("read", "delivered"):
        if best in words:
            return best
    ends = [word for word in words if word in ("undelivered", "failed", "canceled")]
    return ends[0] if ends else max(words, key=lambda word: receipts.MESSAGE_RANKS[word])


def unknown_ids(kind: str) -> float:
    return measured.value(metrics.CALLBACKS, kind=kind, result="unknown_id")


class TestOrder:
    @hypothesis_settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        deadline=None,
        max_examples=sample(25, elsewhere=10),
    )
    @given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
    def test_every_order_with_duplicates_ends_in_the_right_state(self, words: list[str]) -> None:
        one = accepted()
        ranks = []
        for word in words:
            record(one, word, "30003")
            ranks.append(seen(one).receipt_rank)
        assert ranks == sorted(ranks)
        assert seen(one).receipt == expected(words)
        row = seen(one.delivery)
        reached = bool({"read", "delivered"} & {*words})
        assert (row.status == "delivered", row.delivered_at is not None) == (reached, reached)
        if not reached:
            assert row.status == ("dead" if seen(one).receipt in receipts.FAILED else "accepted")

    @pytest.mark.parametrize("failure", ["failed", "undelivered"])
    def test_delivered_corrects_a_failure_and_no_failure_corrects_delivered(self, failure: str) -> None:
        one = accepted()
        assert record(one, failure, "30003")
        assert record(one, "delivered")
        assert not record(one, failure, "30003")
        assert (seen(one).receipt, seen(one).receipt_code, status_of(one)) == ("delivered", "", "delivered")

    def test_the_same_word_again_changes_nothing(self) -> None:
        one = accepted()
        assert record(one, "sent")
        before = seen(one).receipt_at
        assert not record(one, "sent")
        assert seen(one).receipt_at == before

    def test_a_code_counts_only_with_a_failure(self) -> None:
        one = accepted()
        record(one, "sending", "30008")
        assert seen(one).receipt_code == ""
        record(one, "undelivered", "30008")
        assert seen(one).receipt_code == "30008"

    def test_an_unknown_word_changes_nothing(self) -> None:
        one = accepted()
        for word in ("", "vanished", "completed", "x" * 500, "\x00", "delivered!"):
            assert not record(one, word)
        assert (seen(one).receipt, seen(one).receipt_rank) == ("", 0)

    def test_words_count_however_they_are_written(self) -> None:
        one = accepted()
        assert record(one, " Delivered ")
        assert seen(one).receipt == "delivered"

    def test_another_carriers_word_changes_nothing(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        assert not record(one, "delivered", carrier="twilio")
        assert status_of(one) == "accepted"

    def test_an_attempt_that_is_not_there_changes_nothing(self) -> None:
        assert not receipts.record(uuid4(), "delivered", code="", carrier="twilio", now=clock.now())


class TestReached:
    def test_word_from_the_phone_ends_the_delivery_wherever_it_stands(self) -> None:
        for before, after in {
            "accepted": "delivered",
            "queued": "delivered",
            "dead": "delivered",
            "sending": "sending",
            "cancelled": "cancelled",
        }.items():
            one = attempt(delivery(status=before), outcome="unknown")
            assert record(one, "delivered")
            row = seen(one.delivery)
            assert (row.status, row.delivered_at) == (after, seen(one).receipt_at), before

    def test_read_after_delivered_keeps_the_first_time(self) -> None:
        one = accepted()
        record(one, "delivered")
        first = seen(one.delivery).delivered_at
        assert record(one, "read")
        assert seen(one.delivery).delivered_at == first

    def test_late_after_a_retry_was_queued_the_retry_is_not_sent(self) -> None:
        row = delivery(status="queued", carrier="twilio", attempt_count=1, repeat=1)
        one = attempt(row, outcome="unknown")
        record(one, "delivered")
        assert claims.claim_jobs(10, urgent=True, now=clock.now() + timedelta(hours=1)) == []

    def test_late_after_failover_it_is_delivered_by_the_first_carrier(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        record(one, "failed")
        assert (status_of(one), seen(one.delivery).carrier) == ("queued", "twilio")
        record(one, "delivered")
        assert (status_of(one), seen(one.delivery).carrier) == ("delivered", "fast2sms")

    def test_p13_sent_is_not_delivered(self) -> None:
        one = accepted()
        record(one, "sent")
        assert (status_of(one), seen(one.delivery).delivered_at) == ("accepted", None)


class TestFailedAfterAcceptance:
    def test_p6_p7_the_next_carrier_gets_it_and_it_is_no_repeat(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        wake.work.clear()
        assert record(one, "failed")
        row = seen(one.delivery)
        assert (row.status, row.carrier, row.repeat, row.attempt_count) == ("queued", "twilio", 0, 1)
        assert row.finished_at is None
        assert wake.work.is_set()
        job = claim()
        assert (job.attempt.carrier, job.attempt.number) == ("twilio", 2)

    def test_what_both_carriers_gave_up_on_is_a_dead_letter_and_never_goes_round(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        record(one, "failed")
        job = claim()
        answers.finish([(job, Answer(Outcome.ACCEPTED, carrier_message_id=SID))], now=clock.now())
        assert record(job.attempt, "undelivered", "30005")
        row = seen(one.delivery)
        assert row.status == "dead"
        assert row.finished_at is not None

    def test_a_carrier_that_refused_before_is_not_asked_again(self) -> None:
        row = delivery(INDIAN, status="accepted", finished_at=clock.now(), attempt_count=1)
        attempt(row, carrier="fast2sms", outcome="permanent", number=1)
        record(attempt(row, carrier="twilio", number=2), "failed", "30001")
        assert seen(row).status == "dead"

    def test_p6_the_next_carriers_trouble_does_not_lead_back_to_the_one_that_gave_up(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        record(one, "failed")
        job = claim()
        busy = Answer(Outcome.TRANSIENT, error_class="transient")
        answers.finish([(job, busy)], now=clock.now())
        assert (status_of(one), seen(one.delivery).carrier) == ("queued", "twilio")
        Delivery.objects.update(next_attempt_at=clock.now())
        job = claim()
        answers.finish([(job, Answer(Outcome.PERMANENT, error_class="geo"))], now=clock.now())
        assert status_of(one) == "dead"

    def test_p6_a_crash_on_the_way_to_the_next_carrier_does_not_make_it_accepted_again(self) -> None:
        """Without transactions: taken for the second try, but its attempt was not written, or its answer not judged."""
        for second in ("", "transient"):
            one = accepted(INDIAN, carrier="fast2sms")
            record(one, "failed")
            if second:
                attempt(one.delivery, carrier="twilio", outcome=second, number=2)
            past = clock.now() - timedelta(minutes=1)
            Delivery.objects.filter(pk=one.delivery_id).update(status="sending", lease_until=past, lease_token=uuid4())
            recovery.recover_leases(clock.now())
            assert (status_of(one), seen(one.delivery).carrier) == ("queued", "twilio"), second

    def test_after_a_moderator_tries_a_dead_letter_again_every_carrier_counts_again(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        record(one, "failed")
        Delivery.objects.update(status="dead")
        assert outbox.requeue_dead(one.delivery_id, now=clock.now())
        job = claim()
        answers.finish([(job, Answer(Outcome.ACCEPTED, carrier_message_id="again"))], now=clock.now())
        record(job.attempt, "failed")
        assert (status_of(one), seen(one.delivery).carrier) == ("queued", "twilio")

    def test_only_the_newest_attempt_can_fail_a_delivery(self) -> None:
        row = delivery(INDIAN, status="accepted", carrier="twilio", finished_at=clock.now(), attempt_count=1)
        old = attempt(row, carrier="fast2sms", outcome="accepted", started_at=clock.now() - timedelta(minutes=1))
        attempt(row, carrier="twilio", number=2)
        assert record(old, "failed")
        assert (seen(row).status, seen(row).carrier) == ("accepted", "twilio")

    def test_a_delivery_that_was_accepted_anew_since_it_was_read_is_left_alone(self) -> None:
        one = accepted(INDIAN, carrier="fast2sms")
        as_read = seen(one.delivery)
        Delivery.objects.update(finished_at=clock.now() + timedelta(seconds=1))
        assert not receipts.fail_after_acceptance(as_read, one, "", clock.now())
        assert status_of(one) == "accepted"
        assert receipts.fail_after_acceptance(seen(one.delivery), one, "", clock.now())

    def test_a_failure_after_word_from_the_phone_sends_nothing(self) -> None:
        first = accepted(INDIAN, carrier="fast2sms")
        record(first, "delivered")
        second = attempt(first.delivery, carrier="twilio", number=2)
        Delivery.objects.update(status="accepted")
        record(second, "failed", "30003")
        assert status_of(first) == "accepted"

    def test_p1_what_was_cancelled_meanwhile_is_not_sent_through_another_carrier(self) -> None:
        incident = uuid4()
        one = accepted(INDIAN, carrier="fast2sms")
        Delivery.objects.update(incident_id=incident)
        outbox.cancel([incident], kinds=["sos"], now=clock.now())
        record(one, "failed")
        assert status_of(one) == "cancelled"

    def test_a_stop_is_remembered_and_no_other_carrier_is_used(self) -> None:
        one = accepted(INDIAN, carrier="twilio")
        record(one, "failed", "21610")
        stop = OptOut.objects.get()
        assert (stop.phone, stop.source, status_of(one)) == (INDIAN, "twilio", "dead")

    def test_a_stop_that_is_known_stays_as_it_is(self) -> None:
        before = OptOut.objects.create(phone=BRITISH, stopped_at=clock.now() - timedelta(days=1), source="reply")
        record(accepted(), "undelivered", "30004")
        assert (OptOut.objects.get().pk, OptOut.objects.get().source) == (before.pk, "reply")

    def test_any_code_at_all_is_a_failure(self) -> None:
        for code in ("", "99999", "not a number", "²", "9" * 40, "\x00"):
            one = accepted()
            assert record(one, "undelivered", code)
            assert status_of(one) == "dead", code


class TestBeforeTheAnswer:
    """The carrier is faster than we are: the receipt comes while the call is still open."""

    def answer(self, job: claims.Job, outcome: Outcome = Outcome.ACCEPTED) -> None:
        sid = SID if outcome is Outcome.ACCEPTED else ""
        answers.finish([(job, Answer(outcome, carrier_message_id=sid))], now=clock.now())

    def test_a_receipt_before_the_answer_is_kept(self) -> None:
        row = delivery()
        job = claim()
        assert record(job.attempt, "delivered")
        assert (seen(row).status, seen(job.attempt).outcome) == ("sending", "open")
        self.answer(job)
        done = seen(job.attempt)
        assert (done.receipt, done.outcome, done.carrier_message_id, done.poll_at) == (
            "delivered",
            "accepted",
            SID,
            None,
        )
        assert (seen(row).status, seen(row).delivered_at is not None) == ("delivered", True)

    def test_a_failure_before_the_answer_moves_on_once_the_answer_is_stored(self) -> None:
        row = delivery(INDIAN)
        job = claim()
        record(job.attempt, "failed")
        assert seen(row).status == "sending"
        self.answer(job)
        assert (seen(row).status, seen(row).carrier, seen(row).repeat) == ("queued", "twilio", 0)

    def test_p7_delivered_while_the_answer_is_lost_is_not_sent_again(self) -> None:
        row = delivery()
        job = claim()
        record(job.attempt, "delivered")
        self.answer(job, Outcome.UNKNOWN)
        assert seen(row).status == "delivered"
        assert claims.claim_jobs(10, urgent=True, now=clock.now() + timedelta(hours=1)) == []

    def test_p7_delivered_while_the_dispatcher_died_is_not_sent_again(self) -> None:
        row = delivery()
        job = claim()
        record(job.attempt, "delivered")
        assert recovery.recover_leases(clock.now() + timedelta(minutes=5)) == 1
        assert seen(row).status == "delivered"

    def test_the_id_of_a_callback_fills_in_one_that_was_lost(self) -> None:
        one = attempt(delivery(status="queued"), outcome="unknown")
        receipts.record(one.pk, "sent", code="", carrier="twilio", now=clock.now(), message_id=SID)
        receipts.record(one.pk, "read", code="", carrier="twilio", now=clock.now(), message_id="SM-other")
        assert seen(one).carrier_message_id == SID

    def test_an_accepted_message_is_asked_for_after_ninety_seconds(self) -> None:
        delivery()
        job, now = claim(), clock.now()
        answers.finish([(job, Answer(Outcome.ACCEPTED, carrier_message_id=SID))], now=now)
        assert seen(job.attempt).poll_at == now + timedelta(seconds=90)
        record(job.attempt, "sent")
        assert seen(job.attempt).poll_at is not None
        record(job.attempt, "delivered")
        assert seen(job.attempt).poll_at is None


@pytest.mark.django_db(transaction=True)
class TestRaces:
    ROUNDS = 4

    def at_once(self, *calls: Callable[[], object]) -> None:
        """Run the calls in threads that start together; a call that raises fails the test."""
        barrier = threading.Barrier(len(calls))

        def run(one: Callable[[], object]) -> None:
            try:
                barrier.wait(timeout=10)
                one()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(calls)) as pool:
            for done in [pool.submit(run, one) for one in calls]:
                done.result(timeout=60)

    def test_receipts_that_come_at_once_end_as_any_order_does(self) -> None:
        for _ in range(self.ROUNDS):
            one = accepted(INDIAN)
            self.at_once(*(partial(record, one, word) for word in ("sent", "failed", "delivered", "undelivered")))
            assert (seen(one).receipt, status_of(one)) == ("delivered", "delivered")

    @pytest.mark.parametrize(("word", "status"), [("failed", "queued"), ("delivered", "delivered")])
    def test_p6_a_receipt_that_races_the_answer_is_not_lost(self, word: str, status: str) -> None:
        for _ in range(self.ROUNDS):
            row = delivery(INDIAN)
            job = claim()
            answer = Answer(Outcome.ACCEPTED, carrier_message_id="r")
            self.at_once(partial(answers.finish, [(job, answer)], now=clock.now()), partial(record, job.attempt, word))
            assert (seen(job.attempt).receipt, seen(row).status) == (word, status)
            Delivery.objects.all().delete()


class TestCalls:
    def call(self) -> DeliveryAttempt:
        row = delivery(status="accepted", channel="voice", carrier="twilio-voice", finished_at=clock.now())
        return attempt(row, carrier="twilio-voice", carrier_message_id="CA" + "0" * 32)

    def test_no_end_of_a_call_counts_as_delivered(self) -> None:
        for end in ("completed", "voicemail", "busy", "no-answer", "canceled"):
            one = self.call()
            for word in ("initiated", "ringing", "in-progress", end):
                assert record(one, word)
            assert (seen(one).receipt, status_of(one), seen(one.delivery).delivered_at) == (end, "accepted", None)

    def test_a_call_that_could_not_be_made_is_a_dead_letter(self) -> None:
        one = self.call()
        record(one, "failed", "21217")
        assert status_of(one) == "dead"

    def test_the_words_of_texts_are_nothing_for_a_call(self) -> None:
        one = self.call()
        for word in ("delivered", "read", "sent"):
            assert not record(one, word)


class TestTwilioHook:
    def post(self, attempt_id: UUID, form: dict[str, str], *, token: str = TOKEN, signed: str = "") -> int:
        path = f"/hooks/twilio/status/{attempt_id}"
        form = {"AccountSid": ACCOUNT, **form}
        signature = signed or RequestValidator(token).compute_signature(BASE + path, form)
        client = Client(enforce_csrf_checks=True)
        return client.post(path, form, headers={"X-Twilio-Signature": signature}, secure=True).status_code

    def test_a_callback_is_recorded_and_answered_with_nothing(self) -> None:
        one = accepted()
        assert self.post(one.pk, {"MessageSid": SID, "MessageStatus": "delivered"}) == 204
        assert status_of(one) == "delivered"

    def test_a_callback_before_the_sid_is_stored_is_recorded(self) -> None:
        delivery()
        job = claim()
        assert self.post(job.attempt.pk, {"MessageSid": SID, "MessageStatus": "sent"}) == 204
        assert (seen(job.attempt).receipt, seen(job.attempt).carrier_message_id) == ("sent", SID)

    def test_a_failure_is_recorded_with_its_code(self) -> None:
        one = accepted()
        assert self.post(one.pk, {"MessageStatus": "undelivered", "ErrorCode": "30005"}) == 204
        assert (seen(one).receipt, seen(one).receipt_code) == ("undelivered", "30005")

    def test_a_forged_callback_changes_nothing(self) -> None:
        one = accepted()
        for token in ("", "guess", OLD_TOKEN):
            assert self.post(one.pk, {"MessageStatus": "delivered"}, token=token) == 403
        # Signed for another attempt.
        other = RequestValidator(TOKEN).compute_signature(
            f"{BASE}/hooks/twilio/status/{uuid4()}", {"AccountSid": ACCOUNT, "MessageStatus": "delivered"}
        )
        assert self.post(one.pk, {"MessageStatus": "delivered"}, signed=other) == 403
        assert self.post(one.pk, {"MessageStatus": "delivered", "AccountSid": "AC" + "f" * 32}) == 403
        assert (seen(one).receipt, status_of(one)) == ("", "accepted")

    def test_a_replayed_callback_changes_nothing(self) -> None:
        one = accepted(INDIAN)
        self.post(one.pk, {"MessageStatus": "sent"})
        self.post(one.pk, {"MessageStatus": "delivered"})
        before, row = seen(one), seen(one.delivery)
        for status in ("sent", "delivered", "failed"):
            assert self.post(one.pk, {"MessageStatus": status}) == 204
        assert (before.receipt_at, before.receipt) == (seen(one).receipt_at, seen(one).receipt)
        assert (row.status, row.delivered_at) == (seen(row).status, seen(row).delivered_at)

    def test_a_replayed_failure_does_not_fail_the_next_carrier(self) -> None:
        one = accepted(INDIAN, carrier="twilio")
        self.post(one.pk, {"MessageStatus": "failed", "ErrorCode": "30001"})
        job = claim()
        assert job.attempt.carrier == "fast2sms"
        answers.finish([(job, Answer(Outcome.ACCEPTED, carrier_message_id="r"))], now=clock.now())
        self.post(one.pk, {"MessageStatus": "failed", "ErrorCode": "30001"})
        assert (status_of(one), seen(one.delivery).carrier) == ("accepted", "fast2sms")

    def test_during_rotation_both_tokens_count(self, settings: Any) -> None:
        settings.TWILIO_AUTH_TOKEN_PREVIOUS = OLD_TOKEN
        one = accepted()
        assert self.post(one.pk, {"MessageStatus": "sent"}, token=OLD_TOKEN) == 204
        assert self.post(one.pk, {"MessageStatus": "delivered"}) == 204
        assert status_of(one) == "delivered"

    def test_an_unknown_id_is_answered_and_counted(self) -> None:
        before = unknown_ids("twilio-status")
        assert self.post(uuid4(), {"MessageStatus": "delivered"}) == 204
        assert unknown_ids("twilio-status") == before + 1

    def test_a_known_id_is_not_counted_when_nothing_changes(self) -> None:
        before = unknown_ids("twilio-status")
        assert self.post(accepted().pk, {"MessageStatus": "what?"}) == 204
        assert self.post(accepted().pk, {}) == 204
        assert unknown_ids("twilio-status") == before

    def test_a_call_that_a_machine_took_is_voicemail(self) -> None:
        for answered_by, receipt in {
            "human": "completed",
            "unknown": "completed",
            "": "completed",
            "machine_start": "voicemail",
            "machine_end_beep": "voicemail",
            "fax": "voicemail",
        }.items():
            row = delivery(status="accepted", channel="voice", carrier="twilio-voice", finished_at=clock.now())
            one = attempt(row, carrier="twilio-voice")
            form = {"CallSid": "CA" + "0" * 32, "CallStatus": "completed", "AnsweredBy": answered_by}
            assert self.post(one.pk, form) == 204
            assert (seen(one).receipt, status_of(one)) == (receipt, "accepted"), answered_by

    def test_looking_changes_nothing(self) -> None:
        one = accepted()
        assert Client().get(f"/hooks/twilio/status/{one.pk}", secure=True).status_code == 405


class TestFast2SMSHook:
    def put(self, content: Any, *, secret: str = SECRET, method: str = "POST", kind: str = "application/json") -> int:
        body = content if isinstance(content, bytes | str) else json.dumps(content)
        client = Client(enforce_csrf_checks=True)
        path = f"/hooks/fast2sms/{secret}"
        return client.generic(method, path, body, content_type=kind, secure=True).status_code

    def sent(self) -> DeliveryAttempt:
        return accepted(INDIAN, carrier="fast2sms", carrier_message_id="lwdtp7cjyqxvfe9")

    @pytest.mark.parametrize("method", ["POST", "PUT"])
    def test_what_is_reported_is_only_asked_for(self, method: str) -> None:
        one = self.sent()
        form = "application/x-www-form-urlencoded"
        for content, kind in (
            ({"request_id": "lwdtp7cjyqxvfe9", "status": "delivered"}, "application/json"),
            ([{"request_id": "x"}, 7, {"request_id": "lwdtp7cjyqxvfe9"}], "application/json"),
            ({"request_id": "lwdtp7cjyqxvfe9"}, "text/plain"),
            ("status=Delivered&request_id=lwdtp7cjyqxvfe9", form),
        ):
            DeliveryAttempt.objects.update(poll_at=None)
            assert self.put(content, kind=kind, method=method) == 204
            assert (seen(one).receipt, status_of(one)) == ("", "accepted")
            assert seen(one).poll_at is not None, content
            assert seen(one).poll_at <= clock.now()

    def test_a_form_in_parts_is_read(self) -> None:
        one = self.sent()
        form = {"request_id": one.carrier_message_id}
        assert Client().post(f"/hooks/fast2sms/{SECRET}", form, secure=True).status_code == 204
        assert seen(one).poll_at is not None

    def test_a_wrong_secret_changes_nothing(self) -> None:
        one = self.sent()
        for secret in ("guess", SECRET[:-1], SECRET + "x", "é", "%00"):
            assert self.put({"request_id": "lwdtp7cjyqxvfe9"}, secret=secret) == 403
        assert seen(one).poll_at is None

    def test_without_a_secret_in_the_settings_nobody_gets_in(self, settings: Any) -> None:
        settings.FAST2SMS_WEBHOOK_SECRET = ""
        assert self.put({"request_id": "lwdtp7cjyqxvfe9"}, secret="x") == 403

    def test_garbage_is_a_bad_request_and_changes_nothing(self) -> None:
        one = self.sent()
        for kind, body in product(KINDS, GARBAGE):
            assert self.put(body, kind=kind) == 400, (kind, body)
        assert seen(one).poll_at is None

    def test_an_unknown_id_is_answered_and_counted(self) -> None:
        before = unknown_ids("fast2sms-status")
        assert self.put({"request_id": "nobody"}) == 204
        assert unknown_ids("fast2sms-status") == before + 1

    def test_what_is_known_to_be_delivered_is_not_asked_for_again(self) -> None:
        one = self.sent()
        record(one, "delivered")
        assert self.put({"request_id": one.carrier_message_id}) == 204
        assert seen(one).poll_at is None

    def test_looking_changes_nothing(self) -> None:
        one = self.sent()
        assert Client().get(f"/hooks/fast2sms/{SECRET}?request_id=lwdtp7cjyqxvfe9", secure=True).status_code == 405
        assert seen(one).poll_at is None
