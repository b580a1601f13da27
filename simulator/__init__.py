"""A carrier simulator: Twilio, Fast2SMS, FCM and Web Push in one local HTTP server, with their faults on demand.

In a test:

    with Simulator(site=live_server.url) as sim:
        sim.on(to=RAVI).reply(status=503, times=2).then(accept).then(undelivered(30003))
        ...  # point the settings at it with sim.environment()
        sim.assert_exactly(RAVI, ["Are you coming?"])
        sim.assert_nothing_unexpected()

As a process: `manage.py run_carrier_simulator`, which also shows the phones on pages.
"""

from simulator.rules import (
    Callbacks,
    Step,
    accept,
    answered,
    busy,
    call_failed,
    failed,
    hang,
    html,
    no_answer,
    refuse,
    reset,
    sent_only,
    slow,
    truncated,
    undelivered,
)
from simulator.server import Simulator

__all__ = [
    "Callbacks",
    "Simulator",
    "Step",
    "accept",
    "answered",
    "busy",
    "call_failed",
    "failed",
    "hang",
    "html",
    "no_answer",
    "refuse",
    "reset",
    "sent_only",
    "slow",
    "truncated",
    "undelivered",
]
