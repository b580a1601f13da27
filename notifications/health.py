"""The circuit breaker of each carrier, in the database, so that all dispatchers know what one of them has met.

Closed: used. Open: passed over until `open_until`, except by an SOS that has no other way. Then one delivery tries it,
and decides. A row stands only for a carrier that has failed.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import F, Q

from casualmeet.db import insert_missing
from notifications import inbox
from notifications.carriers.base import Answer, Outcome
from notifications.models import CarrierHealth

logger = logging.getLogger(__name__)

# Starting numbers of the carriers page of the design: this many failures within the window open the circuit.
FAILURES = 5
WINDOW = timedelta(seconds=60)
OPEN_FOR = timedelta(seconds=30)
# What is the carrier's own trouble, or our account's with it; not what is wrong with one number or one text.
FAULTS = {"auth", "config", "transient"}


def is_fault(answer: Answer) -> bool:
    """Whether the answer speaks against the carrier rather than against the message."""
    return answer.outcome is Outcome.UNKNOWN or answer.error_class in FAULTS


# Carriers that were in trouble when this process last looked, so that the success of the others costs no write.
_troubled: set[str] = set()


@dataclass(slots=True)
class Circuits:
    """Which carriers to pass over, and which one delivery may try; as read at the start of a claim."""

    open: set[str] = field(default_factory=set)
    to_probe: set[str] = field(default_factory=set)

    def choose(self, route: Sequence[str], *, preferred: str = "") -> str | None:
        """The first of these carriers that works, or is to be tried; `preferred` comes first. None: all are open."""
        for name in sorted(route, key=lambda name: name != preferred):
            if name not in self.open:
                return name
            if name in self.to_probe:
                self.to_probe.discard(name)
                return name
        return None


def circuits(now: datetime) -> Circuits:
    """How the carriers stand. One whose time is up is given to one caller to try."""
    found = Circuits()
    rows = CarrierHealth.objects.filter(Q(failures__gt=0) | Q(open_until__isnull=False))
    for name, open_until in rows.values_list("name", "open_until"):
        _troubled.add(name)
        if open_until:
            found.open.add(name)
        if open_until and open_until <= now and _claim_probe(name, open_until, now=now):
            found.to_probe.add(name)
    return found


def note(answered: Iterable[tuple[str, Answer]], *, now: datetime) -> None:
    """Count the answers of each carrier, by name: a success closes its circuit, the fifth failure in a minute opens it."""
    faults: Counter[str] = Counter()
    good: set[str] = set()
    for name, answer in answered:
        if is_fault(answer):
            faults[name] += 1
        else:
            good.add(name)
    for name in _troubled & good - faults.keys():
        _note_success(name)
    for name, count in faults.items():
        _note_failures(name, count, now=now)


def _claim_probe(name: str, open_until: datetime, *, now: datetime) -> bool:
    """True for one caller; it pushes the time on, so that the others go on waiting."""
    mine = CarrierHealth.objects.filter(name=name, open_until=open_until)
    return bool(mine.update(open_until=now + OPEN_FOR))


def _note_success(name: str) -> None:
    failing = CarrierHealth.objects.filter(name=name).filter(Q(failures__gt=0) | Q(open_until__isnull=False))
    if failing.update(failures=0, failing_since=None, open_until=None):
        logger.info("Carrier %s works", name)
    _troubled.discard(name)


def _note_failures(name: str, count: int, *, now: datetime) -> None:
    _troubled.add(name)
    insert_missing(CarrierHealth, [CarrierHealth(name=name)])
    mine = CarrierHealth.objects.filter(name=name)
    if not mine.filter(failing_since__gt=now - WINDOW).update(failures=F("failures") + count):
        mine.update(failures=count, failing_since=now)
    is_open = Q(open_until__gt=now)
    if mine.filter(failures__gte=FAILURES).exclude(is_open).update(open_until=now + OPEN_FOR):
        logger.error("Carrier %s fails: passed over for %d s", name, OPEN_FOR.total_seconds())
        inbox.alarm_moderators(
            key=f"circuit:{name}:{now:%Y-%m-%dT%H}",
            title=f"The carrier {name} fails",
            body="Messages go through the others where there are any. Look at the newest attempts, and at its account.",
        )
