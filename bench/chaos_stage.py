"""The installation that the chaos bench breaks: servers, web, workers and carriers as processes, each kept running."""

import json
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.setup import machines, use_database
from simulator import Simulator
from testing.processes import PYTHON_MODULE, ManagedProcess, free_port, wait_until
from testing.servers import Mongo, Postgres, Redis

# Not a local name: to such addresses the product asks for no receipts.
PUBLIC_URL = "http://safety.example.org"
START_SECONDS = 90
WEB_SECONDS = 240
LAST_LINES = 40


@dataclass
class Keeper:
    """A process and its supervisor: unless it is held down, it is started again when it ends."""

    name: str
    role: str
    process: ManagedProcess
    ready: str = ""
    frozen: bool = False
    down: bool = False
    restarts: int = 0
    codes: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start it, and wait until it says that it works."""
        self.process.start()
        if self.ready:
            self.process.wait_for_line(self.ready, timeout=START_SECONDS)

    def kill(self) -> None:
        """SIGKILL, and no new start until `revive`."""
        with self.lock:
            self.down = True
            self.frozen = False
            if self.process.running:
                self.logs.append(self.process.output)
                self.process.kill()

    def revive(self) -> None:
        """Start it again."""
        with self.lock:
            self.down = False
            if not self.process.running:
                self.restarts += 1
                self.process.start()

    def freeze(self) -> None:
        """SIGSTOP: it holds its connections and leases and does nothing."""
        with self.lock:
            if self.process.running:
                os.kill(self.process.pid, signal.SIGSTOP)
                self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        with self.lock:
            if self.frozen and self.process.running:
                os.kill(self.process.pid, signal.SIGCONT)
            self.frozen = False

    def look(self) -> bool:
        """Start it again if it ended by itself; True when it had."""
        with self.lock:
            if self.down or self.process.running:
                return False
            self.logs.append(self.process.output)
            self.restarts += 1
            self.process.start()
            return True

    def stop(self) -> int:
        """SIGTERM; the code it ended with."""
        self.thaw()
        with self.lock:
            self.down = True
            return self.process.terminate(timeout=60) if self.process.running else -1


@dataclass(frozen=True, slots=True)
class Layout:
    """How many workers of each kind; a `timer` worker without dispatchers beside it sends too."""

    timer: int
    dispatch: int


class Stage:
    """Everything that runs."""

    def __init__(self, kind: str, url: str, layout: Layout, *, env: dict[str, str]) -> None:
        self.kind = kind
        self.database_url = url
        self.database: Postgres | Mongo | None = None
        self.redis: Redis | None = None
        self.web_url = f"http://127.0.0.1:{free_port()}"
        self.carrier_url = f"http://127.0.0.1:{free_port()}"
        port = int(self.carrier_url.rpartition(":")[2])
        carriers = Simulator(port=port).environment()
        common = {"DATABASE_URL": url, "PUBLIC_BASE_URL": PUBLIC_URL, **carriers, **env}
        self.web = Keeper("web", "web", self._daphne(common))
        simulate = ["run_carrier_simulator", "--port", str(port), "--site", self.web_url, "--pace", "0.2"]
        self.carrier = Keeper(
            "carrier", "carrier", ManagedProcess(simulate, {**common, "DEBUG": "on"}), ready="Simulated phones"
        )
        beside = ["--no-dispatch"] if layout.dispatch else []
        self.workers = [
            *(
                Keeper(f"timer {n + 1}", "timer", ManagedProcess(["run_timer_worker", *beside], common), "^Expiring")
                for n in range(layout.timer)
            ),
            *(
                Keeper(f"dispatch {n + 1}", "dispatch", ManagedProcess(["run_dispatch_worker"], common), "^Dispatching")
                for n in range(layout.dispatch)
            ),
        ]
        self._watching = threading.Event()

    @property
    def keepers(self) -> list[Keeper]:
        """All processes that are watched."""
        return [self.carrier, self.web, *self.workers]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything is up at the start of the block, and gone after it."""
        with ExitStack() as stack:
            for keeper in self.keepers:
                stack.callback(keeper.process.close)
                keeper.start()
            watch = threading.Thread(target=self._watch, name="supervisor", daemon=True)
            watch.start()
            stack.callback(watch.join)
            stack.callback(self._watching.set)
            yield

    def heal(self) -> None:
        """End every fault: all runs again, and the carriers do as they should."""
        for keeper in self.keepers:
            keeper.thaw()
            keeper.revive()
        for server in (self.database, self.redis):
            if server is not None and not (server.process and server.process.running):
                server.start()
        wait_until(self.carrier_answers, timeout=START_SECONDS, message="the carriers answer")
        self.forget_rules()

    def stop_in_order(self) -> dict[str, int]:
        """SIGTERM to the web and the workers; the codes they ended with."""
        self._watching.set()
        return {keeper.name: keeper.stop() for keeper in [*self.workers, self.web]}

    # The carriers

    def carrier_answers(self) -> bool:
        """Whether the simulator is there."""
        try:
            self._ask("GET", "/rules", timeout=5)
        except OSError:
            return False
        return True

    def script(self, *steps: dict[str, Any], **where: str) -> None:
        """What the carriers do with the next requests, as simulator.control takes it."""
        self._ask("POST", "/rules", {**where, "steps": list(steps)})

    def forget_rules(self) -> None:
        """They do as they should."""
        self._ask("DELETE", "/rules")

    def journal(self) -> dict[str, Any]:
        """All that they were asked and took."""
        found: dict[str, Any] = json.loads(self._ask("GET", "/journal", timeout=120))
        return found

    def _ask(self, method: str, path: str, body: object = None, *, timeout: float = 20) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.carrier_url}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answered: bytes = answer.read()
        return answered

    def _daphne(self, env: dict[str, str]) -> ManagedProcess:
        port = self.web_url.rpartition(":")[2]
        arguments = ["daphne", "-b", "127.0.0.1", "-p", port, "casualmeet.asgi:application"]
        return ManagedProcess(arguments, env, program=PYTHON_MODULE)

    def _watch(self) -> None:
        """What a supervisor does."""
        while not self._watching.wait(0.3):
            for keeper in self.keepers:
                if keeper.look():
                    last = "\n".join(keeper.logs[-1].splitlines()[-LAST_LINES:])
                    print(f"  {keeper.name} ended by itself and was started again. Its last words:\n{last}", flush=True)


