"""The fail-safe's rows: which backup alert is wanted for which contact, and who works on it.

The rule. A timer that is live wants one for each contact who was verified when it was armed, at its escalation time plus
a margin (FAIL_SAFE_MARGIN_SECONDS). A check-in or cancellation ends that, an extension moves it. When the timer has
expired, our own site is alive and alerts by itself: then the backup is wanted until a carrier has accepted our own text
or call to that contact, or the person is safe. So a site that dies at any moment before that still alerts, and one that
lives alerts once. A contact who was removed, left or sent STOP gets none.

`wanted_at` is worked out from the timer again at every look; what the verbs write there makes the look come at once.
Whatever is written under a lease holds only while the lease and the timer are as they were.
"""

import base64
import logging
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

from django.conf import settings
from django.db.models import Case, F, Q, QuerySet, Value, When

from casualmeet import clock
from casualmeet.db import insert_missing, retry_transient
from notifications import inbox, outbox, wake
from notifications.carriers.twilio_schedule import SHORTEST_LEAD
from notifications.models import Delivery, OptOut, Priority
from notifications.texts import AlertFacts, Kind, compose
from safety import contacts
from safety.models import FailSafeAlert, MeetingTimer, TimerStatus, TrustedContact
from sos import incidents
from sos.alerts import ALARMS
from sos.models import AlertedContact, SosEvent

logger = logging.getLogger(__name__)

NAMESPACE: Final = UUID("5b0d2c8e-7a0f-4a35-9d0b-0f7a4f6f2f31")
# Longer than all calls between two looks at the lease can take.
LEASE: Final = timedelta(seconds=60)
# So that a slow request still reaches the carrier before its limit.
LEAD: Final = SHORTEST_LEAD + timedelta(seconds=30)
# A request may reach the carrier, and show up in its list, this long after it was sent.
SURFACES_WITHIN: Final = timedelta(seconds=60)
LOOK_EVERY: Final = timedelta(minutes=10)
LOOK_WHEN_EXPIRED: Final = timedelta(seconds=10)
LOOK_WHEN_SENT: Final = timedelta(minutes=1)
# So long after it was to go out nothing can be won any more.
OVER_AFTER: Final = timedelta(days=1)
# After so many tries, about half a minute, somebody had better look.
FAILING_TRIES: Final = 5
# While something may stand that is not wanted, a false alarm is coming: no long pauses then.
LONGEST_PAUSE: Final = 300
LONGEST_PAUSE_UNWANTED: Final = 15


@dataclass(slots=True)
class Task:
    """An alert under this worker's lease, and what is known of it; `alert` is changed as the carrier answers."""

    alert: FailSafeAlert
    timer: MeetingTimer
    wanted_at: datetime | None
    begun_at: datetime
    done: bool = False
    """What stands at the carrier is what is wanted."""
    hopeless: bool = False
    """It is wanted and can't be had: too near, or refused for good."""
    asked: bool = False
    """The carrier was asked to schedule a message."""
    made: str = ""
    """The message that it scheduled, where it said so."""
    pause: timedelta | None = None
    note: str = ""

    @property
    def marker(self) -> str:
        """By this the text is recognised among all that the contact was sent."""
        return marker(self.alert.pk)


@retry_transient
def want(timer: MeetingTimer) -> None:
    """Want a backup alert for each verified contact; call it in the transaction that inserts the timer."""
    if not settings.FAIL_SAFE or timer.moderators_only:
        return
    now = clock.now()
    insert_missing(
        FailSafeAlert,
        [
            FailSafeAlert(
                id=uuid5(NAMESPACE, f"{timer.pk}:{recipient.contact_id}"),
                timer=timer,
                contact_id=recipient.contact_id,
                phone=recipient.phone,
                language=recipient.language,
                wanted_at=_at(timer.escalates_at),
                next_try_at=now,
            )
            for recipient in contacts.recipients([timer.person_id]).get(timer.person_id, ())
        ],
    )


@retry_transient
def follow(timer: MeetingTimer, *, escalates_at: datetime | None) -> None:
    """The person moved the escalation time, or ended the timer (None); call it after, or with, the swap."""
    if settings.FAIL_SAFE:
        now = clock.now()
        # Who holds the lease looks again at its end; without one the next look is now.
        FailSafeAlert.objects.filter(timer_id=timer.pk).update(
            wanted_at=_at(escalates_at) if escalates_at else None,
            settled=False,
            tries=0,
            next_try_at=Case(When(lease_token__isnull=True, then=Value(now)), default=F("next_try_at")),
        )


