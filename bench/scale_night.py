"""A Saturday night: everybody arms a timer between six and two, some extend it, nearly all come home in time.

Time is compressed: a night of 20,000 people in a fiftieth of its time asks as much in a second as one of a million.
`python -m bench.scale_night '{…}'` is one of the client processes; it calls the verbs and prints what it saw as JSON.
"""

import heapq
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

import django

from bench.report import Report, percentile
from testing.processes import PYTHON_MODULE, ManagedProcess

# Arms in each hour from 18:00, in shares of the whole: a peak at nine. A guess, since there are no figures yet.
HOURS = (6, 10, 18, 24, 20, 12, 7, 3)
STAY_MINUTES = (45.0, 210.0)
EXTENDS = 0.2
CANCELS = 0.03
LAST_SECONDS = 120
CLIENTS_READY_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Share:
    """What one client process does: persons numbered so, from `start` (time.time()); `misses` in thousandths."""

    first: int
    last: int
    start: float
    compress: int
    misses: int
    seed: int


def plan(share: Share) -> Iterator[tuple[float, str, int]]:
    """When each person does what, in seconds of the run."""
    chance = random.Random(share.seed)
    for number in range(share.first, share.last + 1):
        (hour,) = chance.choices(range(len(HOURS)), weights=HOURS)
        armed = (hour + chance.random()) * 3600
        home = armed + chance.uniform(*STAY_MINUTES) * 60
        yield armed / share.compress, "arm", number
        if chance.random() < EXTENDS:
            yield chance.uniform(armed, home) / share.compress, "extend", number
        if chance.random() < share.misses / 1000:
            yield home / share.compress, "miss", number
        else:
            yield home / share.compress, "cancel" if chance.random() < CANCELS else "safe", number


def measure(
    report: Report, url: str, first: int, *, people: int, compress: int, misses: int, clients: int, latency_ms: int
) -> None:
    """With `people` from number `first` on, in `clients` processes, on one timer and one dispatch worker."""
    from bench import gauges, seeding
    from bench.scale_sustained import workers
    from bench.setup import CarrierProcess

    seeding.people(first, first + people - 1)
    seeding.contacts(first, first + people - 1)
    seeding.settle()
    portion = -(-people // clients)
    seconds = len(HOURS) * 3600 / compress
    with CarrierProcess(latency=latency_ms / 1000) as carrier, ExitStack() as stack:
        running = stack.enter_context(workers(url, carrier, timer=1, dispatch=1))
        env = {"DATABASE_URL": url}
        start = time.time() + CLIENTS_READY_SECONDS
        shares = [
            Share(number, min(number + portion, first + people) - 1, start, compress, misses, seed=number)
            for number in range(first, first + people, portion)
        ]
        persons = [
            stack.enter_context(
                ManagedProcess(["bench.scale_night", json.dumps(asdict(share))], env, program=PYTHON_MODULE)
            )
            for share in shares
        ]
        with gauges.Watch({**running, **{f"client {i + 1}": one for i, one in enumerate(persons)}}) as watch:
            for one in persons:
                if one.wait(timeout=seconds * 3 + LAST_SECONDS):
                    raise RuntimeError(one.output)
        seen = [json.loads(one.output.splitlines()[-1]) for one in persons]
        _write(report, seen, watch.cpu, f"{people:,} people, compressed {compress} times", people * compress)
        _missed(report, seen, carrier.journal())


def _write(report: Report, seen: list[dict[str, Any]], cpu: dict[str, float], title: str, stands_for: int) -> None:
    acts = sorted((act for one in seen for act in one["acts"]), key=lambda act: act[0])
    table = report.table(f"A Saturday night: {title}", "verb", "number", "ms p50", "ms p99", "late s p99", "late s max")
    for verb, group in groupby(acts, key=lambda act: act[0]):
        mine = list(group)
        took, late = [act[2] * 1000 for act in mine], [act[1] for act in mine]
        cells = [percentile(took, 0.5), percentile(took, 0.99), percentile(late, 0.99), max(late)]
        table.rows.append([verb, len(mine), *cells])
    usage = report.table("Processor time of the night", "process", "CPU s")
    usage.rows.extend([name, seconds] for name, seconds in cpu.items())
    failed: Counter[str] = Counter()
    for one in seen:
        failed.update(one["failed"])
    report.notes.append(f"In a second it asks as much as {stands_for:,} people do; verbs that failed: {dict(failed)}.")
    behind = max((act[1] for act in acts), default=0.0)
    report.aim("the night: nobody waits more than 2 s for their turn", f"{behind:.2f} s at most", met=behind < 2)


def _missed(report: Report, seen: list[dict[str, Any]], journal: list[dict[str, Any]]) -> None:
    """From each missed deadline to the first request at the carrier."""
    from bench import seeding

    deadlines: dict[int, float] = {}
    for one in seen:
        deadlines |= {int(number): at for number, at in one["missed"].items()}
    firsts: dict[int, float] = {}
    for message in journal:
        firsts.setdefault(seeding.person_of_number(str(message["to"])), float(str(message["at"])))
    late = [firsts[number] - at for number, at in deadlines.items() if number in firsts]
    table = report.table(
        "Missed timers of the night: deadline to first carrier request", "missed", "alerted", "p50", "p99"
    )
    points = [percentile(late, share) for share in (0.5, 0.99)] if late else [None, None]
    table.rows.append([len(deadlines), len(late), *points])
    report.aim("every missed timer was alerted", f"{len(late)} of {len(deadlines)}", met=len(late) == len(deadlines))


def live(share: Share) -> dict[str, Any]:
    """Go through the plan in this process. Each act: the verb, how late it began, how long it took, in seconds."""
    from casualmeet import clock
    from casualmeet.refusal import Refusal
    from safety import timers
    from safety.models import MeetingTimer, User

    events = list(plan(share))
    heapq.heapify(events)
    acts: list[tuple[str, float, float]] = []
    missed: dict[int, float] = {}
    failed: Counter[str] = Counter()
    while events:
        at, verb, number = heapq.heappop(events)
        time.sleep(max(0.0, share.start + at - time.time()))
        began = time.time()
        try:
            if verb == "arm":
                person = User.objects.get(username=f"person{number}")
                timers.arm(person, location_name="Café Mondegar", duration_minutes=240, meet_with="Rohan")
            else:
                timer = MeetingTimer.objects.live().select_related("person").get(person__username=f"person{number}")
                if verb == "miss":
                    deadline = clock.now() + timedelta(seconds=1)
                    MeetingTimer.objects.filter(pk=timer.pk).update(expires_at=deadline, escalates_at=deadline)
                    missed[number] = deadline.timestamp()
                elif verb == "extend":
                    timers.extend(timer)
                else:
                    (timers.check_in if verb == "safe" else timers.cancel)(timer)
        except (Refusal, MeetingTimer.DoesNotExist) as error:
            failed[f"{verb}: {type(error).__name__}"] += 1
        acts.append((verb, began - share.start - at, time.time() - began))
    time.sleep(4)
    return {"acts": acts, "missed": missed, "failed": failed}


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "casualmeet.settings")
    django.setup()
    json.dump(live(Share(**json.loads(sys.argv[1]))), sys.stdout)
    print()
