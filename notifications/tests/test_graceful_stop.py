"""A dispatcher that is asked to stop: the calls that are out are finished, what was only claimed goes back (P6, P7)."""

import os
import signal
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest

from casualmeet import clock
from notifications import claims, outbox, recovery
from notifications.claims import LEASE
from notifications.dispatch import Dispatcher
from notifications.models import Delivery, DeliveryAttempt, Priority
from notifications.tests.sending import BRITISH, Hands, drain, make, outcomes, seen, unsaved
from notifications.texts import Kind
from testing.carrier import LocalCarrier
from testing.processes import ManagedProcess, wait_until

SLOTS = 4
COUNT = 40


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_p6_p7_a_stop_in_the_middle_of_a_queue_loses_doubles_and_delays_nothing(
    carrier: LocalCarrier, database_url: str
) -> None:
    """With a slow carrier, more is claimed than is out. A second signal changes nothing."""
    carrier.latency = 1.0
    outbox.queue(
        [unsaved(f"+4477009{i:05d}", priority=Priority.SOS if i % 2 else Priority.SAFETY) for i in range(COUNT)]
    )
    env = {"DATABASE_URL": database_url, "REDIS_URL": "", **carrier.environment()}
    with ManagedProcess(["run_dispatch_worker", "--concurrency", str(SLOTS)], env) as first:
        carrier.wait_for(3 * SLOTS, timeout=60)
        wait_until(lambda: Delivery.objects.filter(status="sending").count() > 2 * SLOTS)
        os.kill(first.pid, signal.SIGINT)
        assert first.terminate() == 0, first.output
        assert "ERROR" not in first.output
    called = Counter(entry.to for entry in carrier.journal())
    accepted = Delivery.objects.filter(status="accepted")
    assert called == Counter(accepted.values_list("address", flat=True))
    left = Delivery.objects.exclude(status="accepted")
    assert set(left.values_list("status", "attempt_count", "repeat", "lease_token", "lease_until")) == {
        ("queued", 0, 0, None, None)
    }
    assert left.count() == COUNT - len(called) > SLOTS
    assert not left.filter(next_attempt_at__gt=clock.now()).exists()
    assert DeliveryAttempt.objects.count() == len(called)

    carrier.latency = 0.0
    drain()
    assert set(Counter(entry.to for entry in carrier.journal()).values()) == {1}
    assert not any("2nd alert" in entry.body for entry in carrier.journal())
    assert not Delivery.objects.exclude(status="accepted").exists()
    assert DeliveryAttempt.objects.filter(outcome="accepted", number=1).count() == COUNT


@pytest.mark.django_db
class TestHandingBack:
    def test_p7_what_was_in_doubt_before_the_claim_is_so_after_it(self, carrier: LocalCarrier, at: Hands) -> None:
        row = make()
        claims.claim_jobs(1, urgent=True, now=at.now())
        at.forward(LEASE.total_seconds() + 3)
        drain()
        at.forward(30)
        before = seen(row).repeat, outcomes(row)
        jobs = claims.claim_jobs(1, urgent=True, now=at.now())
        claims.hand_back(jobs, now=at.now())
        assert (seen(row).status, (seen(row).repeat, outcomes(row))) == ("queued", before)
        assert before == (1, [("twilio", "unknown")])
        drain()
        assert "2nd alert" in carrier.accepted()[-1].body

    def test_what_was_cancelled_meanwhile_stays_cancelled(self, at: Hands) -> None:
        incident = uuid4()
        row = make(incident_id=incident)
        jobs = claims.claim_jobs(1, urgent=True, now=at.now())
        outbox.cancel([incident], kinds=[Kind.SOS], now=at.now())
        claims.hand_back(jobs, now=at.now())
        assert (seen(row).status, seen(row).finished_at) == ("cancelled", at.now())
        assert not row.attempts.exists()

    def test_p7_what_another_dispatcher_took_over_meanwhile_is_left_alone(self, at: Hands) -> None:
        row = make()
        frozen = claims.claim_jobs(1, urgent=True, now=at.now())
        Delivery.objects.update(lease_until=at.now() - timedelta(seconds=1))
        recovery.recover_leases(at.now())
        at.forward(30)
        (job,) = claims.claim_jobs(1, urgent=True, now=at.now())
        claims.hand_back(frozen, now=at.now())
        assert (seen(row).status, seen(row).lease_token) == ("sending", job.delivery.lease_token)
        assert outcomes(row) == [("simulated", "unknown"), ("simulated", "open")]

    def test_p8_who_is_late_because_of_slow_carriers_loses_no_try(
        self, carrier: LocalCarrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make(BRITISH)
        with monkeypatch.context() as patch:
            patch.setattr(claims, "LONGEST_CALL", LEASE + timedelta(seconds=1))
            dispatcher = Dispatcher(concurrency=1)
            dispatcher.cycle()
            dispatcher.close()
        assert (seen(row).status, seen(row).attempt_count, row.attempts.count()) == ("queued", 0, 0)
        drain()
        assert [entry.to for entry in carrier.journal()] == [BRITISH]
