"""The auditor: looks for what should never be so, repairs what is safe to repair, and writes down the rest.

Each app declares its checks in `audits.py`. A check that fails stops none of the others, and is a finding itself (P14).
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from casualmeet.db import insert_one
from ops import beats
from ops.models import AuditFinding, Severity, WorkerBeat

logger = logging.getLogger(__name__)

# Three slots of the job: what was not looked at for so long is not known.
FRESH = timedelta(seconds=90)
# So many of one kind are named one by one.
NAMED = 5
# Beyond that nobody counts: a look must cost the same on a bad day.
COUNTED = 1_000
# How long the auditor may stand in for a timer worker, before it looks at the rest.
STAND_IN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. `key` says what with what: it stays the same as long as it is so.

    It goes to moderators and to services outside: no names, no numbers, no positions.
    """

    key: str
    title: str
    body: str = ""
    severity: Severity = Severity.CRITICAL


Check = Callable[[datetime], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an audit found, and the names of the checks that failed."""

    findings: Sequence[Finding]
    failed: Sequence[str]
    checks: int
    changed: bool

    @property
    def well(self) -> bool:
        """Every check was made, and no alarm is in danger."""
        return not self.failed and all(finding.severity != Severity.CRITICAL for finding in self.findings)

    @property
    def summary(self) -> str:
        """For the record of the job's runs."""
        found = "all is well" if not self.findings else f"{len(self.findings)} found"
        return f"{self.checks} checks, {len(self.failed)} failed, {found}"


_checks: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Declare the function as a check: it gets the time, repairs what it safely can, and yields what remains."""

    def declare(function: Check) -> Check:
        _checks[name] = function
        return function

    return declare


def checks() -> dict[str, Check]:
    """All checks that the apps declare, by name."""
    autodiscover_modules("audits")
    return _checks


def run(now: datetime) -> Outcome:
    """Make every check and write down what was found. Raises only where the database does not take that."""
    started = time.perf_counter()
    found: dict[str, tuple[str, Finding]] = {}
    failed: list[str] = []
    for name, make in checks().items():
        try:
            found |= {finding.key: (name, finding) for finding in make(now)}
        except Exception as error:
            logger.exception("The check %r of the auditor failed; the others go on", name)
            close_old_connections()
            failed.append(name)
            finding = _failure(name, error)
            found[finding.key] = (name, finding)
    changed = _write(found, failed, now=now)
    beats.audit_finished(time.perf_counter() - started)
    return Outcome([finding for _, finding in found.values()], failed, len(checks()), changed)


def several(findings: Sequence[Finding], *, key: str, title: str) -> list[Finding]:
    """The first few by name, and how many more there are; `title` for those has a `{}` for the number."""
    rest = len(findings) - NAMED
    if rest <= 0:
        return list(findings)
    severity = Severity.CRITICAL if any(f.severity == Severity.CRITICAL for f in findings) else Severity.WARNING
    return [*findings[:NAMED], Finding(key, title.format(at_most(rest)), severity=severity)]


def at_most(count: int) -> str:
    """A count in words, where no more than COUNTED were looked at."""
    return f"{COUNTED:,} or more" if count >= COUNTED else f"{count:,}"


def timer_worker_lives(now: datetime) -> bool:
    """Whether what is late is a timer worker's to do; else the auditor does it, for STAND_IN_SECONDS."""
    return beats.alive(beats.TIMER, now=now, within=timedelta(seconds=settings.AUDIT_WORKER_SECONDS))


def blind_since(now: datetime) -> datetime | None:
    """Since when nobody has audited, though workers run; None while somebody does, and shortly after a first start."""
    rows = WorkerBeat.objects.filter(cycle_at__gt=now - FRESH).values_list("role", "started_at")
    running = dict(rows.order_by("-started_at"))
    if beats.AUDIT in running:
        return None
    last = WorkerBeat.objects.filter(pk=beats.AUDIT_ID).values_list("cycle_at", flat=True).first()
    since: datetime | None = last or min(running.values(), default=None)
    return since if since and since <= now - FRESH else None


def _failure(name: str, error: Exception) -> Finding:
    return Finding(
        key=f"check-failed:{name}",
        title=f"The auditor could not look for {name.replace('-', ' ')}",
        body=f"{type(error).__name__}. Whether all is well there is not known; look at the scheduler's log.",
    )


def _write(found: dict[str, tuple[str, Finding]], failed: Sequence[str], *, now: datetime) -> bool:
    """Bring the rows up to date; True when something came, changed or went.

    What a failed check found before stays as it was: nobody looked.
    """
    known = AuditFinding.objects.in_bulk(list(found))
    news = [_seen(known.get(key), name, finding, now=now) for key, (name, finding) in found.items()]
    standing = AuditFinding.objects.filter(gone_at__isnull=True).exclude(check_name__in=failed)
    gone = [key for key in standing.values_list("pk", flat=True) if key not in found]
    if gone:
        AuditFinding.objects.filter(pk__in=gone).update(gone_at=now)
        logger.info("The auditor finds no more: %s", ", ".join(gone))
    return any(news) or bool(gone)


def _seen(row: AuditFinding | None, check_name: str, finding: Finding, *, now: datetime) -> bool:
    """Write one down; True when it is new or says something else than before."""
    told: dict[str, Any] = {
        "check_name": check_name,
        "title": finding.title[:120],
        "body": finding.body[:300],
        "severity": finding.severity,
    }
    if row is None:
        logger.error("The auditor found: %s. %s", finding.title, finding.body)
        return insert_one(AuditFinding(key=finding.key, first_seen_at=now, last_seen_at=now, **told))
    back = row.gone_at is not None
    if back:
        logger.error("The auditor found again: %s. %s", finding.title, finding.body)
        told |= {"gone_at": None, "first_seen_at": row.first_seen_at if row.told_at else now}
    AuditFinding.objects.filter(pk=row.pk).update(last_seen_at=now, **told)
    return back or any(getattr(row, name) != told[name] for name in ("title", "body", "severity"))
