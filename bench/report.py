"""What a benchmark found: printed as tables, written as JSON, with the machine it was measured on."""

import json
import os
import platform
import shlex
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connection

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)

    def text(self) -> str:
        """As plain text, each column as wide as it needs; numbers to the right."""
        cells = [[format_cell(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        heads = [
            name.rjust(width) if self._numeric(index) else name.ljust(width)
            for index, (name, width) in enumerate(zip(self.columns, widths, strict=True))
        ]
        lines = [self.title, "  " + "  ".join(heads).rstrip()]
        for row in cells:
            aligned = [
                text.rjust(width) if self._numeric(index) else text.ljust(width)
                for index, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(aligned).rstrip())
        return "\n".join(lines)

    def _numeric(self, index: int) -> bool:
        return any(isinstance(row[index], int | float) for row in self.rows)


@dataclass(frozen=True)
class Aim:
    """What was asked for, and what came out."""

    what: str
    measured: str
    met: bool


@dataclass
class Report:
    """All that one benchmark found. `quick` says that it ran on tiny numbers, which mean nothing.

    `broken` names what broke a promise of the product, each once.
    """

    name: str
    sizes: dict[str, int]
    quick: bool
    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    databases: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    load_at_start: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))

    def table(self, title: str, *columns: str) -> Table:
        """A new table, to be filled."""
        table = Table(title, columns)
        self.tables.append(table)
        return table

    def aim(self, what: str, measured: str, *, met: bool) -> None:
        """Compare with what was asked for."""
        self.aims.append(Aim(what, measured, met))

    def note_database(self, name: str) -> None:
        """Remember the version of the database in use."""
        self.databases[name] = database_version()

    def publish(self, directory: Path) -> Path:
        """Print it and write `<name>.json`."""
        for table in self.tables:
            print(f"\n{table.text()}")
        for note in self.notes:
            print(f"  {note}")
        for what in self.broken:
            print(f"  BROKEN  {what}")
        for aim in self.aims:
            print(f"  {'met   ' if aim.met else 'MISSED'}  {aim.what}: {aim.measured}")
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.name}.json"
        content = {
            **asdict(self),
            "machine": machine(),
            "load_at_end": round(os.getloadavg()[0], 2),
            "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        }
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return path


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share (0 to 1) of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def format_cell(cell: Cell) -> str:
    """A number with as many digits as it deserves."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def database_version() -> str:
    """The version of the database that Django is connected to."""
    if connection.vendor == "sqlite":
        return sqlite3.sqlite_version
    if connection.vendor == "mongodb":
        said: Any = connection
        return str(said.database.command("buildInfo")["version"])
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return str(cursor.fetchone()[0])


def machine() -> dict[str, Cell]:
    """Processor, memory and Python."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
