"""Scripted rules: what the carriers do with the next requests, in place of taking everything.

rules.on(to=RAVI).reply(status=503, times=2).then(accept).then(undelivered(30003))
rules.on(to=RAVI, carrier="twilio", operation="list").then(refuse(500))
rules.on(to=RAVI).then(accept.but(callbacks=Callbacks(early=True, copies=2)))
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, Self

Fault = Literal["", "reset", "hang", "truncate"]

FOREVER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What goes wrong with the callbacks of a message or call.

    copies: how many further times each is sent, with the same idempotency token.
    late: seconds between the change and its callback.
    early: they are sent before the create request is answered.
    backwards: the last state is told first.
    lost: none is sent, so only polling tells.
    forged: the signature is made with a made-up token; old_token: with the one before rotation.
    wrong_account, unknown_sid: rightly signed, but of another account, or about a message never created.
    port_in_signature: the URL is signed with its default port written out, as Twilio does at times.
    """

    copies: int = 0
    late: float = 0.0
    early: bool = False
    backwards: bool = False
    lost: bool = False
    forged: bool = False
    old_token: bool = False
    wrong_account: bool = False
    unknown_sid: bool = False
    port_in_signature: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do with a request: whether the message goes out, what the sender gets to see, how it ends.

    Without `status` and `body` the sender sees the carrier's own answer. `code` and `message` fill the carrier's own
    form of an error, `body` replaces it. `delay` is in seconds of the simulator's clock. `ends` is the last state
    ("delivered" by default; for calls "busy", "no-answer", "failed", "canceled", or "completed": answered by
    `answered_by`, who presses `keys` and hangs up). `code_from_start` puts `error_code` on "sending" too. `after_all`: after its end it is
    reported as delivered all the same.
    `times` is how often the step is used, FOREVER for no end.
    """

    accepted: bool = True
    status: int | None = None
    code: int | None = None
    message: str = ""
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    fault: Fault = ""
    times: int = 1
    ends: str = ""
    error_code: int | None = None
    code_from_start: bool = False
    after_all: bool = False
    answered_by: str = ""
    keys: str = ""
    callbacks: Callbacks = field(default_factory=Callbacks)

    def but(self, **changes: Any) -> "Step":
        """This step with changes."""
        return replace(self, **changes)

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> "Step":
        """A step as JSON writes it. Raises TypeError for fields that there are not."""
        callbacks = Callbacks(**values.get("callbacks", {}))
        return cls(**{**values, "callbacks": callbacks})


accept: Final = Step()


def refuse(status: int, code: int | None = None, **more: Any) -> Step:
    """The message does not go out, and the sender is told so in the carrier's own form."""
    return Step(accepted=False, status=status, code=code, **more)


def undelivered(code: int, **more: Any) -> Step:
    """Taken, sent, and then reported as not delivered."""
    return Step(ends="undelivered", error_code=code, **more)


def failed(code: int, **more: Any) -> Step:
    """Taken, and then reported as never sent."""
    return Step(ends="failed", error_code=code, **more)


def sent_only(**more: Any) -> Step:
    """It reaches the phone, but the route has no delivery receipts."""
    return Step(ends="sent", **more)


def reset(*, accepted: bool, **more: Any) -> Step:
    """The connection is reset, after or before the message was accepted."""
    return Step(accepted=accepted, fault="reset", **more)


def hang(*, accepted: bool, **more: Any) -> Step:
    """No answer ever comes."""
    return Step(accepted=accepted, fault="hang", **more)


def slow(seconds: float, **more: Any) -> Step:
    """Accepted, but the answer takes its time."""
    return Step(delay=seconds, **more)


def truncated(*, accepted: bool = True, **more: Any) -> Step:
    """The answer ends in its middle."""
    return Step(accepted=accepted, fault="truncate", **more)


def html(status: int = 502, *, accepted: bool = False, **more: Any) -> Step:
    """A proxy's page in place of the carrier's answer."""
    page = f"<html><head><title>{status}</title></head><body><h1>{status} Bad Gateway</h1></body></html>"
    return Step(accepted=accepted, status=status, body=page, headers={"Content-Type": "text/html"}, **more)


def answered(keys: str = "", *, by: str = "human", **more: Any) -> Step:
    """The call is answered, the keys are pressed one at a time, and then it is hung up.

    `by` is Twilio's AnsweredBy: human, machine_start, machine_end_beep, fax, unknown.
    """
    return Step(ends="completed", answered_by=by, keys=keys, **more)


def busy(**more: Any) -> Step:
    """The line is busy."""
    return Step(ends="busy", **more)


def no_answer(**more: Any) -> Step:
    """It rings, and nobody answers."""
    return Step(ends="no-answer", **more)


def call_failed(code: int | None = None, **more: Any) -> Step:
    """The call can't be connected."""
    return Step(ends="failed", error_code=code, **more)


@dataclass(frozen=True, slots=True)
class _Key:
    to: str | None
    carrier: str | None
    operation: str


class Script:
    """The steps for one kind of request, used in turn."""

    def __init__(self, rules: "Rules", key: _Key) -> None:
        self._rules = rules
        self._key = key

    def then(self, *steps: Step) -> Self:
        """Add steps."""
        self._rules.add(self._key, steps)
        return self

    def reply(self, status: int = 200, code: int | None = None, *, times: int = 1, **more: Any) -> Self:
        """Add an answer that is not an acceptance (unless `accepted` says so)."""
        return self.then(Step(**{"accepted": False, "status": status, "code": code, "times": times, **more}))


class Rules:
    """All scripts. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scripts: dict[_Key, deque[Step]] = {}

    def on(self, to: str | None = None, *, carrier: str | None = None, operation: str = "create") -> Script:
        """A script for requests about `to` (a number in E.164, a push token or endpoint), or about anything.

        Carriers: twilio, twilio-voice, fast2sms, fcm, webpush. Operations: create, fetch, list, cancel, lookup, wallet,
        dlr, token. The most specific script with steps left comes first.
        """
        return Script(self, _Key(to, carrier, operation))

    def add(self, key: _Key, steps: Iterable[Step]) -> None:
        with self._lock:
            self._scripts.setdefault(key, deque()).extend(steps)

    def take(self, operation: str, carrier: str, to: str) -> Step | None:
        """The step for this request, which is used up with it; None for the carrier's usual way."""
        with self._lock:
            for key in (
                _Key(to, carrier, operation),
                _Key(to, None, operation),
                _Key(None, carrier, operation),
                _Key(None, None, operation),
            ):
                script = self._scripts.get(key)
                if script:
                    step = script.popleft()
                    if step.times == FOREVER:
                        script.appendleft(step)
                    elif step.times > 1:
                        script.appendleft(replace(step, times=step.times - 1))
                    return step
        return None

    def left(self) -> list[dict[str, Any]]:
        """The steps that were not used yet."""
        with self._lock:
            return [
                {"to": key.to, "carrier": key.carrier, "operation": key.operation, **_fields(step)}
                for key, script in self._scripts.items()
                for step in script
                if step.times != FOREVER
            ]

    def clear(self) -> None:
        with self._lock:
            self._scripts.clear()


def _fields(step: Step) -> dict[str, Any]:
    """What differs from the usual."""
    plain = {item.name: getattr(step, item.name) for item in fields(step)}
    plain["callbacks"] = {item.name: getattr(step.callbacks, item.name) for item in fields(Callbacks)}
    return plain
