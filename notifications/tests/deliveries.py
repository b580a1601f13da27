"""Deliveries in the states that tests start from."""

from datetime import datetime
from typing import Any
from uuid import uuid4

from casualmeet import clock
from notifications import outbox
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.texts import AlertFacts, Kind

BRITISH = "+447700900123"
INDIAN = "+919988700001"
SID = "SM" + "0123456789abcdef" * 2


def delivery(to: str = BRITISH, **changes: Any) -> Delivery:
    """An SOS text that is queued."""
    now = clock.now()
    facts = AlertFacts(kind=Kind.SOS, person_name="Asha Rao", reference="K7Q", happened_at=now, opened_at=now)
    addressee = outbox.Addressee(uuid4(), "Ravi Iyer", to, "en", "https://safety.example.org/i/abc")
    row = outbox.text_to(addressee, key=str(uuid4()), kind="sos", facts=facts.to_json(), now=now, priority=Priority.SOS)
    for name, value in changes.items():
        setattr(row, name, value)
    row.save(force_insert=True)
    return row


def attempt(
    row: Delivery, *, carrier: str = "twilio", outcome: str = "accepted", number: int = 1, **changes: Any
) -> DeliveryAttempt:
    """A call to a carrier that ended like this, or is open."""
    now: datetime = changes.pop("started_at", None) or clock.now()
    given = {
        "carrier_message_id": SID if outcome == "accepted" else "",
        "finished_at": None if outcome == AttemptOutcome.OPEN else now,
        **changes,
    }
    return DeliveryAttempt.objects.create(
        delivery=row, carrier=carrier, outcome=outcome, number=number, started_at=now, text="…", **given
    )


def accepted(to: str = BRITISH, *, carrier: str = "twilio", **changes: Any) -> DeliveryAttempt:
    """The attempt through which a delivery was accepted just now."""
    now = clock.now()
    row = delivery(to, status=DeliveryStatus.ACCEPTED, carrier=carrier, finished_at=now)
    return attempt(row, carrier=carrier, started_at=now, **changes)


def seen(row: Delivery | DeliveryAttempt) -> Any:
    """The row as the database has it now."""
    return type(row).objects.get(pk=row.pk)
