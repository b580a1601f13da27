"""Run the benchmarks: `python -m bench` all of them, `python -m bench mass_expiry` one.

`--quick` runs each with tiny numbers, to see that it works; `--set due=20000`, or `--due 20000`, changes one of its sizes.
`chaos` and `scale` take their time and run only when they are named.
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

from bench.setup import TITLES, machines, set_up_django
from testing.servers import Mongo, Redis

BENCHMARKS = ("mass_expiry", "idle_cost", "alert_latency", "sends", "engine", "memory")
ON_DEMAND = ("chaos", "scale")
RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run those asked for; 1 when one of them found a promise broken. How fast they were does not matter."""
    options = _options(argv)
    with ExitStack() as running:
        if set(options.database or TITLES) & {"postgres", "mongo"}:
            machines.redis = running.enter_context(Redis())
        if options.database == ["mongo"]:
            machines.mongo = running.enter_context(Mongo(durable=True))
        set_up_django()
        chosen = [import_module(f"bench.{name}") for name in options.benchmark or BENCHMARKS]
        _check(options, chosen)
        broken = [_run(module, options) for module in chosen]
        return int(any(broken))


def _check(options: argparse.Namespace, chosen: Sequence[ModuleType]) -> None:
    unknown = dict(options.set).keys() - {size.name for module in chosen for size in fields(module.FULL)}
    if unknown:
        _parser().error(f"no such size: {', '.join(unknown)}")
    for module in chosen:
        if "mongo" in (options.database or ()) and not getattr(module, "RUNS_ON_MONGO", False):
            _parser().error(f"{module.__name__} does not run on MongoDB")


def _run(module: ModuleType, options: argparse.Namespace) -> bool:
    """Run one; True when it found a promise broken."""
    from bench.report import Report

    sizes = module.QUICK if options.quick else module.FULL
    own = {size.name for size in fields(sizes)}
    sizes = replace(sizes, **{name: number for name, number in options.set if name in own})
    name = module.__name__.rpartition(".")[2]
    report = Report(name, sizes=asdict(sizes), quick=options.quick)
    print(f"\n{name}: {(module.__doc__ or '').strip()}", flush=True)
    began = time.monotonic()
    try:
        module.run(report, sizes, options.database or module.DATABASES)
    finally:
        # Also where a later part failed: an hour may have gone into this one.
        path = report.publish(options.results)
    print(f"  {time.monotonic() - began:.0f} s; also in {path}", flush=True)
    return bool(report.broken)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; those that the parser doesn't know are sizes."""
    parser = _parser()
    options, more = parser.parse_known_args(argv)
    for name, number in zip(more[::2], [*more[1::2], ""], strict=False):
        if not (name.startswith("--") and number.isdecimal()):
            parser.error(f"{name} {number}".strip() + " is no size with its number")
        options.set.append((name[2:].replace("-", "_"), int(number)))
    if len(options.database or ()) > 1 and "mongo" in options.database:
        parser.error("mongo needs a run of its own")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = f"one of {', '.join(BENCHMARKS)}, which all run by default, or {' or '.join(ON_DEMAND)}"
    parser.add_argument("benchmark", nargs="*", type=_name, metavar="BENCHMARK", help=names)
    parser.add_argument("--quick", action="store_true", help="tiny numbers that mean nothing")
    parser.add_argument("--database", choices=sorted(TITLES), action="append", help="only this one (may be repeated)")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="SIZE=NUMBER", help="change a size"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the JSON files")
    return parser


def _name(text: str) -> str:
    if text not in BENCHMARKS + ON_DEMAND:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(BENCHMARKS + ON_DEMAND)}")
    return text


def _setting(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
