"""One look at the database for many live sockets at once: what each has to be sent. All of it in a database thread.

What is wrong with one of them is written down at that one, and harms no other (P14).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from django.db.utils import InterfaceError, OperationalError

from casualmeet.db import is_transient
from notifications.permits import Permit, holders

# A part of the state, by name: a list of rows, each with an "id".
State = dict[str, list[dict[str, Any]]]
Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the database has for one person. While the version is the same, so is the state that `show` makes of it."""

    version: Any
    show: Callable[[], State]


class Shown(Protocol):
    """A socket, as far as a look concerns it. `version` and `state` are those that its client was sent last."""

    user: Any
    permit: Permit
    version: Any
    state: State | None

    def may_watch(self, user: Any) -> bool:
        """Whether this user may have this socket."""

    def read_state(self, users: Sequence[Any]) -> dict[UUID, Seen]:
        """What the database has for each of these users of sockets of this kind."""

    def events(self, before: State, after: State) -> list[Event]:
        """The events that lead from one state to the other."""


@dataclass(slots=True)
class Look:
    """What one socket asks (`snapshot`: to be sent in any case), and what was found."""

    socket: Shown
    snapshot: bool
    version: Any = None
    state: State | None = None
    events: list[Event] = field(default_factory=list)
    user: Any = None
    error: Exception | None = None

    @property
    def tells(self) -> bool:
        """Whether there is something to be sent."""
        return self.error is None and (self.snapshot or bool(self.events))


def look(looks: Iterable[Look]) -> None:
    """Fill in what each socket has to be sent, and then, for those who are sent something, who may still be."""
    kinds: dict[type, list[Look]] = {}
    for one in looks:
        kinds.setdefault(type(one.socket), []).append(one)
    for same in kinds.values():
        _read(same)
    _permit([one for same in kinds.values() for one in same if one.tells])


def _read(looks: Sequence[Look]) -> None:
    try:
        found = looks[0].socket.read_state([one.socket.user for one in looks])
    except Exception as error:  # noqa: BLE001 - it is told at the socket
        _one_by_one(_read, looks, error)
        return
    for one in looks:
        try:
            _compare(one, found[one.socket.user.pk])
        except Exception as error:  # noqa: BLE001 - it is told at the socket
            one.error = error


def _compare(one: Look, seen: Seen) -> None:
    known = one.socket.state
    one.version = seen.version
    if known is not None and seen.version == one.socket.version:
        one.state = known
        return
    one.state = seen.show()
    # Also before a snapshot: who waits for an event must not have to find it in there.
    one.events = one.socket.events(known, one.state) if known is not None else []


def _permit(looks: Sequence[Look]) -> None:
    """After the reading, right before the sending: nobody is sent what was read after they lost the right to it."""
    try:
        users = holders([one.socket.permit for one in looks])
    except Exception as error:  # noqa: BLE001 - it is told at the socket
        _one_by_one(_permit, looks, error)
        return
    for one, user in zip(looks, users, strict=True):
        try:
            one.user = user if user is not None and one.socket.may_watch(user) else None
        except Exception as error:  # noqa: BLE001 - it is told at the socket
            one.error = error


def _one_by_one(work: Callable[[Sequence[Look]], None], looks: Sequence[Look], error: Exception) -> None:
    """Find out whose fault it was; with the database away it is nobody's."""
    away = isinstance(error, OperationalError | InterfaceError) or is_transient(error)
    if len(looks) == 1 or away:
        for one in looks:
            one.error = error
        return
    for one in looks:
        work([one])
