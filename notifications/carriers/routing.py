"""Which carriers there are, and which of them a number goes to."""

import threading
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed

from notifications.carriers import fcm, twilio_voice, webpush
from notifications.carriers.base import Carrier
from notifications.carriers.fast2sms import Fast2SMSCarrier
from notifications.carriers.simulated import SimulatedCarrier
from notifications.carriers.twilio import TwilioCarrier

_INDIA: Final = "+91"
_ORDER_INDIA: Final[tuple[str, ...]] = ("fast2sms", "twilio")
_ORDER_ELSEWHERE: Final[tuple[str, ...]] = ("twilio",)

_TEXTS: Final = {*_ORDER_INDIA, *_ORDER_ELSEWHERE}

_lock: Final = threading.Lock()
_carriers: dict[str, Carrier] | None = None


def configured() -> dict[str, Carrier]:
    """The carriers of this installation by name, built once per process.

    The simulated carrier stands in only where no credential of a real one is set. With a half
    set of credentials there is none at all: simulating would swallow real alerts.
    """
    global _carriers
    with _lock:
        if _carriers is None:
            _carriers = {carrier.name: carrier for carrier in _build()}
            for carrier in _carriers.values():
                carrier.simulated |= bool(settings.CARRIER_SIMULATOR_URL)
        return _carriers


def get(name: str) -> Carrier | None:
    """The configured carrier of this name, None if there is none (any more)."""
    return configured().get(name)


def route(to: str, *, channel: str = "sms") -> tuple[str, ...]:
    """Names of the carriers for the address `to`, first choice first; empty if none fits.

    A text's or a call's address is an E.164 number, a push's the service that its subscription is of.
    """
    carriers = configured()
    if channel == "push":
        order: tuple[str, ...] = (to,)
    elif channel == "voice":
        order = ("twilio-voice",)
    else:
        order = _ORDER_INDIA if to.startswith(_INDIA) else _ORDER_ELSEWHERE
    fitting = tuple(name for name in order if name in carriers)
    return fitting or (("simulated",) if "simulated" in carriers else ())


def real_carrier_configured() -> bool:
    """Whether texts can leave this installation."""
    return any(not carrier.simulated for name, carrier in configured().items() if name in _TEXTS)


def problems() -> tuple[str, ...]:
    """What is missing from a half set of credentials, each as a sentence for the operator."""
    found = []
    sender = settings.TWILIO_FROM or settings.TWILIO_MESSAGING_SERVICE_SID
    twilio = {
        "TWILIO_ACCOUNT_SID": settings.TWILIO_ACCOUNT_SID,
        "TWILIO_AUTH_TOKEN": settings.TWILIO_AUTH_TOKEN,
        "TWILIO_FROM or TWILIO_MESSAGING_SERVICE_SID": sender,
    }
    if any(twilio.values()):
        found += [f"Twilio is not used: {name} is not set." for name in twilio if not twilio[name]]
    if settings.FAST2SMS_SENDER_ID and not settings.FAST2SMS_API_KEY:
        found.append("Fast2SMS is not used: FAST2SMS_API_KEY is not set.")
    return tuple(found)


def push_problems() -> tuple[str, ...]:
    """The same for pushes, which no text waits for."""
    return tuple(problem for problem in (fcm.problem(), webpush.problem()) if problem)


async def close() -> None:
    """Close the connections that the running event loop has to the carriers."""
    for carrier in configured().values():
        await carrier.close()


def reset() -> None:
    """Forget the carriers, so that the next use builds them from the settings of then."""
    global _carriers
    with _lock:
        _carriers = None


def _build() -> Iterator[Carrier]:
    sender = settings.TWILIO_FROM or settings.TWILIO_MESSAGING_SERVICE_SID
    twilio = bool(settings.TWILIO_ACCOUNT_SID and settings.TWILIO_AUTH_TOKEN and sender)
    if settings.FAST2SMS_API_KEY:
        yield Fast2SMSCarrier(
            settings.FAST2SMS_API_KEY,
            route=settings.FAST2SMS_ROUTE,
            sender_id=settings.FAST2SMS_SENDER_ID,
            templates=settings.FAST2SMS_TEMPLATES,
            base_url=settings.FAST2SMS_API_BASE_URL,
        )
    if twilio:
        yield TwilioCarrier(
            settings.TWILIO_ACCOUNT_SID,
            settings.TWILIO_AUTH_TOKEN,
            sender=settings.TWILIO_FROM,
            messaging_service_sid=settings.TWILIO_MESSAGING_SERVICE_SID,
            base_url=settings.TWILIO_API_BASE_URL,
        )
    if not twilio and not settings.FAST2SMS_API_KEY and not problems():
        yield SimulatedCarrier()
    beside: tuple[Carrier | None, ...] = (twilio_voice.configured(), fcm.configured(), webpush.configured())
    yield from (carrier for carrier in beside if carrier is not None)


def _on_setting_changed(*, setting: str, **_: Any) -> None:
    if setting.startswith(("TWILIO_", "FAST2SMS_", "FCM_", "VAPID_", "CARRIER_")):
        reset()


setting_changed.connect(_on_setting_changed)
