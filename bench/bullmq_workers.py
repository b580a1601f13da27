"""BullMQ beside the dispatcher: its own Redis, worker processes under Node, the same requests to the same carrier."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

from bench.setup import CarrierProcess
from testing.carrier import ACCOUNT_SID
from testing.processes import ManagedProcess, wait_until
from testing.servers import Redis

DIRECTORY = Path(__file__).resolve().parent / "bullmq"
INSTALL_SECONDS = 180
QUEUE = "deliveries"
# BullMQ's keys for jobs that are not over.
LISTS = ("wait", "active", "paused")
SORTED_SETS = ("delayed", "prioritized")


def trouble() -> str:
    """Why BullMQ can't be run here; empty when it can. Installs what package-lock.json asks for if it is not there."""
    if not (shutil.which("node") and shutil.which("npm")):
        return "node and npm are not installed"
    installed, wanted = DIRECTORY / "node_modules" / ".package-lock.json", DIRECTORY / "package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return ""
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=DIRECTORY, timeout=INSTALL_SECONDS, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"npm ci took more than {INSTALL_SECONDS} s"
    return f"npm ci failed: {done.stderr.strip()[-300:]}" if done.returncode else ""


def versions() -> str:
    """Of Node and of what runs on it."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    packages = json.loads((DIRECTORY / "package.json").read_text())["dependencies"]
    return ", ".join([f"Node {node.removeprefix('v')}", *(f"{name} {version}" for name, version in packages.items())])


@dataclass(frozen=True, slots=True)
class Call:
    """What every request has in common: taken from one that the dispatcher made."""

    path: str
    authorization: str
    fields: dict[str, str]

    @classmethod
    def like(cls, message: dict[str, Any]) -> Self:
        """The request for a message to Twilio that the local carrier received."""
        fields = dict(message["fields"])
        account = f"/2010-04-01/Accounts/{ACCOUNT_SID}/Messages.json"
        return cls(path=account, authorization=message["headers"]["authorization"], fields=fields)

    def to_json(self) -> str:
        """For a job."""
        return json.dumps({"path": self.path, "authorization": self.authorization, "fields": self.fields})


class BullMQ:
    """Worker processes that wait for jobs."""

    def __init__(self, carrier: CarrierProcess, *, concurrency: int, processes: int, call: Call) -> None:
        self.carrier = carrier
        self.concurrency = concurrency
        self.processes = processes
        self.call = call
        self._running = ExitStack()
        self._workers: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            url = starting.enter_context(Redis()).url()
            self._redis = starting.enter_context(redis.Redis.from_url(url))
            self._environment = {"QUEUE": QUEUE, "REDIS_URL": url, "CARRIER_URL": self.carrier.url}
            for _ in range(self.processes):
                process = self._node("worker.mjs", CONCURRENCY=str(self.concurrency))
                self._workers.append(starting.enter_context(process))
            for process in self._workers:
                process.wait_for_line("^ready")
            self._running = starting.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._running.close()

    def send(self, count: int, *, first: int, prefix: str, timeout: float) -> float:
        """Let the workers send this many; when they were let go, as time.time()."""
        numbers = f"{prefix} {first}"
        with self._node("fill.mjs", COUNT=str(count), JOB=self.call.to_json(), NUMBERS=numbers) as process:
            released = float(process.wait_for_line(r"^released (\S+)", timeout=timeout)[1])
            process.wait()
        wait_until(lambda: not self._unfinished(), timeout=timeout, message="BullMQ has sent everything")
        return released

    def stop(self) -> None:
        """End the workers in order; raises when one complained or failed."""
        for process in self._workers:
            code = process.terminate(timeout=30)
            if code or "ERROR" in process.output:
                raise RuntimeError(f"{process} ended with {code}. Output:\n{process.output[-3000:]}")

    def _unfinished(self) -> int:
        keys = self._redis.pipeline()
        for name in LISTS:
            keys.llen(f"bull:{QUEUE}:{name}")
        for name in SORTED_SETS:
            keys.zcard(f"bull:{QUEUE}:{name}")
        return sum(keys.execute())

    def _node(self, script: str, **env: str) -> ManagedProcess:
        return ManagedProcess([script], env={**self._environment, **env}, program=["node"], cwd=DIRECTORY)
