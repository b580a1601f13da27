"""What processes and PostgreSQL use while something runs: processor, memory, disk, waits for locks."""

import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from django.db import connection

from bench.setup import machines
from testing.processes import ManagedProcess

TICK = 1 / os.sysconf("SC_CLK_TCK")
LOCK_WAIT = "still waiting for"
SAMPLE_SECONDS = 0.5


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """Processor time of a process so far; with that of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11 : 15 if with_children else 13]) * TICK


def resident_mib(pid: int) -> float:
    """Memory that a process holds in RAM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kilobytes) / 1024


def postgres_cpu() -> float:
    """Processor time of the PostgreSQL of this run, with its backends, in seconds."""
    server = machines.postgres.process if machines.postgres else None
    if server is None:
        raise RuntimeError("No PostgreSQL runs.")
    total = cpu_seconds(server.pid, with_children=True)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == server.pid:
                total += sum(int(field) for field in fields[11:13]) * TICK
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def table_sizes() -> dict[str, tuple[int, int]]:
    """Bytes of each table's rows, and of its indexes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, pg_table_size(relid), pg_indexes_size(relid) FROM pg_stat_user_tables")
        return {name: (rows, indexes) for name, rows, indexes in cursor.fetchall()}


def index_sizes(table: str) -> dict[str, int]:
    """Bytes of each index of a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes WHERE relname = %s", [table]
        )
        return dict(cursor.fetchall())


def log_lock_waits() -> None:
    """From now on, PostgreSQL writes down every wait for a lock of more than 100 ms."""
    with connection.cursor() as cursor:
        for setting in ("log_lock_waits = on", "deadlock_timeout = '100ms'"):
            cursor.execute(f"ALTER SYSTEM SET {setting}")
        cursor.execute("SELECT pg_reload_conf()")


def logged_lock_waits() -> int:
    """How many it has written down."""
    server = machines.postgres.process if machines.postgres else None
    return server.output.count(LOCK_WAIT) if server else 0


class Watch:
    """Samples memory, processor time and lock waits in a thread, until the end of the block."""

    def __init__(self, processes: Mapping[str, ManagedProcess]) -> None:
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self.memory: dict[str, list[float]] = defaultdict(list)
        self.waiting = 0
        self.samples = 0
        self._cpu: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._cpu = {name: cpu_seconds(process.pid) for name, process in self._processes.items()}
        self._cpu["postgres"] = postgres_cpu()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()
        self._note()
        self._seen["postgres"] = postgres_cpu()
        self.cpu = {name: seconds - self._cpu[name] for name, seconds in self._seen.items()}

    def _note(self) -> None:
        """What each process has used; of one that has ended, what was seen last."""
        for name, process in self._processes.items():
            if process.running:
                self.memory[name].append(resident_mib(process.pid))
                self._seen[name] = cpu_seconds(process.pid)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.samples += 1
            self._note()
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                self.waiting += cursor.fetchone()[0] > 0
        connection.close()
