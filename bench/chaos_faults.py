"""What goes wrong during the chaos bench: one trouble after the other, and often two at a time, chosen by a seed."""

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.chaos_stage import Keeper, Stage
from testing.servers import Mongo, Postgres

# Longer than the lease of a delivery (45 s): its holder wakes up when another has long taken over.
LONG_FREEZE = (47.0, 55.0)
SHORT_FREEZE = (1.0, 8.0)
FOREVER = -1
PAGE = {
    "accepted": False,
    "status": 502,
    "body": "<html><h1>502 Bad Gateway</h1></html>",
    "headers": {"Content-Type": "text/html"},
}
# What a carrier does with a request: the step, and how often at most in one go.
CARRIER_STEPS: dict[str, tuple[dict[str, Any], int]] = {
    "connection reset after the message was taken": ({"fault": "reset"}, 4),
    "connection reset before it was taken": ({"accepted": False, "fault": "reset"}, 4),
    "no answer, message taken": ({"fault": "hang"}, 3),
    "no answer, message not taken": ({"accepted": False, "fault": "hang"}, 3),
    "answer cut off, message taken": ({"fault": "truncate"}, 4),
    "500": ({"accepted": False, "status": 500, "code": 20500}, 6),
    "503": ({"accepted": False, "status": 503}, 6),
    "502 page of a proxy": (PAGE, 4),
    "429, Retry-After 2 s": ({"accepted": False, "status": 429, "code": 20429, "headers": {"Retry-After": "2"}}, 8),
    "slow answer": ({"delay": 3.0}, 6),
    "refused for good": ({"accepted": False, "status": 400, "code": 21211}, 1),
    "taken, then reported undelivered": ({"ends": "undelivered", "error_code": 30003}, 2),
    "receipts lost": ({"callbacks": {"lost": True}}, 4),
    "receipts twice": ({"callbacks": {"copies": 1}}, 4),
    "receipt before the answer": ({"callbacks": {"early": True}}, 4),
}


