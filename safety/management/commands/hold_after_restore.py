"""Leaves to the moderators what a database from a backup would otherwise send at once."""

from typing import Any

from django.core.management.base import BaseCommand

from casualmeet import clock
from safety import restored


class Command(BaseCommand):
    """manage.py hold_after_restore"""

    requires_system_checks = ()
    help = "After a restore from a backup, before anything else is started: moderators decide what is sent."

    def handle(self, **_options: Any) -> None:
        """Run."""
        held = restored.hold(clock.now())
        self.stdout.write(
            f"Left to the moderators: {held.timers} overdue timers, {held.incidents} open incidents, "
            f"{held.deliveries} messages."
        )
