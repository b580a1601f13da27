"""Runs the auditor and tells of what it found: the moderators, the operators, and the dead man's switch."""

import logging
import time
from datetime import datetime, timedelta

from casualmeet import clock
from notifications import hints, inbox, live
from ops import audit, deadman, reporting
from ops.models import AuditFinding, Severity

logger = logging.getLogger(__name__)

# What comes back within this time is the same trouble: nobody is told again.
SETTLED_AFTER = timedelta(minutes=2)
# Telling those outside may take 5 s each; the rest is told after the next audit.
TELLING_SECONDS = 15.0
# The process of the job ends right after it.
HINT_SECONDS = 1.0


def run() -> audit.Outcome:
    """One audit. Of what is new, people are told once; of what is gone, the alarms are taken back.

    When all is well, the dead man's switch hears of it; else it hears nothing.
    """
    outcome = audit.run(clock.now())
    _tell()
    _settle(clock.now())
    if outcome.changed:
        live.publish(live.MODERATION)
    if outcome.well:
        deadman.ping()
    hints.flush(HINT_SECONDS)
    return outcome


def alarm_key(finding: AuditFinding) -> str:
    """Of the moderators' alarm about a finding."""
    return f"audit:{finding.key}:{finding.first_seen_at:%Y-%m-%dT%H:%M:%S}"


def _tell() -> None:
    """The moderators first. A crash has it told again, under the same keys."""
    untold = list(AuditFinding.objects.untold())
    for finding in untold:
        inbox.alarm_moderators(key=alarm_key(finding), title=finding.title, body=finding.body)
    until = time.monotonic() + TELLING_SECONDS
    for finding in untold:
        if time.monotonic() > until:
            return
        severity: reporting.Severity = "critical" if finding.severity == Severity.CRITICAL else "warning"
        reporting.report(finding.title, key=_matter(finding), severity=severity, details={"what": finding.body})
        AuditFinding.objects.filter(pk=finding.pk).update(told_at=clock.now())


def _settle(now: datetime) -> None:
    """The moderators' alarms go at once; the operators hear of the end when it has lasted."""
    for finding in AuditFinding.objects.to_settle():
        inbox.withdraw_alarm(alarm_key(finding))
        if finding.gone_at and finding.gone_at <= now - SETTLED_AFTER:
            reporting.resolve(_matter(finding))
            AuditFinding.objects.filter(pk=finding.pk, gone_at=finding.gone_at).update(told_at=None)


def _matter(finding: AuditFinding) -> str:
    return f"audit:{finding.key}"
