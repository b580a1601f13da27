"""Check prompts: the "are you OK?" that a person gets at set minutes before their deadline, while their timer is live.

No prompt is lost and none is sent twice, whatever dies when: the messages are written first, held where nothing rolls
back, under keys that follow from the timer, its deadline and the minutes. Then the timer is looked at again, the
messages are let go, and last the claim moves the timer on to its next prompt. A crash before the claim leaves the
prompt due: whoever does it again meets the same keys, and so writes and sends nothing twice. The other order, the
claim first, would lose the prompt of a worker that dies between the two. Where there are transactions all of it is one.

A verb of the person that comes before the look keeps the messages held; one that comes after it finds them by their
keys and cancels them (`take_back`). What slips through a crash is dropped when its deadline has passed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from casualmeet import clock
from casualmeet.db import is_transient, retry_transient, unheld
from notifications import inbox, live, outbox, subscriptions, wake
from notifications.models import Channel, Delivery, Notification, Priority, PushSubscription
from notifications.texts import AlertFacts, Kind
from safety.models import MeetingTimer, MeetingTimerQuerySet, User

logger = logging.getLogger(__name__)

# Small, so that an expiry which comes due meanwhile waits for no more than this many.
BATCH = 200
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of one timer, with all that is sent for it."""

    timer: MeetingTimer
    deliveries: list[Delivery]
    notice: Notification


def first_prompt_at(now: datetime, expires_at: datetime) -> datetime | None:
    """When the first prompt is due that is still to come; None when the time left is too short for any."""
    times = [expires_at - timedelta(minutes=minutes) for minutes in settings.CHECK_PROMPT_MINUTES]
    return min((at for at in times if at > now), default=None)


def next_at() -> datetime | None:
    """When the next prompt of any timer is due, or was."""
    coming = _open(clock.now()).filter(next_prompt_at__gt=_BEGINNING)
    earliest = coming.order_by("next_prompt_at").values_list("next_prompt_at", "pk").first()
    return earliest[0] if earliest else None


def send_due(now: datetime, limit: int = BATCH) -> int:
    """Send up to `limit` prompts that are due, and return how many it sent.

    One that is overdue goes out only while its deadline is ahead, and of several of one timer only the latest. A batch
    that raises is done again row by row, so that a broken row stands alone (P14).
    """
    due = _open(now).filter(next_prompt_at__lte=now).order_by("next_prompt_at")
    timers = list(due.prefetch_related("person")[:limit])
    if not timers:
        return 0
    try:
        sent = _send(timers, now=now)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("A batch of %d check prompts failed; taking them one by one", len(timers))
        sent = [one for timer in timers for one in _send_alone(timer, now=now)]
    if sent:
        wake.dispatcher()
        live.publish(*(live.person_group(timer.person_id) for timer in sent))
    return len(sent)


@retry_transient
def take_back(timer: MeetingTimer, *, now: datetime) -> None:
    """Cancel the prompts of the deadline that this timer had when it was read; call it once the person has acted."""
    keys = [_key(timer, minutes) for minutes in settings.CHECK_PROMPT_MINUTES if _at(timer, minutes) <= now]
    if keys:
        # Also those that were disabled since: their pushes are cancelled as well.
        browsers = PushSubscription.objects.filter(owner_id=timer.person_id).values_list("pk", flat=True)
        texts = [outbox.text_id(key, timer.person_id) for key in keys]
        pushes = [outbox.push_id(key, subscription) for subscription in browsers for key in keys]
        outbox.cancel_messages([*texts, *pushes], now=now)
        inbox.withdraw(keys)


def _open(now: datetime) -> MeetingTimerQuerySet:
    """The timers that may still be asked: those past their deadline are for the expiry, or in their grace."""
    return MeetingTimer.objects.live().filter(expires_at__gt=now)


def _send_alone(timer: MeetingTimer, *, now: datetime) -> list[MeetingTimer]:
    """One row; where even that fails, its prompt is passed over, so that it can't hold up the others."""
    try:
        return _send([timer], now=now)
    except Exception as error:
        if is_transient(error):
            raise
        logger.exception("The check prompt of timer %s can't be sent; passing it over", timer.pk)
        _claim(timer, now=now)
        return []


