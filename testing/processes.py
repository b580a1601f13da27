"""Real processes for tests and benchmarks: started, watched, killed, and never left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import randrange
from typing import IO, Self, TypeVar

from testing.nursery import Child, Nursery, Order, serves
from testing.reaper import forget_process, reap_process

T = TypeVar("T")

BASE_DIR = Path(__file__).resolve().parent.parent
MANAGE = (sys.executable, str(BASE_DIR / "manage.py"))
PYTHON_MODULE = (sys.executable, "-m")
POLL_SECONDS = 0.02

_nursery: Nursery | None = None


def start_from_nursery() -> None:
    """From now on, fork Python programs from a process that has the libraries loaded."""
    global _nursery
    _nursery = Nursery()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on.

    It lies below the range that systems hand to outgoing connections: from there, a client that keeps
    reconnecting while its server is down can be given the server's own port and keep it from coming back.
    """
    while True:
        port = randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def wait_until(condition: Callable[[], T], timeout: float = 10, message: str = "") -> T:
    """Call the condition until it returns something true, and return that; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            what = message or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"Not true within {timeout:g} s: {what} (last value: {result!r})")
        time.sleep(POLL_SECONDS)


class ManagedProcess:
    """A management command (or, with another `program`, anything) as a process of its own.

    As a context manager it starts the process and kills it at the end if it still runs. It may be started again.
    """

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = MANAGE,
        cwd: Path = BASE_DIR,
        user: int | None = None,
    ) -> None:
        """`env` is added to this process's environment; `user` is the id to run as, where this one is root."""
        self.args = [*program, *args]
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        # Python reads those of its own only when it starts.
        self._quickly = serves(self.args) and not any(name.startswith("PYTHON") for name in env or {})
        self.cwd = cwd
        self.user = user
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._log: IO[bytes] | None = None
        self._last_output = ""

    def start(self) -> Self:
        """Start it; its output begins anew."""
        if self.running:
            raise RuntimeError(f"{self} runs already.")
        self._close_log()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process = self._spawn(self._log)
        reap_process(self._process.pid)
        return self

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes] | Child:
        if _nursery and self._quickly:
            return _nursery.bear(Order(self.args, self.env, str(self.cwd), self.user), output=output.fileno())
        return subprocess.Popen(
            self.args,
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            # Ctrl-C in the terminal is for the test run, which then stops this one in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """Everything it wrote so far, to stdout and stderr; it stays readable after the end."""
        if self._log is None:
            return self._last_output
        # pread: the process writes at this file's own position, which must stay where it is.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def wait_for_line(self, regex: str, timeout: float = 20) -> re.Match[str]:
        """Wait until a whole line of its output matches; fail at once when it ends without one."""
        pattern = re.compile(regex)
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.running
            lines = self.output.splitlines(keepends=True)
            for line in lines:
                if (ended or line.endswith("\n")) and (match := pattern.search(line)):
                    return match
            if ended or time.monotonic() > deadline:
                why = "it ended" if ended else f"{timeout:g} s passed"
                raise AssertionError(f"{self}: {why} without a line like {regex!r}. Output:\n{self.output}")
            time.sleep(POLL_SECONDS)

    def wait(self, timeout: float = 20) -> int:
        """Wait until it ends by itself and return its code; kill it and fail when it does not."""
        process = self._started()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self} did not end within {timeout:g} s. Output:\n{self.output}") from None
        forget_process(process.pid)
        return code

    def terminate(self, timeout: float = 20, *, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, wait for it, and return its code."""
        self._started().send_signal(with_signal)
        return self.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and wait for nothing."""
        self._started().send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no handler runs, as in a crash. Nothing happens when it has ended already."""
        process = self._started()
        process.kill()
        process.wait()
        forget_process(process.pid)

    def close(self) -> None:
        """Kill it if it still runs, and let go of everything but the text of its output."""
        if self.running:
            self.kill()
        self._close_log()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __str__(self) -> str:
        return " ".join(self.args)

    def _started(self) -> subprocess.Popen[bytes] | Child:
        if self._process is None:
            raise RuntimeError(f"{self} was never started.")
        return self._process

    def _close_log(self) -> None:
        if self._log is not None:
            self._last_output = self.output
            self._log.close()
            self._log = None
