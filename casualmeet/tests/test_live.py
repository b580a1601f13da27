"""The live sockets: who may open one, what it shows, what closes it, and that other processes' changes reach it.

First inside this process, without Redis; then against real Daphne processes, without and with a real Redis.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import pytest
import requests
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session
from django.db import connection, connections
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from casualmeet import clock
from casualmeet.sockets import sockets
from notifications import inbox, live
from notifications.models import Delivery
from safety import panic, timers, tokens
from safety.models import MeetingTimer, User
from safety.tests.factories import ContactFactory, PersonFactory, TimerFactory
from sos import incidents
from sos.models import SosEvent
from testing import database
from testing.processes import PYTHON_MODULE, ManagedProcess, free_port, wait_until
from testing.servers import Redis

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:No directory at"),
]

T = TypeVar("T")
HOST: Final = "localhost:8000"
ORIGIN: Final = "http://localhost:8000"
DAPHNE: Final = (*PYTHON_MODULE, "daphne")
PERSON: Final = "/ws/person/"
MODERATION: Final = "/ws/moderation/"


@pytest.fixture(autouse=True)
def _without_redis(settings: Any) -> None:
    """This process sends no hints: its changes are found by looking at the database."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.REDIS_URL = ""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.LIVE_POLL_SECONDS = 0.05


@pytest.fixture
def asha() -> User:
    person = PersonFactory.create(username="asha", full_name="Asha Rao")
    ContactFactory.create(person=person, name="Ravi Iyer")
    return person


@pytest.fixture
def moderator() -> User:
    """Staff with the permission.

    The MongoDB test server answers joined columns wrongly (traps.md), and Django asks for permissions with them: there
    the moderator has all permissions.
    """
    person = PersonFactory.create(username="moderator", is_staff=True, is_superuser=connection.vendor == "mongodb")
    person.user_permissions.add(Permission.objects.get(codename="view_sosevent"))
    return person


@dataclass(frozen=True)
class Login:
    """A browser that is logged in."""

    user: User
    client: Client

    @property
    def cookie(self) -> str:
        return f"sessionid={self.client.cookies['sessionid'].value}"


def log_in(user: User) -> Login:
    client = Client()
    client.force_login(user)
    return Login(user, client)


@pytest.fixture
def as_asha(asha: User) -> Login:
    return log_in(asha)


@pytest.fixture
def as_moderator(moderator: User) -> Login:
    return log_in(moderator)


def socket(
    path: str, login: Login | None, *, origin: str | None = ORIGIN, host: str = HOST, cookie: str = ""
) -> WebsocketCommunicator:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    if login or cookie:
        headers.append((b"cookie", (cookie or (login.cookie if login else "")).encode()))
    return WebsocketCommunicator(sockets, path, headers=headers)


async def opened(path: str, login: Login) -> tuple[WebsocketCommunicator, dict[str, Any]]:
    """An open socket, and its first snapshot's data."""
    communicator = socket(path, login)
    accepted, _ = await communicator.connect(timeout=10)
    assert accepted
    return communicator, (await next_message(communicator, "snapshot"))["data"]


async def next_message(communicator: WebsocketCommunicator, kind: str) -> dict[str, Any]:
    """The next message of this kind; what comes before it is passed over."""
    async with asyncio.timeout(10):
        while True:
            message: dict[str, Any] = await communicator.receive_json_from(timeout=10)
            if message["type"] == kind:
                return message


