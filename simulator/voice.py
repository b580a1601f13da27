"""The face of Twilio for calls: create, fetch, list, end. Twilio docs, "Calls resource"."""

import re
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from simulator.answers import Answer, scripted, write, write_and_do
from simulator.callbacks import SiteCaller
from simulator.calls import RING_SECONDS, Call, Switchboard, first_words
from simulator.clock import VirtualClock
from simulator.credentials import FROM_NUMBER
from simulator.face import Face
from simulator.journal import Journal
from simulator.messages import API_VERSION, new_sid
from simulator.rules import Rules, accept
from simulator.twilio_api import E164, Account, date_filter, denial, form_of, or_scripted, paged, problem, refusal

MAX_INLINE_TWIML: Final = 4000

_URL: Final = re.compile(r"https?://\S+")


class Voice(Face):
    """Calls that the site starts."""

    name = "twilio-voice"

    def __init__(
        self, clock: VirtualClock, journal: Journal, rules: Rules, caller: SiteCaller, account: Account, *, pace: float
    ) -> None:
        super().__init__(clock, journal, rules)
        self.account = account
        self.switchboard = Switchboard(clock, journal, caller, pace=pace)
        self.calls: dict[str, Call] = {}

    def routes(self) -> list[web.RouteDef]:
        base = f"/{API_VERSION}/Accounts/{{account}}/Calls"
        return [
            web.post(f"{base}.json", self.create),
            web.get(f"{base}.json", self.list),
            web.get(f"{base}/{{sid}}.json", self.fetch),
            web.post(f"{base}/{{sid}}.json", self.update),
        ]

    def ringing(self, phone: str) -> Call | None:
        """The newest call that rings at this phone, or is going on."""
        live = [call for call in self.calls.values() if call.to == phone and call.status in {"ringing", "in-progress"}]
        return live[-1] if live else None

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Start a call, or say why not."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        form = await form_of(request)
        to = form.get("To", "")
        step = self.rules.take("create", self.name, to) or accept
        no = refusal(step, self._fault(form))
        self.asked("create", to, request, form, accepted=no is None)
        if no is not None:
            return await write(request, scripted(step, no), self.clock, step)
        events = (await request.post()).getall("StatusCallbackEvent", ["completed"])
        call = self._take(form, frozenset(" ".join(str(event) for event in events).split()))
        answer = scripted(step, Answer.of(step.status or 201, call.as_json()))
        return await write_and_do(request, answer, self.clock, step, self.switchboard.place(call, step))

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        """One call by its SID."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        call = self.calls.get(request.match_info["sid"])
        step = self.step("fetch", "" if call is None else call.to, request)
        usual = problem(404, 20404) if call is None else Answer.of(200, call.as_json())
        return await write(request, or_scripted(step, usual), self.clock, step)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Calls, the newest first, by To and StartTime; one that was not answered counts with the time it was made."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        to = request.query.get("To", "")
        step = self.step("list", to, request)
        in_time = date_filter(request.query, "StartTime")
        found = [
            call
            for call in reversed(self.calls.values())
            if to in ("", call.to) and in_time(call.started_at or call.created_at)
        ]
        usual = paged(request, "calls", [call.as_json() for call in found])
        return await write(request, or_scripted(step, usual), self.clock, step)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Take back a call that was not answered yet (Status=canceled), or end one (Status=completed)."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        form = await form_of(request)
        call = self.calls.get(request.match_info["sid"])
        step = self.step("cancel", "" if call is None else call.to, request, form)
        if call is None:
            return await write(request, or_scripted(step, problem(404, 20404)), self.clock, step)
        if step is None or step.accepted:
            status = "completed" if call.status == "in-progress" else form.get("Status", "completed")
            self.clock.spawn(self.switchboard.end(call, status))
        return await write(request, or_scripted(step, Answer.of(200, call.as_json())), self.clock, step)

    def _fault(self, form: Mapping[str, str]) -> int | None:
        to, sender, account = form.get("To", ""), form.get("From", ""), self.account
        checks = {
            21201: not to,
            21213: not sender,
            21211: not E164.fullmatch(to),
            21212: sender not in {FROM_NUMBER, *account.pool},
            21205: not form.get("Twiml") and not _URL.fullmatch(form.get("Url", "")),
            32018: len(form.get("Twiml", "")) > MAX_INLINE_TWIML,
            21215: to.startswith(tuple(account.disabled_regions)),
            21219: account.verified is not None and to not in account.verified,
        }
        return next((code for code, wrong in checks.items() if wrong), None)

    def _take(self, form: Mapping[str, str], events: frozenset[str]) -> Call:
        now, sid, document = self.clock.now(), new_sid("CA"), form.get("Twiml", "")
        entry = self.journal.add(
            carrier=self.name,
            channel="voice",
            phone=form["To"],
            text=first_words(document),
            at=now,
            message_id=sid,
            sender=form["From"],
            status="queued",
        )
        call = Call(
            sid=sid,
            to=form["To"],
            sender=form["From"],
            created_at=now,
            entry=entry,
            document=document,
            url=form.get("Url", ""),
            fallback_url=form.get("FallbackUrl", ""),
            status_callback=form.get("StatusCallback", ""),
            events=events,
            timeout=int(form.get("Timeout") or RING_SECONDS),
            detection=form.get("MachineDetection", ""),
        )
        self.calls[sid] = call
        return call
