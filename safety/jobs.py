"""The scheduled jobs of this room."""

from datetime import timedelta

from casualmeet import clock
from ops.jobs import Run, job
from safety import purging, reconfirming


@job("purge-positions", "7 * * * *", limit=timedelta(minutes=50))
def purge_positions(run: Run) -> str:
    """Positions of timers that ended well a day ago."""
    return str(purging.purge_positions(run, now=clock.now()))


@job("purge-incidents", "17 3 * * *", limit=timedelta(hours=6))
def purge_incidents(run: Run) -> str:
    """What is over of incidents, then timers, then receipts."""
    incidents = purging.purge_incidents(run, now=clock.now())
    timers = purging.purge_timers(run, now=clock.now())
    receipts = purging.purge_receipts(run, now=clock.now())
    return f"incidents: {incidents}; timers: {timers}; {receipts} old receipts deleted"


@job("reconfirm", "23 * * * *")
def reconfirm(run: Run) -> str:
    """Ask contacts whether they still will."""
    return str(reconfirming.ask_due(run, now=clock.now()))
