"""Runs the carrier simulator: everything the site sends appears on simulated phones, on pages of its own."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ops.worker import stop_on_signals
from simulator import Simulator


class Command(BaseCommand):
    """manage.py run_carrier_simulator"""

    requires_system_checks = ()
    help = "Serve simulated carriers until stopped. CARRIER_SIMULATOR_URL points the site at them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--port, --bind, --site, --pace."""
        parser.add_argument("--port", type=int, default=8001, help="Where to listen.")
        parser.add_argument("--bind", default="127.0.0.1", help="The address to listen on.")
        parser.add_argument(
            "--site", default=settings.PUBLIC_BASE_URL, help="Where callbacks and people's texts go, if not to its URL."
        )
        parser.add_argument("--pace", type=float, default=1.0, help="Seconds from one state of a message to the next.")

    def handle(self, *, port: int, bind: str, site: str, pace: float, **_options: Any) -> None:
        """Run."""
        stop = stop_on_signals()
        if not settings.DEBUG:
            # A process that ends would take the others of Procfile.dev with it.
            self.stdout.write("Simulated carriers are for DEBUG=on: there are none.")
            stop.wait()
            return
        simulator = Simulator(site, public_url=settings.PUBLIC_BASE_URL, host=bind, port=port, pace=pace)
        try:
            simulator.start()
        except OSError as error:
            raise CommandError(f"Port {port} can't be used: {error.strerror}") from error
        self.stdout.write(f"Simulated phones: http://localhost:{port}/")
        stop.wait()
        simulator.stop()
