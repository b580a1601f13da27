"""The incident: opened or joined by a trigger, moved, resolved by the person.

On SQL the caller's transaction makes each verb one step. On MongoDB, where nothing rolls back, the order of writes
and keys that follow from the trigger let every verb be done again after a crash, with the same result (P2, P3, P4).
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils.text import capfirst

from casualmeet import clock
from casualmeet.db import has_transactions, insert_missing, insert_one, retry_transient
from notifications import inbox, live, outbox, wake
from notifications.models import Delivery, Notification
from sos import alerts, escalation, rounds, timeline
from sos.models import AlertedContact, SosEvent, SosStatus, Source, TimelineEntry, TimelineKind
from sos.triggers import Fix, Person, Recipient, Trigger, incident_id_for, joined_id_for
from sos.wording import LATE_SECONDS, in_words

logger = logging.getLogger(__name__)

# Letters and digits that nobody mishears or misreads.
LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ"
DIGITS = "23456789"
# Contacts see nothing from a day after the incident closed (P11).
PAGE_LIFE = timedelta(hours=24)
OPENING_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Opened:
    """What became of the triggers: incidents that they opened, and incidents that they joined."""

    opened: list[SosEvent] = field(default_factory=list)
    joined: list[SosEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Opening:
    """An incident whose alerts are still to be queued, with what the alerts need."""

    incident: SosEvent
    person: Person
    recipients: tuple[Recipient, ...]


def raise_alarm(trigger: Trigger) -> tuple[SosEvent, bool]:
    """Open an incident, or join the person's active one; True when it was opened.

    Its alerts are queued when this returns. The same trigger again gives the same incident.
    """
    outcome = _raise_alarm(trigger)
    incident = find_by_trigger(trigger.key)
    if incident is None:
        raise RuntimeError(f"No incident for trigger {trigger.key}.")
    announce([incident])
    return incident, bool(outcome.opened)


@retry_transient
def _raise_alarm(trigger: Trigger) -> Opened:
    with transaction.atomic():
        return open_or_join([trigger], now=clock.now())


def open_or_join(triggers: Sequence[Trigger], *, now: datetime) -> Opened:
    """Deal with each trigger exactly once, however often it is given: open an incident or join the active one (P4).

    Call it inside a transaction, and `announce` after the commit.
    """
    joined_before = set(
        TimelineEntry.objects.filter(pk__in=[t.joined_id for t in triggers]).values_list("pk", flat=True)
    )
    repeated = [t for t in triggers if t.joined_id in joined_before]
    new = [t for t in triggers if t.joined_id not in joined_before]
    own, others = _place(new, now=now)
    openings = [
        Opening(own[t.incident_id], t.person, t.recipients)
        for t in new
        if t.incident_id in own and own[t.incident_id].active and own[t.incident_id].alerted_at is None
    ]
    _alert(openings, now=now)
    joining = [(t, others[t.person.id]) for t in new if t.incident_id not in own]
    for trigger, incident in joining:
        _join(trigger, incident, now=now)
    for trigger in repeated:
        _repeat_join(trigger, now=now)
    return Opened(opened=[opening.incident for opening in openings], joined=[incident for _, incident in joining])


def _place(triggers: Sequence[Trigger], *, now: datetime) -> tuple[dict[UUID, SosEvent], dict[UUID, SosEvent]]:
    """The incident that each trigger opened, by incident id, and the active ones of the others, by person id."""
    rows = {trigger.incident_id: _incident(trigger, now=now) for trigger in triggers}
    for _ in range(OPENING_ROUNDS):
        if insert_missing(SosEvent, list(rows.values())):
            return rows, {}
        # Some are there from an earlier try, as they stand now, or their person has an active incident.
        own = SosEvent.objects.in_bulk(list(rows))
        losers = [trigger.person.id for trigger in triggers if trigger.incident_id not in own]
        others = {row.person_id: row for row in SosEvent.objects.filter(open_key__in=losers)} if losers else {}
        if len(others) == len(set(losers)):
            return own, others
        # The active incident was resolved between the two looks: there is room for a new one now.
    raise RuntimeError("Incidents keep opening and closing under this trigger.")


def complete_opening(incident: SosEvent, *, person: Person, recipients: tuple[Recipient, ...], now: datetime) -> None:
    """Queue the alerts of an incident that a crash left without them."""
    _alert([Opening(incident, person, recipients)], now=now)
    announce([incident])


def resolve(incident: SosEvent, *, with_pin: bool) -> bool:
    """Close the incident because the person is safe: alerts not yet sent are cancelled, all-clears queued.

    False when it was resolved already; then nothing changes.
    """
    closed = _resolve(incident.pk, with_pin=with_pin)
    if closed:
        announce([incident])
    return closed


@retry_transient
def _resolve(incident_id: UUID, *, with_pin: bool) -> bool:
    now = clock.now()
    with transaction.atomic():
        closed = SosEvent.objects.filter(pk=incident_id, status=SosStatus.ACTIVE).update(
            status=SosStatus.RESOLVED, open_key=None, resolved_at=now, resolution="pin" if with_pin else "app"
        )
        if closed:
            complete_resolving(SosEvent.objects.select_related("person").get(pk=incident_id), now=now)
    return bool(closed)


def complete_resolving(incident: SosEvent, *, now: datetime) -> None:
    """What follows from resolving; may be done again after a crash."""
    outbox.cancel([incident.pk], kinds=alerts.ALARMS, now=now)
    outbox.queue(alerts.all_clears(incident, now=now))
    how = "with their PIN" if incident.resolution == "pin" else "in the app"
    timeline.note(
        incident.pk, TimelineKind.RESOLVED, f"The person confirmed {how} that they are safe.", key="resolved", at=now
    )
    SosEvent.objects.filter(pk=incident.pk, all_clear_at__isnull=True).update(all_clear_at=now)


@retry_transient
def move(incident: SosEvent, fix: Fix) -> bool:
    """Record a newer position of the person; False when it is older than the one known, or the incident is over."""
    moved = bool(
        SosEvent.objects.active()
        .filter(Q(location_at__isnull=True) | Q(location_at__lt=fix.captured_at), pk=incident.pk)
        .update(location=fix.point(), location_accuracy_m=fix.accuracy_m, location_at=fix.captured_at)
    )
    if moved:
        announce([incident])
    return moved


def find_by_trigger(key: UUID) -> SosEvent | None:
    """The incident that a trigger opened or joined."""
    trigger_incident = SosEvent.objects.filter(pk=incident_id_for(key)).first()
    if trigger_incident is not None:
        return trigger_incident
    entry = TimelineEntry.objects.select_related("incident").filter(pk=joined_id_for(key)).first()
    return entry.incident if entry else None


def active_incident(person_id: UUID) -> SosEvent | None:
    """The person's alarm that is on now; there is at most one (P4)."""
    return SosEvent.objects.filter(open_key=person_id).first()