@retry_transient
def begin(pk: UUID, *, next_try_at: datetime) -> Task | None:
    """Take the alert under a lease and work out what is wanted; None when another worker was first."""
    token, now = uuid4(), clock.now()
    claimed = FailSafeAlert.objects.filter(pk=pk, next_try_at=next_try_at)
    if not claimed.update(lease_token=token, next_try_at=now + LEASE):
        return None
    alert = FailSafeAlert.objects.get(pk=pk)
    timer = MeetingTimer.objects.select_related("person").get(pk=alert.timer_id)
    wanted_at = _wish(alert, timer)
    unchanged = FailSafeAlert.objects.filter(pk=pk, lease_token=token, wanted_at=alert.wanted_at)
    if not unchanged.update(wanted_at=wanted_at):
        FailSafeAlert.objects.filter(pk=pk, lease_token=token).update(lease_token=None, next_try_at=now)
        return None
    alert.wanted_at, alert.lease_token = wanted_at, token
    return Task(alert, timer, wanted_at, now)


@retry_transient
def may_ask(task: Task) -> bool:
    """Write down, before the carrier is asked to schedule, that it will be: False when it must not be asked.

    From here on a message may stand there, until an answer, or a look at the carrier's list, tells.
    """
    now = clock.now()
    if task.wanted_at is None or task.wanted_at - now < LEAD:
        task.hopeless, task.note = True, "too near to be scheduled"
        return False
    if not _timer_unchanged(task):
        return False
    mine = _mine(task).filter(wanted_at=task.wanted_at)
    if not mine.update(asked_at=now, next_try_at=now + LEASE):
        return False
    task.alert.asked_at = now
    return True


@retry_transient
def finish(task: Task) -> bool:
    """Write down what is known now and give the lease back; False when the lease was lost meanwhile."""
    alert, now = task.alert, clock.now()
    known = {
        "asked_at": alert.asked_at,
        "scheduled_at": alert.scheduled_at,
        "carrier_message_id": alert.carrier_message_id,
        "sent_at": alert.sent_at,
        "lease_token": None,
    }
    mine = _mine(task)
    if _timer_unchanged(task):
        outcome = _outcome(task, now=now)
        if mine.filter(wanted_at=task.wanted_at).update(**known, **outcome):
            if task.note:
                logger.warning("Backup alert %s: %s", alert.pk, task.note)
            return True
    # The person acted while the carrier was asked: the next look is due at once.
    return bool(mine.update(**known, settled=False, tries=0, next_try_at=now))


def _outcome(task: Task, *, now: datetime) -> dict[str, Any]:
    """Whether the alert is settled, and when it is looked at next."""
    alert = task.alert
    nothing_left = alert.asked_at is None and alert.scheduled_at is None
    if alert.sent_at is not None and nothing_left:
        closed = _after_sent(alert, task.timer, now=now)
        return {"settled": True, "tries": 0, "next_try_at": None if closed else now + LOOK_WHEN_SENT}
    if task.done and alert.asked_at is None:
        return {"settled": True, "tries": 0, "next_try_at": _next_look(task, now=now)}
    if task.hopeless and nothing_left:
        return {"settled": False, "tries": 0, "next_try_at": None}
    if now > _at(task.timer.escalates_at) + OVER_AFTER:
        task.note = "never settled; by now whatever stood at the carrier is over"
        return {"settled": False, "tries": 0, "next_try_at": None}
    tries = min(alert.tries + 1, 1000)
    return {"settled": False, "tries": tries, "next_try_at": now + (task.pause or _pause(task, tries))}


@retry_transient
def suspect(alert_id: UUID) -> None:
    """A message may stand at the carrier that the row does not know of: look for it."""
    now = clock.now()
    FailSafeAlert.objects.filter(pk=alert_id).update(asked_at=now, settled=False, next_try_at=now)


def standing(alert: FailSafeAlert) -> str:
    """In words, how it stands."""
    if alert.sent_at is not None:
        return "sent by the carrier"
    if alert.settled:
        return "as wanted" if alert.wanted_at else "not wanted, nothing stands"
    if alert.next_try_at is None:
        return "given up"
    return "failing" if alert.tries >= FAILING_TRIES else "in work"


def needing_a_look(rows: QuerySet[FailSafeAlert]) -> QuerySet[FailSafeAlert]:
    """Those that went out and are not cleared yet, were given up, or fail again and again."""
    failing = Q(settled=False) & (Q(next_try_at__isnull=True) | Q(tries__gte=FAILING_TRIES))
    return rows.filter(failing | Q(sent_at__isnull=False, next_try_at__isnull=False))


def text(task: Task) -> str:
    """What the backup alert says."""
    person = task.timer.person
    facts = AlertFacts(
        kind=Kind.FAIL_SAFE,
        person_name=person.display_name,
        person_phone=person.phone,
        reference=task.marker,
        happened_at=task.timer.expires_at,
        time_zone=person.time_zone,
    )
    return compose(facts, language=task.alert.language, link="", now=task.begun_at)


def marker(alert_id: UUID) -> str:
    """Eight letters and digits that no other alert to the same number has."""
    return base64.b32encode(alert_id.bytes).decode()[:8]


