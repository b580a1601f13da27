"""The ladder in every order of events that hypothesis can think of: what must hold of it at any time (P3, P7, P13)."""

from collections import Counter
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from casualmeet import clock
from casualmeet.db import has_transactions
from notifications import optouts
from notifications.models import Delivery, DeliveryStatus, Notification, PushSubscription
from safety import panic
from safety.models import TrustedContact, User
from safety.tests.people import Clock, befriend, people
from safety.tests.steps import Step, die_at
from sos import contact_answers, escalation, incidents
from sos.models import AlertedContact, SosEvent, TimelineEntry
from sos.reach import standings
from testing.database import sample

START = datetime(2026, 3, 14, 18, 0, tzinfo=UTC)
PENDING = [DeliveryStatus.HELD, DeliveryStatus.QUEUED]
WHICH = st.integers(0, 2)
STEPS = [
    Step("sos.escalation._begin", "before"),
    Step("notifications.outbox.hold", "before"),
    Step("notifications.outbox.hold"),
    Step("notifications.outbox.release"),
    Step("sos.escalation.insert_missing"),
    Step("notifications.inbox.alarm_moderators"),
    Step("sos.escalation._finish"),
]


class Death(BaseException):
    """Passes every `except Exception`, as a SIGKILL does."""


def die() -> None:
    """As a process does."""
    raise Death