def access_incident(person_id: UUID, incident_id: UUID) -> SosEvent:
    """The person's own incident; raises SosEvent.DoesNotExist when it is missing or somebody else's."""
    return SosEvent.objects.get(pk=incident_id, person_id=person_id)


def access_alert_page(token: str, *, now: datetime) -> AlertedContact:
    """The contact that a link's secret belongs to; raises AlertedContact.DoesNotExist.

    The incident's page is open from the alert until a day after the incident closed (P11).
    """
    contact = AlertedContact.objects.select_related("incident__person").get(token=token)
    resolved_at = contact.incident.resolved_at
    if resolved_at is not None and resolved_at + PAGE_LIFE <= now:
        raise AlertedContact.DoesNotExist("This alert closed more than a day ago.")
    return contact


def access_alerts(phone: str, *, now: datetime) -> list[AlertedContact]:
    """Those alerted at this number (E.164), as long as their pages are open (P11); the newest incident first."""
    alerted = list(AlertedContact.objects.filter(phone=phone))
    shown = Q(status=SosStatus.ACTIVE) | Q(resolved_at__gt=now - PAGE_LIFE)
    # Two queries: a join sorted by the joined table is more than the MongoDB test server can do.
    incidents = (
        SosEvent.objects.filter(shown, pk__in=[contact.incident_id for contact in alerted])
        .select_related("person")
        .in_bulk()
    )
    found = [contact for contact in alerted if contact.incident_id in incidents]
    for contact in found:
        contact.incident = incidents[contact.incident_id]
    return sorted(found, key=lambda contact: contact.incident.opened_at, reverse=True)


