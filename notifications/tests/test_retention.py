"""Old jobs go, the last 1,000 that went out and the last 5,000 that did not stay, and so does every incident's message.

And how long prompts, replies, incoming texts and read notifications stay.
"""

import threading
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, connections

from casualmeet import clock
from notifications import inbox, jobs, outbox, retention
from notifications.models import Delivery, DeliveryAttempt, InboundText, Notification, Priority
from ops.tests.runs import TestRun
from safety.contacts import INVITATIONS_PER_NUMBER, INVITATIONS_PER_PERSON
from safety.tests.people import people

pytestmark = pytest.mark.django_db

on_mongodb = connection.vendor == "mongodb"
LONG_AGO = timedelta(days=3)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep three that went out and five that did not."""
    monkeypatch.setattr(retention, "KEEP_FINISHED", 3)
    monkeypatch.setattr(retention, "KEEP_FAILED", 5)
    monkeypatch.setattr(retention, "BATCH", 4)


def rows(count: int, status: str = "accepted", *, ended: datetime | None = None, **changes: Any) -> list[UUID]:
    """Jobs that ended one second after the other, the last of them at `ended`; the ids, the oldest first."""
    last = ended or clock.now() - LONG_AGO
    made = []
    for i in range(count):
        moment = last - timedelta(seconds=count - 1 - i)
        given = {
            "kind": "notice",
            "priority": Priority.NORMAL,
            "address": "+447700900123",
            "facts": {},
            "status": status,
            "created_at": moment,
            "next_attempt_at": moment,
            "finished_at": moment,
        }
        made.append(Delivery(id=uuid4(), **{**given, **changes}))
    outbox.queue(made)
    return [row.pk for row in made]


def attempt(delivery_id: UUID) -> None:
    DeliveryAttempt.objects.create(
        delivery_id=delivery_id, number=1, carrier="twilio", text="x", started_at=clock.now()
    )


def left() -> set[UUID]:
    return set(Delivery.objects.values_list("pk", flat=True))


class TestWhatGoes:
    def test_the_last_thousand_that_went_out_stay(self) -> None:
        made = rows(1_003)
        assert retention.trim(clock.now()) == 3
        assert left() == set(made[3:])

    @pytest.mark.skipif(on_mongodb, reason="The MongoDB test server needs minutes to empty so full a table.")
    def test_the_last_five_thousand_that_failed_stay(self) -> None:
        made = rows(5_002, "dead")
        assert retention.trim(clock.now()) == 2
        assert left() == set(made[2:])

    @pytest.mark.usefixtures("few")
    def test_each_of_the_two_is_counted_by_itself(self) -> None:
        delivered = rows(5, "delivered", ended=clock.now() - 2 * LONG_AGO)
        accepted = rows(2, "accepted")
        dead = rows(4, "dead")
        cancelled = rows(4, "cancelled", ended=clock.now() - 2 * LONG_AGO)
        assert retention.trim(clock.now()) == 4 + 3
        assert left() == {delivered[-1], *accepted, *dead, cancelled[-1]}

    @pytest.mark.usefixtures("few")
    def test_the_attempts_go_with_them_and_only_those(self) -> None:
        made = rows(5)
        for pk in made:
            attempt(pk)
        assert retention.trim(clock.now()) == 2
        assert set(DeliveryAttempt.objects.values_list("delivery_id", flat=True)) == set(made[2:])

    @pytest.mark.usefixtures("few")
    def test_more_than_a_batch_goes_in_one_call(self) -> None:
        made = rows(21)
        assert retention.trim(clock.now()) == 18
        assert left() == set(made[18:])

    @pytest.mark.usefixtures("few")
    def test_of_those_that_ended_together_as_many_stay(self) -> None:
        rows(9, finished_at=clock.now() - LONG_AGO)
        assert retention.trim(clock.now()) == 6
        assert len(left()) == 3

    @pytest.mark.usefixtures("few")
    def test_a_second_call_finds_nothing(self) -> None:
        rows(9)
        assert [retention.trim(clock.now()) for _ in range(2)] == [6, 0]

    def test_nothing_is_no_error(self) -> None:
        assert retention.trim(clock.now()) == 0


@pytest.mark.usefixtures("few")
class TestWhatStays:
    @pytest.mark.parametrize("priority", list(Priority))
    def test_whatever_belongs_to_an_incident(self, priority: Priority) -> None:
        made = rows(9, incident_id=uuid4(), priority=priority) + rows(9, "dead", incident_id=uuid4(), priority=priority)
        assert retention.trim(clock.now()) == 0
        assert left() == set(made)

    @pytest.mark.parametrize("priority", [Priority.SOS, Priority.SAFETY])
    def test_what_is_about_somebodys_safety(self, priority: Priority) -> None:
        rows(9, priority=priority)
        assert retention.trim(clock.now()) == 0

    def test_evidence_takes_no_place_of_a_job(self) -> None:
        rows(9, incident_id=uuid4(), ended=clock.now() - timedelta(days=2))
        rows(3)
        assert retention.trim(clock.now()) == 0

    @pytest.mark.parametrize("status", ["held", "queued", "sending"])
    def test_what_is_not_over(self, status: str) -> None:
        rows(9, status)
        rows(9, status, finished_at=None)
        assert retention.trim(clock.now()) == 0

    def test_what_ended_within_a_day(self) -> None:
        now = clock.now()
        rows(9, ended=now - retention.YOUNG)
        young = rows(9, ended=now)
        assert retention.trim(now) == 8  # the ninth ended just a day ago
        assert set(young) < left()

    def test_invitations_stay_as_long_as_a_limit_counts_them(self) -> None:
        assert max(INVITATIONS_PER_NUMBER[1], INVITATIONS_PER_PERSON[1]) <= retention.YOUNG

    def test_a_dead_letter_that_a_moderator_tries_again_just_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = rows(7, "dead")
        delete = retention._delete

        def tried_again_first(ids: list[UUID], statuses: Any) -> int:
            assert outbox.requeue_dead(made[0], now=clock.now())
            return delete(ids, statuses)

        monkeypatch.setattr(retention, "_delete", tried_again_first)
        assert retention.trim(clock.now()) == 1
        assert Delivery.objects.get(pk=made[0]).status == "queued"
        assert left() == {made[0], *made[2:]}


class TestTheRest:
    def test_prompts_and_replies_go_a_week_after_they_ended(self) -> None:
        now = clock.now()
        edge = now - retention.KEEP_PROMPTS
        for status in ("delivered", "dead", "cancelled"):
            (pk,) = rows(
                1, status, priority=Priority.SAFETY, kind="check_prompt", ended=edge - timedelta(milliseconds=1)
            )
            attempt(pk)
        kept = rows(2, priority=Priority.SAFETY, kind="reply", ended=edge)[-1:]
        kept += rows(1, "queued", priority=Priority.SAFETY, finished_at=None, ended=edge - LONG_AGO)
        kept += rows(1, priority=Priority.SAFETY, incident_id=uuid4(), ended=edge - LONG_AGO)
        assert retention.trim_prompts(now) == 4
        assert left() == set(kept)
        assert not DeliveryAttempt.objects.exists()

    @pytest.mark.skipif(not on_mongodb, reason="Only there they are held.")
    def test_a_prompt_that_was_never_let_go_goes_too(self) -> None:
        rows(
            1, "held", priority=Priority.SAFETY, finished_at=None, ended=clock.now() - retention.KEEP_PROMPTS - LONG_AGO
        )
        assert retention.trim_prompts(clock.now()) == 1

    def test_what_came_in_goes_after_30_days(self) -> None:
        now = clock.now()
        for key, at in (("a", now - timedelta(days=30, milliseconds=1)), ("b", now - timedelta(days=30))):
            InboundText.objects.create(carrier_message_id=key, sender="+447700900123", received_at=at)
        assert retention.trim_inbound(now) == 1
        assert InboundText.objects.get().carrier_message_id == "b"

    def test_what_was_read_goes_after_90_days_and_what_was_not_stays(self) -> None:
        now, person = clock.now(), people(1)[0]
        old = now - timedelta(days=90, milliseconds=1)
        for key, read_at in (("read", old), ("just", now - timedelta(days=90)), ("unread", None)):
            notice = inbox.notice(key=key, recipient_id=person.pk, kind="x", title=key, now=old)
            notice.read_at = read_at
            inbox.post([notice])
        assert retention.trim_read(now) == 1
        assert set(Notification.objects.values_list("title", flat=True)) == {"just", "unread"}

    def test_p14_one_step_that_fails_stops_no_other_and_the_run_counts_as_failed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_now: datetime) -> int:
            raise ValueError("broken")

        monkeypatch.setattr(retention, "trim_prompts", broken)
        now = clock.now()
        InboundText.objects.create(carrier_message_id="a", sender="+4477", received_at=now - timedelta(days=31))
        with pytest.raises(ValueError, match="broken"):
            jobs.trim(TestRun())
        assert not InboundText.objects.exists()
        monkeypatch.undo()
        InboundText.objects.create(carrier_message_id="b", sender="+4477", received_at=now - timedelta(days=31))
        assert jobs.trim(TestRun()) == "deleted 1 incoming texts"
        assert jobs.trim(TestRun()) == "nothing to delete"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("few")
class TestTwoAtOnce:
    def test_they_take_the_excess_off_once(self) -> None:
        made = rows(40)
        together = threading.Barrier(2)
        counts: list[int] = []
        failures: list[Exception] = []

        def work() -> None:
            try:
                together.wait(10)
                counts.append(retention.trim(clock.now()))
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                failures.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert left() == set(made[37:])
        if not on_mongodb:  # there both may count the same row
            assert sum(counts) == 37
