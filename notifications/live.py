"""Live sockets: what every consumer shares, and the hints that make one look at the database.

A socket shows state, not messages. A hint (through Redis), or a beat without one, makes the consumer read the state
from the database again and send what changed since it last looked; so a lost hint costs one beat, never an alert.
Sockets carry no commands.
"""

import asyncio
import contextlib
import hmac
import json
import logging
from typing import Any
from uuid import UUID, uuid4

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.sessions.backends.db import SessionStore
from django.core.serializers.json import DjangoJSONEncoder
from django.db.utils import DatabaseError

from notifications import hints
from ops import metrics

logger = logging.getLogger(__name__)

MODERATION = "moderation"
HEARTBEAT_SECONDS = 20.0
LISTEN_AGAIN_SECONDS = 5.0
FORBIDDEN = 4403

# A part of the state, by name: a list of rows, each with an "id".
State = dict[str, list[dict[str, Any]]]
Event = tuple[str, dict[str, Any]]


def person_group(person_id: UUID) -> str:
    """The group of one person's sockets."""
    return f"person-{person_id.hex}"


def publish(*groups: str) -> None:
    """Hint that what these groups show has changed. Call it after the commit. Never raises, never waits."""
    for group in groups:
        hints.send_to_group(group)


def changed_rows(before: State, after: State, part: str) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Pairs (old, new) of the rows of one part that appeared, changed or went."""
    old = {row["id"]: row for row in before.get(part, [])}
    new = {row["id"]: row for row in after.get(part, [])}
    keys = [*new, *(key for key in old if key not in new)]
    return [(old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


class StateConsumer(AsyncJsonWebsocketConsumer):
    """Sends a snapshot, then events. Session and permission are checked before each of them."""

    # The base class would open a channel before it even accepts, and so refuse the socket while Redis is away.
    channel_layer_alias = None
    user: Any = None
    # What it is called where sockets are counted.
    kind = ""

    def may_watch(self, user: AbstractBaseUser) -> bool:
        """Whether this user may have this socket. Called in a database thread."""
        raise NotImplementedError

    def group_of(self, user: AbstractBaseUser) -> str:
        """The group whose hints concern this socket."""
        raise NotImplementedError

    def read_state(self, user: AbstractBaseUser) -> State:
        """All that this socket shows. Called in a database thread."""
        raise NotImplementedError

    def events(self, before: State, after: State) -> list[Event]:
        """The events that lead from one state to the other."""
        raise NotImplementedError

    async def connect(self) -> None:
        """Accept signed-in people who may watch; the others see a closed handshake."""
        self._state: State = {}
        self._seq = 0
        self._changed = asyncio.Event()
        self._want_snapshot = True
        self._beat: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._layer = get_channel_layer()
        self._channel = f"hints.{uuid4().hex}"
        self.user = await self._authorised()
        if self.user is None:
            logger.info("Refused a live socket on %s", self.scope["path"])
            await self.close(FORBIDDEN)
            return
        await self.accept()
        self._beat = asyncio.create_task(self._counted_run())

    async def disconnect(self, code: int) -> None:
        """Stop the beat and leave the group."""
        for task in (self._beat, self._listener):
            if task is not None:
                task.cancel()
        if self.user is not None and self._layer is not None:
            with contextlib.suppress(Exception):
                await self._layer.group_discard(self.group_of(self.user), self._channel)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Binary and empty frames are nothing; the base class would fail on them."""
        if text_data:
            await super().receive(text_data=text_data, **kwargs)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """The one thing a client may ask for: the whole state again."""
        if isinstance(content, dict) and content.get("type") == "snapshot":
            self._want_snapshot = True
            self._changed.set()

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        """Anything that is not JSON is nothing."""
        try:
            return json.loads(text_data)
        except (ValueError, RecursionError):
            return None

    @classmethod
    async def encode_json(cls, content: Any) -> str:
        """Times, UUIDs and decimals as the API writes them."""
        return json.dumps(content, cls=DjangoJSONEncoder)

    async def _listen(self) -> None:
        """Hear hints: many of them before the next look are one."""
        while self._layer is not None:
            try:
                await self._layer.receive(self._channel)
                self._changed.set()
            except Exception as error:  # noqa: BLE001 - without Redis the beat goes on
                logger.warning("No hints for a live socket, polling goes on: %s", type(error).__name__)
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    async def _counted_run(self) -> None:
        with metrics.SOCKETS_OPEN.labels(self.kind).track_inprogress():
            await self._run()

    async def _run(self) -> None:
        """Look at the database at every hint and at every beat; a heartbeat says that nothing was missed."""
        try:
            self._listener = asyncio.create_task(self._listen())
            await asyncio.sleep(0)  # Only a channel that somebody listens on can join a group.
            await self._join()
            loop = asyncio.get_running_loop()
            heartbeat_at = loop.time() + HEARTBEAT_SECONDS
            while True:
                heartbeat = loop.time() >= heartbeat_at
                if heartbeat:
                    heartbeat_at = loop.time() + HEARTBEAT_SECONDS
                    await self._join()
                if not await self._look(heartbeat=heartbeat):
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), settings.LIVE_POLL_SECONDS)
                self._changed.clear()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("A live socket failed; the client reconnects")
            await self.close(1011)

    async def _join(self) -> None:
        """Also on every heartbeat: a restarted Redis has forgotten its subscribers."""
        if self._layer is None:
            return
        try:
            await self._layer.group_add(self.group_of(self.user), self._channel)
        except Exception as error:  # noqa: BLE001 - without Redis the beat goes on
            logger.warning("No hints for a live socket, polling goes on: %s", type(error).__name__)

    async def _look(self, *, heartbeat: bool) -> bool:
        """Send what is new; False once the socket was closed."""
        try:
            after = await database_sync_to_async(self.read_state)(self.user)
            snapshot, self._want_snapshot = self._want_snapshot or heartbeat, False
            # Also before a snapshot: who waits for an event must not have to find it in there.
            events = self.events(self._state, after) if self._seq else []
            if (snapshot or events) and not await self._still_authorised():
                return False
        except DatabaseError as error:
            logger.warning("A live socket could not read the database: %s", type(error).__name__)
            self._want_snapshot = True
            return True
        self._state = after
        for kind, data in events:
            await self._send(kind, data)
        if snapshot:
            await self._send("snapshot", after)
        return True

    async def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._seq += 1
        await self.send_json({"type": kind, "seq": self._seq, "data": data})

    async def _still_authorised(self) -> bool:
        user = await self._authorised()
        if user is None:
            await self.close(FORBIDDEN)
            return False
        self.user = user
        return True

    async def _authorised(self) -> Any:
        session = self.scope.get("session")
        key = session.session_key if session is not None else None
        return await database_sync_to_async(self._load_user)(key) if key else None

    def _load_user(self, session_key: str) -> Any:
        """The session's user as the database has them now; None when they may not watch (any more)."""
        session = SessionStore(session_key)
        user_id = session.get(SESSION_KEY)
        if not user_id or BACKEND_SESSION_KEY not in session:
            return None
        user = get_user_model()._default_manager.filter(pk=user_id, is_active=True).first()
        if user is None or not hmac.compare_digest(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash()):
            return None
        return user if self.may_watch(user) else None