class LadderMachine(RuleBasedStateMachine):
    """A person with up to three contacts, a clock, a worker that looks and dies, and whatever carriers may say."""

    wall: Clock

    @initialize(contacts=st.sampled_from([2, 1, 2, 0]))
    def begin(self, contacts: int) -> None:
        """A moderator, and the alarm."""
        for model in (Delivery, TimelineEntry, AlertedContact, SosEvent, Notification, PushSubscription):
            model.objects.all().delete()
        User.objects.all().delete()
        self.wall.now = START
        User.objects.create(username="mod", is_staff=True, password="!")
        self.person = people(1, contacts=contacts)[0]
        panic.press(self.person)
        self.a_carrier_takes_what_is_queued()

    def contact(self, which: int) -> AlertedContact | None:
        """One of those who were alerted by the newest incident."""
        rows = AlertedContact.objects.filter(incident=self.incident()).order_by("pk")
        return rows[which] if which < len(rows) else None

    def incident(self) -> SosEvent:
        """The newest one."""
        return SosEvent.objects.order_by("-opened_at", "-pk")[0]

    @rule()
    def a_carrier_takes_what_is_queued(self) -> None:
        """Which says nothing of reach."""
        Delivery.objects.filter(status=DeliveryStatus.QUEUED).update(
            status=DeliveryStatus.ACCEPTED, finished_at=self.wall.now
        )

    @rule(which=WHICH, channel=st.sampled_from(["sms", "voice", "push"]))
    def a_carrier_refuses(self, which: int, channel: str) -> None:
        """A dead letter."""
        if contact := self.contact(which):
            rows = Delivery.objects.filter(recipient_id=contact.pk, channel=channel, status=DeliveryStatus.QUEUED)
            rows.update(status=DeliveryStatus.DEAD, finished_at=self.wall.now)

    @rule(which=WHICH)
    def a_phone_confirms(self, which: int) -> None:
        """A receipt."""
        if contact := self.contact(which):
            Delivery.objects.filter(recipient_id=contact.pk, status=DeliveryStatus.ACCEPTED).update(
                status=DeliveryStatus.DELIVERED, delivered_at=self.wall.now
            )

    @rule(which=WHICH, how=st.sampled_from(["opened_at", "declined_at"]))
    def a_contact_looks_or_declines(self, which: int, how: str) -> None:
        """The page, or a reply."""
        if contact := self.contact(which):
            AlertedContact.objects.filter(pk=contact.pk).update(**{how: self.wall.now})

    @rule(which=WHICH)
    def a_contact_helps(self, which: int) -> None:
        """The end of the ladder."""
        if contact := self.contact(which):
            contact_answers.acknowledge(contact)

    @rule(which=WHICH)
    def a_number_sends_stop(self, which: int) -> None:
        """No more texts to it."""
        if contact := self.contact(which):
            optouts.stop(contact.phone, "reply", self.wall.now)
            queued = Delivery.objects.filter(address=contact.phone, channel="sms", status__in=PENDING)
            assert not queued.exists()

    @rule()
    def a_contact_subscribes_to_pushes(self) -> None:
        """On another device."""
        contact = TrustedContact.objects.filter(person=self.person).order_by("slot").first()
        if contact:
            tag = uuid4().hex
            PushSubscription.objects.create(
                owner_id=contact.pk, kind="fcm", endpoint=tag, endpoint_digest=tag * 2, created_at=self.wall.now
            )

    @rule(add=st.booleans())
    def sos_is_pressed_again(self, add: bool) -> None:
        """Perhaps after another contact has accepted; it may open another incident."""
        if add and not TrustedContact.objects.filter(person=self.person).exists():
            befriend([self.person], 1)
        panic.press(self.person)

    @rule(safe=st.sampled_from([False, False, True]))
    def the_person_is_safe(self, safe: bool) -> None:
        """The incident is over, if they are."""
        if safe:
            incidents.resolve(self.incident(), with_pin=False)

    @rule(seconds=st.sampled_from([0, 20, 60, 60, 120, 120, 300, 3600]), step=st.sampled_from([None, None, *STEPS]))
    def time_passes_and_a_worker_looks(self, seconds: int, step: Step | None) -> None:
        """And may die at it; another one looks right after."""
        self.wall.move(seconds=seconds)
        before = {row.pk: row for row in SosEvent.objects.all()}
        known = standings(before)
        ids = set(Delivery.objects.values_list("pk", flat=True))
        if step:
            back = die_at(step, die)
            try:
                escalation.advance_due(self.wall.now)
            except Death:
                pass
            finally:
                back()
        escalation.advance_due(self.wall.now)
        new = list(Delivery.objects.exclude(pk__in=ids))
        # P3, and one round at a time.
        assert len({(row.incident_id, row.wave) for row in new}) == len({row.incident_id for row in new})
        by_contact = {s.contact.pk: s for found in known.values() for s in found}
        for row in new:
            assert row.status == DeliveryStatus.QUEUED
            standing = by_contact[row.recipient_id or row.pk]
            assert not standing.answered
            # P13: who is reached is not called, until all who have not answered are alerted again.
            assert row.wave >= 4 or (row.channel == "voice" and not standing.reached)
        for incident in SosEvent.objects.active().filter(next_wave_at__isnull=False):
            assert incident.next_wave_at
            assert incident.next_wave_at > self.wall.now
            assert incident.wave >= before[incident.pk].wave
        assert escalation.advance_due(self.wall.now) == 0

    @invariant()
    def nothing_of_a_later_round_is_left_when_it_is_over(self) -> None:
        """Helped or resolved."""
        over = [row.pk for row in SosEvent.objects.all() if not row.active or row.helping]
        assert not Delivery.objects.filter(incident_id__in=over, wave__gte=2, status__in=PENDING).exists()
        assert not SosEvent.objects.active().filter(pk__in=over, next_wave_at__isnull=False).exists()

    @invariant()
    def no_message_and_no_line_is_there_twice(self) -> None:
        """P3."""
        messages = Counter(Delivery.objects.values_list("incident_id", "kind", "address", "channel", "wave"))
        # Two updates to one contact are two messages.
        assert {count for (_, kind, *_), count in messages.items() if kind == "sos"} <= {1}
        lines = Counter(TimelineEntry.objects.filter(kind="wave").values_list("incident_id", "text"))
        assert set(lines.values()) <= {1}

    @invariant()
    def a_repeat_follows_one_that_may_have_arrived(self) -> None:
        """P7."""
        rows = Delivery.objects.filter(kind="sos", wave__gte=2).values_list("recipient_id", "channel", "wave", "repeat")
        for recipient_id, channel, wave, repeat in rows:
            earlier = Delivery.objects.filter(recipient_id=recipient_id, channel=channel, wave__lt=wave)
            assert repeat <= earlier.values("wave", "kind", "pk").count()

    @invariant()
    def a_ladder_that_ended_without_a_helper_told_the_moderators(self) -> None:
        """Nobody is forgotten."""
        for row in SosEvent.objects.active().filter(next_wave_at__isnull=True):
            if not row.helping:
                assert Notification.objects.filter(kind="alarm", title__endswith=row.reference).exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.django_db
def test_p3_p7_p13_the_ladder_holds_its_promises_in_any_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: dying workers; P7: repeats; P13: reach."""
    wall = Clock(START)
    monkeypatch.setattr(clock, "now", wall)
    monkeypatch.setattr(LadderMachine, "wall", wall, raising=False)
    examples, steps = (sample(20, elsewhere=6), 25) if has_transactions() else (4, 20)
    run_state_machine_as_test(
        LadderMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
