"""Runs the dispatcher alone: sends what the outbox holds."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from notifications import dispatch
from ops import metrics
from ops.worker import stop_on_signals


class Command(BaseCommand):
    """manage.py run_dispatch_worker"""

    # Of no use here, and a broken page must not keep alerts from going out.
    requires_system_checks = ()
    help = "Send queued deliveries until stopped. SIGTERM and SIGINT finish the calls that are out."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--once, --poll, --concurrency."""
        parser.add_argument("--once", action="store_true", help="Send what is due, then exit.")
        parser.add_argument(
            "--poll", type=float, default=settings.DISPATCH_POLL_SECONDS, help="Seconds between looks at the outbox."
        )
        parser.add_argument(
            "--concurrency", type=int, default=settings.DISPATCH_CONCURRENCY, help="Carrier calls at the same time."
        )

    def handle(self, *, once: bool, poll: float, concurrency: int, **_options: Any) -> None:
        """Run."""
        if once:
            dispatcher = dispatch.Dispatcher(concurrency=concurrency)
            dispatcher.drain()
            dispatcher.close()
            return
        metrics.serve()
        self.stdout.write(f"Dispatching, up to {concurrency} calls at once. Ctrl-C stops.")
        dispatch.run(stop_on_signals(), poll_seconds=poll, concurrency=concurrency)
