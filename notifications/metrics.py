"""What the outbox tells Prometheus: what waits, what was given up, how the carriers stand."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from prometheus_client.metrics_core import Metric

from notifications.models import CarrierHealth, Delivery, DeliveryStatus, Priority
from ops.metrics import gauges, reading

# Enough to say that it is far too many; counting on would cost the more, the worse things are.
MOST: Final = 10_000
MOST_DEAD: Final = 1_000
RECENTLY: Final = timedelta(hours=1)


@reading("outbox")
def outbox(now: datetime) -> Iterable[Metric]:
    """What is due and not taken by a dispatcher yet."""
    queued = Delivery.objects.filter(status=DeliveryStatus.QUEUED, next_attempt_at__lte=now)
    depth: dict[str, float] = {}
    age: dict[str, float] = {}
    for priority in Priority:
        due = queued.filter(priority=priority).order_by("next_attempt_at")
        name = priority.name.lower()
        depth[name] = due.values("pk")[:MOST].count()
        oldest = due.values_list("next_attempt_at", flat=True).first() if depth[name] else None
        age[name] = (now - oldest).total_seconds() if oldest else 0.0
    yield gauges("outbox_depth", "Messages that are due and wait for a dispatcher, up to 10,000.", "priority", depth)
    yield gauges("outbox_oldest_seconds", "How long the one due longest has waited.", "priority", age)


@reading("dead_letters")
def dead_letters(now: datetime) -> Iterable[Metric]:
    """What no carrier would take, lately."""
    dead = Delivery.objects.filter(status=DeliveryStatus.DEAD, finished_at__gt=now - RECENTLY)
    counts = dict.fromkeys((priority.name.lower() for priority in Priority), 0.0)
    priorities = dead.order_by("-finished_at").values_list("priority", flat=True)[:MOST_DEAD]
    for priority, number in Counter(priorities).items():
        counts[Priority(priority).name.lower()] = number
    text = "Dead letters of the last hour that were neither retried nor discarded, up to 1,000."
    yield gauges("dead_letters", text, "priority", counts)


@reading("carriers")
def carriers(now: datetime) -> Iterable[Metric]:
    """Circuits and balances. A carrier that never failed and has no balance has no row, and so no value."""
    rows = list(CarrierHealth.objects.values_list("name", "open_until", "balance")[:100])
    opened = {name: float(bool(until and until > now)) for name, until, _ in rows}
    balances = {name: balance for name, _, balance in rows if balance is not None}
    yield gauges("carrier_circuit_open", "1: the carrier fails and is passed over.", "carrier", opened)
    yield gauges("carrier_balance_rupees", "What is left in the wallet.", "carrier", balances)
