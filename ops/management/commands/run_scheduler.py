"""Runs the scheduled jobs."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from casualmeet import clock
from ops import beats, children, jobs, metrics
from ops.jobs import Job
from ops.leases import Leases
from ops.models import JobRun, JobStatus
from ops.scheduler import Scheduler
from ops.worker import run_cycles, stop_on_signals

LISTED = 3


class Command(BaseCommand):
    """manage.py run_scheduler"""

    # Of no use here, and a broken page must not keep jobs from running.
    requires_system_checks = ()
    help = "Run scheduled jobs, each slot once in the whole fleet, until stopped. Start as many as you like."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--once, --list, --run."""
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--once", action="store_true", help="Run what is due, to its end, then exit.")
        what.add_argument("--list", action="store_true", help="Show the jobs and their next slots.")
        what.add_argument("--run", metavar="NAME", help="Run this job now, whenever its next slot is.")

    def handle(self, *, once: bool, list: bool, run: str | None, **_options: Any) -> None:  # noqa: A002 - the option's
        """Run."""
        try:
            declared = jobs.jobs()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        if list:
            self._list(declared)
            return
        if run and run not in {job.name for job in declared}:
            raise CommandError(f"There is no job {run!r}; --list shows those that there are.")
        children.prepare()
        scheduler = Scheduler(declared, Leases(settings.REDIS_URL), launch=children.launch)
        try:
            if run:
                self._run_now(scheduler, run)
            elif once:
                scheduler.tick()
                scheduler.finish()
            else:
                self.stdout.write(f"Scheduling {len(declared)} jobs. Ctrl-C stops.")
                stop = stop_on_signals()
                metrics.serve()
                run_cycles(
                    scheduler.tick, stop=stop, wait=lambda *_: scheduler.wait(stop), beat=beats.Beat(beats.SCHEDULER)
                )
        except KeyboardInterrupt:
            scheduler.stop(0)
        finally:
            scheduler.stop()

    def _run_now(self, scheduler: Scheduler, name: str) -> None:
        run = scheduler.run_now(name)
        if run is None:
            raise CommandError(f"The job {name!r} runs already, on another process.")
        if run.status != JobStatus.DONE:
            again = f" It is tried again at {run.next_try_at:%H:%M:%S} UTC." if run.next_try_at else ""
            raise CommandError(f"The job {name!r} failed.{again}\n{run.error}")
        self.stdout.write(run.summary)

    def _list(self, declared: Sequence[Job]) -> None:
        now = clock.now()
        for job in declared:
            last = JobRun.objects.filter(job=job.name).order_by("-slot").first()
            slots = ", ".join(f"{slot:%Y-%m-%d %H:%M:%S}" for slot in job.coming(LISTED, now=now))
            self.stdout.write(f"{job.name}: {job.cron} ({job.time_zone.key}), {job.declared_at}")
            self.stdout.write(f"  next (UTC): {slots}")
            self.stdout.write(f"  last: {f'{last.slot:%Y-%m-%d %H:%M:%S} {last.status}' if last else 'never'}")
