"""What the tests of the outbox and the dispatcher share: deliveries, carriers, a clock to be set forward by hand."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from casualmeet import clock
from notifications import outbox
from notifications.carriers import routing
from notifications.carriers.base import Answer, OutgoingMessage
from notifications.dispatch import Dispatcher
from notifications.models import Delivery, Priority
from notifications.texts import AlertFacts, Kind
from testing.carrier import LocalCarrier

BRITISH = "+447700900123"
INDIAN = "+919988700001"
THREADS = ThreadPoolExecutor(40)


class Hands:
    """A clock that goes only when told to."""

    def __init__(self) -> None:
        self.time = clock.now()

    def now(self) -> datetime:
        return self.time

    def forward(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class StubCarrier:
    """A carrier that answers what `on_send` returns."""

    name = "twilio"
    simulated = False
    templated = False

    def __init__(self, on_send: Callable[[OutgoingMessage], Answer]) -> None:
        self.on_send = on_send

    async def send(self, message: OutgoingMessage) -> Answer:
        # In a thread, since what the tests do there may wait.
        return await asyncio.get_running_loop().run_in_executor(THREADS, self.on_send, message)

    async def close(self) -> None:
        pass


def alone(call: Coroutine[Any, Any, Any]) -> Any:
    """What the call returns, in an event loop that leaves no connections to carriers behind."""

    async def closing() -> Any:
        try:
            return await call
        finally:
            await routing.close()

    return asyncio.run(closing())


def configure(settings: Any, server: LocalCarrier, **which: bool) -> None:
    for name, value in server.environment(**which).items():
        setattr(settings, name, value)
    routing.reset()


def use(monkeypatch: pytest.MonkeyPatch, *stand_ins: Any) -> None:
    """Make these the configured carriers."""
    monkeypatch.setattr(routing, "_carriers", {one.name: one for one in stand_ins})


def make(to: str = BRITISH, **changes: Any) -> Delivery:
    """A queued delivery."""
    row = unsaved(to, **changes)
    outbox.queue([row])
    return row


def unsaved(to: str, *, key: str = "", kind: Kind = Kind.SOS, **changes: Any) -> Delivery:
    now = clock.now()
    facts = AlertFacts(kind=kind, person_name="Asha Rao", reference="K7Q", happened_at=now, opened_at=now)
    addressee = outbox.Addressee(uuid4(), "Ravi Iyer", to, "en", "https://safety.example.org/i/abc")
    given = {"kind": kind.value, "facts": facts.to_json(), "priority": Priority.SOS, **changes}
    return outbox.text_to(addressee, key=key or str(uuid4()), now=now, **given)


def drain() -> None:
    """Everything that is due now, to the end."""
    dispatcher = Dispatcher(concurrency=8)
    dispatcher.drain()
    dispatcher.close()


def seen(delivery: Delivery) -> Delivery:
    return Delivery.objects.get(pk=delivery.pk)


def outcomes(delivery: Delivery) -> list[tuple[str, str]]:
    return list(delivery.attempts.order_by("started_at", "number").values_list("carrier", "outcome"))
