"""The steps of a worker's cycle, each a place to die at."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """A call to die at: before or after the `nth` call of a function; `half` does half of a bulk insert first."""

    place: str
    when: str = "after"
    nth: int = 1


EXPIRY_STEPS = {
    "after the stamp": Step("safety.expiry._hand_over", "before"),
    "before the incident": Step("sos.incidents.insert_missing", "before"),
    "after the incident": Step("sos.incidents.insert_missing"),
    "after the alerted contacts": Step("sos.incidents.insert_missing", nth=2),
    "after the timeline": Step("sos.incidents.insert_missing", nth=3),
    "after the person's notification": Step("notifications.inbox.post"),
    "amid the deliveries": Step("notifications.outbox.insert_missing", "half"),
    "after the deliveries": Step("notifications.outbox.hold"),
    "after the release": Step("sos.incidents._release"),
    "after alerted_at": Step("sos.incidents._alert"),
    "before the token is cleared": Step("sos.incidents.open_or_join"),
    "before the commit": Step("safety.expiry._hand_over"),
    "after the commit": Step("safety.expiry._stamp_and_hand_over"),
}

PROMPT_STEPS = {
    "amid the messages": Step("notifications.outbox.insert_missing", "half"),
    "after the messages": Step("notifications.outbox.hold"),
    "after the second look": Step("safety.prompts._unchanged"),
    "after the release": Step("notifications.outbox.release_messages"),
    "after the notification": Step("notifications.inbox.post"),
    "after the claim": Step("safety.prompts._claim"),
    "after the commit": Step("safety.prompts._send"),
}

FAIL_SAFE_STEPS = {
    "after the claim": Step("safety.failsafe.make_it_so", "before"),
    "before it is written down": Step("safety.failsafe_carrier._may_ask", "before"),
    "before the request": Step("notifications.carriers.twilio_schedule.storable", "before"),
    "before the answer is read": Step("notifications.carriers.twilio_schedule._standing", "before"),
    "before the answer is stored": Step("safety.failsafe_carrier._finish", "before"),
    "amid storing the answer": Step("safety.failsafe_alerts._next_look"),
}

# The value: whether the carrier may have got the message, so that the next one must be a repeat.
DISPATCH_STEPS = {
    "amid the claim": (Step("notifications.claims._ready", "before"), False),
    "before the attempt is committed": (Step("notifications.claims._open_attempt"), False),
    "after the attempt is committed": (Step("notifications.dispatch.claim_jobs"), True),
    "before the carrier is called": (Step("notifications.dispatch._call_carrier", "before"), True),
    "before the answer is stored": (Step("notifications.dispatch._call_carrier"), True),
    "amid storing the answer": (Step("notifications.answers._record_attempts"), True),
    "before the answer is committed": (Step("notifications.answers._accept"), True),
    "after the answer is stored": (Step("notifications.dispatch.finish"), False),
}


def die_at(step: Step, die: Callable[[], object]) -> Callable[[], None]:
    """Replace the step's function by one that calls `die` there; returns what puts it back."""
    module_name, _, name = step.place.rpartition(".")
    module = importlib.import_module(module_name)
    original = getattr(module, name)
    calls = 0

    @functools.wraps(original)
    def doomed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != step.nth:
            return original(*args, **kwargs)
        if step.when == "half":
            model, rows = args
            original(model, rows[: len(rows) // 2])
        result = original(*args, **kwargs) if step.when == "after" else None
        die()
        return result

    setattr(module, name, doomed)
    return lambda: setattr(module, name, original)
