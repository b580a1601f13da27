"""The chaos bench runs, in small, and finds no promise broken (P1 to P8)."""

import json
from pathlib import Path

import pytest

from testing.processes import PYTHON_MODULE, ManagedProcess


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(420)
def test_a_short_course_keeps_the_promises(tmp_path: Path):
    arguments = ["bench", "chaos", "--quick", "--database", "sqlite", "--seed", "4", "--results", str(tmp_path)]
    with ManagedProcess(arguments, program=PYTHON_MODULE) as process:
        assert process.wait(timeout=400) == 0, process.output
    found = json.loads((tmp_path / "chaos.json").read_text())
    tables = {table["title"].partition(": ")[2]: table["rows"] for table in found["tables"]}
    assert found["broken"] == []
    looked_at = {promise: number for promise, _, number, _ in tables["promises"]}
    assert looked_at["P1"]
    assert looked_at["P5"]
    assert sum(times for _, times in tables["trouble made"])
