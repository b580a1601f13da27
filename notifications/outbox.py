"""The outbox: what is to be sent, written in the transaction of what caused it, and taken back when it no longer applies.

A delivery's key follows from what it is for, so that queueing it twice is the same as once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from django.db.models import Case, Count, F, Max, Q, QuerySet, Value, When

from casualmeet import bulk
from casualmeet.db import has_transactions, insert_missing
from notifications import live, wake
from notifications.models import AttemptOutcome, Channel, Delivery, DeliveryAttempt, DeliveryStatus, Priority

NAMESPACE = UUID("6f4d1d5c-0f5e-4b7c-9b0e-3c1c2a7d9e10")

PENDING = [DeliveryStatus.HELD, DeliveryStatus.QUEUED]
TAKEN = [DeliveryStatus.ACCEPTED, DeliveryStatus.DELIVERED]


@dataclass(frozen=True, slots=True)
class Addressee:
    """Where a text goes, and in which language."""

    id: UUID
    name: str
    phone: str
    language: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class DispatchSummary:
    """What became of an incident's alerts: accepted by a carrier, which is not yet delivered (P13)."""

    contacts_notified: int = 0
    contacts_delivered: int = 0
    sms_sent: int = 0
    dead_letters: int = 0
    last_dispatch_at: datetime | None = None


def text_to(
    addressee: Addressee,
    *,
    key: str,
    kind: str,
    facts: dict[str, Any],
    now: datetime,
    priority: Priority,
    incident_id: UUID | None = None,
    person_id: UUID | None = None,
    wave: int = 1,
    follows_id: UUID | None = None,
    send_before: datetime | None = None,
) -> Delivery:
    """An unsaved text message; `key` and the addressee decide its identity."""
    return message_to(
        addressee,
        channel=Channel.SMS,
        address=addressee.phone,
        key=key,
        kind=kind,
        facts=facts,
        now=now,
        priority=priority,
        incident_id=incident_id,
        person_id=person_id,
        wave=wave,
        follows_id=follows_id,
        send_before=send_before,
    )


def message_to(
    addressee: Addressee,
    *,
    channel: Channel,
    address: str,
    key: str,
    kind: str,
    facts: dict[str, Any],
    now: datetime,
    priority: Priority,
    incident_id: UUID | None = None,
    person_id: UUID | None = None,
    wave: int = 1,
    repeat: int = 0,
    follows_id: UUID | None = None,
    send_before: datetime | None = None,
) -> Delivery:
    """An unsaved message on any channel; `repeat` counts those about the same thing that may have arrived before.

    Its identity follows from `key`, the wave, and the addressee, or for a push the subscription: one may have many.
    """
    target = address if channel == Channel.PUSH else addressee.id
    return Delivery(
        id=message_id(key, target, channel=channel, wave=wave),
        kind=kind,
        channel=channel.value,
        priority=priority,
        address=address,
        recipient_id=addressee.id,
        recipient_name=addressee.name,
        language=addressee.language,
        link=addressee.link,
        facts=facts,
        incident_id=incident_id,
        person_id=person_id,
        follows_id=follows_id,
        wave=wave,
        repeat=repeat,
        created_at=now,
        next_attempt_at=now,
        send_before=send_before,
    )


def text_id(key: str, addressee_id: UUID, *, wave: int = 1) -> UUID:
    """The identity of a text: `key` says what it is about."""
    return message_id(key, addressee_id, channel=Channel.SMS, wave=wave)


def message_id(key: str, target: UUID | str, *, channel: Channel, wave: int) -> UUID:
    """The identity of a message: what it is about, to whom, how and in which wave."""
    return uuid5(NAMESPACE, f"{key}:{target}:{channel.value}:{wave}")


def push_id(key: str, subscription_id: UUID) -> UUID:
    """The identity of a push of the first wave."""
    return message_id(key, subscription_id, channel=Channel.PUSH, wave=1)


def queue(deliveries: Sequence[Delivery]) -> None:
    """Write the deliveries that are not there yet, ready to be sent.

    Where there are transactions they become visible with whatever caused them. Call `wake.dispatcher()` after it.
    """
    insert_missing(Delivery, deliveries)


def hold(deliveries: Sequence[Delivery]) -> None:
    """Write the deliveries, to be sent once `release` or `release_messages` says so.

    Where there are transactions the commit releases them. Where there are none, the incident may be resolved
    before its deliveries are written: only `release`, after another look at the incident, lets them go.
    """
    if not has_transactions():
        for delivery in deliveries:
            delivery.status = DeliveryStatus.HELD
    insert_missing(Delivery, deliveries)


def release(incident_ids: Iterable[UUID], *, wave: int = 1) -> None:
    """Let the held deliveries of this wave of these incidents go, except those that were cancelled meanwhile."""
    if not has_transactions():
        Delivery.objects.filter(incident_id__in=list(incident_ids), status=DeliveryStatus.HELD, wave=wave).update(
            status=DeliveryStatus.QUEUED
        )


def drop_held(incident_ids: Iterable[UUID], *, waves: range, now: datetime) -> None:
    """Cancel what is still held of these waves: their time has gone by, or the incident is over."""
    if not has_transactions():
        rows = Delivery.objects.filter(incident_id__in=list(incident_ids), wave__in=list(waves))
        rows.filter(status=DeliveryStatus.HELD).update(status=DeliveryStatus.CANCELLED, finished_at=now)


def release_messages(ids: Iterable[UUID]) -> None:
    """The same for these deliveries, which may belong to no incident."""
    if not has_transactions():
        Delivery.objects.filter(pk__in=list(ids), status=DeliveryStatus.HELD).update(status=DeliveryStatus.QUEUED)


