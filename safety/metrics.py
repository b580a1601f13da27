"""What the meeting timers tell Prometheus."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from django.db import connection
from django.db.models import Count
from prometheus_client.metrics_core import Metric

from ops.metrics import gauge, reading
from safety.models import MeetingTimer

MOST_OVERDUE: Final = 1_000
# Counting a million live timers takes a moment (docs/operators.md, "Metrics"); their number changes slowly.
KEEP_SECONDS: Final = 60.0


@reading("timers", keep_seconds=KEEP_SECONDS)
def live_timers(_now: datetime) -> Iterable[Metric]:
    """How many people are out there."""
    live = MeetingTimer.objects.live().order_by()
    # Not asked for the key, SQLite reads an index that holds the timers of the past too.
    number = live.aggregate(number=Count("pk"))["number"] if connection.vendor == "sqlite" else live.count()
    yield gauge("timers_live", "Timers that are running.", number)


@reading("overdue")
def overdue_timers(now: datetime) -> Iterable[Metric]:
    """What the expiry workers have not got to yet: nothing is ever worse than this number."""
    due = MeetingTimer.objects.due(now).order_by("escalates_at")
    times = list(due.values_list("escalates_at", flat=True)[:MOST_OVERDUE])
    yield gauge("timers_overdue", "Timers past their escalation time and not expired, up to 1,000.", len(times))
    age = (now - times[0]).total_seconds() if times else 0.0
    yield gauge("timers_overdue_oldest_seconds", "How long the first of them is overdue.", age)
