"""A nursery of processes for tests: it has the large libraries loaded, and forks itself for each program that is to run.

Loading them takes a new process longer than most tests last. What comes of the fork is a process like any other, with
its own environment, session and output; only the libraries' code is there already. Nothing of ours, no settings and no
event loop are loaded before the fork. Benchmarks start their processes without it.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LIBRARIES = (
    "aiohttp",
    "channels.db",
    "cryptography.hazmat.primitives.asymmetric.rsa",
    "django.contrib.messages",
    "django.core.management",
    "django.core.serializers.json",
    "django.db.models",
    "django.forms",
    "django.urls",
    "OpenSSL.SSL",
    "phonenumbers",
    "prometheus_client",
    "psycopg",
    "pydantic.types",
    "redis.asyncio",
    "requests",
    "service_identity",
    "twisted.internet.tcp",
    "twisted.protocols.tls",
)
HIGHEST_FILE = 256


@dataclass(frozen=True, slots=True)
class Order:
    """A Python program: a script, or `-m` and a module; with its arguments, environment and, if not ours, user id."""

    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    user: int | None = None


class Child:
    """A process that the nursery forked, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, order: Order, told: int) -> None:
        self.args = order.args
        self._told = os.fdopen(told, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """How it ended, as Popen tells it; None while it runs."""
        if self.returncode is None and self._ended(within=0):
            # Nothing: the nursery is gone, and with it whoever could tell.
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
            self._told.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not self._ended(within=timeout):
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        code = self.poll()
        if code is None:
            raise RuntimeError("It has ended, but not how.")
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, *, within: float | None) -> bool:
        return bool(select.select([self._told], [], [], within)[0])


class Nursery:
    """The tests' end of it. The process is started with the first order, and ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None

    def bear(self, order: Order, *, output: int) -> Child:
        """Fork a process for this order; it writes to the open file `output`."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as written:
            written.write(json.dumps(asdict(order)).encode())
            written.flush()
            with self._lock:
                if self._orders is None:
                    self._orders = _start()
                socket.send_fds(self._orders, [b"!"], [written.fileno(), output, writing])
        os.close(writing)
        return Child(order, reading)


def serves(args: Sequence[str]) -> bool:
    """Whether the nursery can run this command line: of our own Python, a script or a module."""
    return len(args) > 1 and args[0] == sys.executable and (args[1].endswith(".py") or args[1] == "-m")


def _start() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        os.posix_spawn(
            sys.executable,
            [sys.executable, __file__],
            {**os.environ, "PYTHONUNBUFFERED": "1"},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
            # A group of its own: Ctrl-C is not for it.
            setpgroup=0,
        )
    return ours


def _serve(orders: socket.socket) -> Order | None:
    """Fork for each order, and tell how each child ended. Returns in each child, with its order; None at the end."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}
    while True:
        waiting: list[socket.socket | int] = [orders, awake]
        ready = select.select(waiting, [], [])[0]
        if awake in ready:
            os.read(awake, 1024)
            _tell(told)
        if orders in ready:
            _, fds, _, _ = socket.recv_fds(orders, 1, 3)
            if not fds:
                return None
            written, output, writing = fds
            pid = os.fork()
            if not pid:
                return _grow_up(written, output)
            os.write(writing, b"%d\n" % pid)
            told[pid] = writing
            os.close(written)
            os.close(output)


def _tell(told: dict[int, int]) -> None:
    """Write down for each child that has ended how it did."""
    for pid in list(told):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            writing = told.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody wants to know
                os.write(writing, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(writing)


def _grow_up(written: int, output: int) -> Order:
    """Leave the nursery: read the order, and become what a process is that was started for it."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A shell that runs the tests in the background makes them, and all that they start, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(written, "rb", closefd=False) as file:
        file.seek(0)
        order = Order(**json.load(file))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, HIGHEST_FILE)
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    time.tzset()
    if order.user is not None:
        os.setgroups([])
        os.setgid(order.user)
        os.setuid(order.user)
    return order


def _run(order: Order) -> None:
    """As `python script …` or `python -m module …` would."""
    _, first, *args = order.args
    if first == "-m":
        module, *args = args
        sys.argv = [module, *args]
        sys.path.insert(0, order.cwd)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *args]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


def _main() -> None:
    del sys.path[0]  # the directory of this file
    for name in LIBRARIES:
        importlib.import_module(name)
    if "twisted.internet.reactor" in sys.modules:
        raise RuntimeError("A library has begun an event loop; no child could have its own.")
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=os.dup(0)))
    if order is not None:
        _run(order)


if __name__ == "__main__":
    _main()
