"""What is measured of the carriers' answers: each call, and each incident's time to the first acceptance once."""

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections

from casualmeet import clock
from notifications import answers, claims, measuring, recovery
from notifications.carriers.base import Answer, Outcome
from notifications.models import Delivery, FirstAcceptance
from notifications.tests.deliveries import attempt, delivery, seen
from ops import metrics
from testing import measured

YES = Answer(Outcome.ACCEPTED, carrier_message_id="SM1")
LATER = Answer(Outcome.TRANSIENT, error_code="30001", error_class="transient")


class Forgetful(set[UUID]):
    """What a process knows that has just started: nothing, so that the database alone decides."""

    def __contains__(self, _pk: object) -> bool:
        return False


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_known", Forgetful())


def measured_so_far() -> tuple[float, float]:
    """How many incidents, and their seconds."""
    return tuple(measured.value(metrics.FIRST_ACCEPT_SECONDS, suffix) for suffix in ("_count", "_sum"))  # type: ignore[return-value]


def alert(incident_id: UUID, *, opened_ago: float = 0, **changes: Any) -> Delivery:
    row = delivery(incident_id=incident_id, recipient_id=uuid4())
    row.facts["opened_at"] = (clock.now() - timedelta(seconds=opened_ago)).isoformat()
    for name, value in changes.items():
        setattr(row, name, value)
    row.save()
    return row


def answer_all(answer: Answer) -> None:
    jobs = claims.claim_jobs(50, urgent=True, now=clock.now()) + claims.claim_jobs(50, urgent=False, now=clock.now())
    answers.finish([(job, answer) for job in jobs], now=clock.now())


