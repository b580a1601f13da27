"""How this process, its database and the workers are, for load balancers and monitoring. Nothing personal in it."""

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from django.db import close_old_connections, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import DatabaseError, InterfaceError

from casualmeet import clock
from ops import audit, beats
from ops.threads import in_thread

LIMIT_SECONDS = 2.0
CACHE_SECONDS = 1.0
NO_DATABASE = "The database does not answer."


@dataclass(frozen=True, slots=True)
class Health:
    """Well when there are no reasons for the opposite; `details` as JSON takes them."""

    reasons: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class Probe:
    """Looks at most once a second, however many ask, and makes nobody wait for more than two seconds.

    A look that hangs is not begun a second time beside itself: a slow database gets no more work through this.
    """

    def __init__(self, look: Callable[[], Health]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._latest: Future[Health] | None = None
        self._began_at = 0.0

    def health(self) -> Health:
        """The latest look, or a new one."""
        with self._lock:
            latest = self._latest
            if latest is None or (latest.done() and time.monotonic() - self._began_at > CACHE_SECONDS):
                self._latest = latest = in_thread(self._look_safely)
                self._began_at = time.monotonic()
        try:
            return latest.result(LIMIT_SECONDS)
        except TimeoutError:
            return Health((NO_DATABASE,))

    def forget(self) -> None:
        """Look anew next time."""
        with self._lock:
            self._latest = None

    def _look_safely(self) -> Health:
        try:
            return self._look()
        except (DatabaseError, InterfaceError):
            return Health((NO_DATABASE,))
        finally:
            close_old_connections()


def readiness() -> Health:
    """Whether this process can do its work: the database answers, and has the tables that this version needs."""
    applied = set(MigrationRecorder(connection).migration_qs.values_list("app", "name"))
    missing = sorted(_needed_migrations() - applied)
    if not missing:
        return Health()
    named = ", ".join(f"{app}.{name}" for app, name in missing)
    return Health((f"Not migrated: {named}. Run `python manage.py migrate`.",))


def workers() -> Health:
    """Whether timers run out, messages leave, and somebody watches over it."""
    now = clock.now()
    reasons: list[str] = []
    roles: dict[str, Any] = {}
    for role, fresh, needed in (
        (beats.TIMER, beats.FRESH, True),
        (beats.DISPATCH, beats.FRESH, True),
        (beats.SCHEDULER, beats.FRESH, False),
        (beats.AUDIT, audit.FRESH, True),
    ):
        known = beats.of_role(role, now=now, within=fresh)
        roles[role] = _details(known, now=now)
        if needed and not known.fresh:
            what = "audit" if role == beats.AUDIT else f"cycle of a {role} worker"
            reasons.append(f"No {what} in the last {fresh.total_seconds():.0f} s.")
    return Health(tuple(reasons), {"roles": roles})


def _details(known: beats.RoleBeats, *, now: Any) -> dict[str, Any]:
    newest = known.newest
    return {
        "workers": len(known.fresh),
        "last_cycle_seconds_ago": round((now - newest.cycle_at).total_seconds(), 1) if newest else None,
        "last_cycle_ms": newest.cycle_ms if newest else None,
        "worst_skew_ms": max((row.skew_ms for row in known.fresh), key=abs, default=None),
    }


@functools.cache
def _needed_migrations() -> frozenset[tuple[str, str]]:
    """The last migrations of each app, as the files of this version have them."""
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


ready = Probe(readiness)
working = Probe(workers)
