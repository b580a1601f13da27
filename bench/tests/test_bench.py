"""Each benchmark runs, on tiny numbers; how fast anything is, is no matter of a test."""

import json
import os
from pathlib import Path

import pytest

from testing.processes import PYTHON_MODULE, ManagedProcess

BENCHMARKS = ["mass_expiry", "idle_cost", "alert_latency", "sends", "engine", "memory"]

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.mark.timeout(320)
def test_each_runs_and_writes_down_what_it_found(tmp_path: Path):
    arguments = ["bench", "--quick", "--database", "sqlite", "--results", str(tmp_path)]
    with ManagedProcess(arguments, program=PYTHON_MODULE) as process:
        assert process.wait(timeout=300) == 0, process.output
    for name in BENCHMARKS:
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["tables"][0]["rows"]
        assert found["tables"][0]["title"] in process.output
        assert found["quick"] is True
        assert found["machine"]["cores"] == os.cpu_count()
        assert found["databases"].keys() == {"SQLite"}
        assert found["command"].startswith("python -m bench --quick")


def test_an_unknown_size_is_refused():
    with ManagedProcess(["bench", "--database", "sqlite", "--set", "nonsense=1"], program=PYTHON_MODULE) as process:
        assert process.wait(timeout=30) == 2
        assert "nonsense" in process.output
