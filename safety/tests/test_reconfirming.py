"""Asking contacts every half a year: when, how often, what they may answer, and that nobody is lost over silence."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from casualmeet import clock
from notifications import optouts, outbox
from notifications.models import Delivery, Notification
from notifications.texts import AlertFacts, compose
from ops.tests.runs import TestRun
from safety import contacts, reconfirming
from safety.jobs import reconfirm
from safety.models import TrustedContact, User
from safety.tests.factories import ContactFactory, PersonFactory
from safety.tests.people import Clock

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]

Asked = TrustedContact.Asked
NOON = datetime(2026, 11, 28, 6, 30, tzinfo=UTC)  # in India


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still, at noon in India."""
    standing = Clock(NOON)
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def asha() -> User:
    return PersonFactory.create(full_name="Asha Rao")


@pytest.fixture
def ravi(asha: User) -> TrustedContact:
    """Accepted just now."""
    return contact(asha)


def contact(person: User, **changes: Any) -> TrustedContact:
    return ContactFactory.create(person=person, **{"name": "Ravi Iyer", "answered_at": clock.now(), **changes})


def questions() -> list[Delivery]:
    return list(Delivery.objects.filter(kind="reconfirm").order_by("created_at"))


def seen(row: TrustedContact) -> TrustedContact:
    return TrustedContact.objects.get(pk=row.pk)


