"""Scheduled jobs of this room."""

from datetime import timedelta

from notifications import auditing
from ops.jobs import Run, job


@job("audit", "*/30 * * * * *", limit=timedelta(minutes=2), retry_after=())
def audit(_run: Run) -> str:
    """The next one comes in half a minute: a failed one is not tried again."""
    return auditing.run().summary
