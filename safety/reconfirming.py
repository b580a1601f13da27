"""Asking the contacts every half a year whether they still will.

A contact who does not answer stays verified: an alert to somebody who is silent beats none. After a reminder their
person is told, who can ask them in person or add another one.

Each step writes the text first, under a key that follows from the contact's latest word and the step, then moves the
contact on by a compare-and-swap on what it was decided on. So any number of processes ask once, and a crash between the
two only leaves the step due: it meets the same key.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from casualmeet.db import in_batches, is_transient, retry_transient
from notifications import inbox, live, optouts, outbox, wake
from notifications.models import Delivery, Priority
from notifications.texts import AlertFacts, Kind, moments
from ops.jobs import Run
from safety import contacts
from safety.models import TrustedContact

logger = logging.getLogger(__name__)

Asked = TrustedContact.Asked

REMIND_AFTER: Final = timedelta(days=14)
TELL_AFTER: Final = timedelta(days=14)
# A question that could not be sent by then is not worth sending.
SEND_WITHIN: Final = timedelta(days=2)
# By the person's clock, for want of the contact's own: nobody is asked at night.
HOURS: Final = range(10, 19)
BATCH: Final = 100
LIMIT: Final = 500
"""Most contacts dealt with in one run, so that a first run on old data does not send a flood."""


@dataclass(slots=True)
class Done:
    """What a run did."""

    asked: int = 0
    told: int = 0
    failed: int = 0

    def __str__(self) -> str:
        left_out = f", {self.failed} left out (see the log)" if self.failed else ""
        return f"{self.asked} asked, {self.told} persons told{left_out}"


def ask_due(run: Run, *, now: datetime, limit: int = LIMIT) -> Done:
    """Take the next step with up to `limit` contacts for whom it is due."""
    done = Done()
    half_a_year = now - timedelta(days=settings.RECONFIRM_DAYS)
    for asked, by, edge in (
        (Asked.NOT, "answered_at", half_a_year),
        (Asked.ASKED, "asked_at", now - REMIND_AFTER),
        (Asked.REMINDED, "asked_at", now - TELL_AFTER),
        (Asked.TOLD, "asked_at", half_a_year),
    ):
        due = TrustedContact.objects.filter(status=contacts.Status.VERIFIED, asked=asked, **{f"{by}__lte": edge})
        for batch in in_batches(due.select_related("person"), by=by, size=BATCH):
            run.still_mine()
            awake = [contact for contact in batch if _local(contact, now).hour in HOURS]
            room = limit - done.asked - done.told - done.failed
            _take(awake[:room], done, now=now)
            if len(awake) >= room:
                return done
    return done


def _take(batch: Sequence[TrustedContact], done: Done, *, now: datetime) -> None:
    """The next step with each; one that fails stands alone (P14)."""
    stopped = optouts.stopped([contact.phone for contact in batch])
    for contact in batch:
        try:
            if contact.phone in stopped:
                # They can't be asked, and their person was told when they stopped our texts.
                _move_on(contact, Asked.TOLD, now=now)
            elif contact.asked == Asked.REMINDED:
                done.told += _tell(contact, now=now)
            else:
                done.asked += _ask(contact, now=now)
        except Exception as error:
            if is_transient(error):
                raise
            logger.exception("Contact %s could not be asked; leaving it out", contact.pk)
            done.failed += 1
    if done.asked:
        wake.dispatcher()


@retry_transient
def _ask(contact: TrustedContact, *, now: datetime) -> bool:
    """The question, or the reminder; False when another process was first or they have answered."""
    step = Asked.REMINDED if contact.asked == Asked.ASKED else Asked.ASKED
    question = _question(contact, now=now)
    with transaction.atomic():
        outbox.queue([question])
        asked = _move_on(contact, step, now=now, question_id=question.pk)
        if not asked and not TrustedContact.objects.filter(pk=contact.pk, question_id=question.pk).exists():
            # They answered, left or were removed just then.
            outbox.cancel_text(question.pk, now=now)
    return asked


@retry_transient
def _tell(contact: TrustedContact, *, now: datetime) -> bool:
    """The person learns that the contact has not answered."""
    notice = inbox.notice(
        key=f"unconfirmed:{_key(contact)}",
        recipient_id=contact.person_id,
        kind="contact_unconfirmed",
        title=f"{contact.name} has not confirmed that they are still there",
        body="We asked twice by text. They would still be alerted. Ask them yourself, or add another contact.",
        now=now,
    )
    with transaction.atomic():
        inbox.post([notice])
        told = _move_on(contact, Asked.TOLD, now=now)
    live.publish(live.person_group(contact.person_id))
    return told


def _move_on(contact: TrustedContact, step: int, *, now: datetime, **changes: UUID) -> bool:
    """The compare-and-swap on all that the step was decided on."""
    mine = TrustedContact.objects.filter(
        pk=contact.pk,
        status=contacts.Status.VERIFIED,
        asked=contact.asked,
        answered_at=contact.answered_at,
        asked_at=contact.asked_at,
    )
    return bool(mine.update(asked=step, asked_at=now, **changes))


def _question(contact: TrustedContact, *, now: datetime) -> Delivery:
    facts = AlertFacts(kind=Kind.RECONFIRM, person_name=contact.person.display_name, happened_at=now)
    return outbox.text_to(
        contacts.addressee(contact),
        key=f"reconfirm:{_key(contact)}",
        kind=Kind.RECONFIRM,
        facts=facts.to_json(),
        now=now,
        priority=Priority.NORMAL,
        person_id=contact.person_id,
        send_before=now + SEND_WITHIN,
    )


def _key(contact: TrustedContact) -> str:
    """Another one for each step, the same however often the step is taken."""
    since = contact.asked_at or contact.answered_at
    return f"{contact.pk}:{contact.asked}:{since.isoformat() if since else ''}"


def _local(contact: TrustedContact, now: datetime) -> datetime:
    return now.astimezone(moments.zone(contact.person.time_zone))
