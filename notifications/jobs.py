"""The scheduled jobs of this room."""

import logging
from datetime import timedelta

from django.conf import settings

from casualmeet import clock
from notifications import auditing, measuring, retention, selftest
from ops import trimming
from ops.jobs import Run, job

logger = logging.getLogger(__name__)


@job("audit", "*/30 * * * * *", limit=timedelta(minutes=2), retry_after=())
def audit(_run: Run) -> str:
    """The next one comes in half a minute: a failed one is not tried again."""
    return auditing.run().summary


@job("self-test", settings.SELFTEST_CRON)
def self_test(run: Run) -> str:
    """A text through each carrier to our own number."""
    if not settings.SELFTEST_PHONE:
        return "off: SELFTEST_PHONE is not set"
    return "sent by " + (", ".join(selftest.send(run.slot, now=clock.now())) or "no carrier: none is real")


@job("self-test-check", "*/5 * * * *")
def check_self_test(run: Run) -> str:
    """Whether those texts arrived."""
    run.still_mine()
    failed = selftest.check(clock.now())
    return f"failed: {', '.join(failed)}" if failed else "nothing failed"


@job("trim", "43 * * * *")
def trim(run: Run) -> str:
    """Delete what is over and old enough."""
    done, failures = [], []
    for what, work in {
        "jobs": retention.trim,
        "prompts and replies": retention.trim_prompts,
        "incoming texts": retention.trim_inbound,
        "read notifications": retention.trim_read,
        "measured incidents": measuring.trim,
        "job runs": trimming.trim_runs,
        "findings": trimming.trim_findings,
        "sessions": trimming.trim_sessions,
    }.items():
        run.still_mine()
        try:
            if count := work(clock.now()):
                done.append(f"{count} {what}")
        except Exception as error:
            # The others go on (P14); the run counts as failed.
            logger.exception("Old %s could not be deleted", what)
            failures.append(error)
    if failures:
        raise failures[0]
    return "deleted " + ", ".join(done) if done else "nothing to delete"
