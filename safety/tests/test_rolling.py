"""Workers replaced one after the other, in the middle of a busy night."""

from collections import Counter
from datetime import timedelta

import pytest

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications.models import Delivery, DeliveryStatus
from safety.tests.people import assert_one_incident_each, people, timers_for
from sos.models import SosEvent
from testing.carrier import LocalCarrier
from testing.processes import ManagedProcess, wait_until


@pytest.mark.processes
def test_p2_p6_p7_a_rolling_restart_amid_sends_loses_nothing_and_sends_nothing_twice(database_url: str) -> None:
    """New workers run beside the old ones, which must end with calls out, one after the other."""
    count = 60 if has_transactions() else 24
    with LocalCarrier(latency=0.3) as carrier:
        # As many calls at once as keeps them busy for a while.
        env = {"DATABASE_URL": database_url, "DISPATCH_CONCURRENCY": "3", **carrier.environment()}
        command = ["run_timer_worker", "--batch", "5", "--poll", "0.05"]
        first, second, third = (ManagedProcess(command, env) for _ in range(3))
        with first, second, third:
            for worker in (first, second, third):
                worker.wait_for_line("Expiring timers", timeout=60)
            armed = timers_for(people(count), escalates_at=clock.now(), apart=timedelta(milliseconds=50))
            for sent, old in ((count // 6, first), (count // 2, second)):
                carrier.wait_for(sent, timeout=60)
                assert old.terminate(60) == 0, old.output
            wait_until(lambda: SosEvent.objects.filter(alerted_at__isnull=False).count() == count, timeout=60)
            wait_until(lambda: not Delivery.objects.exclude(status=DeliveryStatus.ACCEPTED).exists(), timeout=60)
            assert third.terminate(60) == 0, third.output
        assert_one_incident_each(armed)
        assert len(carrier.accepted()) == count
        assert Counter(Delivery.objects.values_list("attempts__number", "repeat")) == {(1, 0): count}
        assert "Traceback" not in first.output + second.output + third.output
