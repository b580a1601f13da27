"""The scheduled jobs of this room."""

from zoneinfo import ZoneInfo

from django.conf import settings

from casualmeet import clock
from ops.jobs import Run, job
from sos import digest


@job("digest", settings.DIGEST_CRON, time_zone=settings.DIGEST_TIME_ZONE)
def daily_digest(run: Run) -> str:
    """How yesterday's alarms went, for the supervisors."""
    count = digest.send(run, where=ZoneInfo(settings.DIGEST_TIME_ZONE), now=clock.now())
    return f"sent to {count} supervisors"
