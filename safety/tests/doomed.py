"""A process of the crash tests: for each line of its plan it forks a worker that dies by SIGKILL at one step.

`python -m safety.tests.doomed '[["expiry", "after the stamp", "<timer id>"], …]'`. Each child is a process with a
connection of its own, as a worker is; forking only spares the start of Python and Django for every one.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from uuid import UUID

import django

from safety.tests.steps import DISPATCH_STEPS, EXPIRY_STEPS, FAIL_SAFE_STEPS, PROMPT_STEPS, Step, die_at


def main(plan: list[tuple[str, str, str]]) -> None:
    """Let each child live and die, one after the other."""
    django.setup()
    for kind, step, row_id in plan:
        child = os.fork()
        if child == 0:
            _work(kind, step, UUID(row_id))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        sys.stdout.write(f"{kind}, {step}: {how}\n")
        sys.stdout.flush()


def _work(kind: str, step: str, row_id: UUID) -> None:
    """What a worker does with this one row; it does not survive the step."""
    from casualmeet import clock
    from notifications import dispatch
    from notifications.models import Delivery
    from safety import expiry, failsafe, prompts
    from safety.models import FailSafeAlert, MeetingTimer

    clock.now()
    die_at(_step(kind, step), _die)
    if kind == "prompt":
        # Only this timer's prompt is due, not those of the timers that others died with.
        own = MeetingTimer.objects.get(pk=row_id)
        unclaimed = MeetingTimer.objects.filter(check_sent_at=None)
        unclaimed.exclude(pk=row_id).update(next_prompt_at=clock.now() + timedelta(hours=1))
        MeetingTimer.objects.filter(pk=row_id).update(next_prompt_at=own.expires_at - timedelta(minutes=5))
        prompts.send_due(clock.now())
    elif kind == "fail-safe":
        FailSafeAlert.objects.filter(pk=row_id).update(next_try_at=(now := clock.now()))
        failsafe._work_on([(row_id, now)])
    elif kind == "expiry":
        expiry.expire([row_id])
    elif kind == "repair":
        expiry.repair()
    else:
        # Only this delivery is due, not those that earlier deaths put back into the queue.
        Delivery.objects.filter(status="queued").update(next_attempt_at=clock.now() + timedelta(hours=1))
        Delivery.objects.filter(pk=row_id).update(next_attempt_at=clock.now())
        dispatch.Dispatcher().drain()


def _step(kind: str, step: str) -> Step:
    if kind == "dispatch":
        return DISPATCH_STEPS[step][0]
    return {"prompt": PROMPT_STEPS, "fail-safe": FAIL_SAFE_STEPS}.get(kind, EXPIRY_STEPS)[step]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
