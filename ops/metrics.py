"""What is counted and measured, for Prometheus (docs/operators.md, "Metrics").

Instruments belong to this process and start at zero with it. What the database knows is read when somebody asks, by
readings that each app declares in its `metrics.py`. No label says who, where or at which number, and each has few
values: whatever comes from outside is mapped to known words first.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from django.conf import settings
from django.db import close_old_connections, connection, transaction
from django.utils.module_loading import autodiscover_modules
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from casualmeet import clock

logger = logging.getLogger(__name__)

PREFIX: Final = "casualmeet_"

# When each series began: as many again, and nobody asks.
disable_created_metrics()  # type: ignore[no-untyped-call]

CYCLE_SECONDS: Final = Histogram(
    f"{PREFIX}cycle_seconds",
    "How long a worker's cycles take.",
    ["role"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
CYCLE_FAILURES: Final = Counter(f"{PREFIX}cycle_failures", "Cycles that raised and were tried again.", ["role"])
EXPIRATIONS: Final = Counter(f"{PREFIX}expirations", "Timers that ran out, by what became of them.", ["result"])
LATENESS_SECONDS: Final = Histogram(
    f"{PREFIX}expiration_lateness_seconds",
    "From a timer's escalation time to its expiration.",
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 10800),
)
FIRST_ACCEPT_SECONDS: Final = Histogram(
    f"{PREFIX}time_to_first_accept_seconds",
    "From the opening of an incident to the first of its messages that a carrier accepted; each incident once.",
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800),
)
ATTEMPTS: Final = Counter(
    f"{PREFIX}attempts",
    "Calls to carriers. `code` is a known error code, or other, or none.",
    ["carrier", "outcome", "code"],
)
LEASE_EXPIRIES: Final = Counter(f"{PREFIX}lease_expiries", "Deliveries taken over because their dispatcher was gone.")
CALLBACKS: Final = Counter(
    f"{PREFIX}callbacks", "What carriers and phones told us, by what we made of it.", ["kind", "result"]
)
SOCKETS_OPEN: Final = Gauge(f"{PREFIX}sockets_open", "Live sockets that are open.", ["kind"])
JOB_RUNS: Final = Counter(f"{PREFIX}job_runs", "Tries of scheduled jobs, by how they ended.", ["job_name", "status"])
JOB_SECONDS: Final = Histogram(
    f"{PREFIX}job_seconds",
    "How long tries of scheduled jobs take.",
    ["job_name"],
    buckets=(0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 600, 1800),
)


@contextmanager
def cycle(role: str) -> Iterator[None]:
    """One cycle of a worker: how long it took, and whether it failed."""
    with CYCLE_FAILURES.labels(role).count_exceptions(), CYCLE_SECONDS.labels(role).time():
        yield


def callback(kind: str, result: str) -> None:
    """A carrier or a phone called us. `kind` is the address's name in urls.py."""
    CALLBACKS.labels(kind, result).inc()


def job_ran(job: str, status: str, seconds: float) -> None:
    """A try of a scheduled job ended, as JobStatus says, after so long.

    The label is not called `job`: Prometheus calls by that name what it scrapes.
    """
    JOB_RUNS.labels(job, status).inc()
    JOB_SECONDS.labels(job).observe(seconds)


# What the database knows

KEEP_SECONDS: Final = 5.0
"""How long an answer of the database is given again, so that any number of askers costs no more than one."""
BUDGET_SECONDS: Final = 4.0
"""For all readings of one scrape together, after which no query is begun: Prometheus gives up after ten."""
STATEMENT_MS: Final = 3000
"""For one query, where the database can be told so (PostgreSQL)."""

Read = Callable[[datetime], Iterable[Metric]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A few cheap queries, and what to tell of them. They succeed or fail together."""

    name: str
    read: Read
    keep_seconds: float


_readings: dict[str, Reading] = {}


def reading(name: str, *, keep_seconds: float = KEEP_SECONDS) -> Callable[[Read], Read]:
    """Declare the function, which is given the time, as a reading. Its queries must be bounded, and use an index."""

    def declare(read: Read) -> Read:
        _readings[name] = Reading(name, read, keep_seconds)
        return read

    return declare


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """One value."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """A value for each value of the label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


@cache
def _discover() -> None:
    autodiscover_modules("metrics", "readings")


class FromDatabase(Collector):
    """Takes the readings. One that fails is left out and named by `scrape_errors`: the others are still told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[Metric]]] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What the readings tell, and which of them failed."""
        _discover()
        with self._lock:
            errors: dict[str, float] = {}
            told: list[Metric] = []
            give_up_at = time.monotonic() + BUDGET_SECONDS
            for name, each in sorted(_readings.items()):
                metrics = self._take(each, give_up_at=give_up_at)
                errors[name] = float(metrics is None)
                told += metrics or []
        return [*told, gauges("scrape_errors", "1: this reading of the database failed.", "reading", errors)]

    def forget(self) -> None:
        """Ask the database again at the next scrape."""
        self._kept.clear()

    def _take(self, each: Reading, *, give_up_at: float) -> list[Metric] | None:
        now = time.monotonic()
        at, metrics = self._kept.get(each.name, (0.0, []))
        if metrics and now - at < each.keep_seconds:
            return metrics
        try:
            _check_time(give_up_at)
            at_database = clock.now()
            with _bounded(give_up_at):
                metrics = list(each.read(at_database))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other metrics are told
            self._kept.pop(each.name, None)
            logger.warning("The reading %r failed: %s: %s", each.name, type(error).__name__, error)
            return None
        self._kept[each.name] = (now, metrics)
        return metrics


def _check_time(give_up_at: float) -> None:
    if time.monotonic() > give_up_at:
        raise TimeoutError("The readings have taken too long.")


@contextmanager
def _bounded(give_up_at: float) -> Iterator[None]:
    """Within, a slow database costs the scrape, but not the answer to it."""

    def guard(execute: Callable[..., Any], *args: Any) -> Any:
        _check_time(give_up_at)
        return execute(*args)

    with ExitStack() as bounds:
        if connection.vendor == "postgresql":
            # Only as long as the transaction: the connection may be one of a pool.
            bounds.enter_context(transaction.atomic())
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(STATEMENT_MS)])
        bounds.enter_context(connection.execute_wrapper(guard))
        yield


from_database: Final = FromDatabase()
REGISTRY.register(from_database)


class _InOneThread(Collector):
    """The registry, asked in one thread: the server has a new one for each scrape, and each would open a connection."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")

    def collect(self) -> Iterable[Metric]:
        """All that the registry holds."""
        return self._thread.submit(_collect).result()


def _collect() -> list[Metric]:
    close_old_connections()
    try:
        return list(REGISTRY.collect())
    finally:
        close_old_connections()


def serve() -> None:
    """Serve a worker's metrics at METRICS_PORT, if it is set, in a thread that ends with the process.

    Where the port can't be had there is a warning and no more: alerts matter more than metrics.
    """
    port, address = settings.METRICS_PORT, settings.METRICS_BIND
    if not port:
        return
    try:
        start_http_server(port, addr=address, registry=_InOneThread())
    except OSError as error:
        logger.warning(
            "No metrics from this worker: METRICS_PORT %d on %s can't be used (%s). It works on without.",
            port,
            address,
            error.strerror or error,
        )
