"""Ends and removes what a test run leaves behind, however the run itself ends."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

POLL_SECONDS = 0.02
GRACE_SECONDS = 3.0


class _Reaper:
    """A small process that ends what this one leaves behind, however this one ends.

    It reads notes from a pipe; the pipe closes when this process is gone, even by SIGKILL or `os._exit`. The kernel's
    parent-death signal would not do: it fires when the *thread* that started a child ends, and removes no directory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None

    def note(self, line: str) -> None:
        with self._lock:
            if self._pipe is None:
                self._pipe = self._spawn()
            os.write(self._pipe, f"{line}\n".encode())

    def _spawn(self) -> int:
        reading, writing = os.pipe()
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", __file__],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            # A group of its own: Ctrl-C is not for it.
            setpgroup=0,
        )
        os.close(reading)
        return writing


_reaper = _Reaper()


def reap_process(pid: int) -> None:
    """End this process when ours is gone."""
    _reaper.note(f"+process {pid}")


def forget_process(pid: int) -> None:
    """The process has ended; its id may belong to another soon."""
    _reaper.note(f"-process {pid}")


def reap_directory(path: Path) -> None:
    """Remove this directory when our process is gone."""
    _reaper.note(f"+directory {path}")


def forget_directory(path: Path) -> None:
    """The directory is removed."""
    _reaper.note(f"-directory {path}")


def _reap(notes: Iterable[str]) -> None:
    """Follow the notes to their end, then clean up what they left standing."""
    left: set[tuple[str, str]] = set()
    for note in notes:
        kind, _, value = note[1:].rstrip("\n").partition(" ")
        (left.add if note.startswith("+") else left.discard)((kind, value))
    pids = [int(value) for kind, value in left if kind == "process"]
    for pid in pids:
        _send(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(_send(pid, 0) for pid in pids):
        time.sleep(POLL_SECONDS)
    for pid in pids:
        _send(pid, signal.SIGKILL)
    for kind, value in left:
        if kind == "directory":
            shutil.rmtree(value, ignore_errors=True)


def _send(pid: int, number: int) -> bool:
    """Send a signal; False when there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    _reap(sys.stdin)