def announce(incidents: Iterable[SosEvent]) -> None:
    """Wake the dispatcher and the live sockets. Call it after the commit; only hints."""
    wake.dispatcher()
    live.publish(live.MODERATION, *(live.person_group(incident.person_id) for incident in incidents))


def _alert(openings: Sequence[Opening], *, now: datetime) -> None:
    """Queue the alerts, the timeline entry and the person's notification of incidents just opened (P3)."""
    contacts: list[AlertedContact] = []
    deliveries: list[Delivery] = []
    for opening in openings:
        for contact, delivery in _alerts(opening, now=now):
            contacts.append(contact)
            deliveries.append(delivery)
    insert_missing(AlertedContact, contacts)
    insert_missing(TimelineEntry, [_opened_entry(opening, now=now) for opening in openings])
    inbox.post([_opened_notice(opening, now=now) for opening in openings])
    outbox.hold([*deliveries, *escalation.pushes(openings, now=now)])
    ids = [opening.incident.pk for opening in openings]
    _release(ids, now=now)
    SosEvent.objects.filter(pk__in=ids, alerted_at__isnull=True).update(alerted_at=now)


def _alerts(opening: Opening, *, now: datetime) -> list[tuple[AlertedContact, Delivery]]:
    """Each contact with their alert. One whose alert can't be made is left out and shown to the moderators (P14)."""
    try:
        return _made(opening, opening.recipients, now=now)
    except Exception:
        logger.exception("Alerts of incident %s failed; making them one by one", opening.incident.pk)
    made: list[tuple[AlertedContact, Delivery]] = []
    broken: list[Recipient] = []
    for recipient in opening.recipients:
        try:
            made += _made(opening, [recipient], now=now)
        except Exception:
            logger.exception("The alert to contact %s can't be made", recipient.contact_id)
            broken.append(recipient)
    if not made:
        raise RuntimeError(f"No alert of incident {opening.incident.pk} can be made.")
    for recipient in broken:
        inbox.alarm_moderators(
            key=f"contact:{opening.incident.pk}:{recipient.contact_id}",
            title="A trusted contact can't be alerted",
            body=f"Incident {opening.incident.reference}: no alert could be made for {recipient.name}. Call them.",
        )
    return made


def _made(opening: Opening, recipients: Sequence[Recipient], *, now: datetime) -> list[tuple[AlertedContact, Delivery]]:
    contacts = [alerts.alerted_contact(opening.incident, recipient) for recipient in recipients]
    deliveries = alerts.alerts(opening.incident, person=opening.person, contacts=contacts, now=now)
    return list(zip(contacts, deliveries, strict=True))


def _release(incident_ids: Sequence[UUID], *, now: datetime) -> None:
    """Let the alerts go, but not those of an incident that was resolved before they were written (MongoDB only)."""
    if has_transactions():
        return
    active = set(SosEvent.objects.active().filter(pk__in=incident_ids).values_list("pk", flat=True))
    outbox.release(active)
    resolved = [pk for pk in incident_ids if pk not in active]
    if resolved:
        outbox.cancel(resolved, kinds=alerts.ALARMS, now=now)


def _join(trigger: Trigger, incident: SosEvent, *, now: datetime) -> None:
    """The person's incident takes in another trigger: never dropped, never a second incident (P4)."""
    what = "Another timer ran out." if trigger.source == Source.TIMER_EXPIRED else "SOS was pressed again."
    insert_one(TimelineEntry(id=trigger.joined_id, incident=incident, at=now, kind=TimelineKind.JOINED, text=what))
    _tell_contacts(trigger, incident, now=now)


