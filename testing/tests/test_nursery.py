"""Processes from the nursery are like those that Python starts anew."""

import signal
import sys
from pathlib import Path

import pytest

from testing.processes import PYTHON_MODULE, ManagedProcess, wait_until

PROGRAM = """
import os, random, sys, time
print(sys.argv[1:], os.environ.get("ODD"), os.environ.get("EVEN"), os.getsid(0) == os.getpid(), __name__)
print("random", random.random())
print("settings" , [name for name in sys.modules if name.startswith("casualmeet")])
print("files", sorted(os.listdir("/proc/self/fd"), key=int)[:3])
if sys.argv[1] == "raise":
    raise ValueError("on purpose")
if sys.argv[1] == "sleep":
    print("asleep")
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script)]


@pytest.mark.processes
def test_a_program_has_its_own_arguments_environment_session_and_code(
    program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVEN", "even")
    with ManagedProcess(["7", "a b"], {"ODD": "odd"}, program=program) as one:
        assert one.wait() == 7
        first = one.output.splitlines()
    assert first[0] == "['7', 'a b'] odd even True __main__"
    assert first[2] == "settings []"
    monkeypatch.delenv("EVEN")
    with ManagedProcess(["0"], program=program) as other:
        assert other.wait() == 0
        second = other.output.splitlines()
    assert second[0] == "['0'] None None True __main__"
    assert first[1] != second[1]


def test_an_error_is_told_and_gives_the_code_1(program: list[str]) -> None:
    with ManagedProcess(["raise"], program=program) as process:
        assert process.wait() == 1
        assert process.output.endswith("ValueError: on purpose\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_is_its_code(number: signal.Signals, program: list[str]) -> None:
    with ManagedProcess(["sleep"], program=program) as process:
        process.wait_for_line("asleep")
        assert process.running
        process.send(number)
        assert process.wait() == -number
        assert not process.running


def test_one_that_does_not_end_is_killed(program: list[str]) -> None:
    with ManagedProcess(["sleep"], program=program) as process:
        pid = process.pid
        with pytest.raises(AssertionError, match="did not end within"):
            process.wait(timeout=0.1)
        assert not process.running
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), message="nothing is left of it")


def test_a_module_runs_as_the_main_one() -> None:
    with ManagedProcess(["json.tool", "--help"], program=PYTHON_MODULE) as process:
        assert process.wait() == 0
        assert "json" in process.output


def test_what_python_reads_at_its_start_makes_it_start_anew(program: list[str]) -> None:
    with ManagedProcess(["sleep"], {"PYTHONHASHSEED": "1"}, program=program) as process:
        process.wait_for_line("asleep")
        assert Path(f"/proc/{process.pid}/exe").readlink() == Path(sys.executable).resolve()
        assert b"program.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
