"""Live sockets: what every consumer shares, and the hints that make one look at the database.

A socket shows state, not messages. A hint (through Redis), or a beat without one, makes the process read the state
from the database again and send what changed since it last looked; so a lost hint costs one beat, never an alert.
Sockets carry no commands.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.serializers.json import DjangoJSONEncoder
from django.db.utils import DatabaseError

from notifications import beat, hints
from notifications.looks import Event, Look, Seen, State
from notifications.permits import Permit, holders

logger = logging.getLogger(__name__)

MODERATION = "moderation"
HEARTBEAT_SECONDS = 20.0
FORBIDDEN = 4403


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
    """Sends a snapshot, then events. Session and permission are checked before each of them (notifications/looks.py)."""

    # The base class would open a channel for each socket; the beat has one for all.
    channel_layer_alias = None
    user: Any = None
    group = ""
    # What it is called where sockets are counted.
    kind = ""
    # What the client was sent last.
    version: Any = None
    state: State | None = None

    def may_watch(self, user: AbstractBaseUser) -> bool:
        """Whether this user may have this socket. Called in a database thread."""
        raise NotImplementedError

    def group_of(self, user: AbstractBaseUser) -> str:
        """The group whose hints concern this socket."""
        raise NotImplementedError

    def read_state(self, users: Sequence[AbstractBaseUser]) -> dict[UUID, Seen]:
        """What the sockets of this kind show to each of these users. Called in a database thread, on any of them."""
        raise NotImplementedError

    def events(self, before: State, after: State) -> list[Event]:
        """The events that lead from one state to the other."""
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the socket; however it ends, nobody looks for it afterwards."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            beat.discard(self)

    async def connect(self) -> None:
        """Accept signed-in people who may watch; the others see a closed handshake."""
        self._seq = 0
        self._want_snapshot = True
        self._heartbeat_at = 0.0
        session = self.scope.get("session")
        self.permit = Permit((session.session_key if session is not None else None) or "")
        self.user = await database_sync_to_async(self._holder)()
        if self.user is None:
            logger.info("Refused a live socket on %s", self.scope["path"])
            await self.close(FORBIDDEN)
            return
        self.group = self.group_of(self.user)
        await self.accept()
        beat.add(self)

    async def disconnect(self, code: int) -> None:
        """Look for it no more."""
        beat.discard(self)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Binary and empty frames are nothing; the base class would fail on them."""
        if text_data:
            await super().receive(text_data=text_data, **kwargs)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """The one thing a client may ask for: the whole state again."""
        if isinstance(content, dict) and content.get("type") == "snapshot":
            self.want_snapshot()
            beat.look_at(self)

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

    def want_snapshot(self) -> None:
        """The next look is to end with one."""
        self._want_snapshot = True

    def wants_snapshot(self, at: float) -> bool:
        """Whether the look that begins now is to end with one: asked for, or the heartbeat that says nothing was missed.

        `at` is the event loop's time.
        """
        wanted, self._want_snapshot = self._want_snapshot, False
        return wanted or at >= self._heartbeat_at

    async def take(self, found: Look, *, at: float) -> bool:
        """Send what was found; False when the socket was closed instead. Raises what went wrong with this socket."""
        if isinstance(found.error, DatabaseError):
            self.want_snapshot()
            return True
        if found.error is not None:
            raise found.error
        if found.tells and found.user is None:
            await self.close(FORBIDDEN)
            return False
        self.user = found.user or self.user
        self.version, self.state = found.version, found.state
        for kind, data in found.events:
            await self._send(kind, data)
        if found.snapshot and found.state is not None:
            # Where beats are far apart, the one that comes nearest to the time: never two of them late.
            self._heartbeat_at = at + HEARTBEAT_SECONDS - min(HEARTBEAT_SECONDS, settings.LIVE_POLL_SECONDS) / 2
            await self._send("snapshot", found.state)
        return True

    async def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._seq += 1
        await self.send_json({"type": kind, "seq": self._seq, "data": data})

    def _holder(self) -> Any:
        """The session's user as the database has them now; None when they may not watch."""
        user = holders([self.permit])[0] if self.permit.session_key else None
        return user if user is not None and self.may_watch(user) else None
