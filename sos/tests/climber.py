"""A process of the ladder's tests: looks for due rounds again and again until it is killed.

`python -m sos.tests.climber`
"""

import sys
import time

import django

PAUSE_SECONDS = 0.05


def main() -> None:
    """Climb."""
    django.setup()
    from casualmeet import clock
    from sos import escalation

    clock.now()
    sys.stdout.write("climbing\n")
    sys.stdout.flush()
    while True:
        escalation.advance_due(clock.now())
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
