"""A real worker serves its metrics at METRICS_PORT; one that can't have the port works on."""

import re
from datetime import timedelta

import pytest
import requests

from casualmeet import clock
from safety.models import MeetingTimer
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos.models import SosEvent
from testing.processes import ManagedProcess, free_port, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def test_workers_serve_their_metrics_and_one_whose_port_is_taken_works_on(database_url: str) -> None:
    port = free_port()
    env = {"DATABASE_URL": database_url, "METRICS_PORT": str(port), "LOG_FORMAT": "json", "REDIS_URL": ""}

    def scrape() -> str:
        return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text

    def overdue() -> MeetingTimer:
        person = PersonFactory.create()
        ContactFactory.create(person=person)
        ago = clock.now() - timedelta(seconds=3)
        return TimerFactory.create(person=person, expires_at=ago, escalates_at=ago)

    overdue()
    with ManagedProcess(["run_timer_worker", "--no-dispatch"], env) as first:
        first.wait_for_line("Expiring timers", timeout=60)
        wait_until(lambda: re.search(r'cycle_seconds_count\{role="timer"\} [1-9]', scrape()), timeout=20)
        text = scrape()
        assert 'casualmeet_expirations_total{result="opened"} 1.0' in text
        late = re.search(r"casualmeet_expiration_lateness_seconds_sum (\S+)", text)
        assert late
        assert float(late[1]) >= 3
        assert re.search(r"^casualmeet_timers_live [01].0$", text, re.MULTILINE)
        assert not re.search(r"^casualmeet_scrape_errors\{.*\} 1.0$", text, re.MULTILINE)

        with ManagedProcess(["run_timer_worker"], env) as second:
            second.wait_for_line(f"METRICS_PORT {port} on 127.0.0.1 can't be used", timeout=60)
            first.kill()
            last = overdue()
            wait_until(lambda: SosEvent.objects.filter(triggered_timer_id=last.pk).exists(), timeout=20)
            # The simulated carrier takes what the first one left, and this one's.
            taken = r'"message": "A carrier took the first message of incident .*"incident_id": "[0-9a-f-]{36}"'
            wait_until(lambda: len(re.findall(taken, second.output)) == 2, timeout=20)
            assert second.terminate() == 0
