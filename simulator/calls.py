"""One call: rung, answered, spoken into, hung up; its callbacks and its TwiML.

Twilio docs: "Calls resource", "Voice status callbacks", "TwiML Gather", "Answering machine detection".
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.callbacks import MAX_TWIML, SiteCaller
from simulator.clock import VirtualClock
from simulator.credentials import ACCOUNT_SID
from simulator.journal import Entry, Journal
from simulator.messages import API_VERSION, rfc2822
from simulator.rules import Callbacks, Step
from simulator.twiml import TwimlError, Verb, parse, spoken

RING_SECONDS: Final = 60
RING_BUFFER_SECONDS: Final = 5
GATHER_SECONDS: Final = 5
MAX_DOCUMENTS: Final = 100
FETCH_FAILED, TOO_LARGE, NOT_TWIML = 11200, 11750, 12100
APOLOGY: Final = "We are sorry, an application error has occurred. Goodbye."
ENDED: Final = frozenset({"completed", "busy", "failed", "no-answer", "canceled"})

_EVENTS: Final = {"initiated": "initiated", "ringing": "ringing", "in-progress": "answered"}


@dataclass(slots=True)
class Gathering:
    """A Gather that waits for keys."""

    action: str
    digits_wanted: int | None
    finish_on: str
    on_nothing: bool
    pressed: str = ""


@dataclass(slots=True)
class Call:
    """Times are seconds since 1970. `heard` is what was played so far, `pressed` every key of the person."""

    sid: str
    to: str
    sender: str
    created_at: float
    entry: Entry
    document: str = ""
    url: str = ""
    fallback_url: str = ""
    status_callback: str = ""
    events: frozenset[str] = frozenset({"completed"})
    timeout: int = RING_SECONDS
    detection: str = ""
    faults: Callbacks = field(default_factory=Callbacks)
    status: str = "queued"
    answered_by: str = ""
    heard: list[str] = field(default_factory=list)
    pressed: str = ""
    sequence: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    error_code: int | None = None
    left: deque[Verb] = field(default_factory=deque)
    gathering: Gathering | None = None
    documents: int = 0

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def duration(self) -> int:
        return 0 if self.started_at is None or self.ended_at is None else round(self.ended_at - self.started_at)

    def as_json(self) -> dict[str, Any]:
        return {
            "account_sid": ACCOUNT_SID,
            "answered_by": self.answered_by or None,
            "api_version": API_VERSION,
            "date_created": rfc2822(self.created_at),
            "date_updated": rfc2822(self.ended_at or self.started_at or self.created_at),
            "direction": "outbound-api",
            "duration": str(self.duration) if self.ended else None,
            "end_time": None if self.ended_at is None else rfc2822(self.ended_at),
            "from": self.sender,
            "from_formatted": self.sender,
            "phone_number_sid": None,
            "price": None,
            "price_unit": "USD",
            "sid": self.sid,
            "start_time": None if self.started_at is None else rfc2822(self.started_at),
            "status": self.status,
            "subresource_uris": {},
            "to": self.to,
            "to_formatted": self.to,
            "uri": f"/{API_VERSION}/Accounts/{ACCOUNT_SID}/Calls/{self.sid}.json",
        }

    def fields(self) -> dict[str, str]:
        """What every request about this call says."""
        fields = {
            "AccountSid": ACCOUNT_SID,
            "ApiVersion": API_VERSION,
            "CallSid": self.sid,
            "CallStatus": self.status,
            "Called": self.to,
            "Caller": self.sender,
            "Direction": "outbound-api",
            "From": self.sender,
            "To": self.to,
        }
        if self.answered_by:
            fields["AnsweredBy"] = self.answered_by
        return fields


class Switchboard:
    """Takes calls from state to state. `pace` is the time between two states, in seconds."""

    def __init__(self, clock: VirtualClock, journal: Journal, caller: SiteCaller, *, pace: float) -> None:
        self._clock = clock
        self._journal = journal
        self._caller = caller
        self.pace = pace

    async def place(self, call: Call, step: Step) -> None:
        """Ring, and do what the script says; without one it rings until somebody answers or the time is over."""
        call.faults = step.callbacks
        await self._clock.sleep(self.pace)
        await self._enter(call, "initiated")
        await self._clock.sleep(self.pace)
        if step.ends in {"busy", "failed", "canceled"}:
            call.error_code = step.error_code
            await self._enter(call, step.ends)
            return
        await self._enter(call, "ringing")
        if step.ends == "no-answer":
            await self._enter(call, "no-answer")
        elif step.ends == "completed":
            await self.answer(call, by=step.answered_by or "human")
            for key in step.keys:
                await self.press(call, key)
            if not step.answered_by.startswith("machine"):  # which listens until nothing more is said
                await self.end(call)
        else:
            self._clock.spawn(self._give_up(call))

    async def answer(self, call: Call, *, by: str = "human") -> None:
        """Somebody, or something, takes the call."""
        if call.status != "ringing":
            return
        call.started_at = self._clock.now()
        if call.detection:
            call.answered_by = by
        await self._enter(call, "in-progress")
        await self._open(call, call.url, first=True)

    async def press(self, call: Call, digits: str) -> None:
        """The person presses keys. Without a Gather nobody listens."""
        for digit in digits:
            call.pressed += digit
            waiting = call.gathering
            if waiting is None or call.ended:
                continue
            if digit == waiting.finish_on:
                await self._gathered(call, finished_on=digit)
                continue
            waiting.pressed += digit
            if waiting.digits_wanted is not None and len(waiting.pressed) >= waiting.digits_wanted:
                await self._gathered(call)

    async def end(self, call: Call, status: str = "completed") -> None:
        """Hung up, or taken back by the site."""
        if not call.ended:
            call.gathering = None
            call.left.clear()
            await self._enter(call, status)

    async def _give_up(self, call: Call) -> None:
        await self._clock.sleep(call.timeout + RING_BUFFER_SECONDS)
        if call.status == "ringing":
            await self._enter(call, "no-answer")

    async def _enter(self, call: Call, status: str) -> None:
        if call.ended:
            return
        now, over = self._clock.now(), status in ENDED
        call.status = status
        if over:
            call.ended_at = now
        rings = call.entry.on_phone or status == "ringing"
        self._journal.change(call.entry, status=status, on_phone=rings, error_code=call.error_code)
        event = _EVENTS.get(status, "completed")
        if event not in call.events or not call.status_callback:
            return
        fields = {
            **call.fields(),
            "CallbackSource": "call-progress-events",
            "SequenceNumber": str(call.sequence),
            "Timestamp": rfc2822(now),
        }
        call.sequence += 1
        if over:
            fields["CallDuration"] = str(call.duration)
            fields["Duration"] = str(-(-call.duration // 60))
        if status == "failed" and call.error_code is not None:
            fields["ErrorCode"] = str(call.error_code)
        telling = self._caller.tell(call.status_callback, fields, call.faults)
        if call.faults.late:
            self._clock.spawn(telling)
        else:
            await telling

    async def _open(self, call: Call, url: str, more: Mapping[str, str] | None = None, *, first: bool = False) -> None:
        """Get the next document and run it. One that can't be had ends the call with an apology."""
        call.documents += 1
        if first and call.document:
            await self._run(call, call.document)
            return
        trouble = FETCH_FAILED if call.documents > MAX_DOCUMENTS or not url else None
        for address in () if trouble else (url, call.fallback_url):
            sent = None if not address else await self._caller.send(address, {**call.fields(), **(more or {})})
            if sent is not None and sent.ok:
                call.url = address
                if len(sent.body.encode()) > MAX_TWIML:
                    trouble = TOO_LARGE
                    break
                await self._run(call, sent.body)
                return
            trouble = FETCH_FAILED
        await self._apologise(call, trouble or FETCH_FAILED)

    async def _run(self, call: Call, document: str) -> None:
        try:
            verbs = parse(document)
        except TwimlError:
            await self._apologise(call, NOT_TWIML)
            return
        call.left = deque(verbs)
        await self._go_on(call)

    async def _go_on(self, call: Call) -> None:
        """Perform verbs until one waits for the person, or nothing is left."""
        while call.left and not call.ended:
            verb = call.left.popleft()
            if verb.name in {"Say", "Play"}:
                self._play(call, verb)
            elif verb.name == "Gather":
                self._gather(call, verb)
                return
            elif verb.name == "Redirect":
                await self._open(call, self._caller.absolute(verb.text, call.url))
                return
            elif verb.name in {"Hangup", "Reject"}:
                break
        await self.end(call)

    def _play(self, call: Call, verb: Verb) -> None:
        if words := verb.says():
            call.heard.append(words)

    def _gather(self, call: Call, verb: Verb) -> None:
        for inner in verb.inner:
            self._play(call, inner)
        given = verb.attributes
        wanted = given.get("numDigits")
        waiting = Gathering(
            action=self._caller.absolute(given["action"], call.url) if given.get("action") else call.url,
            digits_wanted=int(wanted) if wanted else None,
            finish_on=given.get("finishOnKey", "#"),
            on_nothing=given.get("actionOnEmptyResult") == "true",
        )
        call.gathering = waiting
        self._clock.spawn(self._time_out(call, waiting, float(given.get("timeout", GATHER_SECONDS))))

    async def _time_out(self, call: Call, waiting: Gathering, seconds: float) -> None:
        """Wait for the first key, and again after each; then go on without."""
        pressed = None
        while pressed != waiting.pressed:
            pressed = waiting.pressed
            await self._clock.sleep(seconds)
            if call.gathering is not waiting:
                return
        await self._gathered(call)

    async def _gathered(self, call: Call, *, finished_on: str = "") -> None:
        waiting, call.gathering = call.gathering, None
        if waiting is None or call.ended:
            return
        if not waiting.pressed and not waiting.on_nothing:
            await self._go_on(call)
            return
        more = {"Digits": waiting.pressed, "FinishedOnKey": finished_on, "msg": "Gather End"}
        await self._open(call, waiting.action, more)

    async def _apologise(self, call: Call, code: int) -> None:
        self._caller.alerts.append(code)
        call.error_code = code
        call.heard.append(APOLOGY)
        await self.end(call)


def first_words(document: str) -> str:
    """What an inline document says before anybody presses a key; empty where it is no TwiML."""
    try:
        return spoken(parse(document))
    except TwimlError:
        return ""
