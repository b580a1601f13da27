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
from types import ModuleType

from bench.setup import TITLES, set_up_django
from testing.servers import Redis

BENCHMARKS = ("mass_expiry", "idle_cost", "alert_latency", "sends", "engine", "memory")
RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run those asked for; the exit code says whether they ran, not whether they were fast."""
    parser = _parser()
    options = parser.parse_args(argv)
    with ExitStack() as running:
        on_postgres = "postgres" in (options.database or TITLES)
        set_up_django(redis_url=running.enter_context(Redis()).url() if on_postgres else "")
        chosen = [import_module(f"bench.{name}") for name in options.benchmark or BENCHMARKS]
        unknown = dict(options.set).keys() - {size.name for module in chosen for size in fields(module.FULL)}
        if unknown:
            parser.error(f"no such size: {', '.join(unknown)}")
        for module in chosen:
            _run(module, options)
    return 0


def _run(module: ModuleType, options: argparse.Namespace) -> None:
    from bench.report import Report

    sizes = module.QUICK if options.quick else module.FULL
    own = {size.name for size in fields(sizes)}
    sizes = replace(sizes, **{name: number for name, number in options.set if name in own})
    name = module.__name__.rpartition(".")[2]
    report = Report(name, sizes=asdict(sizes), quick=options.quick)
    print(f"\n{name}: {(module.__doc__ or '').strip()}", flush=True)
    began = time.monotonic()
    module.run(report, sizes, options.database or module.DATABASES)
    path = report.publish(options.results)
    print(f"  {time.monotonic() - began:.0f} s; also in {path}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "benchmark", nargs="*", type=_name, metavar="BENCHMARK", help=f"one of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="tiny numbers that mean nothing")
    parser.add_argument("--database", choices=sorted(TITLES), action="append", help="only this one (may be repeated)")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="SIZE=NUMBER", help="change a size"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the JSON files")
    return parser


def _name(text: str) -> str:
    if text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(BENCHMARKS)}")
    return text


def _setting(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
