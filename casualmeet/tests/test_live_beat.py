"""The beat that all live sockets of a process share: what it costs, that it misses nothing, and that none harms another."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from channels.layers import get_channel_layer
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models import Q
from django.db.utils import DataError, OperationalError
from django.test.utils import CaptureQueriesContext

from casualmeet import clock
from casualmeet.tests.test_live import (
    PERSON,
    _without_redis,
    in_database,
    log_in,
    next_message,
    opened,
)
from notifications import beat, inbox, live, looks
from notifications.hints import LIVE
from notifications.models import Delivery, Notification
from notifications.permits import Permit, holders
from notifications.rows import newest_of_each
from safety import consumers, panic, schemas, timers
from safety.consumers import PersonConsumer
from safety.models import MeetingTimer, User
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos import contact_answers, incidents, triggers
from sos.consumers import ModerationConsumer
from sos.models import AlertedContact, SosEvent, TimelineEntry

__all__ = ["_without_redis"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:No directory at"),
]


def watched(person: User, kind: type[live.StateConsumer] = PersonConsumer) -> live.StateConsumer:
    """A socket of this person as it is once it was opened, without a client."""
    socket = kind()
    socket.user = person
    socket.permit = Permit(log_in(person).client.session.session_key or "")
    return socket


def looked_at(*sockets: live.StateConsumer, snapshot: bool = False) -> list[looks.Look]:
    """What one look finds; it is taken for sent."""
    found = [looks.Look(socket, snapshot) for socket in sockets]
    looks.look(found)
    for one, socket in zip(found, sockets, strict=True):
        if one.error is None:
            socket.version, socket.state = one.version, one.state
    return found


def people(count: int) -> list[User]:
    made = [PersonFactory.create() for _ in range(count)]
    for person in made:
        TimerFactory.create(person=person)
    return made


class TestCost:
    @pytest.mark.parametrize("snapshot", [True, False])
    def test_a_look_for_many_takes_as_many_queries_as_for_one(self, *, snapshot: bool) -> None:
        sockets = [watched(person) for person in people(9)]
        clock.now()
        looked_at(*sockets, snapshot=True)
        counts = []
        for some in (sockets[:1], sockets):
            with CaptureQueriesContext(connection) as queries:
                looked_at(*some, snapshot=snapshot)
            counts.append(len(queries))
        assert counts[0] == counts[1] <= (5 if snapshot else 3)

    def test_where_nothing_changed_nothing_is_made_and_nobody_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sockets = [watched(person) for person in people(3)]
        first = looked_at(*sockets, snapshot=True)
        monkeypatch.setattr(consumers, "timer_data", lambda _timer: pytest.fail("made again"))
        assert not any(one.tells for one in looked_at(*sockets))
        heartbeat = looked_at(*sockets, snapshot=True)
        assert [one.state for one in heartbeat] == [one.state for one in first]

    def test_only_those_whose_state_changed_are_told(self) -> None:
        sockets = [watched(person) for person in people(3)]
        looked_at(*sockets, snapshot=True)
        MeetingTimer.objects.filter(person=sockets[1].user).update(note="late")
        found = looked_at(*sockets)
        assert [one.tells for one in found] == [False, True, False]
        assert [(kind, data["note"]) for kind, data in found[1].events] == [("timer_updated", "late")]

    def test_moderators_share_one_reading_of_the_board(self) -> None:
        board = [watched(PersonFactory.create(is_superuser=True), ModerationConsumer) for _ in range(4)]
        panic.press(PersonFactory.create())
        counts = []
        for some in (board[:1], board):
            with CaptureQueriesContext(connection) as queries:
                looked_at(*some, snapshot=True)
            counts.append(len(queries))
        assert counts[0] == counts[1]

    def test_one_with_very_many_unread_costs_nobody_else_theirs(self) -> None:
        rows = {"a": 500, "b": 3, "c": 20, "d": 0, "e": 1}
        ids = {name: uuid4() for name in rows}
        stored = [(ids[name], number) for name, count in rows.items() for number in range(count)]
        asked: list[int] = []

        def read(owners: Any, limit: int) -> list[tuple[UUID, int]]:
            asked.append(limit)
            return [row for row in stored if row[0] in owners][:limit]

        found = newest_of_each(read, list(ids.values()), most=20, whose=0)
        assert {name: len(found.get(pk, [])) for name, pk in ids.items()} == rows | {"a": 20}
        assert max(asked) <= 20 * len(ids)


def _post(person: User) -> None:
    notice = inbox.notice(key="x", recipient_id=person.pk, kind="notification", title="x", now=clock.now())
    inbox.post([notice])


def _expire(person: User) -> None:
    MeetingTimer.objects.filter(person=person).update(status="expired", resolved_at=clock.now())


def _join(person: User) -> None:
    """The expired timer joins the incident that is open: only the incident's history tells."""
    timer = MeetingTimer.objects.get(person=person)
    incident = SosEvent.objects.get(person=person)
    key = triggers.joined_id_for(timer.pk)
    TimelineEntry.objects.create(pk=key, incident=incident, at=clock.now(), kind="joined", text="joined")


