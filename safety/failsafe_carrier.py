"""The fail-safe's calls: make what stands at the carrier what is wanted, one alert at a time.

The worst fault is a backup alert that goes out although the person checked in. So what may stand there is written down
before it is asked for; a lost answer is looked up by the mark in the text before anything else is scheduled; what is to
be replaced is cancelled first; and a cancellation counts only when the carrier says so.
"""

import logging
from datetime import timedelta
from typing import Final

from asgiref.sync import sync_to_async

from notifications.carriers.twilio_schedule import Standing, State, TwilioScheduler
from safety import failsafe_alerts
from safety.failsafe_alerts import SURFACES_WITHIN, Task

logger = logging.getLogger(__name__)

# The carrier's clock and ours may differ by this much.
CLOCKS_DIFFER: Final = timedelta(minutes=5)
# What asking again does not change: the number is none, or wants no texts (Twilio's error dictionary).
REFUSED_FOR_GOOD: Final = frozenset({"21211", "21610", "21614", "21635"})

_may_ask = sync_to_async(failsafe_alerts.may_ask, thread_sensitive=True)
_finish = sync_to_async(failsafe_alerts.finish, thread_sensitive=True)
_suspect = sync_to_async(failsafe_alerts.suspect, thread_sensitive=True)


async def make_it_so(task: Task, carrier: TwilioScheduler) -> None:
    """Look for what may stand, cancel what must not, schedule what is wanted; then write down how it stands."""
    if await _nothing_is_lost(task, carrier) and await _nothing_else_stands(task, carrier):
        await _it_stands(task, carrier)
    if not await _finish(task):
        await _undo(task, carrier)


async def _nothing_is_lost(task: Task, carrier: TwilioScheduler) -> bool:
    """Find and cancel what an earlier request left, whose answer was lost. False while that is not certain."""
    alert = task.alert
    if alert.asked_at is None:
        return True
    found = await carrier.find(to=alert.phone, marker=task.marker, since=alert.asked_at - CLOCKS_DIFFER)
    if found is None:
        return False
    for message in found:
        if message.state is State.SCHEDULED:
            message = await carrier.cancel(message.message_id)  # noqa: PLW2901
        _note_sent(task, message)
        if message.state in (State.SCHEDULED, State.UNKNOWN):
            return False
        if message.message_id == alert.carrier_message_id:
            alert.scheduled_at = None
    # Whatever was found may be of an earlier request; the lost one may surface yet.
    if task.begun_at < alert.asked_at + SURFACES_WITHIN:
        task.pause = timedelta(seconds=10)
        return False
    alert.asked_at = None
    return True


async def _nothing_else_stands(task: Task, carrier: TwilioScheduler) -> bool:
    """Cancel what stands for another time, look after what stands for the right one. False while that is not certain."""
    alert = task.alert
    if alert.scheduled_at is None:
        return True
    if alert.scheduled_at != task.wanted_at or alert.sent_at is not None:
        now_stands = await carrier.cancel(alert.carrier_message_id)
    elif not task.timer.live and task.begun_at < alert.scheduled_at:
        return True  # looked after often, for our own alert; the carrier need not be asked each time
    else:
        now_stands = await carrier.fetch(alert.carrier_message_id)
        if now_stands.state is State.SCHEDULED:
            return True
    _note_sent(task, now_stands)
    if now_stands.state in (State.GONE, State.SENT):
        alert.scheduled_at = None
        return True
    logger.warning(
        "Backup alert %s: not certain how it stands (%s)", alert.pk, now_stands.error_code or now_stands.detail
    )
    return False


async def _it_stands(task: Task, carrier: TwilioScheduler) -> None:
    """Schedule it, if it is wanted and does not stand yet."""
    alert = task.alert
    if task.wanted_at is None or alert.sent_at is not None or alert.scheduled_at is not None:
        task.done = True
        return
    words = failsafe_alerts.text(task)
    if not await _may_ask(task):
        return
    task.asked = True
    answer = await carrier.schedule(to=alert.phone, text=words, send_at=task.wanted_at)
    task.made = answer.message_id
    if answer.state is State.UNKNOWN:
        return
    alert.asked_at = None
    _note_sent(task, answer)
    if answer.state is State.SCHEDULED:
        alert.carrier_message_id, alert.scheduled_at = answer.message_id, task.wanted_at
        task.done = True
    elif answer.state is State.GONE:
        task.hopeless = answer.error_code in REFUSED_FOR_GOOD
        task.note = f"not scheduled: {answer.error_code or answer.detail}"


def _note_sent(task: Task, message: Standing) -> None:
    if message.state is State.SENT and task.alert.sent_at is None:
        task.alert.sent_at, task.alert.carrier_message_id = task.begun_at, message.message_id
        logger.error("Backup alert %s was sent by the carrier", task.alert.pk)


async def _undo(task: Task, carrier: TwilioScheduler) -> None:
    """The lease ran out meanwhile, so another worker may not know of what was scheduled here: take it back, and have
    it looked for.
    """
    if task.asked:
        if task.made:
            await carrier.cancel(task.made)
        await _suspect(task.alert.pk)