async def in_database(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    result: T = await database_sync_to_async(work)(*args, **kwargs)
    return result


class TestWhoMayOpenOne:
    @pytest.mark.parametrize("path", [PERSON, MODERATION])
    async def test_nobody_without_a_session(self, path: str) -> None:
        for cookie in ("", "sessionid=", "sessionid=nonsense", "sessionid=" + "x" * 5000, "sessionid=é"):
            assert await socket(path, None, cookie=cookie).connect(timeout=10) == (False, 4403)

    async def test_a_person_may_watch_themselves_but_not_the_moderators_board(self, as_asha: Login) -> None:
        communicator, _ = await opened(PERSON, as_asha)
        await communicator.disconnect()
        assert await socket(MODERATION, as_asha).connect(timeout=10) == (False, 4403)

    async def test_staff_without_the_permission_and_those_with_it_who_are_no_staff_may_not_moderate(
        self, moderator: User
    ) -> None:
        def people() -> list[Login]:
            staff = PersonFactory.create(is_staff=True)
            other = PersonFactory.create()
            other.user_permissions.add(Permission.objects.get(codename="view_sosevent"))
            return [log_in(staff), log_in(other)]

        for login in await in_database(people):
            assert await socket(MODERATION, login).connect(timeout=10) == (False, 4403)

    async def test_a_moderator_may(self, as_moderator: Login) -> None:
        communicator, data = await opened(MODERATION, as_moderator)
        assert data == {"incidents": [], "notifications": [], "findings": []}
        await communicator.disconnect()

    @pytest.mark.parametrize(
        "origin",
        [
            None,
            "",
            "null",
            "http://evil.example",
            "http://localhost:8001",
            "http://localhost",
            "https://localhost:8000",
            "http://localhost:8000.evil.example",
            "http://evil.example/localhost:8000",
            "http://user@localhost:8000",
            "http://127.0.0.1:8000",
            "file://",
        ],
    )
    async def test_only_our_own_pages_may_and_a_refusal_is_logged(
        self, as_asha: Login, caplog: pytest.LogCaptureFixture, origin: str | None
    ) -> None:
        accepted, _ = await socket(PERSON, as_asha, origin=origin).connect(timeout=10)
        assert not accepted
        assert "Refused a live socket from origin" in caplog.text

    async def test_another_name_of_ours_is_our_own_page_under_that_name_only(self, as_asha: Login) -> None:
        fine = socket(PERSON, as_asha, origin="http://127.0.0.1:8000", host="127.0.0.1:8000")
        assert (await fine.connect(timeout=10))[0]
        await fine.disconnect()
        for host in ("evil.example", "evil.example:8000", ""):
            refused = socket(PERSON, as_asha, origin=f"http://{host}", host=host)
            assert not (await refused.connect(timeout=10))[0]

    async def test_other_addresses_are_refused(self, as_asha: Login) -> None:
        for path in ("/ws/", "/ws/person", "/ws/person/x", "/", "/ws/%00/"):
            assert not (await socket(path, as_asha).connect(timeout=10))[0]

    async def test_an_expired_session_may_not(self, as_asha: Login) -> None:
        past = clock.now() - timedelta(seconds=1)
        await in_database(Session.objects.update, expire_date=past)
        assert await socket(PERSON, as_asha).connect(timeout=10) == (False, 4403)


class TestWhatItShows:
    async def test_the_first_message_is_the_whole_state_as_the_api_shows_it(self, as_asha: Login) -> None:
        def prepare() -> Any:
            timer = TimerFactory.create(person=as_asha.user)
            panic.press(as_asha.user)
            return as_asha.client.get(f"/api/timers/{timer.pk}").json()

        shown = await in_database(prepare)
        communicator, data = await opened(PERSON, as_asha)
        assert data["timers"] == [shown]
        assert [row["status"] for row in data["incidents"]] == ["active"]
        assert [row["kind"] for row in data["notifications"]] == ["sos_triggered"]
        await communicator.disconnect()

    async def test_nobody_sees_anothers_state(self, as_asha: Login) -> None:
        def others() -> None:
            person = PersonFactory.create()
            TimerFactory.create(person=person)
            panic.press(person)

        await in_database(others)
        communicator, data = await opened(PERSON, as_asha)
        assert data == {"timers": [], "incidents": [], "notifications": []}
        await communicator.disconnect()

    async def test_the_person_hears_of_each_step_of_their_timer(self, as_asha: Login) -> None:
        communicator, _ = await opened(PERSON, as_asha)
        timer = await in_database(timers.arm, as_asha.user, location_name="Cafe Blue", duration_minutes=30)
        armed = await next_message(communicator, "timer_updated")
        assert (armed["data"]["id"], armed["data"]["status"]) == (str(timer.pk), "active")
        timer = await in_database(timers.extend, timer)
        assert (await next_message(communicator, "timer_updated"))["data"]["status"] == "extended"
        await in_database(timers.check_in, timer)
        assert (await next_message(communicator, "timer_updated"))["data"]["status"] == "safe"
        await communicator.disconnect()

    async def test_person_and_moderator_hear_of_an_incident_from_its_opening_to_its_end(
        self, as_asha: Login, as_moderator: Login
    ) -> None:
        mine, _ = await opened(PERSON, as_asha)
        board, _ = await opened(MODERATION, as_moderator)
        incident, _ = await in_database(panic.press, as_asha.user)
        for communicator in (mine, board):
            message = await next_message(communicator, "sos_triggered")
            assert (message["data"]["id"], message["data"]["status"]) == (str(incident.pk), "active")
        accepted = {"status": "accepted", "finished_at": clock.now()}
        await in_database(Delivery.objects.update, **accepted)
        for communicator in (mine, board):
            assert (await next_message(communicator, "sos_updated"))["data"]["sms_sent"] == 1
        await in_database(incidents.resolve, incident, with_pin=False)
        for communicator in (mine, board):
            assert (await next_message(communicator, "sos_resolved"))["data"]["status"] == "resolved"
            await communicator.disconnect()

    async def test_every_event_carries_enough_to_redraw_its_row(self, as_asha: Login, as_moderator: Login) -> None:
        board, _ = await opened(MODERATION, as_moderator)
        await in_database(panic.press, as_asha.user, location_name="<b>Cafe</b>")
        data = (await next_message(board, "sos_triggered"))["data"]
        assert data["person_name"] == "Asha Rao"
        assert data["place_name"] == "<b>Cafe</b>"
        assert {"reference", "opened_at", "location", "contacts_notified", "sms_sent", "late_by"} <= set(data)
        await board.disconnect()

    async def test_a_notification_comes_as_an_event_and_once(self, as_asha: Login) -> None:
        communicator, _ = await opened(PERSON, as_asha)

        def post(key: str) -> None:
            made = inbox.notice(key=key, recipient_id=as_asha.user.pk, kind="notification", title=key, now=clock.now())
            inbox.post([made])

        await in_database(post, "first")
        await in_database(post, "second")
        titles = [(await next_message(communicator, "notification"))["data"]["title"]]
        titles.append((await next_message(communicator, "notification"))["data"]["title"])
        assert sorted(titles) == ["first", "second"]
        await communicator.disconnect()

    async def test_an_alarm_reaches_the_moderators_board(self, as_moderator: Login) -> None:
        board, _ = await opened(MODERATION, as_moderator)
        await in_database(inbox.alarm_moderators, key="poison", title="A row is broken", body="Look at the log.")
        assert (await next_message(board, "notification"))["data"]["title"] == "A row is broken"
        await board.disconnect()

    async def test_messages_are_numbered_without_a_gap(self, as_asha: Login) -> None:
        communicator = socket(PERSON, as_asha)
        await communicator.connect(timeout=10)
        numbers = [(await communicator.receive_json_from(timeout=10))["seq"]]
        for _ in range(3):
            await communicator.send_json_to({"type": "snapshot"})
            numbers.append((await communicator.receive_json_from(timeout=10))["seq"])
        assert numbers == [1, 2, 3, 4]
        await communicator.disconnect()

    async def test_the_heartbeat_is_a_snapshot(self, as_asha: Login, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.1)
        communicator, _ = await opened(PERSON, as_asha)
        for _ in range(2):
            await next_message(communicator, "snapshot")
        await communicator.disconnect()

    async def test_after_a_burst_of_500_changes_the_last_state_shown_is_the_databases(self, as_asha: Login) -> None:
        communicator, _ = await opened(PERSON, as_asha)

        def burst() -> None:
            timer = TimerFactory.create(person=as_asha.user)
            for number in range(1, 501):
                MeetingTimer.objects.filter(pk=timer.pk).update(note=str(number))
            connections.close_all()

        # In a thread of its own: the database thread of the sockets is to read meanwhile.
        changing = asyncio.create_task(asyncio.to_thread(burst))
        shown, messages = "", 0
        async with asyncio.timeout(60):
            while shown != "500":
                shown = (await next_message(communicator, "timer_updated"))["data"]["note"]
                messages += 1
        await changing
        assert messages <= 501
        stored = await in_database(MeetingTimer.objects.get)
        assert shown == stored.note
        await communicator.disconnect()

    async def test_a_database_error_costs_a_look_and_not_the_socket(
        self, as_asha: Login, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django.db.utils import OperationalError

        from safety.consumers import PersonConsumer

        communicator, _ = await opened(PERSON, as_asha)
        real, failed = PersonConsumer.read_state, asyncio.Event()

        def fail(_self: Any, _user: Any) -> Any:
            failed.set()
            raise OperationalError("the server is gone")

        monkeypatch.setattr(PersonConsumer, "read_state", fail)
        await asyncio.wait_for(failed.wait(), 10)
        monkeypatch.setattr(PersonConsumer, "read_state", real)
        await next_message(communicator, "snapshot")
        await communicator.disconnect()


def _remove_from_staff(login: Login) -> None:
    User.objects.filter(pk=login.user.pk).update(is_staff=False)


def _take_permission(login: Login) -> None:
    login.user.user_permissions.clear()
    User.objects.filter(pk=login.user.pk).update(is_superuser=False)


def _deactivate(login: Login) -> None:
    User.objects.filter(pk=login.user.pk).update(is_active=False)


def _log_out(login: Login) -> None:
    login.client.logout()


def _change_password(login: Login) -> None:
    login.user.set_password("another horse 8")
    login.user.save()


def _delete_session(login: Login) -> None:
    Session.objects.all().delete()


def _delete_user(login: Login) -> None:
    User.objects.filter(pk=login.user.pk).delete()


REVOCATIONS: Final = {
    "removed from staff": _remove_from_staff,
    "permission taken": _take_permission,
    "deactivated": _deactivate,
    "logged out": _log_out,
    "password changed": _change_password,
    "session row deleted": _delete_session,
    "user deleted": _delete_user,
}
OF_A_PERSON: Final = {name: REVOCATIONS[name] for name in list(REVOCATIONS)[2:]}


class TestRevocation:
    @pytest.mark.parametrize("revoke", REVOCATIONS.values(), ids=REVOCATIONS.keys())
    async def test_a_moderator_gets_no_event_after_it_and_is_closed(
        self, as_asha: Login, as_moderator: Login, revoke: Callable[[Login], None]
    ) -> None:
        board, _ = await opened(MODERATION, as_moderator)
        await in_database(revoke, as_moderator)
        await in_database(panic.press, as_asha.user)
        assert await board.receive_output(timeout=10) == {"type": "websocket.close", "code": 4403}
        await board.disconnect()

    @pytest.mark.parametrize("revoke", OF_A_PERSON.values(), ids=OF_A_PERSON.keys())
    async def test_a_person_gets_no_event_after_it_and_is_closed_even_when_nothing_happens(
        self, as_asha: Login, monkeypatch: pytest.MonkeyPatch, revoke: Callable[[Login], None]
    ) -> None:
        communicator, _ = await opened(PERSON, as_asha)
        await in_database(revoke, as_asha)
        await communicator.send_json_to({"type": "snapshot"})
        assert await communicator.receive_output(timeout=10) == {"type": "websocket.close", "code": 4403}
        await communicator.disconnect()

    async def test_a_quiet_socket_is_closed_by_the_next_heartbeat(
        self, as_moderator: Login, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert live.HEARTBEAT_SECONDS <= 30
        monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.5)
        board, _ = await opened(MODERATION, as_moderator)
        await in_database(_remove_from_staff, as_moderator)
        async with asyncio.timeout(10):
            while (output := await board.receive_output(timeout=10))["type"] != "websocket.close":
                pass
        assert output["code"] == 4403
        await board.disconnect()

    async def test_another_login_of_the_same_person_stays_open_after_a_logout(self, as_asha: Login) -> None:
        other = await in_database(log_in, as_asha.user)
        communicator, _ = await opened(PERSON, other)
        await in_database(_log_out, as_asha)
        await communicator.send_json_to({"type": "snapshot"})
        await next_message(communicator, "snapshot")
        await communicator.disconnect()


FRAMES: Final[dict[str, str | bytes]] = {
    "no JSON": "{",
    "words": "safe",
    "a command": '{"type": "safe", "timer": 1}',
    "a group send": '{"type": "live.changed"}',
    "a handler's name": '{"type": "websocket.disconnect"}',
    "a list": '["snapshot"]',
    "null": "null",
    "a type of another type": '{"type": ["snapshot"]}',
    "NaN": "NaN",
    "nesting": "[" * 100_000,
    "huge": '{"type": "' + "x" * 1_000_000 + '"}',
    "a lone surrogate": '{"type": "\\ud800"}',
    "a NUL": "\x00",
    "binary": b"\x00\xff\xfe",
    "binary JSON": b'{"type": "snapshot"}',
}


class TestMessagesFromTheClient:
    async def test_nothing_that_is_sent_changes_anything_or_breaks_the_socket(self, as_asha: Login) -> None:
        timer = await in_database(TimerFactory.create, person=as_asha.user)
        communicator, before = await opened(PERSON, as_asha)
        for frame in FRAMES.values():
            if isinstance(frame, bytes):
                await communicator.send_to(bytes_data=frame)
            else:
                await communicator.send_to(text_data=frame)
        await communicator.send_input({"type": "websocket.receive", "text": ""})
        await communicator.send_json_to({"type": "snapshot"})
        message = await communicator.receive_json_from(timeout=10)
        assert (message["type"], message["data"]) == ("snapshot", before)
        assert (await in_database(MeetingTimer.objects.get)).status == timer.status == "active"
        await communicator.disconnect()


# Against real processes.


class Site:
    """A Daphne process that serves the test database."""

    def __init__(self, database_url: str, *, redis_url: str = "", **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = ManagedProcess(
            ["-b", "127.0.0.1", "-p", str(self.port), "casualmeet.asgi:application"],
            env={"DATABASE_URL": database_url, "REDIS_URL": redis_url, "PUBLIC_BASE_URL": self.url, **env},
            program=DAPHNE,
        )

    @contextmanager
    def open(self, path: str, login: Login, **more: Any) -> Iterator["Watcher"]:
        headers = {"Cookie": login.cookie}
        given: dict[str, Any] = {"origin": self.url, "additional_headers": headers, "open_timeout": 20, **more}
        with connect(f"ws://127.0.0.1:{self.port}{path}", **given) as opened_:
            yield Watcher(opened_)

    def request(self, method: str, path: str, token: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return requests.request(method, f"{self.url}/api/{path}", json=body, headers=headers, timeout=20)


class Watcher:
    """The other end of a socket."""

    def __init__(self, opened_: ClientConnection) -> None:
        self.socket = opened_

    def until(self, kind: str, *, timeout: float = 20) -> dict[str, Any]:
        """The data of the next message of this kind."""
        deadline = time.monotonic() + timeout
        while True:
            message = json.loads(self.socket.recv(timeout=max(0.0, deadline - time.monotonic())))
            if message["type"] == kind:
                data: dict[str, Any] = message["data"]
                return data

    def until_all(self, *kinds: str, timeout: float = 20) -> dict[str, dict[str, Any]]:
        """The data of the first message of each of these kinds, in whatever order they come.

        A look at the state reads one table after the other, so that a commit between them shows in parts.
        """
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout
        while set(kinds) - set(found):
            message = json.loads(self.socket.recv(timeout=max(0.0, deadline - time.monotonic())))
            found.setdefault(message["type"], message["data"])
        return found


@contextmanager
def serving(*sites: Site) -> Iterator[None]:
    for site in sites:
        site.process.start()
    try:
        for site in sites:
            site.process.wait_for_line("Listening on TCP address", timeout=60)
        yield
    finally:
        for site in sites:
            site.process.close()


@pytest.fixture(scope="module")
def site(django_db_setup: None) -> Iterator[Site]:
    """Without Redis."""
    made = Site(database.address())
    with serving(made):
        yield made


@pytest.fixture(scope="module")
def redis_sites(django_db_setup: None, redis_server: Redis) -> Iterator[tuple[Site, Site]]:
    """Two, joined by Redis only; they look by themselves every fifteen seconds."""
    one, two = (Site(database.address(), redis_url=redis_server.url(), LIVE_POLL_SECONDS="15") for _ in range(2))
    with serving(one, two):
        yield one, two


@pytest.mark.processes
class TestAcrossProcessesWithoutRedis:
    def test_what_another_process_changes_arrives_by_itself(
        self, site: Site, as_asha: Login, as_moderator: Login
    ) -> None:
        with site.open(PERSON, as_asha) as mine, site.open(MODERATION, as_moderator) as board:
            mine.until("snapshot")
            board.until("snapshot")
            timer = timers.arm(as_asha.user, location_name="Cafe Blue", duration_minutes=30)
            assert mine.until("timer_updated", timeout=10)["id"] == str(timer.pk)
            incident, _ = panic.press(as_asha.user)
            assert board.until("sos_triggered", timeout=10)["id"] == str(incident.pk)
            heard = mine.until_all("sos_triggered", "notification")
            assert heard["sos_triggered"]["id"] == str(incident.pk)
            assert heard["notification"]["kind"] == "sos_triggered"
            incidents.resolve(incident, with_pin=False)
            assert board.until("sos_resolved", timeout=10)["id"] == str(incident.pk)
            assert mine.until("sos_resolved", timeout=10)["id"] == str(incident.pk)

    def test_the_timer_worker_turns_a_missed_deadline_into_live_events(
        self, site: Site, as_asha: Login, as_moderator: Login, database_url: str
    ) -> None:
        start = clock.now() - timedelta(minutes=61)
        timer = TimerFactory.create(person=as_asha.user, started_at=start)
        with site.open(PERSON, as_asha) as mine, site.open(MODERATION, as_moderator) as board:
            assert mine.until("snapshot")["timers"][0]["status"] == "active"
            board.until("snapshot")
            env = {"DATABASE_URL": database_url, "REDIS_URL": ""}
            with ManagedProcess(["run_timer_worker", "--once"], env=env) as worker:
                wait_until(SosEvent.objects.exists, timeout=60)
                shown = board.until("sos_triggered", timeout=10)
                assert shown["triggered_timer"] == str(timer.pk)
                heard = mine.until_all("timer_expired", "sos_triggered", "notification")
                assert heard["timer_expired"]["id"] == str(timer.pk)
                assert heard["sos_triggered"]["source"] == "timer_expired"
                assert heard["notification"]["kind"] == "sos_triggered"
                assert worker.wait(60) == 0, worker.output
            while shown["sms_sent"] != 1:
                shown = board.until("sos_updated")

    def test_a_foreign_origin_and_a_stranger_are_refused_at_the_door(self, site: Site, as_asha: Login) -> None:
        foreign: list[Any] = ["http://evil.example", f"http://127.0.0.1:{site.port + 1}", None]
        for origin in foreign:
            with pytest.raises(InvalidStatus) as refused, site.open(PERSON, as_asha, origin=origin):
                pass
            assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus), site.open(PERSON, as_asha, additional_headers={}):
            pass

    def test_a_logout_closes_the_socket_before_the_next_event(
        self, site: Site, as_asha: Login, as_moderator: Login
    ) -> None:
        with site.open(MODERATION, as_moderator) as board:
            board.until("snapshot")
            as_moderator.client.logout()
            panic.press(as_asha.user)
            with pytest.raises(ConnectionClosed) as closed:
                board.until("sos_triggered")
            assert closed.value.rcvd
            assert closed.value.rcvd.code == 4403

    def test_frames_of_any_kind_leave_the_server_standing(self, site: Site, as_asha: Login) -> None:
        with site.open(PERSON, as_asha) as mine:
            mine.until("snapshot")
            for frame in FRAMES.values():
                mine.socket.send(frame)
            mine.socket.send('{"type": "snapshot"}')
            mine.until("snapshot")
        assert "Traceback" not in site.process.output

    def test_a_client_that_vanishes_leaves_no_error(self, site: Site, as_asha: Login) -> None:
        with site.open(PERSON, as_asha) as mine:
            mine.until("snapshot")
            mine.socket.socket.close()
        with site.open(PERSON, as_asha) as mine:
            mine.until("snapshot")
        assert "Traceback" not in site.process.output

    def test_events_go_on_after_the_database_cut_all_connections(self, site: Site, as_asha: Login) -> None:
        with site.open(PERSON, as_asha) as mine:
            mine.until("snapshot")
            cut_other_connections()
            timer = timers.arm(as_asha.user, location_name="Cafe Blue", duration_minutes=30)
            shown: list[str] = []
            while str(timer.pk) not in shown:
                message = json.loads(mine.socket.recv(timeout=20))
                rows = message["data"]["timers"] if message["type"] == "snapshot" else [message["data"]]
                shown = [row["id"] for row in rows]


def cut_other_connections() -> None:
    """As a restart of the database server does. Only PostgreSQL keeps connections that can be cut."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.mark.processes
class TestAcrossProcessesWithRedis:
    def test_what_one_process_writes_the_other_shows_before_it_would_look(
        self, redis_sites: tuple[Site, Site], as_asha: Login, as_moderator: Login
    ) -> None:
        watching, writing = redis_sites
        token = tokens.issue(as_asha.user)
        with watching.open(PERSON, as_asha) as mine, watching.open(MODERATION, as_moderator) as board:
            mine.until("snapshot")
            board.until("snapshot")
            writing.request("GET", "timers", token)
            armed = writing.request("POST", "timers", token, {"location_name": "Cafe", "duration_minutes": 30})
            assert mine.until("timer_updated", timeout=10)["id"] == armed.json()["id"]
            pressed = writing.request("POST", "sos", token, {})
            assert board.until("sos_triggered", timeout=10)["id"] == pressed.json()["id"]
            assert mine.until("sos_triggered", timeout=10)["id"] == pressed.json()["id"]
            writing.request("PUT", f"sos/{pressed.json()['id']}/safe", token)
            assert board.until("sos_resolved", timeout=10)["status"] == "resolved"
            assert mine.until("sos_resolved", timeout=10)["status"] == "resolved"

    def test_after_a_restart_of_redis_the_next_event_still_arrives(
        self, redis_sites: tuple[Site, Site], redis_server: Redis, as_asha: Login
    ) -> None:
        watching, writing = redis_sites
        token = tokens.issue(as_asha.user)
        with watching.open(PERSON, as_asha) as mine:
            mine.until("snapshot")
            redis_server.restart()
            armed = writing.request("POST", "timers", token, {"location_name": "Cafe", "duration_minutes": 30})
            assert mine.until("timer_updated")["id"] == armed.json()["id"]
            writing.request("PUT", f"timers/{armed.json()['id']}/safe", token)
            assert mine.until("timer_updated")["status"] == "safe"
        assert "A live socket failed" not in watching.process.output

    def test_a_process_that_never_saw_redis_serves_sockets_while_it_is_down_and_after_it_came(
        self, redis_sites: tuple[Site, Site], redis_server: Redis, as_asha: Login
    ) -> None:
        _, writing = redis_sites
        token = tokens.issue(as_asha.user)
        redis_server.halt()
        try:
            fresh = Site(database.address(), redis_url=redis_server.url(), LIVE_POLL_SECONDS="3")
            with serving(fresh):
                with fresh.open(PERSON, as_asha) as mine:
                    mine.until("snapshot")
                    armed = writing.request("POST", "timers", token, {"location_name": "Cafe", "duration_minutes": 30})
                    assert mine.until("timer_updated")["id"] == armed.json()["id"]
                redis_server.start()
                with fresh.open(PERSON, as_asha) as mine:
                    mine.until("snapshot")
                    address = f"timers/{armed.json()['id']}/extend"
                    assert writing.request("PUT", address, token).status_code == 200
                    assert mine.until("timer_updated")["status"] == "extended"
                assert "A live socket failed" not in fresh.process.output
                assert "Traceback" not in fresh.process.output.split("No hints for a live socket")[0]
        finally:
            if not redis_server.answers():
                redis_server.start()

    def test_with_redis_down_sockets_open_and_poll_and_no_request_waits_for_it(
        self, redis_sites: tuple[Site, Site], redis_server: Redis, as_asha: Login
    ) -> None:
        watching, writing = redis_sites
        token = tokens.issue(as_asha.user)
        redis_server.halt()
        try:
            with watching.open(PERSON, as_asha) as mine:
                mine.until("snapshot")
                writing.request("GET", "timers", token)
                pressed = writing.request("POST", "sos", token, {})
                assert pressed.status_code == 201
                assert pressed.elapsed < timedelta(seconds=5)
                assert mine.until("sos_triggered")["id"] == pressed.json()["id"]
        finally:
            redis_server.start()
        for one in redis_sites:
            assert "A live socket failed" not in one.process.output
            assert "The API failed" not in one.process.output