STEPS: dict[str, Callable[[User], object]] = {
    "a timer's note": lambda person: MeetingTimer.objects.filter(person=person).update(note="x"),
    "extended": lambda person: timers.extend(MeetingTimer.objects.get(person=person)),
    "a notification": _post,
    "SOS": panic.press,
    "an alert accepted": lambda _: Delivery.objects.update(status="accepted", finished_at=clock.now()),
    "an alert delivered": lambda _: Delivery.objects.update(delivered_at=clock.now()),
    "a contact helps": lambda _: contact_answers.acknowledge(AlertedContact.objects.get()),
    "notifications read": lambda person: Notification.objects.filter(recipient=person).update(read_at=clock.now()),
    "expired": _expire,
    "joined": _join,
    "safe": lambda _: incidents.resolve(SosEvent.objects.get(), with_pin=False),
    "long ago": lambda _: SosEvent.objects.filter(~Q(resolved_at=None)).update(
        resolved_at=clock.now() - timedelta(hours=1)
    ),
}


def test_whatever_changes_what_is_shown_is_what_the_database_has() -> None:
    """P5: no change hides behind a version that stayed the same."""
    (person,) = people(1)
    ContactFactory.create(person=person)
    socket = watched(person)
    looked_at(socket, snapshot=True)
    for name, step in STEPS.items():
        step(person)
        (found,) = looked_at(socket)
        (fresh,) = looked_at(watched(person), snapshot=True)
        assert found.state == fresh.state, name


