"""P2, P3, P6, P7: a worker that dies by SIGKILL at any step of its cycle loses nothing and doubles nothing."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs
from uuid import UUID

import pytest

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Notification
from safety import expiry
from safety.models import MeetingTimer, TimerStatus
from safety.tests.people import assert_one_incident_each, people, timers_for
from safety.tests.steps import DISPATCH_STEPS, EXPIRY_STEPS, die_at
from sos.models import AlertedContact, SosEvent, TimelineEntry
from testing.processes import PYTHON_MODULE, ManagedProcess

CONTACTS = 2
REPEAT = "2nd alert"
# Without transactions the attempt keeps its answer although the delivery does not know it yet.
AMID_THE_ANSWER = {"amid storing the answer", "before the answer is committed"}
SIGKILLED = "signal 9"


def let_die(plan: list[tuple[str, str, UUID]], env: dict[str, str]) -> None:
    """Run a worker to its death for each line of the plan."""
    argument = json.dumps([(kind, step, str(row_id)) for kind, step, row_id in plan])
    with ManagedProcess(["safety.tests.doomed", argument], env, program=PYTHON_MODULE) as process:
        assert process.wait(60) == 0, process.output
        for kind, step, _ in plan:
            process.wait_for_line(f"^{kind}, {step}: {SIGKILLED}$")


def recover(env: dict[str, str], *options: str) -> str:
    """One run of a real worker that knows nothing of the dead one."""
    with ManagedProcess(["run_timer_worker", "--once", *options], env) as worker:
        assert worker.wait(60) == 0, worker.output
        return worker.output


@pytest.mark.processes
def test_p2_p3_sigkill_at_every_step_of_the_expiry_loses_and_doubles_nothing(database_url: str) -> None:
    """P2, P3: one timer per step; each kills the worker that handles it; then one real worker recovers them all."""
    env = {"DATABASE_URL": database_url}
    timers = timers_for(people(len(EXPIRY_STEPS), contacts=CONTACTS), escalates_at=clock.now())
    by_step = dict(zip(EXPIRY_STEPS, timers, strict=True))
    let_die([("expiry", step, timer.pk) for step, timer in by_step.items()], env)

    states = {row.pk: row.status for row in MeetingTimer.objects.all()}
    committed = [step for step, timer in by_step.items() if states[timer.pk] == TimerStatus.EXPIRED]
    assert committed == (["after the commit"] if has_transactions() else list(EXPIRY_STEPS))
    assert Delivery.objects.exclude(status__in=[DeliveryStatus.QUEUED, DeliveryStatus.HELD]).count() == 0

    output = recover(env, "--no-dispatch")
    assert "Traceback" not in output
    incidents = assert_one_incident_each(timers, contacts=CONTACTS)
    ids = [incident.pk for incident in incidents]
    assert Counter(Delivery.objects.values_list("status", flat=True)) == {DeliveryStatus.QUEUED: CONTACTS * len(ids)}
    for rows in (TimelineEntry.objects.filter(kind="opened"), Notification.objects.filter(kind="sos_triggered")):
        assert Counter(rows.values_list("incident_id", flat=True)) == Counter(ids)
    assert AlertedContact.objects.count() == CONTACTS * len(ids)

    before = {model: model.objects.count() for model in (SosEvent, Delivery, TimelineEntry, Notification)}
    expiry.cycle()
    assert {model: model.objects.count() for model in before} == before


@pytest.mark.processes
def test_p3_sigkill_during_the_repair_of_a_crash_is_repaired_as_well(database_url: str) -> None:
    """P3: the second worker dies while it completes what the first one left."""
    env = {"DATABASE_URL": database_url}
    timer = timers_for(people(1, contacts=CONTACTS), escalates_at=clock.now())[0]
    steps = ["after the incident", "amid the deliveries", "after the deliveries", "before the token is cleared"]
    second = "expiry" if has_transactions() else "repair"
    let_die([("expiry", "after the stamp", timer.pk), *((second, step, timer.pk) for step in steps)], env)
    recover(env, "--no-dispatch")
    assert_one_incident_each([timer], contacts=CONTACTS)
    assert Delivery.objects.filter(status=DeliveryStatus.QUEUED).count() == CONTACTS


class Death(BaseException):
    """Passes every `except Exception`, as a SIGKILL does; only a transaction is still rolled back."""


@pytest.mark.parametrize("step", EXPIRY_STEPS)
def test_p4_a_crash_while_an_expired_timer_joins_an_active_incident_drops_nothing(
    step: str, transactional_db: None
) -> None:
    """P3, P4: joining is repaired like opening: one entry on the timeline, one update to each contact."""
    asha = people(1, contacts=CONTACTS)[0]
    first = timers_for([asha], escalates_at=clock.now() - timedelta(minutes=5))[0]
    expiry.cycle()
    second = timers_for([asha], escalates_at=clock.now())[0]
    put_back = die_at(EXPIRY_STEPS[step], _raise_death)
    try:
        expiry.cycle()
    except Death:
        pass
    finally:
        put_back()
    expiry.cycle()
    expiry.cycle()
    assert list(SosEvent.objects.values_list("triggered_timer_id", flat=True)) == [first.pk]
    row = MeetingTimer.objects.get(pk=second.pk)
    assert (row.status, row.expiry_token) == (TimerStatus.EXPIRED, None)
    assert TimelineEntry.objects.filter(kind="joined").count() == 1
    kinds = Counter(Delivery.objects.filter(status=DeliveryStatus.QUEUED).values_list("kind", flat=True))
    assert kinds == {"missed_check_in": CONTACTS, "update": CONTACTS}


def _raise_death() -> None:
    raise Death


class Carriers:
    """Both carriers at one local address, and the journal of what they were asked to send."""

    def __init__(self) -> None:
        self.journal: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        carriers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                indian = self.path.startswith("/dev/bulkV2")
                number = "+91" + form["numbers"][0] if indian else form["To"][0]
                text = form["message" if indian else "Body"][0]
                carriers.note(number, text)
                answer = (
                    {"return": True, "request_id": f"r{len(carriers.journal)}", "message": ["sent"]}
                    if indian
                    else {"sid": "SM" + f"{len(carriers.journal):032x}", "status": "queued", "error_code": None}
                )
                body = json.dumps(answer).encode()
                self.send_response(200 if indian else 201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def note(self, number: str, text: str) -> None:
        with self._lock:
            self.journal.append((number, text))

    def env(self) -> dict[str, str]:
        """The settings that lead to them."""
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "FAST2SMS_API_KEY": "key",
            "FAST2SMS_API_BASE_URL": address,
            "TWILIO_ACCOUNT_SID": "AC" + "0" * 32,
            "TWILIO_AUTH_TOKEN": "token",
            "TWILIO_FROM": "+15005550006",
            "TWILIO_API_BASE_URL": address,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def carriers() -> Iterator[Carriers]:
    """Fast2SMS and Twilio, who accept everything."""
    running = Carriers()
    yield running
    running.close()


@pytest.mark.processes
def test_p6_p7_sigkill_at_every_step_of_the_dispatch_sends_once_or_marks_a_repeat(
    database_url: str, carriers: Carriers
) -> None:
    """P6, P7: nothing stays unsent; only where a call may have gone out is there a second one, and it says so."""
    env = {"DATABASE_URL": database_url, **carriers.env()}
    persons = people(len(DISPATCH_STEPS), contacts=1)
    timers_for(persons, escalates_at=clock.now())
    expiry.cycle()
    numbers = {}
    for number, (step, person) in enumerate(zip(DISPATCH_STEPS, persons, strict=True)):
        numbers[step] = f"+91987654{number:04d}"
        assert Delivery.objects.filter(person_id=person.pk).update(address=numbers[step]) == 1
    Delivery.objects.update(next_attempt_at=clock.now() + timedelta(hours=1))
    rows = {step: Delivery.objects.get(address=number) for step, number in numbers.items()}

    let_die([("dispatch", step, row.pk) for step, row in rows.items()], env)
    sent_before = Counter(number for number, _ in carriers.journal)
    assert set(sent_before.values()) <= {1}
    assert not DeliveryAttempt.objects.exclude(outcome__in=[AttemptOutcome.OPEN, AttemptOutcome.ACCEPTED]).exists()
    done = Delivery.objects.filter(status=DeliveryStatus.ACCEPTED)
    assert set(done.values_list("address", flat=True)) >= {numbers["after the answer is stored"]}

    Delivery.objects.filter(status=DeliveryStatus.SENDING).update(lease_until=clock.now() - timedelta(seconds=1))
    Delivery.objects.filter(status=DeliveryStatus.QUEUED).update(next_attempt_at=clock.now())
    recover(env)

    assert set(Delivery.objects.values_list("status", flat=True)) == {DeliveryStatus.ACCEPTED}
    assert not DeliveryAttempt.objects.filter(outcome=AttemptOutcome.OPEN).exists()
    for step, (_, may_have_arrived) in DISPATCH_STEPS.items():
        texts = [text for number, text in carriers.journal if number == numbers[step]]
        row = Delivery.objects.get(pk=rows[step].pk)
        stored = step == "after the answer is stored" or (step in AMID_THE_ANSWER and not has_transactions())
        assert len(texts) - sent_before[numbers[step]] == (0 if stored else 1), step
        marked = [REPEAT in text for text in texts]
        assert (row.repeat, marked[-1]) == ((1, True) if may_have_arrived and not stored else (0, False)), step
        assert not any(marked[:-1]), step
