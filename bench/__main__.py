"""Run the benchmarks: `python -m bench` all of them, `python -m bench mass_expiry` one.

`--quick` runs each with tiny numbers, to see that it works; `--set due=20000` changes one of its sizes.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path

from bench.setup import TITLES, set_up_django
from testing.servers import Redis

BENCHMARKS = ("mass_expiry", "idle_cost", "alert_latency", "sends", "memory")
RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run those asked for; the exit code says whether they ran, not whether they were fast."""
    options = _parser().parse_args(argv)
    with ExitStack() as running:
        on_postgres = "postgres" in (options.database or TITLES)
        set_up_django(redis_url=running.enter_context(Redis()).url() if on_postgres else "")
        for name in options.benchmark or BENCHMARKS:
            _run(name, options)
    return 0


def _run(name: str, options: argparse.Namespace) -> None:
    from bench.report import Report

    module = import_module(f"bench.{name}")
    sizes = module.QUICK if options.quick else module.FULL
    wanted = {key: value for key, value in options.set if key in {size.name for size in fields(sizes)}}
    sizes = replace(sizes, **wanted)
    report = Report(name, sizes=asdict(sizes), quick=options.quick)
    print(f"\n{name}: {module.__doc__.strip()}", flush=True)
    began = time.monotonic()
    module.run(report, sizes, options.database or module.DATABASES)
    path = report.publish(options.results)
    print(f"  {time.monotonic() - began:.0f} s; also in {path}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("benchmark", nargs="*", metavar="BENCHMARK", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="tiny numbers that mean nothing")
    parser.add_argument("--database", choices=sorted(TITLES), action="append", help="only this one (may be repeated)")
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="SIZE=NUMBER", help="change a size")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the JSON files")
    return parser


def _setting(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
