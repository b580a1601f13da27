"""Minutes of people and trouble at once, on the whole installation; then promises P1 to P8, over all that happened."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.db import connection

from bench import chaos_figures
from bench.chaos_checks import Evidence, Findings, check
from bench.chaos_faults import Faults
from bench.chaos_people import Crowd, Journal, Person, settle_people
from bench.chaos_stage import Layout, Stage, staged, wait_for_web
from bench.report import Report
from bench.setup import TITLES
from casualmeet import clock
from notifications import outbox, wake
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Priority
from notifications.texts import AlertFacts, Kind
from safety.models import MeetingTimer
from sos.models import SosEvent

DATABASES = ("postgres", "sqlite")
RUNS_ON_MONGO = True
# The ladder's rounds come soon, so that a run of minutes sees them all.
SHORT_LADDER = {
    "ESCALATION_CALL_SECONDS": "30",
    "ESCALATION_CALL_AGAIN_SECONDS": "60",
    "ESCALATION_REALERT_SECONDS": "90,120",
}
BULK_NUMBER = "+4478{:08d}"
# A lease of 45 s, then a wait before the tenth try of up to 2 min.
QUIET_SECONDS = 300.0
# Requests while everybody comes home.
AT_ONCE = 6


@dataclass(frozen=True)
class Sizes:
    """How much of what. `callers` of the people press SOS behind `bulk` queued digests, each `every` seconds.

    Pauses between two faults are up to `pause_ms`. `freezes` workers are frozen for longer than a lease. A database
    with one writer has one worker, which does both.
    """

    seconds: int = 300
    seed: int = 1
    people: int = 50
    callers: int = 4
    bulk: int = 120
    every: int = 30
    timer: int = 2
    dispatch: int = 2
    pause_ms: int = 2_500
    freezes: int = 1


FULL = Sizes()
QUICK = Sizes(seconds=15, people=12, callers=1, bulk=20, every=8, timer=1, dispatch=0, pause_ms=1_500, freezes=0)


def run(report: Report, sizes: Sizes, databases: Sequence[str]) -> None:
    """Run it on each database."""
    for kind in databases:
        layout = Layout(1, 0) if kind == "sqlite" else Layout(sizes.timer, sizes.dispatch)
        with staged(kind, layout, env=SHORT_LADDER) as stage:
            report.note_database(TITLES[kind])
            faults = Faults(stage, sizes.seed, pause=(0.2, sizes.pause_ms / 1000), long_freezes=sizes.freezes)
            asyncio.run(_live_through(stage, faults, sizes, report, TITLES[kind]))


async def _live_through(stage: Stage, faults: Faults, sizes: Sizes, report: Report, title: str) -> None:
    secrets = await asyncio.to_thread(settle_people, sizes.people)
    await asyncio.to_thread(wait_for_web, stage)
    async with Crowd(stage.web_url, secrets, seed=sizes.seed, callers=sizes.callers) as crowd:
        began = time.monotonic()
        faults.start()
        lives = [asyncio.create_task(person.live()) for person in crowd.people]
        lives.append(asyncio.create_task(_press_behind_bulk(crowd, sizes)))
        await crowd.watch(sizes.seconds)
        crowd.over.set()
        await asyncio.to_thread(faults.stop)
        await asyncio.gather(*lives)
        await asyncio.to_thread(stage.heal)
        healed = time.monotonic()
        await _close(stage, crowd)
        quiet = time.monotonic()
    ends = await asyncio.to_thread(stage.stop_in_order)
    carriers = await asyncio.to_thread(stage.journal)
    found, evidence = await asyncio.to_thread(_check, crowd.journal, carriers)
    found.broken["P4"] += [f"person {pk} had two active incidents" for pk in crowd.journal.twice_active]
    seconds = {"of trouble": healed - began, "until quiet": quiet - healed}
    chaos_figures.write(report, title, chaos_figures.Course(crowd.journal, faults, found, evidence, seconds))
    report.notes += [f"{title}: {name} ended with {code} on SIGTERM" for name, code in ends.items() if code]


def _check(journal: Journal, carriers: dict[str, Any]) -> tuple[Findings, Evidence]:
    # This thread's connection may be older than the last restart.
    connection.close()
    evidence = Evidence(journal.acts, carriers)
    return check(evidence), evidence


async def _press_behind_bulk(crowd: Crowd, sizes: Sizes) -> None:
    """Now and then many digests are queued, and then people press SOS (P8)."""
    written = 0
    while not crowd.over.is_set():
        if await crowd.back_door(_queue_bulk, written, sizes.bulk):
            written += sizes.bulk
            await asyncio.sleep(0.3)
            await asyncio.gather(*(caller.press_sos() for caller in crowd.callers))
        for _ in range(sizes.every * 2):
            if crowd.over.is_set():
                return
            await asyncio.sleep(0.5)
        for caller in crowd.callers:
            for incident in list(caller.alarms):
                await caller.say_safe(incident)


def _queue_bulk(first: int, count: int) -> bool:
    now = clock.now()
    facts = AlertFacts(kind=Kind.INVITATION, person_name="Asha Rao", happened_at=now).to_json()
    rows = []
    for i in range(first, first + count):
        addressee = outbox.Addressee(uuid4(), "Tom Baker", BULK_NUMBER.format(i), "en", "http://safety.example.org/c/x")
        rows.append(outbox.text_to(addressee, key="chaos", kind="digest", facts=facts, now=now, priority=Priority.BULK))
    outbox.queue(rows)
    wake.dispatcher()
    return True


async def _close(stage: Stage, crowd: Crowd) -> None:
    """Everybody comes home, what is queued goes out, every alarm is ended, and that goes out too."""
    await asyncio.to_thread(wait_for_web, stage)
    gate = asyncio.Semaphore(AT_ONCE)

    async def bring_home(person: Person) -> None:
        async with gate:
            await _until(person.come_home, f"person {person.number} has no timer that runs")

    await asyncio.gather(*map(bring_home, crowd.everybody))
    await _until(lambda: crowd.back_door(_quiet), "the outbox is empty", patience=QUIET_SECONDS)
    active = await crowd.back_door(_active)
    for number, incident in active or ():
        person = crowd.everybody[number]
        await _until(lambda person=person, incident=incident: person.say_safe(incident), f"incident {incident} is over")
    await _until(lambda: crowd.back_door(_quiet), "the outbox is empty again", patience=QUIET_SECONDS)


async def _until(condition: Any, what: str, *, patience: float = 60.0) -> None:
    """Wait for it; what is not so in the end, the checks will say."""
    deadline = time.monotonic() + patience
    while not await condition():
        if time.monotonic() > deadline:
            print(f"  Not within {patience:g} s: {what}.", flush=True)
            return
        await asyncio.sleep(0.3)


def _quiet() -> bool:
    """Nothing is due, half-done, queued or on its way."""
    waiting = [DeliveryStatus.HELD, DeliveryStatus.QUEUED, DeliveryStatus.SENDING]
    return not (
        MeetingTimer.objects.due(clock.now()).exists()
        or MeetingTimer.objects.half_done().exists()
        or SosEvent.objects.half_open().exists()
        or SosEvent.objects.half_resolved().exists()
        or Delivery.objects.filter(status__in=waiting).exists()
        or DeliveryAttempt.objects.filter(outcome=AttemptOutcome.OPEN).exists()
    )


def _active() -> list[tuple[int, Any]]:
    rows = SosEvent.objects.active().select_related("person")
    return [(int(row.person.username.removeprefix("person")), row.pk) for row in rows]