class TestWhen:
    def test_after_half_a_year_and_not_a_millisecond_before(self, wall: Clock, ravi: TrustedContact) -> None:
        wall.move(days=182, milliseconds=-1)
        assert reconfirm(TestRun()) == "0 asked, 0 persons told"
        wall.move(milliseconds=1)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"
        (question,) = questions()
        assert (question.address, question.priority, question.link) == (
            ravi.phone, 5, f"http://localhost:8000/c/{ravi.token}",
        )  # fmt: skip
        words = compose(AlertFacts.from_json(question.facts), language="en", link=question.link, now=wall.now)
        assert words.startswith("CasualMeet: Asha Rao still counts on you")
        assert reconfirm(TestRun()) == "0 asked, 0 persons told"
        assert len(questions()) == 1

    def test_one_reminder_then_the_person_is_told_and_the_contact_stays(
        self, wall: Clock, asha: User, ravi: TrustedContact
    ) -> None:
        """An alert to somebody who is silent beats none."""
        said = []
        for days in (182, 14, 14, 14, 167):
            wall.move(days=days)
            said.append((reconfirm(TestRun()), len(questions()), Notification.objects.count()))
        assert said == [
            ("1 asked, 0 persons told", 1, 0),
            ("1 asked, 0 persons told", 2, 0),
            ("0 asked, 1 persons told", 2, 1),
            ("0 asked, 0 persons told", 2, 1),
            ("0 asked, 0 persons told", 2, 1),
        ]
        notice = Notification.objects.get()
        assert (notice.recipient_id, notice.kind) == (asha.pk, "contact_unconfirmed")
        assert notice.title == "Ravi Iyer has not confirmed that they are still there"
        assert [row.contact_id for row in contacts.recipients([asha.pk])[asha.pk]] == [ravi.pk]
        # Half a year after that, from the beginning.
        wall.move(days=1)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"
        assert len({row.pk for row in questions()}) == 3

    def test_who_is_not_verified_or_never_answered_is_not_asked(self, wall: Clock, asha: User) -> None:
        for status in ("pending", "declined", "left"):
            contact(asha, status=status)
        contact(asha, answered_at=None)
        wall.move(days=400)
        assert reconfirm(TestRun()) == "0 asked, 0 persons told"

    def test_not_at_night_by_the_persons_clock(self, wall: Clock, ravi: TrustedContact) -> None:
        wall.move(days=182, hours=-2, milliseconds=-1)  # a moment before 10:00
        TrustedContact.objects.update(answered_at=wall.now - timedelta(days=200))
        assert reconfirm(TestRun()) == "0 asked, 0 persons told"
        wall.move(milliseconds=1)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"
        assert seen(ravi).asked == Asked.ASKED

    def test_the_limit_holds_and_the_next_run_goes_on(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reconfirming, "BATCH", 2)
        for _ in range(7):
            contact(PersonFactory.create())
        wall.move(days=182)
        asked = [reconfirming.ask_due(TestRun(), now=wall.now, limit=3).asked for _ in range(4)]
        assert asked == [3, 3, 1, 0]
        assert len({row.recipient_id for row in questions()}) == 7

    def test_those_whose_night_it_is_hold_up_no_others(self, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reconfirming, "BATCH", 2)
        for _ in range(5):
            contact(PersonFactory.create(time_zone="America/New_York"))
        wall.move(seconds=1)
        awake = contact(PersonFactory.create())
        wall.move(days=182)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"
        assert [row.recipient_id for row in questions()] == [awake.pk]

    def test_never_a_number_that_stopped_our_texts(self, wall: Clock, ravi: TrustedContact) -> None:
        """Their person was told at once; the next look is in half a year."""
        optouts.stop(ravi.phone, "reply", wall.now)
        wall.move(days=182)
        for _ in range(3):
            assert reconfirm(TestRun()) == "0 asked, 0 persons told"
            wall.move(days=14)
        assert questions() == []
        assert not Notification.objects.exists()
        optouts.start(ravi.phone)
        wall.move(days=182)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"

    def test_p14_one_that_fails_holds_up_no_others(
        self, wall: Clock, ravi: TrustedContact, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = contact(PersonFactory.create())
        real = reconfirming._question

        def broken(of: TrustedContact, **options: Any) -> Delivery:
            if of.pk == ravi.pk:
                raise ValueError("broken")
            return real(of, **options)

        monkeypatch.setattr(reconfirming, "_question", broken)
        wall.move(days=182)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told, 1 left out (see the log)"
        assert [row.recipient_id for row in questions()] == [other.pk]


class TestAnswers:
    @pytest.fixture
    def asked(self, wall: Clock, ravi: TrustedContact) -> TrustedContact:
        wall.move(days=182)
        reconfirm(TestRun())
        return seen(ravi)

    def test_p9_looking_changes_nothing(self, client: Client, asked: TrustedContact) -> None:
        address = reverse("invitation", args=[asked.token])
        before = TrustedContact.objects.values().get()
        page = client.get(address).content.decode()
        client.head(address)
        assert TrustedContact.objects.values().get() == before
        assert "Are you still there for Asha Rao?" in page
        assert "I&#x27;m still there" in page or "I'm still there" in page
        assert "Remove me" in page

    def test_still_there_counts_from_now(self, wall: Clock, client: Client, asked: TrustedContact) -> None:
        wall.move(days=3)
        address = reverse("invitation", args=[asked.token])
        page = client.post(address, {"answer": "confirm"}, follow=True).content.decode()
        assert "You are a trusted contact of Asha Rao" in page
        row = seen(asked)
        assert (row.status, row.answered_at, row.asked, row.question_id) == ("verified", wall.now, Asked.NOT, None)
        assert not Notification.objects.exists()
        assert contacts.confirm(row) is False
        wall.move(days=181)
        assert reconfirm(TestRun()) == "0 asked, 0 persons told"
        wall.move(days=1)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"

    def test_remove_me_ends_it_and_the_person_is_told(self, client: Client, asked: TrustedContact) -> None:
        client.post(reverse("invitation", args=[asked.token]), {"answer": "leave"})
        assert (seen(asked).status, seen(asked).asked) == ("left", Asked.NOT)
        assert Notification.objects.get().title == "Ravi Iyer is no longer your trusted contact"

    def test_the_person_who_was_told_of_the_silence_is_told_of_its_end(
        self, wall: Clock, client: Client, asha: User, asked: TrustedContact
    ) -> None:
        for _ in range(2):
            wall.move(days=14)
            reconfirm(TestRun())
        client.force_login(asha)
        assert "has not confirmed that they are still there" in client.get(reverse("contacts")).content.decode()
        assert contacts.confirm(seen(asked)) is True
        titles = Notification.objects.order_by("created_at", "title").values_list("title", flat=True)
        assert "Ravi Iyer is still your trusted contact" in list(titles)
        assert "has not confirmed" not in client.get(reverse("contacts")).content.decode()

    @pytest.mark.parametrize("how", ["confirm", "leave", "remove"])
    def test_a_question_that_is_not_out_yet_is_taken_back(self, asked: TrustedContact, how: str) -> None:
        {
            "confirm": lambda: contacts.confirm(asked),
            "leave": lambda: contacts.answer(asked, accept=False),
            "remove": lambda: contacts.remove(asked),
        }[how]()
        assert [row.status for row in questions()] == ["cancelled"]

    @pytest.mark.parametrize("how", ["confirm", "leave", "remove"])
    def test_an_answer_between_look_and_claim_wins(
        self, wall: Clock, ravi: TrustedContact, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        real = outbox.queue

        def answered_first(deliveries: Any) -> None:
            if how == "remove":
                contacts.remove(seen(ravi))
            elif how == "leave":
                contacts.answer(seen(ravi), accept=False)
            else:
                TrustedContact.objects.filter(pk=ravi.pk).update(answered_at=wall.now)
            real(deliveries)

        wall.move(days=182)
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "queue", answered_first)
            assert reconfirm(TestRun()) == "0 asked, 0 persons told"
        assert [row.status for row in questions()] == ["cancelled"]

    def test_a_crash_before_the_claim_leaves_it_due_and_asks_once(
        self, wall: Clock, ravi: TrustedContact, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_args: Any, **_options: Any) -> bool:
            raise KeyboardInterrupt

        wall.move(days=182)
        with monkeypatch.context() as patched:
            patched.setattr(reconfirming, "_move_on", die)
            with pytest.raises(KeyboardInterrupt):
                reconfirm(TestRun())
        wall.move(hours=1)
        assert reconfirm(TestRun()) == "1 asked, 0 persons told"
        assert [row.status for row in questions()] == ["queued"]
        assert seen(ravi).question_id == questions()[0].pk


@pytest.mark.django_db(transaction=True)
def test_several_processes_ask_once(wall: Clock) -> None:
    rows = [contact(PersonFactory.create()) for _ in range(6)]
    wall.move(days=182)
    together = threading.Barrier(3)
    asked: list[int] = []

    def work() -> None:
        try:
            together.wait(10)
            asked.append(reconfirming.ask_due(TestRun(), now=wall.now).asked)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(asked) == len(rows)
    assert sorted((row.recipient_id, row.status) for row in questions()) == sorted((row.pk, "queued") for row in rows)
