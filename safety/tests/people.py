"""People, contacts and timers in bulk, a clock that a test moves, and what must hold of every incident.

Faster than the factories: no password is hashed, and a thousand rows are one insert.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from casualmeet import clock
from notifications.models import Delivery
from safety.models import MeetingTimer, TimerStatus, TrustedContact, User
from sos.models import SosEvent

MOBILE = "+9198{:08d}"


class Clock:
    """The time that `clock.now()` tells, standing still until the test moves it."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> datetime:
        """Let time pass, such as `minutes=5`."""
        self.now += timedelta(**by)
        return self.now


def people(count: int, *, name: str = "asha", contacts: int = 1) -> list[User]:
    """Persons without a PIN, each with verified contacts of their own."""
    tag = uuid4().hex[:8]
    rows = User.objects.bulk_create(
        [
            User(username=f"{name}{n}-{tag}", full_name=f"{name.title()} {n}", phone=MOBILE.format(n), password="!")
            for n in range(count)
        ]
    )
    befriend(rows, contacts)
    return rows


def befriend(persons: Sequence[User], count: int) -> list[TrustedContact]:
    """Give each person this many verified contacts."""
    now = clock.now()
    return TrustedContact.objects.bulk_create(
        [
            TrustedContact(
                person=person,
                slot=slot,
                name=f"Ravi {slot}",
                phone=MOBILE.format(10_000_000 + slot),
                status=TrustedContact.Status.VERIFIED,
                token=uuid4().hex,
                invited_at=now,
            )
            for person in persons
            for slot in range(count)
        ]
    )


def timers_for(
    persons: Sequence[User], *, escalates_at: datetime, apart: timedelta = timedelta(0), grace: int = 0
) -> list[MeetingTimer]:
    """An hour's timer for each person, all with this escalation time, or each `apart` from the one before."""
    return MeetingTimer.objects.bulk_create(
        [
            MeetingTimer(
                person=person,
                location_name="Cafe Blue",
                meet_with="Rahul K",
                duration_minutes=60,
                grace_minutes=grace,
                started_at=escalates_at + n * apart - timedelta(minutes=60 + grace),
                expires_at=escalates_at + n * apart - timedelta(minutes=grace),
                escalates_at=escalates_at + n * apart,
            )
            for n, person in enumerate(persons)
        ]
    )


def assert_one_incident_each(timers: Sequence[MeetingTimer], *, contacts: int = 1) -> list[SosEvent]:
    """Each of these timers is expired, handed over, and has exactly one incident with all its alerts, once each."""
    ids = [timer.pk for timer in timers]
    now_rows = MeetingTimer.objects.in_bulk(ids)
    wrong = [row.status for row in now_rows.values() if row.status != TimerStatus.EXPIRED or row.expiry_token]
    assert not wrong, f"not expired, or not handed over: {Counter(wrong)}"
    incidents = list(SosEvent.objects.filter(triggered_timer_id__in=ids))
    assert Counter(incident.triggered_timer_id for incident in incidents) == Counter(ids)
    assert all(incident.alerted_at for incident in incidents)
    assert_alerted_once(incidents, contacts=contacts)
    return incidents


def assert_alerted_once(incidents: Sequence[SosEvent], *, contacts: int) -> None:
    """Each incident has one alert per contact: unique by (incident, contact, channel, wave)."""
    found = Counter(
        Delivery.objects.filter(incident_id__in=[incident.pk for incident in incidents]).values_list(
            "incident_id", "recipient_id", "channel", "wave"
        )
    )
    assert set(found.values()) <= {1}
    per_incident = Counter(incident_id for incident_id, *_ in found)
    assert per_incident == Counter({incident.pk: contacts for incident in incidents if contacts})


def assert_no_alarm(timers: Sequence[MeetingTimer]) -> None:
    """Nothing whatever followed from these timers."""
    ids = [timer.pk for timer in timers]
    assert not MeetingTimer.objects.filter(pk__in=ids, status=TimerStatus.EXPIRED).exists()
    assert not MeetingTimer.objects.filter(pk__in=ids, expiry_token__isnull=False).exists()
    person_ids = [timer.person_id for timer in timers]
    assert not SosEvent.objects.filter(person_id__in=person_ids).exists()
    assert not Delivery.objects.filter(person_id__in=person_ids).exists()