class TestHarm:
    def test_what_is_wrong_with_one_is_told_at_that_one_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """P14, while a state is made, while it is read, and while permission is asked for."""
        sockets = [watched(person) for person in people(3)]
        bad = sockets[1].user.pk
        nothing: dict[UUID, Any] = {}
        real_data, real_read = schemas.timer_data, PersonConsumer.read_state

        def broken_data(timer: MeetingTimer) -> dict[str, Any]:
            return real_data(timer) if timer.person_id != bad else nothing[timer.pk]

        def broken_read(self: PersonConsumer, users: Any) -> dict[UUID, looks.Seen]:
            if bad in [user.pk for user in users]:
                raise DataError("a row that can't be read")
            return real_read(self, users)

        def broken_watch(_self: PersonConsumer, user: User) -> bool:
            return user.pk != bad or bool(nothing[bad])

        for target, name, broken in (
            (consumers, "timer_data", broken_data),
            (PersonConsumer, "read_state", broken_read),
            (PersonConsumer, "may_watch", broken_watch),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(target, name, broken)
                for socket in sockets:
                    socket.version = socket.state = None
                found = looked_at(*sockets, snapshot=True)
            assert [type(one.error) for one in found if one.error] == [DataError if name == "read_state" else KeyError]
            assert [one.tells and one.user is not None for one in found] == [True, False, True], name

    def test_with_the_database_away_nobody_is_asked_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sockets = [watched(person) for person in people(3)]
        calls: list[int] = []

        def away(_self: Any, users: Any) -> Any:
            calls.append(len(users))
            raise OperationalError("the server is gone")

        monkeypatch.setattr(PersonConsumer, "read_state", away)
        assert [type(one.error) for one in looked_at(*sockets, snapshot=True)] == [OperationalError] * 3
        assert calls == [3]

    async def test_a_socket_that_fails_is_closed_and_the_others_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = [await in_database(log_in, person) for person in await in_database(people, 2)]
        broken, _ = await opened(PERSON, one)
        fine, _ = await opened(PERSON, other)
        real = live.StateConsumer._send

        async def fail(self: live.StateConsumer, kind: str, data: dict[str, Any]) -> None:
            if self.user.pk == one.user.pk:
                raise RuntimeError("a client that can't be sent to")
            await real(self, kind, data)

        monkeypatch.setattr(live.StateConsumer, "_send", fail)
        await in_database(MeetingTimer.objects.update, note="x")
        assert (await next_message(fine, "timer_updated"))["data"]["note"] == "x"
        assert await broken.receive_output(timeout=10) == {"type": "websocket.close", "code": 1011}
        for communicator in (broken, fine):
            await communicator.disconnect()

    async def test_the_beat_goes_on_after_an_error_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(beat, "LOOK_AGAIN_SECONDS", 0.05)
        (person,) = await in_database(people, 1)
        communicator, _ = await opened(PERSON, await in_database(log_in, person))
        failed = asyncio.Event()

        def fail(_looks: Any) -> None:
            failed.set()
            raise RuntimeError("a mistake of ours")

        with monkeypatch.context() as patch:
            patch.setattr(beat, "look", fail)
            await asyncio.wait_for(failed.wait(), 10)
        await next_message(communicator, "snapshot")
        await communicator.disconnect()


class TestHints:
    async def test_a_hint_reaches_those_it_names_and_the_others_wait_for_the_beat(self, settings: Any) -> None:
        settings.LIVE_POLL_SECONDS = 60
        named, unnamed = [await in_database(log_in, person) for person in await in_database(people, 2)]
        hears, _ = await opened(PERSON, named)
        waits, _ = await opened(PERSON, unnamed)
        await in_database(MeetingTimer.objects.update, note="x")
        group = live.person_group(named.user.pk)
        layer: Any = get_channel_layer()
        await layer.group_send(LIVE, {"type": "live.changed"})  # Nothing that anybody sends ends the listening.
        await layer.group_send(LIVE, {"type": "live.changed", "groups": ["nobody's", group]})
        assert (await next_message(hears, "timer_updated"))["data"]["note"] == "x"
        assert await waits.receive_nothing(timeout=0.2)
        for communicator in (hears, waits):
            await communicator.disconnect()

    async def test_with_the_last_socket_the_beat_ends_and_the_next_one_starts_it(self) -> None:
        (person,) = await in_database(people, 1)
        login = await in_database(log_in, person)
        for _ in range(2):
            communicator, _ = await opened(PERSON, login)
            assert asyncio.get_running_loop() in beat._beats
            await communicator.disconnect()
            assert asyncio.get_running_loop() not in beat._beats


@pytest.fixture
def permits() -> list[Permit]:
    return [watched(person).permit for person in people(4)]


def test_each_permit_is_judged_by_itself_and_by_what_the_database_has_now(permits: list[Permit]) -> None:
    users = holders(permits)
    assert len({user.pk for user in users}) == 4
    Session.objects.filter(pk=permits[0].session_key).delete()
    Session.objects.filter(pk=permits[1].session_key).update(expire_date=clock.now() - timedelta(seconds=1))
    users[2].set_password("another horse 8")
    users[2].save()
    assert holders(permits) == [None, None, None, users[3]]
    # Whose data is no session, or another's.
    Session.objects.filter(pk=permits[3].session_key).update(session_data="nonsense")
    assert holders(permits) == [None] * 4


def test_a_moderator_loses_the_board_in_a_look_for_many() -> None:
    demoted, fine = (PersonFactory.create(is_staff=True, is_superuser=True) for _ in range(2))
    sockets = [watched(user, ModerationConsumer) for user in (demoted, fine)]
    User.objects.filter(pk=demoted.pk).update(is_staff=False)
    assert [one.user is not None for one in looked_at(*sockets, snapshot=True)] == [False, True]
