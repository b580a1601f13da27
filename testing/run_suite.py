"""Run the test suite on every database: SQLite, PostgreSQL (with Redis) and MongoDB, each on servers of its own.

Arguments it does not know go to pytest: `python -m testing.run_suite --only postgres -k timers -x`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from testing.processes import BASE_DIR
from testing.servers import Mongo, Postgres, Redis, ServerError

DATABASES = ("sqlite", "postgres", "mongo")
TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL and Redis", "mongo": "MongoDB"}
# pytest's own exit codes, from pytest.ExitCode.
EXITS = {2: "interrupted", 3: "pytest failed inside", 4: "wrong use of pytest", 5: "no test was collected"}
PROBLEMS = {"failures": "failed", "errors": "with errors", "skipped": "skipped or expected to fail"}


@dataclass(frozen=True)
class Outcome:
    """How one database fared."""

    database: str
    passed: bool
    seconds: float
    text: str
    output: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite and return the exit code: 0 only when it passed on every database asked for."""
    parser = argparse.ArgumentParser(prog="python -m testing.run_suite", description=__doc__)
    parser.add_argument("--only", choices=DATABASES, action="append", help="one database (may be repeated)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="pytest-xdist workers; 1 means none")
    parser.add_argument("--parallel", action="store_true", help="all databases at the same time, each without workers")
    options, pytest_args = parser.parse_known_args(argv)
    chosen = [database for database in DATABASES if database in (options.only or DATABASES)]
    workers = 0 if options.parallel or options.workers == 1 else options.workers
    # Everything, also what `pytest` alone leaves out.
    pytest_args = ["-m", "", "-n", str(workers), *pytest_args]

    started = time.monotonic()
    with ThreadPoolExecutor(len(chosen) if options.parallel else 1) as pool:
        runs = [
            # What never touches a database need not run three times.
            pool.submit(run_on, database, pytest_args, quiet=options.parallel, everything=database == chosen[0])
            for database in chosen
        ]
        outcomes = [run.result() for run in runs]
    summarise(outcomes, time.monotonic() - started)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def run_on(database: str, pytest_args: Sequence[str], *, quiet: bool, everything: bool) -> Outcome:
    """Run pytest on one database, with or without the tests that need none; `quiet` keeps its output for the summary."""
    if not quiet:
        print(f"\n{TITLES[database]}\n{'-' * len(TITLES[database])}", flush=True)
    started = time.monotonic()
    # Many made-up cases once; the other databases get enough of them to show that they behave the same.
    profile = f"--hypothesis-profile={'thorough' if everything else 'quick'}"
    with tempfile.TemporaryDirectory(prefix="casualmeet-suite-") as directory:
        report = Path(directory) / "report.xml"
        try:
            with servers_for(database, Path(directory)) as env:
                done = subprocess.run(
                    [sys.executable, "-m", "pytest", f"--junitxml={report}", profile, *pytest_args],
                    check=False,
                    cwd=BASE_DIR,
                    env={**os.environ, **env, "ONLY_DATABASE_TESTS": "" if everything else "1"},
                    stdout=subprocess.PIPE if quiet else None,
                    stderr=subprocess.STDOUT if quiet else None,
                    text=True,
                )
        except ServerError as error:
            return Outcome(database, passed=False, seconds=time.monotonic() - started, text=str(error))
        text = ", ".join(filter(None, [EXITS.get(done.returncode), counts(report)])) or f"exit code {done.returncode}"
    seconds = time.monotonic() - started
    if not quiet:
        print(f"{TITLES[database]}: {seconds:.0f} s", flush=True)
    return Outcome(database, done.returncode == 0, seconds, text, done.stdout or "")


@contextmanager
def servers_for(database: str, directory: Path) -> Iterator[dict[str, str]]:
    """Start what the database needs; the environment that leads to it."""
    with ExitStack() as running:
        if database == "postgres":
            postgres, redis = running.enter_context(Postgres()), running.enter_context(Redis())
            yield {"DATABASE_URL": postgres.url("casualmeet"), "REDIS_URL": redis.url()}
        elif database == "mongo":
            yield {"DATABASE_URL": running.enter_context(Mongo()).url(), "REDIS_URL": "", "MONGO_PER_WORKER": "1"}
        else:
            yield {"DATABASE_URL": f"sqlite:///{directory / 'casualmeet.sqlite3'}", "REDIS_URL": ""}


def counts(report: Path) -> str:
    """What pytest counted, from its JUnit report; empty when it wrote none."""
    if not report.exists():
        return ""
    suite = ET.parse(report).getroot().find("testsuite")
    if suite is None:
        return ""
    number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    passed = number["tests"] - number["failures"] - number["errors"] - number["skipped"]
    parts = [f"{passed} passed"]
    parts += [f"{number[name]} {word}" for name, word in PROBLEMS.items() if number[name]]
    return ", ".join(parts)


def summarise(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Print what happened on each database, with the kept output of the failed ones first."""
    for outcome in outcomes:
        if outcome.output and not outcome.passed:
            print(f"\n{TITLES[outcome.database]}\n{outcome.output}")
    print("\nSummary")
    for outcome in outcomes:
        verdict = "passed" if outcome.passed else "FAILED"
        print(f"  {TITLES[outcome.database]:<22} {verdict}  {outcome.seconds:4.0f} s  {outcome.text}")
    print(f"  {'in all':<22}         {seconds:4.0f} s")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