def cancel(incident_ids: Iterable[UUID], *, kinds: Sequence[str], now: datetime, from_wave: int = 1) -> int:
    """Cancel what was not sent yet; what went out, or is going out, is not tried again. Returns how many rows it met."""
    rows = Delivery.objects.filter(incident_id__in=list(incident_ids), kind__in=kinds, wave__gte=from_wave)
    return _cancel(rows, now=now)


def cancel_text(delivery_id: UUID, *, now: datetime) -> int:
    """The same for one text."""
    return _cancel(Delivery.objects.filter(pk=delivery_id), now=now)


def cancel_texts_to(phone: str, *, now: datetime) -> None:
    """The same for all texts to a number that wants no more of them."""
    rows = Delivery.objects.filter(address=phone, channel=Channel.SMS)
    _cancel(rows.filter(status__in=[*PENDING, DeliveryStatus.SENDING]), now=now)


def cancel_messages(ids: Iterable[UUID], *, now: datetime) -> int:
    """The same for messages of which some may never have been queued."""
    return _cancel(Delivery.objects.filter(pk__in=list(ids)), now=now)


def _cancel(deliveries: QuerySet[Delivery], *, now: datetime) -> int:
    """One update for both, so that a row which changes sides meanwhile is met on one side or the other.

    Also what a carrier accepted: should it fail there later, nobody is to send it through another one.
    """
    ended = [DeliveryStatus.DEAD, DeliveryStatus.ACCEPTED]
    return deliveries.filter(status__in=[*PENDING, DeliveryStatus.SENDING, *ended]).update(
        status=Case(When(status__in=PENDING, then=Value(DeliveryStatus.CANCELLED.value)), default=F("status")),
        cancel_requested=True,
        finished_at=Case(When(status__in=ended, then=F("finished_at")), default=Value(now)),
    )


def went_out(statuses: Mapping[UUID, str]) -> set[UUID]:
    """Those of these deliveries, given with their status, that a carrier took, or may have.

    Not by a join: MongoDB would make it over all deliveries that there are.
    """
    taken = {pk for pk, status in statuses.items() if status in TAKEN}
    others = statuses.keys() - taken
    if not others:
        return taken
    tried = DeliveryAttempt.objects.filter(
        delivery__in=bulk.keys(others), outcome__in=[AttemptOutcome.ACCEPTED, AttemptOutcome.UNKNOWN]
    )
    return taken | set(tried.values_list("delivery_id", flat=True))


def possibly_sent(incident_id: UUID, *, kinds: Sequence[str]) -> list[Delivery]:
    """The incident's deliveries that went out, or may have, or are just being sent.

    One per recipient: the first that went out, else the first.
    """
    rows = list(Delivery.objects.filter(incident_id=incident_id, kind__in=kinds).order_by("created_at", "id"))
    gone = went_out({row.pk: row.status for row in rows})
    rows = [row for row in rows if row.pk in gone or row.status == DeliveryStatus.SENDING]
    first: dict[UUID | None, Delivery] = {}
    for row in sorted(rows, key=lambda row: row.status == DeliveryStatus.SENDING):
        first.setdefault(row.recipient_id, row)
    return list(first.values())


def requeue_dead(delivery_id: UUID, *, now: datetime) -> bool:
    """Try a dead letter again from the start; False when it is none any more, or nobody wants it sent any more."""
    dead = Delivery.objects.filter(pk=delivery_id, status=DeliveryStatus.DEAD, cancel_requested=False)
    updated = dead.update(
        status=DeliveryStatus.QUEUED, carrier="", next_attempt_at=now, attempt_count=0, finished_at=None
    )
    if updated:
        wake.dispatcher()
        live.publish(live.MODERATION)
    return bool(updated)


def discard(delivery_id: UUID, *, now: datetime) -> bool:
    """Give a dead job up for good: it counts as cancelled. False when it is no dead letter any more, or no job.

    The dead letters of an incident stay: they say who was not told.
    """
    dead = Delivery.objects.jobs().filter(pk=delivery_id, status=DeliveryStatus.DEAD)
    return bool(dead.update(status=DeliveryStatus.CANCELLED, cancel_requested=True, finished_at=now))


def dispatch_summaries(incident_ids: Sequence[UUID]) -> dict[UUID, DispatchSummary]:
    """For each incident with messages that a carrier accepted, or that none would take: how many, and when the last."""
    mine = Delivery.objects.filter(incident_id__in=incident_ids).values("incident_id").order_by()
    dead = mine.filter(status=DeliveryStatus.DEAD).annotate(dead=Count("id"))
    summaries = {row["incident_id"]: DispatchSummary(dead_letters=row["dead"]) for row in dead}
    taken = mine.filter(status__in=TAKEN).annotate(
        contacts=Count("recipient_id", distinct=True),
        texts=Count("id", filter=Q(channel="sms")),
        last=Max("finished_at"),
    )
    for row in taken:
        known = summaries.get(row["incident_id"], DispatchSummary())
        summaries[row["incident_id"]] = replace(
            known, contacts_notified=row["contacts"], sms_sent=row["texts"], last_dispatch_at=row["last"]
        )
    delivered = mine.filter(delivered_at__isnull=False).annotate(contacts=Count("recipient_id", distinct=True))
    for reached in delivered:
        known = summaries.get(reached["incident_id"], DispatchSummary())
        summaries[reached["incident_id"]] = replace(known, contacts_delivered=reached["contacts"])
    return {pk: summary for pk, summary in summaries.items() if pk}