def _after_sent(alert: FailSafeAlert, timer: MeetingTimer, *, now: datetime) -> bool:
    """The carrier sent it: the moderators are told, and once the person is safe the contact gets the all-clear.

    Where our own alert reached the contact as well, the incident's all-clear does. True when nothing is left to do.
    """
    inbox.alarm_moderators(
        key=f"fail-safe:{alert.pk}",
        title="A backup alert went out",
        body=f"The carrier texted a contact by itself about timer {timer.pk} ({timer.status}).",
    )
    if timer.live:
        return False
    incident = _incident(timer)
    if timer.status == TimerStatus.EXPIRED:
        if incident is None or incident.active:
            return False
        if _alerted(incident, alert.contact_id):
            return True
    _queue_all_clear(alert, timer, now=now)
    return True


def _queue_all_clear(alert: FailSafeAlert, timer: MeetingTimer, *, now: datetime) -> None:
    contact = TrustedContact.objects.filter(pk=alert.contact_id).first()
    incident = _incident(timer)
    facts = AlertFacts(
        kind=Kind.ALL_CLEAR,
        person_name=timer.person.display_name,
        reference=marker(alert.pk),
        happened_at=(incident and incident.resolved_at) or timer.resolved_at or now,
        time_zone=timer.person.time_zone,
        confirmed_with_pin=incident.resolution == "pin" if incident else bool(timer.person.safe_pin),
    )
    outbox.queue(
        [
            outbox.text_to(
                outbox.Addressee(alert.contact_id, contact.name if contact else "", alert.phone, alert.language),
                key=f"fail-safe-clear:{alert.pk}",
                kind=Kind.ALL_CLEAR,
                facts=facts.to_json(),
                now=now,
                priority=Priority.SAFETY,
                person_id=timer.person_id,
            )
        ]
    )
    wake.dispatcher()


def _wish(alert: FailSafeAlert, timer: MeetingTimer) -> datetime | None:
    """When the alert is to go out, by the rule above; None: never."""
    if not settings.FAIL_SAFE or alert.sent_at is not None:
        return None
    if not timer.live and timer.status != TimerStatus.EXPIRED:
        return None
    verified = TrustedContact.objects.filter(pk=alert.contact_id, status=TrustedContact.Status.VERIFIED)
    if not verified.exists() or OptOut.objects.filter(phone=alert.phone).exists():
        return None
    if timer.status == TimerStatus.EXPIRED:
        incident = _incident(timer)
        if incident is not None and (not incident.active or _alerted(incident, alert.contact_id)):
            return None
    return _at(timer.escalates_at)


def _incident(timer: MeetingTimer) -> SosEvent | None:
    return incidents.find_by_trigger(timer.pk) if timer.status == TimerStatus.EXPIRED else None


def _alerted(incident: SosEvent, contact_id: UUID) -> bool:
    """Whether a carrier accepted a text or a call of ours to this contact about the incident."""
    alerted = AlertedContact.objects.filter(incident=incident, contact_id=contact_id).values_list("pk", flat=True)
    ours = Delivery.objects.filter(incident_id=incident.pk, recipient_id__in=list(alerted), kind__in=ALARMS)
    return ours.filter(channel__in=["sms", "voice"], status__in=outbox.TAKEN).exists()


def _at(escalates_at: datetime) -> datetime:
    return escalates_at + timedelta(seconds=settings.FAIL_SAFE_MARGIN_SECONDS)


def _mine(task: Task) -> QuerySet[FailSafeAlert]:
    return FailSafeAlert.objects.filter(pk=task.alert.pk, lease_token=task.alert.lease_token)


def _timer_unchanged(task: Task) -> bool:
    """Whether the timer is as it was when the wish was worked out. A verb writes there first, then here."""
    read = task.timer
    return MeetingTimer.objects.filter(pk=read.pk, status=read.status, escalates_at=read.escalates_at).exists()


def _next_look(task: Task, *, now: datetime) -> datetime | None:
    """Often enough that a look comes between the escalation time and the moment the carrier would send."""
    if task.wanted_at is None:
        return None
    if not task.timer.live:
        return now + LOOK_WHEN_EXPIRED
    soonest = now + LOOK_WHEN_EXPIRED
    return min(now + LOOK_EVERY, max(task.timer.escalates_at + timedelta(seconds=1), soonest))


def _pause(task: Task, tries: int) -> timedelta:
    unwanted = task.wanted_at is None or task.wanted_at != task.alert.scheduled_at
    may_stand = bool(task.alert.scheduled_at or task.alert.asked_at)
    cap = LONGEST_PAUSE_UNWANTED if unwanted and may_stand else LONGEST_PAUSE
    return timedelta(seconds=random.uniform(0.5, 1) * min(2 ** min(tries, 10), cap))
