"""The circuit breaker: what opens it, what closes it, and that an SOS never waits for it (P6, P8)."""

from datetime import timedelta

import pytest

from casualmeet import clock
from notifications import health
from notifications.carriers.base import Answer, Outcome
from notifications.models import CarrierHealth, Notification, Priority
from notifications.tests.sending import BRITISH, INDIAN, Hands, drain, make, outcomes, seen
from notifications.texts import Kind
from safety.models import User
from testing.carrier import FOREVER, LocalCarrier, Reply

pytestmark = pytest.mark.django_db

GOOD = Answer(Outcome.ACCEPTED)
FAULT = Answer(Outcome.TRANSIENT, error_class="transient")


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (Answer(Outcome.UNKNOWN), True),
        (Answer(Outcome.TRANSIENT, error_class="transient"), True),
        (Answer(Outcome.PERMANENT, error_class="auth"), True),
        (Answer(Outcome.PERMANENT, error_class="config"), True),
        (Answer(Outcome.TRANSIENT, error_class="throttled"), False),
        (Answer(Outcome.PERMANENT, error_class="bad_recipient"), False),
        (Answer(Outcome.PERMANENT, error_class="content"), False),
        (Answer(Outcome.PERMANENT, error_class="opt_out"), False),
        (GOOD, False),
    ],
)
def test_what_speaks_against_a_carrier(answer: Answer, counts: bool) -> None:
    assert health.is_fault(answer) is counts


def test_the_fifth_failure_in_a_minute_opens_the_circuit_and_tells_the_moderators_once() -> None:
    User.objects.create(username="mo", is_staff=True)
    now = clock.now()
    for second in range(4):
        health.note([("twilio", FAULT)], now=now + timedelta(seconds=second))
    assert not health.circuits(now).open
    for _ in range(3):
        health.note([("twilio", FAULT)], now=now + timedelta(seconds=5))
    assert health.circuits(now + timedelta(seconds=6)).open == {"twilio"}
    assert Notification.objects.filter(kind="alarm").count() == 1


def test_failures_that_are_far_apart_do_not_open_it() -> None:
    now = clock.now()
    for minute in range(10):
        health.note([("twilio", FAULT)], now=now + timedelta(minutes=2 * minute))
    assert not health.circuits(now + timedelta(minutes=20)).open


def test_one_caller_may_try_it_when_the_time_is_up_and_one_success_closes_it() -> None:
    now = clock.now()
    health.note([("twilio", FAULT)] * 5, now=now)
    later = now + health.OPEN_FOR
    first, second = health.circuits(later), health.circuits(later)
    assert first.choose(["twilio"]) == "twilio"
    assert first.choose(["twilio"]) is None
    assert second.choose(["twilio"]) is None
    health.note([("twilio", GOOD)], now=later)
    assert health.circuits(later).choose(["twilio"]) == "twilio"


def test_a_failed_try_leaves_it_open() -> None:
    now = clock.now()
    health.note([("twilio", FAULT)] * 5, now=now)
    later = now + health.OPEN_FOR
    assert health.circuits(later).to_probe == {"twilio"}
    health.note([("twilio", FAULT)], now=later)
    assert health.circuits(later + timedelta(seconds=1)).choose(["twilio"]) is None


def test_p6_the_other_carrier_takes_over_while_a_circuit_is_open(carrier: LocalCarrier) -> None:
    health.note([("fast2sms", FAULT)] * 5, now=clock.now())
    row = make(INDIAN)
    drain()
    assert outcomes(row) == [("twilio", "accepted")]


def test_p8_an_sos_is_tried_even_when_all_circuits_are_open(carrier: LocalCarrier) -> None:
    health.note([("twilio", FAULT), ("fast2sms", FAULT)] * 5, now=clock.now())
    row = make(INDIAN)
    drain()
    assert outcomes(row) == [("fast2sms", "accepted")]
    assert not CarrierHealth.objects.get(name="fast2sms").open_until


def test_everything_else_waits_for_the_circuit_and_then_goes(carrier: LocalCarrier, at: Hands) -> None:
    health.note([("twilio", FAULT)] * 5, now=at.now())
    row = make(BRITISH, kind=Kind.INVITATION, priority=Priority.NORMAL)
    drain()
    assert (seen(row).status, outcomes(row)) == ("queued", [])
    at.forward(health.OPEN_FOR.total_seconds())
    drain()
    assert outcomes(row) == [("twilio", "accepted")]


def test_a_refused_carrier_is_not_tried_again_for_want_of_a_better_one(carrier: LocalCarrier, at: Hands) -> None:
    carrier.script(None, Reply.refuse(400, 411, times=FOREVER), carrier="fast2sms")
    carrier.script(None, Reply.refuse(503), carrier="twilio")
    row = make(INDIAN)
    drain()
    assert outcomes(row) == [("fast2sms", "permanent"), ("twilio", "transient")]
    health.note([("twilio", FAULT)] * 5, now=at.now())
    at.forward(20)
    drain()
    assert outcomes(row)[2:] == [("twilio", "accepted")]


def test_the_dispatcher_counts_what_it_meets(carrier: LocalCarrier) -> None:
    carrier.script(None, Reply.refuse(500, 20500, times=FOREVER))
    for _ in range(5):
        make(BRITISH)
    drain()
    assert health.circuits(clock.now()).open == {"twilio"}