@pytest.mark.django_db
class TestFirstAcceptance:
    def test_it_is_measured_from_the_opening_and_once_for_all_contacts(self) -> None:
        incident_id = uuid4()
        for _ in range(3):
            # Made later, by the repair after a crash: the person has waited since the opening.
            alert(incident_id, opened_ago=12, created_at=clock.now())
        count, seconds = measured_so_far()
        answer_all(YES)
        now_count, now_seconds = measured_so_far()
        assert now_count == count + 1
        assert 12 <= now_seconds - seconds < 22
        alert(incident_id, opened_ago=500, wave=2)
        answer_all(YES)
        assert measured_so_far() == (now_count, now_seconds)

    def test_only_an_acceptance_counts_and_only_that_of_an_alarm(self) -> None:
        incident_id = uuid4()
        late, _all_clear = alert(incident_id, opened_ago=30), alert(incident_id, priority=1)
        alert(uuid4(), priority=5)
        delivery(incident_id=None)
        count, _ = measured_so_far()
        for answer in (LATER, Answer(Outcome.UNKNOWN)):
            answer_all(answer)
            Delivery.objects.filter(status="queued").update(next_attempt_at=clock.now())
        Delivery.objects.exclude(pk=late.pk).filter(priority=0, incident_id__isnull=False).delete()
        assert measured_so_far()[0] == count
        answer_all(YES)
        assert measured_so_far()[0] == count + 1
        assert FirstAcceptance.objects.get().incident_id == incident_id

    def test_an_answer_that_is_stored_again_counts_once(self) -> None:
        alert(uuid4())
        jobs = claims.claim_jobs(50, urgent=True, now=clock.now())
        count, _ = measured_so_far()
        measuring.accepted([(jobs[0].delivery, jobs[0].attempt)] * 2, now=clock.now())
        assert measured_so_far()[0] == count + 1

    def test_a_lost_answer_counts_when_the_carrier_is_found_to_have_it(self) -> None:
        row = alert(uuid4(), opened_ago=40, repeat=1, attempt_count=1)
        attempt(row, outcome="unknown")
        (job,) = claims.claim_jobs(50, urgent=True, now=clock.now())
        count, seconds = measured_so_far()
        answers.finish_found(job, "SM2", now=clock.now())
        assert seen(row).status == "accepted"
        assert measured_so_far()[0] == count + 1
        assert 40 <= measured_so_far()[1] - seconds < 50

    def test_one_that_can_t_be_measured_is_accepted_all_the_same(self, caplog: pytest.LogCaptureFixture) -> None:
        """P6: what counts is the alert."""
        row = alert(uuid4())
        jobs = claims.claim_jobs(50, urgent=True, now=clock.now())
        jobs[0].delivery.facts["opened_at"] = 7
        answers.finish([(jobs[0], YES)], now=clock.now())
        assert seen(row).status == "accepted"
        assert "can't be measured" in caplog.text

    def test_what_was_counted_is_forgotten_after_a_week_and_not_counted_again(self) -> None:
        now = clock.now()
        for days in (6, 8, 9):
            FirstAcceptance.objects.create(
                incident_id=uuid4(), attempt_id=uuid4(), accepted_at=now - timedelta(days=days)
            )
        assert measuring.trim(now) == 2
        assert FirstAcceptance.objects.count() == 1
        alert(uuid4(), opened_ago=8 * 86400)
        count, _ = measured_so_far()
        answer_all(YES)
        assert measured_so_far()[0] == count
        assert FirstAcceptance.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_dispatchers_that_race_measure_each_incident_once() -> None:
    incident_ids = [uuid4() for _ in range(10)]
    rows = [(alert(pk), attempt) for pk in incident_ids for attempt in range(4)]
    accepted = [(row, attempt(row, number=number + 1)) for row, number in rows]
    count, _ = measured_so_far()
    start = threading.Barrier(4)

    def dispatcher(number: int) -> None:
        try:
            start.wait()
            for begin in range(0, 40, 8):
                measuring.accepted(accepted[number::4][begin // 4 : begin // 4 + 2], now=clock.now())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=dispatcher, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured_so_far()[0] == count + 10
    assert FirstAcceptance.objects.count() == 10


@pytest.mark.django_db
def test_every_call_is_counted_under_a_known_code() -> None:
    def attempts(**labels: str) -> float:
        return measured.value(metrics.ATTEMPTS, **labels)

    row = delivery()
    before = {outcome: attempts(outcome=outcome) for outcome in Outcome}
    jobs = claims.claim_jobs(50, urgent=True, now=clock.now())
    answers.finish([(jobs[0], LATER)], now=clock.now())
    Delivery.objects.filter(pk=row.pk).update(next_attempt_at=clock.now())
    answer_all(YES)
    assert {outcome: attempts(outcome=outcome) - before[outcome] for outcome in Outcome} == {
        "accepted": 1,
        "transient": 1,
        "permanent": 0,
        "unknown": 0,
    }


@pytest.mark.parametrize(
    ("carrier", "code", "label"),
    [
        ("twilio", "", "none"),
        ("twilio", "21610", "21610"),
        ("twilio-voice", "21211", "21211"),
        ("fast2sms", "412", "412"),
        ("fcm", "UNREGISTERED", "UNREGISTERED"),
        ("twilio", "99999", "other"),
        ("twilio", "+919812345678", "other"),
        ("fast2sms", "21610", "other"),
        ("webpush", "103", "other"),
        ("who?", "1", "other"),
    ],
)
def test_what_a_carrier_says_can_t_make_up_labels(carrier: str, code: str, label: str) -> None:
    assert measuring.code_label(carrier, code) == label


@pytest.mark.django_db
def test_leases_that_ran_out_are_counted() -> None:
    before = measured.value(metrics.LEASE_EXPIRIES)
    ago = clock.now() - timedelta(seconds=1)
    delivery(status="sending", lease_token=uuid4(), lease_until=ago)
    attempt(delivery(status="sending", lease_token=uuid4(), lease_until=ago), outcome="open")
    delivery(status="sending", lease_token=uuid4(), lease_until=clock.now() + timedelta(seconds=30))
    assert recovery.recover_leases(clock.now()) == 2
    assert recovery.recover_leases(clock.now()) == 0
    assert measured.value(metrics.LEASE_EXPIRIES) == before + 2
