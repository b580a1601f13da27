"""The timer against a simple model of it, in every order of events that hypothesis can think of (P1, P2, P3, P4)."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from casualmeet import clock
from casualmeet.db import has_transactions
from casualmeet.refusal import Refusal
from notifications.models import Delivery
from safety import expiry, panic, positions, timers
from safety.models import LIVE_STATUSES, MeetingTimer, TimerStatus, User
from safety.tests.people import Clock, people
from safety.tests.steps import EXPIRY_STEPS, die_at
from sos import incidents
from sos.models import SosEvent
from testing.database import sample

START = datetime(2026, 3, 14, 18, 0, tzinfo=UTC)
WHO = st.integers(0, 1)
GUARD = timedelta(hours=12)


@dataclass
class Timer:
    """What the model knows about one timer."""

    person: int
    status: str
    started: datetime
    expires: datetime
    escalates: datetime

    @property
    def live(self) -> bool:
        return self.status in LIVE_STATUSES


@dataclass
class Model:
    """What should be so."""

    timers: dict[Any, Timer] = field(default_factory=dict)
    # By person: the timers and presses behind each incident, and whether it is active.
    incidents: dict[int, list[list[Any]]] = field(default_factory=lambda: {0: [], 1: []})
    active: dict[int, bool] = field(default_factory=lambda: {0: False, 1: False})

    def raise_alarm(self, who: int, cause: Any) -> bool:
        """True when it opens an incident, False when it joins the active one."""
        opens = not self.active[who]
        if opens:
            self.incidents[who].append([])
            self.active[who] = True
        self.incidents[who][-1].append(cause)
        return opens


class Death(BaseException):
    """Passes every `except Exception`, as a SIGKILL does."""


def die() -> None:
    raise Death


class TimerMachine(RuleBasedStateMachine):
    """Two persons, any number of worker cycles, and a clock."""

    wall: Clock

    @initialize()
    def begin(self) -> None:
        self.wall.now = START
        self.persons: list[User] = people(2)
        self.model = Model()
        self.looks: list[MeetingTimer] = []
        self.half_done: set[Any] = set()

    @rule(who=WHO, minutes=st.integers(14, 721), grace=st.sampled_from([0, 0, 1, 15, 16, -1]))
    def arm(self, who: int, minutes: int, grace: int) -> None:
        call: dict[str, Any] = {"location_name": "Cafe Blue", "duration_minutes": minutes, "grace_minutes": grace}
        if not (15 <= minutes <= 720 and 0 <= grace <= 15):
            self.refused(422, timers.arm, self.persons[who], **call)
        elif self.live_of(who):
            self.refused(409, timers.arm, self.persons[who], **call)
        else:
            made = timers.arm(self.persons[who], **call)
            self.looks.append(made)
            deadline = self.wall.now + timedelta(minutes=minutes)
            self.model.timers[made.pk] = Timer(
                who, "active", self.wall.now, deadline, deadline + timedelta(minutes=grace)
            )

    @rule(who=WHO)
    def look(self, who: int) -> None:
        """A page or a phone reads the timer now, and acts on what it read later."""
        timer = MeetingTimer.objects.select_related("person").filter(person=self.persons[who]).first()
        if timer is not None:
            self.looks.append(timer)

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), minutes=st.sampled_from([1, 15, 59, 60, 61, 0]))
    def extend(self, data: st.DataObject, minutes: int) -> None:
        seen = data.draw(st.sampled_from(self.looks[-3:]))
        known = self.model.timers[seen.pk]
        expires, escalates = (at + timedelta(minutes=minutes) for at in (seen.expires_at, seen.escalates_at))
        too_long = seen.live and expires - seen.started_at > GUARD
        if not 1 <= minutes <= 60 or too_long:
            self.refused(422, timers.extend, seen, minutes=minutes)
        elif escalates <= self.wall.now or not self.holds(seen):
            self.refused(409, timers.extend, seen, minutes=minutes)
        else:
            answer = timers.extend(seen, minutes=minutes)
            self.looks.append(answer)
            known.status, known.expires, known.escalates = "extended", expires, escalates
            assert (answer.status, answer.expires_at, answer.escalates_at) == ("extended", expires, escalates)

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), verb=st.sampled_from(["safe", "cancelled"]))
    def end(self, data: st.DataObject, verb: str) -> None:
        seen = data.draw(st.sampled_from(self.looks[-3:]))
        act = timers.check_in if verb == "safe" else timers.cancel
        if not self.holds(seen):
            self.refused(409, act, seen)
        else:
            assert act(seen).status == verb
            self.model.timers[seen.pk].status = verb

    @rule(seconds=st.integers(1, 7200))
    def time_passes(self, seconds: int) -> None:
        self.wall.move(seconds=seconds)

    @precondition(lambda self: any(timer.live for timer in self.model.timers.values()))
    @rule(after=st.sampled_from([-1, 0, 1]))
    def time_passes_to_the_next_escalation(self, after: int) -> None:
        """To the very millisecond, one before, or one after."""
        coming = min(timer.escalates for timer in self.model.timers.values() if timer.live)
        self.wall.now = max(self.wall.now, coming + timedelta(milliseconds=after))

    @rule(batch=st.sampled_from([1, 500]))
    def worker(self, batch: int) -> None:
        due = sorted((timer.escalates, pk) for pk, timer in self.due())
        expected = Counter(self.expired(pk) for pk in self.half_done)
        self.half_done.clear()
        expected.update(self.expired(pk) for _, pk in due[:batch])
        result = expiry.cycle(batch=batch)
        assert result.processed == expected.total()
        assert (result.incidents_opened, result.joined) == (expected[True], expected[False])
        assert result.full == (len(due[:batch]) == batch)

    @precondition(lambda self: any(timer.live for timer in self.model.timers.values()))
    @rule(step=st.sampled_from(list(EXPIRY_STEPS)))
    def worker_dies(self, step: str) -> None:
        """P3: a cycle with something to do ends at any step; the next one completes what is half-done."""
        self.time_passes_to_the_next_escalation(0)
        put_back = die_at(EXPIRY_STEPS[step], die)
        with contextlib.suppress(Death):
            expiry.cycle()
        put_back()
        due = sorted((timer.escalates, pk) for pk, timer in self.due())
        rows = MeetingTimer.objects.in_bulk([pk for _, pk in due])
        for _, pk in due:
            if rows[pk].expiry_token:
                self.model.timers[pk].status = "expired"
                self.half_done.add(pk)
            elif rows[pk].status == TimerStatus.EXPIRED:
                self.expired(pk)
        self.worker(batch=500)

    @rule(who=WHO)
    def press_sos(self, who: int) -> None:
        _, opened = panic.press(self.persons[who])
        assert opened == self.model.raise_alarm(who, "press")

    @rule(who=WHO)
    def say_safe(self, who: int) -> None:
        incident = SosEvent.objects.active().filter(person=self.persons[who]).first()
        assert bool(incident) == self.model.active[who]
        if incident is not None:
            panic.confirm_safe(self.persons[who], incident)
            self.model.active[who] = False
            self.refused(409, panic.confirm_safe, self.persons[who], incident)

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def send_position(self, data: st.DataObject) -> None:
        """A position never changes what a timer is."""
        seen = MeetingTimer.objects.get(pk=data.draw(st.sampled_from(self.looks[-3:])).pk)
        fix = positions.checked_fix(latitude=19.0, longitude=72.8, accuracy_m=9, captured_at=None, now=self.wall.now)
        incident = incidents.find_by_trigger(seen.pk)
        if seen.live or (incident and incident.active):
            positions.record(seen, fix, battery_percent=50)
        else:
            self.refused(409, positions.record, seen, fix, battery_percent=50)

    @invariant()
    def timers_are_what_the_model_says(self) -> None:
        rows = {row.pk: row for row in MeetingTimer.objects.filter(person__in=[p.pk for p in self.persons])}
        assert rows.keys() == self.model.timers.keys()
        for pk, known in self.model.timers.items():
            row = rows[pk]
            assert row.status == known.status
            assert (row.started_at, row.expires_at, row.escalates_at) == (
                known.started,
                known.expires,
                known.escalates,
            )
            assert row.expires_at - row.started_at <= GUARD
            assert (row.resolved_at is None) == known.live
            assert row.expiry_token is None
        live = Counter(row.person_id for row in rows.values() if row.live)
        assert not live or max(live.values()) == 1

    @invariant()
    def incidents_are_what_the_model_says(self) -> None:
        for who, person in enumerate(self.persons):
            rows = list(SosEvent.objects.filter(person=person))
            assert len(rows) == len(self.model.incidents[who])
            assert sum(row.active for row in rows) == self.model.active[who]
            causes = sum(len(causes) for causes in self.model.incidents[who])
            entries = Counter(kind for row in rows for kind in row.timeline.values_list("kind", flat=True))
            assert entries["opened"] == len(rows)
            assert entries["opened"] + entries["joined"] == causes
            alerts = Delivery.objects.filter(person_id=person.pk, kind__in=["missed_check_in", "sos"])
            assert Counter(alerts.values_list("incident_id", flat=True)) == Counter(row.pk for row in rows)
        for pk, known in self.model.timers.items():
            assert (incidents.find_by_trigger(pk) is not None) == (known.status == "expired")

    def teardown(self) -> None:
        """The next example's worker must not find this one's timers."""
        MeetingTimer.objects.all().delete()

    def live_of(self, who: int) -> bool:
        return any(timer.live for timer in self.model.timers.values() if timer.person == who)

    def due(self) -> Iterator[tuple[Any, Timer]]:
        for pk, timer in self.model.timers.items():
            if timer.live and timer.escalates <= self.wall.now:
                yield pk, timer

    def expired(self, pk: Any) -> bool:
        self.model.timers[pk].status = "expired"
        return self.model.raise_alarm(self.model.timers[pk].person, pk)

    def holds(self, seen: MeetingTimer) -> bool:
        """Whether the look still shows what is so, and the timer is live."""
        known = self.model.timers[seen.pk]
        return known.live and (seen.status, seen.escalates_at) == (known.status, known.escalates)

    def refused(self, status: int, verb: Any, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(Refusal) as refused:
            verb(*args, **kwargs)
        assert refused.value.status == status
        assert refused.value.detail
        assert refused.value.code


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.django_db
def test_p1_p2_p3_p4_a_timer_does_what_its_model_says_in_any_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: stale looks are refused; P2: one incident per expired timer; P3: crashes; P4: one active incident."""
    wall = Clock(START)
    monkeypatch.setattr(clock, "now", wall)
    monkeypatch.setattr(TimerMachine, "wall", wall, raising=False)
    examples, steps = (sample(40, elsewhere=10), 30) if has_transactions() else (5, 20)
    run_state_machine_as_test(
        TimerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