@contextmanager
def staged(kind: str, layout: Layout, *, env: dict[str, str]) -> Iterator[Stage]:
    """A new database of this kind, migrated, in use by Django, with everything running on it."""
    from django.core.management import call_command
    from django.db import connections

    with ExitStack() as stack:
        database: Postgres | Mongo | None = None
        if kind == "postgres":
            database = stack.enter_context(Postgres(durable=True))
            url = database.url()
        elif kind == "mongo":
            database = machines.mongo
            if database is None:
                raise RuntimeError("MongoDB was not started.")
            url = database.url("bench")
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="casualmeet-chaos-")))
            url = f"sqlite:///{directory / 'chaos.sqlite3'}"
        redis = None if kind == "sqlite" else machines.redis
        use_database(url, redis=redis is not None)
        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        stage = Stage(kind, url, layout, env={"REDIS_URL": redis.url() if redis else "", **env})
        stage.database, stage.redis = database, redis
        stack.enter_context(stage.running())
        yield stage


def wait_for_web(stage: Stage) -> None:
    """Until the web process answers from its database; it may have a heap of requests to get through first."""
    started = time.monotonic()
    trouble = ""
    while time.monotonic() - started < WEB_SECONDS:
        try:
            with urllib.request.urlopen(f"{stage.web_url}/readyz", timeout=5):
                return
        except OSError as error:
            trouble = repr(error)
        time.sleep(0.2)
    last = "\n".join(stage.web.process.output.splitlines()[-LAST_LINES:])
    raise TimeoutError(f"The web process does not answer: {trouble}. Its last words:\n{last}")