@dataclass
class Faults:
    """Makes trouble in threads of its own until `stop`. `counts` is what was done, by kind."""

    stage: Stage
    seed: int
    pause: tuple[float, float]
    long_freezes: int
    counts: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="fault")
        self._thread = threading.Thread(target=self._run, name="faults")
        self._error: BaseException | None = None
        self._restarting = threading.Lock()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No new trouble; what is broken is mended by `Stage.heal`. Raises what went wrong in here."""
        self.over.set()
        self._thread.join()
        self._pool.shutdown(wait=True)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        kinds = self._kinds()
        for _ in range(self.long_freezes):
            self._begin(self._freeze_long, self.random.choice(self.stage.workers))
        while not self.over.wait(self.random.uniform(*self.pause)):
            (work,) = self.random.choices([kind for kind, _ in kinds], weights=[weight for _, weight in kinds])
            self._begin(work)

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        found: list[tuple[Callable[[], None], int]] = [
            (self._script, 24),
            (self._kill_worker, 8),
            (self._freeze_worker, 5),
            (self._database, 3),
            (self._outage, 2),
            (self._kill_web, 1),
            (self._freeze_carrier, 1),
        ]
        return [*found, (self._redis, 2)] if self.stage.redis else found

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self._error = error
                raise

        self._pool.submit(guarded)

    def _last(self, seconds: float) -> None:
        """Let the trouble last, but not beyond the end."""
        self.over.wait(seconds)

    def _worker(self) -> Keeper | None:
        """One that is not in trouble already."""
        free = [keeper for keeper in self.stage.workers if not (keeper.down or keeper.frozen)]
        return self.random.choice(free) if free else None

    def _kill_worker(self) -> None:
        if keeper := self._worker():
            self.counts[f"{keeper.role} worker killed (SIGKILL)"] += 1
            keeper.kill()
            self._last(self.random.uniform(0.2, 4.0))
            keeper.revive()

    def _freeze_worker(self) -> None:
        if keeper := self._worker():
            self.counts[f"{keeper.role} worker frozen for 1 to 8 s (SIGSTOP)"] += 1
            keeper.freeze()
            self._last(self.random.uniform(*SHORT_FREEZE))
            keeper.thaw()

    def _freeze_long(self, keeper: Keeper) -> None:
        self._last(self.random.uniform(2.0, 6.0))
        self.counts[f"{keeper.role} worker frozen for longer than a lease"] += 1
        keeper.freeze()
        self._last(self.random.uniform(*LONG_FREEZE))
        keeper.thaw()

    def _kill_web(self) -> None:
        self.counts["web killed (SIGKILL)"] += 1
        self.stage.web.kill()
        self._last(self.random.uniform(0.2, 2.0))
        self.stage.web.revive()

    def _freeze_carrier(self) -> None:
        self.counts["carriers frozen for 1 to 8 s"] += 1
        self.stage.carrier.freeze()
        self._last(self.random.uniform(*SHORT_FREEZE))
        self.stage.carrier.thaw()

    def _database(self) -> None:
        """Away for a moment: shut down in order, or killed. On SQLite somebody holds the write lock."""
        database = self.stage.database
        if database is None:
            self.counts["SQLite locked for 0.5 to 5 s"] += 1
            self._lock_sqlite(self.random.uniform(0.5, 5.0))
        elif self._restarting.acquire(blocking=False):
            with self._restarting_done():
                self._restart(database)

    def _restart(self, database: Postgres | Mongo) -> None:
        # The MongoDB test server needs longer for its orderly end than a client waits.
        if isinstance(database, Mongo) or self.random.random() < 0.5:
            self.counts[f"{database.name} killed and started"] += 1
            database.kill()
        else:
            self.counts[f"{database.name} shut down and started"] += 1
            database.halt()
        self._last(self.random.uniform(0.0, 4.0))
        database.start()

    @contextmanager
    def _restarting_done(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._restarting.release()

    def _lock_sqlite(self, seconds: float) -> None:
        path = self.stage.database_url.removeprefix("sqlite:///")
        holder = sqlite3.connect(path, timeout=20, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        self._last(seconds)
        holder.execute("ROLLBACK")
        holder.close()

    def _redis(self) -> None:
        redis = self.stage.redis
        if redis is not None and self._restarting.acquire(blocking=False):
            with self._restarting_done():
                self.counts["redis killed and started"] += 1
                redis.kill()
                self._last(self.random.uniform(0.0, 8.0))
                redis.start()

    def _script(self) -> None:
        name = self.random.choice(list(CARRIER_STEPS))
        step, most = CARRIER_STEPS[name]
        carrier = self.random.choice(["twilio", "twilio", "fast2sms", "fast2sms", "twilio-voice"])
        if carrier == "fast2sms" and name == "refused for good":
            step = {**step, "code": 411}
        times = self.random.randint(1, most)
        if self._tell_carrier({**step, "times": times}, carrier=carrier):
            self.counts[f"carrier: {name}"] += times
        if self.random.random() < 0.2:
            self._tell_carrier({"accepted": False, "status": 500, "times": 2}, carrier="twilio", operation="list")

    def _outage(self) -> None:
        if not self._tell_carrier({"accepted": False, "status": 503, "times": FOREVER}):
            return
        self.counts["all carriers answer 503 for 2 to 8 s"] += 1
        self._last(self.random.uniform(2.0, 8.0))
        deadline = time.monotonic() + 15
        while not self.over.is_set() and time.monotonic() < deadline:
            try:
                self.stage.forget_rules()
            except OSError:
                time.sleep(0.5)
            else:
                return

    def _tell_carrier(self, step: dict[str, Any], **where: str) -> bool:
        """False while they are frozen."""
        if self.stage.carrier.frozen:
            return False
        try:
            self.stage.script(step, **where)
        except OSError:
            return False
        return True
