"""A worker says that its loop turns: to systemd, and by a file that `deploy/healthcheck.py` looks at."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ops import alive
from ops.worker import run_cycles
from testing.processes import BASE_DIR


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alive, "_last", -alive.BEAT_SECONDS)


def probe(**env: str) -> int:
    """What deploy/healthcheck.py answers, with nothing of Django at hand."""
    command = [sys.executable, "-I", str(BASE_DIR / "deploy" / "healthcheck.py")]
    return subprocess.run(command, env=env, check=False, capture_output=True, cwd="/").returncode


@pytest.mark.django_db
def test_a_loop_whose_cycles_fail_is_alive(settings: Any, tmp_path: Path) -> None:
    """While the database is gone a restart would not help."""
    settings.ALIVE_FILE = str(tmp_path / "alive")
    stop = threading.Event()

    def cycle() -> None:
        stop.set()
        raise RuntimeError("the database is gone")

    run_cycles(cycle, stop=stop, wait=lambda *_: None)
    assert probe(ALIVE_FILE=settings.ALIVE_FILE) == 0


def test_a_loop_that_stands_still_is_not(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    assert probe(ALIVE_FILE=str(file)) == 1
    file.touch()
    assert probe(ALIVE_FILE=str(file)) == 0
    os.utime(file, (time.time() - 61, time.time() - 61))
    assert probe(ALIVE_FILE=str(file)) == 1


def test_a_loop_beside_the_main_one_does_not_speak_for_it(settings: Any, tmp_path: Path) -> None:
    settings.ALIVE_FILE = str(tmp_path / "alive")
    beside = threading.Thread(target=alive.beat)
    beside.start()
    beside.join()
    assert not (tmp_path / "alive").exists()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemds_watchdog_hears_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"casualmeet-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if abstract else str(tmp_path / "notify"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else str(tmp_path / "notify"))
        alive.beat()
        assert listener.recv(100) == b"WATCHDOG=1"


def test_nothing_that_listens_and_nowhere_to_write_stop_no_loop(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.ALIVE_FILE = str(tmp_path / "missing" / "alive")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    alive.beat()
