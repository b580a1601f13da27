"""How workers are stopped."""

import signal
from collections.abc import Iterator

import pytest

from ops.worker import stop_on_signals


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_amid_the_setting_of_the_event_is_heard(number: signal.Signals) -> None:
    """As where the second of two comes at once, or one comes just as the main thread begins to wait."""
    stop = stop_on_signals()
    with stop._cond:  # type: ignore[attr-defined]
        signal.raise_signal(number)
        assert not stop.is_set()
    assert stop.wait(10)


def test_the_second_signal_changes_nothing() -> None:
    stop = stop_on_signals()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert stop.wait(10)
