"""The supervisors' daily digest: how yesterday's alarms went, in numbers without names."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from statistics import median
from typing import Any, Final
from uuid import UUID

from django.contrib.auth import get_user_model

from notifications import inbox, live, optouts, outbox, wake
from notifications.models import (
    AttemptOutcome,
    CarrierHealth,
    Delivery,
    DeliveryAttempt,
    DeliveryStatus,
    Notification,
    Priority,
)
from notifications.texts import AlertFacts, Figures, Kind, compose_digest
from notifications.texts.digest import in_short
from notifications.texts.moments import date_in_short
from ops.jobs import Run
from sos.alerts import ALARMS
from sos.console_access import may_moderate
from sos.models import AlertedContact, SosEvent, Source

logger = logging.getLogger(__name__)

PERMISSION: Final = "sos.receive_digest"
CHUNK: Final = 500
# A digest that could not be texted within the day is of no use; the next one is coming.
SEND_WITHIN: Final = timedelta(hours=20)


@dataclass(frozen=True, slots=True)
class Digest:
    """The figures of a day, with what only the app shows."""

    figures: Figures
    sources: Counter[str]


def send(run: Run, *, where: tzinfo, now: datetime) -> int:
    """Tell every supervisor about the day before the slot, in the app and by one text; returns how many they are.

    The day is that of the zone `where`. Sent again for the same day, nothing comes twice.
    """
    day = run.slot.astimezone(where).date() - timedelta(days=1)
    digest = gather(day, where=where, now=now)
    people = supervisors()
    stopped = optouts.stopped([person.phone for person in people])
    failures = []
    for person in people:
        run.still_mine()
        try:
            _tell(person, digest, by_text=bool(person.phone) and person.phone not in stopped, now=now)
        except Exception as error:
            # The others get theirs (P14); the run counts as failed and is tried again.
            logger.exception("The digest for %s could not be queued", person.pk)
            failures.append(error)
    wake.dispatcher()
    if failures:
        raise failures[0]
    return len(people)


def supervisors() -> list[Any]:
    """Moderators with the permission to receive the digest. Superusers have every permission."""
    staff = get_user_model()._default_manager.filter(is_staff=True, is_active=True)
    return [person for person in staff if may_moderate(person) and person.has_perm(PERMISSION)]


def gather(day: date, *, where: tzinfo, now: datetime) -> Digest:
    """The figures of a day in the zone `where`; what is unresolved, and which carriers fail, as it is `now`."""
    start = datetime.combine(day, time(), where)
    end = datetime.combine(day + timedelta(days=1), time(), where)
    rows = SosEvent.objects.filter(opened_at__gte=start, opened_at__lt=end).order_by()
    opened = dict(rows.values_list("pk", "opened_at"))
    dead = Delivery.objects.filter(status=DeliveryStatus.DEAD, finished_at__gte=start, finished_at__lt=end)
    figures = Figures(
        day=day,
        incidents=len(opened),
        unresolved=SosEvent.objects.active().count(),
        nobody_reached=rows.filter(nobody_reached_at__isnull=False).count(),
        dead_letters=dead.count(),
        accepted=_median_and_longest(opened, _first_accepted),
        acknowledged=_median_and_longest(opened, _first_acknowledged),
        failing=_failing(now),
    )
    return Digest(figures, Counter(rows.values_list("source", flat=True)))


def _median_and_longest(
    opened: dict[UUID, datetime], first: Callable[[list[UUID]], dict[UUID, datetime]]
) -> tuple[float, float] | None:
    """Of the seconds from the opening to what `first` gives for some of the incidents; None when it does for none."""
    ids = list(opened)
    waited = [
        max(0.0, (at - opened[pk]).total_seconds())
        for start in range(0, len(ids), CHUNK)
        for pk, at in first(ids[start : start + CHUNK]).items()
    ]
    return (median(waited), max(waited)) if waited else None


def _first_accepted(incident_ids: list[UUID]) -> dict[UUID, datetime]:
    """When a carrier first took an alarm of each incident."""
    alarms = Delivery.objects.filter(incident_id__in=incident_ids, kind__in=ALARMS).order_by()
    incident_of = dict(alarms.values_list("pk", "incident_id"))
    accepted = DeliveryAttempt.objects.filter(
        delivery_id__in=list(incident_of), outcome=AttemptOutcome.ACCEPTED, finished_at__isnull=False
    )
    pairs = accepted.order_by().values_list("delivery_id", "finished_at")
    return _earliest((incident_of[delivery_id], at) for delivery_id, at in pairs)


def _first_acknowledged(incident_ids: list[UUID]) -> dict[UUID, datetime]:
    """When the first contact of each incident said that they are helping."""
    helping = AlertedContact.objects.filter(incident_id__in=incident_ids, acknowledged_at__isnull=False)
    return _earliest(helping.order_by().values_list("incident_id", "acknowledged_at"))


def _earliest(pairs: Iterable[tuple[UUID | None, datetime | None]]) -> dict[UUID, datetime]:
    found: dict[UUID, datetime] = {}
    for pk, at in pairs:
        if pk and at:
            found[pk] = min(at, found.get(pk, at))
    return found


def _failing(now: datetime) -> tuple[str, ...]:
    """The carriers that are passed over, or were until a moment ago."""
    failing = CarrierHealth.objects.filter(open_until__gt=now - timedelta(hours=1))
    return tuple(failing.order_by("name").values_list("name", flat=True))


def _tell(person: Any, digest: Digest, *, by_text: bool, now: datetime) -> None:
    """Keys follow from the day and the supervisor."""
    day = digest.figures.day
    inbox.post([_notice(person, digest, now=now)])
    live.publish(live.person_group(person.pk))
    if not by_text:
        return
    said = compose_digest(digest.figures, person.language)
    facts = AlertFacts(kind=Kind.DIGEST, person_name="", happened_at=now, said=said)
    to = outbox.Addressee(person.pk, person.get_full_name()[:80], person.phone, person.language)
    outbox.queue(
        [
            outbox.text_to(
                to,
                key=f"digest:{day.isoformat()}",
                kind=Kind.DIGEST,
                facts=facts.to_json(),
                now=now,
                priority=Priority.BULK,
                send_before=now + SEND_WITHIN,
            )
        ]
    )


def _notice(person: Any, digest: Digest, *, now: datetime) -> Notification:
    figures = digest.figures
    sources = [f"{digest.sources[source]} {source.label}" for source in Source if digest.sources[source]]
    parts = [
        f"By source: {', '.join(sources)}" if sources else "",
        _times("First message accepted", figures.accepted),
        _times("First contact helping", figures.acknowledged),
        f"Nobody reached: {figures.nobody_reached}",
        f"Dead letters: {figures.dead_letters}",
        f"Failing carriers: {', '.join(figures.failing)}" if figures.failing else "",
    ]
    alarms = f"{figures.incidents} alarm{'' if figures.incidents == 1 else 's'}"
    return inbox.notice(
        key=f"digest:{figures.day.isoformat()}:{person.pk}",
        recipient_id=person.pk,
        kind="digest",
        title=f"{date_in_short(figures.day)}: {alarms}, {figures.unresolved} open now",
        body=". ".join(part for part in parts if part) + ".",
        now=now,
    )


def _times(what: str, times: tuple[float, float] | None) -> str:
    return f"{what}: {in_short(times[0])} (median), {in_short(times[1])} (longest)" if times else ""