@retry_transient
def _send(timers: Sequence[MeetingTimer], *, now: datetime) -> list[MeetingTimer]:
    """Write, look again, let go, claim; the timers that this call claimed. Why in this order: see above."""
    # Before the transaction, in which a verb of the person would have to wait for it.
    made = _prompts(timers, now=now)
    with transaction.atomic():
        free = unheld(timers)
        keys = {timer.pk for timer in free}
        prompts = [prompt for prompt in made if prompt.timer.pk in keys]
        outbox.hold([delivery for prompt in prompts for delivery in prompt.deliveries])
        unchanged = _unchanged(free)
        asked = [prompt for prompt in prompts if prompt.timer.pk in unchanged]
        outbox.release_messages([delivery.pk for prompt in asked for delivery in prompt.deliveries])
        inbox.post([prompt.notice for prompt in asked])
        claimed = [prompt.timer for prompt in asked if _claim(prompt.timer, now=now)]
        _take_back_lost([timer for timer in free if timer not in claimed], now=now)
    return claimed


def _unchanged(timers: Sequence[MeetingTimer]) -> set[UUID]:
    """Those that are live, with the deadline and the next prompt that they were read with."""
    rows = MeetingTimer.objects.live().filter(pk__in=[timer.pk for timer in timers])
    current = {pk: when for pk, *when in rows.values_list("pk", "expires_at", "next_prompt_at")}
    return {timer.pk for timer in timers if current.get(timer.pk) == [timer.expires_at, timer.next_prompt_at]}


def _claim(timer: MeetingTimer, *, now: datetime) -> bool:
    """The compare-and-swap on what the prompt was decided on; it moves the timer on to its next prompt."""
    mine = MeetingTimer.objects.live().filter(
        pk=timer.pk, next_prompt_at=timer.next_prompt_at, expires_at=timer.expires_at
    )
    return bool(mine.update(next_prompt_at=first_prompt_at(now, timer.expires_at), check_sent_at=now))


def _take_back_lost(timers: Sequence[MeetingTimer], *, now: datetime) -> None:
    """Where the person acted meanwhile; but not where another worker claimed the same prompt, with the same keys."""
    if timers:
        rows = MeetingTimer.objects.live().filter(pk__in=[timer.pk for timer in timers])
        current = dict(rows.values_list("pk", "expires_at"))
        for timer in timers:
            if current.get(timer.pk) != timer.expires_at:
                take_back(timer, now=now)


def _prompts(timers: Sequence[MeetingTimer], *, now: datetime) -> list[Prompt]:
    subscribed = subscriptions.of(timer.person_id for timer in timers)
    return [_prompt(timer, subscribed.get(timer.person_id, ()), now=now) for timer in timers]


def _prompt(timer: MeetingTimer, subscribed: Sequence[PushSubscription], *, now: datetime) -> Prompt:
    """The latest prompt of this timer whose time has come. Its texts tell the minutes left when they are sent."""
    person: User = timer.person
    minutes = min(
        minutes for minutes in [_due_minutes(timer), *settings.CHECK_PROMPT_MINUTES] if _at(timer, minutes) <= now
    )
    key = _key(timer, minutes)
    to = outbox.Addressee(
        person.pk, person.display_name[:80], person.phone, person.language, f"{settings.PUBLIC_BASE_URL}/"
    )
    facts = AlertFacts(
        kind=Kind.CHECK_PROMPT,
        person_name=person.display_name,
        happened_at=timer.expires_at,
        time_zone=person.time_zone,
    ).to_json()
    shared: dict[str, Any] = {
        "key": key,
        "kind": Kind.CHECK_PROMPT.value,
        "facts": facts,
        "now": now,
        "priority": Priority.SAFETY,
        "person_id": person.pk,
        "send_before": timer.expires_at,
    }
    deliveries = [
        outbox.message_to(to, channel=Channel.PUSH, address=str(subscription.pk), **shared)
        for subscription in subscribed
    ]
    if person.phone and minutes in settings.CHECK_PROMPT_SMS_MINUTES:
        deliveries.append(outbox.text_to(to, **shared))
    left = max(1, -((now - timer.expires_at) // timedelta(minutes=1)))
    notice = inbox.notice(
        key=key,
        recipient_id=person.pk,
        kind="check_prompt",
        title=f"Are you OK? {left} min left",
        body="Tap I'm Safe, or extend your timer. If you don't, your alarm goes off.",
        now=now,
    )
    return Prompt(timer, deliveries, notice)


def _due_minutes(timer: MeetingTimer) -> int:
    """Of the prompt that the timer waits for; the setting may have been another one when it was armed."""
    return -(((timer.next_prompt_at or timer.expires_at) - timer.expires_at) // timedelta(minutes=1))


def _at(timer: MeetingTimer, minutes: int) -> datetime:
    return timer.expires_at - timedelta(minutes=minutes)


def _key(timer: MeetingTimer, minutes: int) -> str:
    return f"prompt:{timer.pk}:{round(timer.expires_at.timestamp() * 1000)}:{minutes}"
