"""Check prompts: the right ones at the right time, none lost, none twice, none after the person acted."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, connections

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications import outbox
from notifications.models import Delivery, DeliveryStatus, Notification, Priority, PushSubscription
from notifications.texts import AlertFacts, compose
from safety import expiry, prompts, timers
from safety.models import MeetingTimer, TimerStatus, User
from safety.tests.people import Clock, people, timers_for
from safety.tests.steps import PROMPT_STEPS
from testing.database import in_hand
from testing.processes import PYTHON_MODULE, ManagedProcess

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
VERBS: dict[str, Callable[[MeetingTimer], MeetingTimer]] = {
    "check-in": timers.check_in,
    "cancellation": timers.cancel,
    "extension": lambda timer: timers.extend(timer, minutes=30),
}


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


def subscribe(person: User, name: str = "phone", **changes: Any) -> PushSubscription:
    return PushSubscription.objects.create(
        owner_id=person.pk,
        kind="fcm",
        endpoint=f"{name}-{person.pk}",
        endpoint_digest=f"{name}-{person.pk}",
        created_at=clock.now(),
        **changes,
    )


def armed(count: int = 1, *, minutes: int = 60, push: bool = True) -> list[MeetingTimer]:
    """Timers that were armed just now, with their first prompt set, each with one push subscription."""
    expires_at = clock.now() + timedelta(minutes=minutes)
    persons = people(count)
    made = timers_for(persons, escalates_at=expires_at)
    first = prompts.first_prompt_at(clock.now(), expires_at)
    MeetingTimer.objects.filter(pk__in=[timer.pk for timer in made]).update(next_prompt_at=first)
    if push:
        for person in persons:
            subscribe(person)
    return [MeetingTimer.objects.select_related("person").get(pk=timer.pk) for timer in made]


def sent(status: str = DeliveryStatus.QUEUED) -> Counter[str]:
    """How many prompts are in this state, by channel."""
    return Counter(Delivery.objects.filter(kind="check_prompt", status=status).values_list("channel", flat=True))


@pytest.mark.parametrize(
    ("minutes", "first"), [(60, 45), (16, 1), (15, 10), (15.5, 0.5), (14, 9), (5, 4), (1.1, 0.1), (1, None)]
)
def test_only_the_prompts_that_fit_the_duration_are_asked(minutes: float, first: float | None) -> None:
    """One that would come at the very moment of arming is none."""
    found = prompts.first_prompt_at(NOON, NOON + timedelta(minutes=minutes))
    assert found == (None if first is None else NOON + timedelta(minutes=first))


def test_the_minutes_are_settings_in_any_order_and_may_be_none(settings: LazySettings) -> None:
    settings.CHECK_PROMPT_MINUTES = [2, 30]
    assert prompts.first_prompt_at(NOON, NOON + timedelta(minutes=31)) == NOON + timedelta(minutes=1)
    assert prompts.first_prompt_at(NOON, NOON + timedelta(minutes=30)) == NOON + timedelta(minutes=28)
    settings.CHECK_PROMPT_MINUTES = []
    assert prompts.first_prompt_at(NOON, NOON + timedelta(minutes=30)) is None


@pytest.mark.django_db
def test_each_prompt_goes_out_once_at_its_time_by_push_and_at_five_minutes_by_text(wall: Clock) -> None:
    asha = people(1)[0]
    phone, tablet = subscribe(asha), subscribe(asha, "tablet")
    subscribe(asha, "old", disabled_at=clock.now())
    timer = timers.arm(asha, location_name="Cafe Blue", duration_minutes=60, grace_minutes=10)
    assert timer.next_prompt_at == prompts.next_at() == wall.now + timedelta(minutes=45)

    wall.move(minutes=45, milliseconds=-1)
    assert prompts.send_due(clock.now()) == 0
    wall.move(milliseconds=1)
    assert [prompts.send_due(clock.now()) for _ in range(2)] == [1, 0]
    assert sent() == {"push": 2}
    row = MeetingTimer.objects.get(pk=timer.pk)
    assert (row.check_sent_at, row.next_prompt_at) == (wall.now, timer.expires_at - timedelta(minutes=5))
    pushes = Delivery.objects.filter(kind="check_prompt")
    assert {push.address for push in pushes} == {str(phone.pk), str(tablet.pk)}

    wall.move(minutes=10)
    assert [prompts.send_due(clock.now()) for _ in range(2)] == [1, 0]
    assert sent() == {"push": 4, "sms": 1}
    text = Delivery.objects.get(channel="sms")
    assert (text.address, text.recipient_id, text.person_id) == (asha.phone, asha.pk, asha.pk)
    assert (text.priority, text.send_before) == (Priority.SAFETY, timer.expires_at)

    wall.move(minutes=4)
    assert [prompts.send_due(clock.now()) for _ in range(2)] == [1, 0]
    assert sent() == {"push": 6, "sms": 1}
    assert MeetingTimer.objects.get(pk=timer.pk).next_prompt_at is None
    titles = Notification.objects.filter(recipient=asha).order_by("created_at").values_list("title", flat=True)
    assert list(titles) == [f"Are you OK? {left} min left" for left in (15, 5, 1)]

    wall.move(minutes=5)  # the grace
    assert prompts.send_due(clock.now()) == 0
    assert prompts.next_at() is None


@pytest.mark.django_db
def test_somebody_without_a_phone_number_or_a_subscription_is_still_told_in_the_app(wall: Clock) -> None:
    timer = armed(minutes=6, push=False)[0]
    User.objects.update(phone="")
    wall.move(minutes=1)
    assert prompts.send_due(clock.now()) == 1
    assert sent() == {}
    assert Notification.objects.get(recipient=timer.person).title == "Are you OK? 5 min left"


@pytest.mark.django_db
def test_the_text_tells_the_minutes_left_when_it_is_sent_not_when_it_was_queued(wall: Clock) -> None:
    timer = armed(minutes=6)[0]
    wall.move(minutes=1)
    prompts.send_due(clock.now())
    facts = AlertFacts.from_json(Delivery.objects.get(channel="sms").facts)
    for late, told in ((0.3, "5 min"), (61, "4 min"), (250, "1 min")):
        message = compose(facts, language="en", link="", now=wall.now + timedelta(seconds=late))
        assert message.startswith(f"CasualMeet: {told} left on your safety timer ({timer.expires_at:%H:%M})")


@pytest.mark.django_db
def test_after_a_worker_was_down_only_the_latest_prompt_goes_out_and_none_after_the_deadline(wall: Clock) -> None:
    early, late = armed(2)
    MeetingTimer.objects.filter(pk=late.pk).update(escalates_at=late.escalates_at + timedelta(minutes=15))
    MeetingTimer.objects.filter(pk=early.pk).update(expires_at=late.expires_at - timedelta(minutes=4))
    wall.move(minutes=57)
    assert prompts.send_due(clock.now()) == 1
    assert list(Notification.objects.values_list("recipient", "title")) == [
        (late.person_id, "Are you OK? 3 min left"),
    ]
    assert sent() == {"push": 1, "sms": 1}
    assert MeetingTimer.objects.get(pk=late.pk).next_prompt_at == late.expires_at - timedelta(minutes=1)
    wall.move(minutes=3)
    assert prompts.send_due(clock.now()) == 0
    assert prompts.next_at() is None


@pytest.mark.django_db
def test_an_extension_counts_the_coming_prompts_anew_from_the_new_deadline(wall: Clock) -> None:
    timer = armed(minutes=16)[0]
    wall.move(minutes=2)
    prompts.send_due(clock.now())
    old = set(Delivery.objects.values_list("pk", flat=True))
    longer = timers.extend(MeetingTimer.objects.select_related("person").get(pk=timer.pk), minutes=2)
    assert longer.next_prompt_at == wall.now + timedelta(minutes=1)
    assert sent() == {}
    wall.move(minutes=1)
    assert prompts.send_due(clock.now()) == 1
    assert sent() == {"push": 1}
    assert not old & set(Delivery.objects.filter(status="queued").values_list("pk", flat=True))


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_p1_a_verb_takes_back_what_was_queued_for_the_deadline_it_ends(verb: str, wall: Clock) -> None:
    """P1 for prompts: after a check-in nobody is asked whether they are OK."""
    timer, other = armed(2, minutes=6)
    wall.move(minutes=1)
    assert prompts.send_due(clock.now()) == 2
    assert sent() == {"push": 2, "sms": 2}
    VERBS[verb](MeetingTimer.objects.select_related("person").get(pk=timer.pk))
    assert set(Delivery.objects.filter(status="queued").values_list("person_id", flat=True)) == {other.person_id}
    assert set(Notification.objects.values_list("recipient", flat=True)) == {other.person_id}
    assert sent(DeliveryStatus.CANCELLED) == {"push": 1, "sms": 1}
    if verb != "extension":
        wall.move(minutes=4)
        assert prompts.send_due(clock.now()) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("moment", ["_prompts", "_unchanged", "_claim"])
@pytest.mark.parametrize("verb", VERBS)
def test_p1_a_verb_between_the_lookup_and_the_claim_wins(
    verb: str, moment: str, monkeypatch: pytest.MonkeyPatch, wall: Clock
) -> None:
    """P1: before the messages are written, before the second look, and after it just before the claim."""
    made = armed(3, minutes=6)
    wall.move(minutes=1)
    original = getattr(prompts, moment)
    left = list(made[:2])

    def everybody_acts_first(*args: Any, **kwargs: Any) -> Any:
        while left:
            VERBS[verb](left.pop())
        return original(*args, **kwargs)

    monkeypatch.setattr(prompts, moment, everybody_acts_first)
    assert prompts.send_due(clock.now()) == 1
    told = set(Delivery.objects.filter(status__in=["queued", "held"]).values_list("person_id", flat=True))
    assert told == {made[2].person_id}
    assert set(Notification.objects.values_list("recipient", flat=True)) == {made[2].person_id}
    changed = MeetingTimer.objects.filter(pk__in=[timer.pk for timer in made[:2]])
    assert set(changed.values_list("check_sent_at", flat=True)) == {None}


@pytest.mark.django_db
def test_what_another_worker_claimed_in_between_is_neither_doubled_nor_taken_back(
    monkeypatch: pytest.MonkeyPatch, wall: Clock
) -> None:
    armed(3, minutes=6)
    wall.move(minutes=1)
    unchanged = prompts._unchanged
    answers: list[int] = []

    def another_worker_first(rows: list[MeetingTimer]) -> Any:
        looked = unchanged(rows)
        monkeypatch.setattr(prompts, "_unchanged", unchanged)
        answers.append(prompts.send_due(clock.now()))
        return looked

    monkeypatch.setattr(prompts, "_unchanged", another_worker_first)
    assert prompts.send_due(clock.now()) == 0
    assert answers == [3]
    assert sent() == {"push": 3, "sms": 3}
    assert Notification.objects.count() == 3


def test_many_workers_at_once_send_each_prompt_once(transactional_db: None) -> None:
    """Real concurrency: eight workers, the same prompts."""
    made = armed(30, minutes=60)
    MeetingTimer.objects.update(next_prompt_at=clock.now() - timedelta(seconds=1))
    barrier = threading.Barrier(8)

    def work(_: int) -> int:
        try:
            barrier.wait()
            return sum(prompts.send_due(clock.now(), 7) for _ in range(6))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(work, range(8)))
    while more := prompts.send_due(clock.now()):
        counts.append(more)
    assert sum(counts) == len(made)
    assert sent() == {"push": 30}
    assert Notification.objects.count() == 30


def test_p14_a_timer_that_another_transaction_holds_keeps_no_other_prompt_waiting(transactional_db: None) -> None:
    held, *_ = armed(4, minutes=60)
    MeetingTimer.objects.update(next_prompt_at=clock.now() - timedelta(seconds=1))
    with in_hand(MeetingTimer.objects.filter(pk=held.pk), location_name="Frozen"):
        assert prompts.send_due(clock.now()) == 3
        assert sent() == {"push": 3}
    assert prompts.send_due(clock.now()) == 1
    assert sent() == {"push": 4}


@pytest.mark.processes
def test_sigkill_at_every_step_loses_no_prompt_and_doubles_none(database_url: str) -> None:
    """One timer per step; each kills the worker that asks; then a worker that knows nothing of it does the rest."""
    made = armed(len(PROMPT_STEPS), minutes=60)
    moment = clock.now() - timedelta(seconds=1)
    MeetingTimer.objects.update(
        next_prompt_at=moment, expires_at=moment + timedelta(minutes=5), escalates_at=moment + timedelta(minutes=5)
    )
    plan = [("prompt", step, str(timer.pk)) for step, timer in zip(PROMPT_STEPS, made, strict=True)]
    command = ["safety.tests.doomed", json.dumps(plan)]
    with ManagedProcess(command, {"DATABASE_URL": database_url}, program=PYTHON_MODULE) as process:
        assert process.wait(60) == 0, process.output
        for _, step, _ in plan:
            process.wait_for_line(f"^prompt, {step}: signal 9$")
    claimed = MeetingTimer.objects.exclude(check_sent_at=None).count()
    assert claimed == (1 if has_transactions() else 2)
    MeetingTimer.objects.filter(check_sent_at=None).update(next_prompt_at=moment)
    assert prompts.send_due(clock.now()) == len(made) - claimed
    assert sent() == {"push": len(made), "sms": len(made)}
    assert Counter(Notification.objects.values_list("recipient", flat=True)) == {t.person_id: 1 for t in made}


@pytest.mark.django_db
def test_p14_a_timer_whose_prompt_can_t_be_made_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, wall: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broken, *others = armed(4, minutes=6)
    wall.move(minutes=1)
    make = prompts._prompt

    def fragile(timer: MeetingTimer, *args: Any, **kwargs: Any) -> Any:
        if timer.pk == broken.pk:
            raise ValueError("broken")
        return make(timer, *args, **kwargs)

    monkeypatch.setattr(prompts, "_prompt", fragile)
    assert prompts.send_due(clock.now()) == 3
    assert set(Delivery.objects.values_list("person_id", flat=True)) == {timer.person_id for timer in others}
    assert f"The check prompt of timer {broken.pk} can't be sent" in caplog.text
    assert prompts.next_at() == broken.expires_at - timedelta(minutes=1)


@pytest.mark.django_db
def test_a_small_limit_takes_the_longest_overdue_first_and_leaves_the_rest_due(wall: Clock) -> None:
    first, second, third = armed(3)
    for timer, at in ((first, 3), (second, 1), (third, 2)):
        MeetingTimer.objects.filter(pk=timer.pk).update(next_prompt_at=wall.now + timedelta(minutes=at))
    wall.move(minutes=5)
    MeetingTimer.objects.update(expires_at=wall.now + timedelta(minutes=15))
    assert prompts.send_due(clock.now(), 2) == 2
    assert prompts.next_at() == wall.now - timedelta(minutes=2)
    assert not MeetingTimer.objects.get(pk=first.pk).check_sent_at


@pytest.mark.django_db
def test_a_prompt_that_was_armed_under_another_setting_is_still_asked(settings: LazySettings, wall: Clock) -> None:
    armed(minutes=60)
    settings.CHECK_PROMPT_MINUTES = [3]
    wall.move(minutes=45)
    assert prompts.send_due(clock.now()) == 1
    assert prompts.next_at() == wall.now + timedelta(minutes=12)


@pytest.mark.django_db
def test_p1_nothing_is_asked_about_a_timer_that_expired(wall: Clock) -> None:
    """P1, P8: the expiry goes first; what was queued before is dropped by its `send_before`."""
    timer = armed(minutes=6)[0]
    wall.move(minutes=7)
    expiry.cycle()
    assert prompts.send_due(clock.now()) == 0
    assert MeetingTimer.objects.get(pk=timer.pk).status == TimerStatus.EXPIRED
    assert sent() == {}


@pytest.mark.django_db
def test_the_lookup_reads_the_index_of_live_timers_only() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("Other planners look at how many rows there are.")
    armed(1)
    now = clock.now()
    for rows in (
        prompts._open(now).filter(next_prompt_at__lte=now).order_by("next_prompt_at"),
        prompts._open(now).filter(next_prompt_at__gt=prompts._BEGINNING).order_by("next_prompt_at"),
    ):
        plan = rows.values_list("next_prompt_at", "pk").explain()
        assert "timer_next_prompt" in plan
        assert "TEMP B-TREE" not in plan


@pytest.mark.django_db
def test_the_keys_of_a_push_and_a_text_differ() -> None:
    person = people(1)[0]
    assert outbox.push_id("prompt", person.pk) != outbox.text_id("prompt", person.pk)
