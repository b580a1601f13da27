"""Fixtures of the tests of the outbox and the dispatcher."""

from collections.abc import Iterator
from typing import Any

import pytest

from casualmeet import clock
from notifications.carriers import routing
from notifications.tests.sending import Hands, configure
from simulator.server import Simulator
from testing.carrier import LocalCarrier


@pytest.fixture
def carrier(settings: Any) -> Iterator[LocalCarrier]:
    """The local carrier, as Twilio and as Fast2SMS."""
    with LocalCarrier() as server:
        configure(settings, server)
        yield server
    routing.reset()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> "Hands":
    """The clock, to be set forward by hand."""
    hands = Hands()
    monkeypatch.setattr(clock, "now", hands.now)
    return hands


@pytest.fixture
def sim(settings: Any) -> Iterator[Simulator]:
    """The carrier simulator in the place of all carriers."""
    with Simulator() as simulator:
        for name, value in simulator.environment().items():
            setattr(settings, name, value)
        settings.CARRIER_SIMULATOR_URL = ""
        routing.reset()
        yield simulator
    routing.reset()
