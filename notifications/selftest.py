"""The self-test of the carriers: a real text through each of them to our own number, and a look whether it arrived."""

from datetime import datetime, timedelta
from typing import Final
from uuid import uuid5
from zoneinfo import ZoneInfo

from cronsim import CronSim
from django.conf import settings

from notifications import inbox, outbox, wake
from notifications.carriers import routing
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.texts import AlertFacts, Kind, moments

PATIENCE: Final = timedelta(minutes=10)
OURSELVES: Final = uuid5(outbox.NAMESPACE, "self-test")
UTC: Final = ZoneInfo("UTC")


def send(slot: datetime, *, now: datetime) -> list[str]:
    """Queue a text through each real carrier that serves our own number; returns their names. Twice is the same as once.

    A simulated carrier is not tested, nor one that does not serve the country of SELFTEST_PHONE.
    """
    names = _carriers()
    outbox.queue([_text(name, slot, now=now) for name in names])
    wake.dispatcher()
    return names


def check(now: datetime) -> list[str]:
    """Tell the moderators of each text of the latest self-test that has not arrived ten minutes after it was queued.

    Returns the carriers that failed. However often it looks, the moderators are told once of each text.
    """
    if not settings.SELFTEST_PHONE:
        return []
    slot = next(CronSim(settings.SELFTEST_CRON, (now - PATIENCE).astimezone(UTC), reverse=True))
    keys = [outbox.text_id(_key(name, slot), OURSELVES) for name in _carriers()]
    late = Delivery.objects.filter(pk__in=keys, delivered_at__isnull=True, created_at__lte=now - PATIENCE)
    failed = list(late.exclude(status=DeliveryStatus.DELIVERED).order_by("carrier"))
    for delivery in failed:
        inbox.alarm_moderators(
            key=f"selftest:{delivery.pk}",
            title=f"The self-test of the carrier {delivery.carrier} failed",
            body=f"The text of {slot:%H:%M} UTC to our own number has not arrived. {_why(delivery)}",
        )
    return [delivery.carrier for delivery in failed]


def _carriers() -> list[str]:
    """The real ones that a text to our own number could go by."""
    if not settings.SELFTEST_PHONE:
        return []
    found = routing.configured()
    return [name for name in routing.route(settings.SELFTEST_PHONE) if not found[name].simulated]


def _text(name: str, slot: datetime, *, now: datetime) -> Delivery:
    when = f"{moments.day(slot, UTC)} {moments.clock_zone(slot, UTC)}"
    said = f"CasualMeet: {name} works, {when}. Test, nothing to do."
    facts = AlertFacts(kind=Kind.SELF_TEST, person_name="", happened_at=slot, said=said)
    delivery = outbox.text_to(
        outbox.Addressee(OURSELVES, "Self-test", settings.SELFTEST_PHONE, "en"),
        key=_key(name, slot),
        kind=Kind.SELF_TEST,
        facts=facts.to_json(),
        now=now,
        priority=Priority.NORMAL,
    )
    delivery.carrier, delivery.pinned = name, True
    return delivery


def _key(name: str, slot: datetime) -> str:
    return f"self-test:{name}:{round(slot.timestamp())}"


def _why(delivery: Delivery) -> str:
    """What is known of it, for the operator; no number."""
    attempt = DeliveryAttempt.objects.filter(delivery=delivery).order_by("-started_at", "-number").first()
    if attempt is None:
        return "It was not even tried: does a dispatcher run, or is the carrier passed over?"
    facts = [attempt.get_outcome_display(), attempt.error_class, attempt.error_code, attempt.receipt]
    return f"Latest: {', '.join(fact for fact in [*facts, attempt.receipt_code] if fact)}."