def _repeat_join(trigger: Trigger, *, now: datetime) -> None:
    """A crash may have come between the timeline entry and the update messages."""
    incident = TimelineEntry.objects.select_related("incident").get(pk=trigger.joined_id).incident
    if incident.active:
        _tell_contacts(trigger, incident, now=now)


def _tell_contacts(trigger: Trigger, incident: SosEvent, *, now: datetime) -> None:
    """An update to those who were alerted, and an alert to those who were not: the incident may have been opened
    by a timer for the moderators only, or before they had accepted.
    """
    if trigger.fix is not None:
        move(incident, trigger.fix)
        incident.refresh_from_db()
    known = list(AlertedContact.objects.filter(incident=incident))
    now_alerted = [alerts.alerted_contact(incident, recipient) for recipient in trigger.recipients]
    known_ids = {contact.pk for contact in known}
    added = [contact for contact in now_alerted if contact.pk not in known_ids]
    insert_missing(AlertedContact, added)
    # Alerts to all of them: those who have theirs keep it. While the opening is still under way (no transactions)
    # its alerts may not know of this trigger, so that the added ones get the update too.
    updated = [*known, *added] if incident.alerted_at is None else known
    outbox.hold(
        [
            *alerts.alerts(incident, person=trigger.person, contacts=now_alerted, now=now),
            *alerts.updates(incident, key=trigger.key, contacts=updated, now=now),
            *escalation.pushes([Opening(incident, trigger.person, trigger.recipients)], now=now),
        ]
    )
    _release([incident.pk], now=now)
    escalation.take_up(incident, now=now)


def _incident(trigger: Trigger, *, now: datetime) -> SosEvent:
    return SosEvent(
        id=trigger.incident_id,
        open_key=trigger.person.id,
        person_id=trigger.person.id,
        source=trigger.source,
        reference=_reference(trigger.incident_id),
        triggered_timer_id=trigger.timer_id,
        happened_at=trigger.happened_at,
        late_by=trigger.late_by,
        place_name=trigger.place_name,
        meet_with=trigger.meet_with,
        planned_location=trigger.planned_location,
        location=trigger.fix.point() if trigger.fix else None,
        location_accuracy_m=trigger.fix.accuracy_m if trigger.fix else None,
        location_at=trigger.fix.captured_at if trigger.fix else None,
        opened_at=now,
        next_wave_at=rounds.first_look_at(now, contacts=bool(trigger.recipients)),
    )


def _reference(incident_id: UUID) -> str:
    """Letter, digit, letter: short enough to say on the phone, and never a word."""
    number = incident_id.int
    number, last = divmod(number, len(LETTERS))
    number, middle = divmod(number, len(DIGITS))
    return LETTERS[number % len(LETTERS)] + DIGITS[middle] + LETTERS[last]


def _opened_entry(opening: Opening, *, now: datetime) -> TimelineEntry:
    incident, count = opening.incident, len(opening.recipients)
    contacts = "no contacts" if count == 0 else "1 contact" if count == 1 else f"{count} contacts"
    late = f" The alarm is {in_words(incident.late_by)} late." if incident.late_by >= LATE_SECONDS else ""
    what = capfirst(incident.get_source_display())
    return timeline.entry(incident.pk, TimelineKind.OPENED, f"{what}. Alerting {contacts}.{late}", key="opened", at=now)


def _opened_notice(opening: Opening, *, now: datetime) -> Notification:
    incident, count = opening.incident, len(opening.recipients)
    whom = f"{count} of your contacts and the moderators" if count else "the moderators"
    return inbox.notice(
        key=f"opened:{incident.pk}",
        recipient_id=incident.person_id,
        kind="sos_triggered",
        title="Your alarm is on",
        body=f"We are alerting {whom}. Safe? Say so in the app.",
        now=now,
        incident_id=incident.pk,
    )
