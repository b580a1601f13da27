"""The face of Twilio for text messages: create, fetch, list, schedule and cancel; lookups.

Twilio docs: "Messages resource", "Message scheduling", "Lookup v2", "Error and warning dictionary". Where the docs say
nothing, the comment says what we assume.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import phonenumbers
from aiohttp import web

from simulator.answers import Answer, scripted, write, write_and_do
from simulator.callbacks import SiteCaller
from simulator.clock import VirtualClock
from simulator.credentials import FROM_NUMBER
from simulator.face import Face
from simulator.journal import Journal
from simulator.messages import API_VERSION, QUEUE_SECONDS, Courier, Message, new_sid
from simulator.rules import Rules, accept
from simulator.twilio_api import E164, Account, date_filter, denial, form_of, or_scripted, paged, problem, refusal

MAX_BODY: Final = 1600
MIN_SCHEDULE_SECONDS: Final = 15 * 60
MAX_SCHEDULE_SECONDS: Final = 35 * 24 * 3600


class Twilio(Face):
    """Messages and lookups."""

    name = "twilio"

    def __init__(
        self, clock: VirtualClock, journal: Journal, rules: Rules, caller: SiteCaller, account: Account, *, pace: float
    ) -> None:
        super().__init__(clock, journal, rules)
        self.account = account
        self.courier = Courier(clock, journal, caller, pace=pace)
        self.messages: dict[str, Message] = {}
        self._creating = 0

    def routes(self) -> list[web.RouteDef]:
        base = f"/{API_VERSION}/Accounts/{{account}}/Messages"
        return [
            web.post(f"{base}.json", self.create),
            web.get(f"{base}.json", self.list),
            web.get(f"{base}/{{sid}}.json", self.fetch),
            web.post(f"{base}/{{sid}}.json", self.update),
            web.get("/v2/PhoneNumbers/{number}", self.lookup),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Take a message, or say why not."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        form = await form_of(request)
        to = form.get("To", "")
        self._creating += 1
        try:
            step = self.rules.take("create", "twilio", to) or accept
            no = refusal(step, self._fault(form))
            self.asked("create", to, request, form, accepted=no is None)
            if no is not None:
                return await write(request, scripted(step, no), self.clock, step)
            message = self.take(form)
            answer = scripted(step, Answer.of(step.status or 201, message.as_json()))
            return await write_and_do(request, answer, self.clock, step, self.courier.carry(message, step))
        finally:
            self._creating -= 1

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        """One message by its SID."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        message = self.messages.get(request.match_info["sid"])
        to = "" if message is None else message.to
        step = self.step("fetch", to, request)
        usual = problem(404, 20404) if message is None else Answer.of(200, message.as_json())
        return await write(request, or_scripted(step, usual), self.clock, step)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Messages, the newest first, by To, From and DateSent (=, >=, <=).

        Messages that have not left yet count with the time they were created; the docs do not say.
        """
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        to, sender = request.query.get("To", ""), request.query.get("From", "")
        step = self.step("list", to, request)
        in_time = date_filter(request.query, "DateSent")
        found = [
            message
            for message in reversed(self.messages.values())
            if to in ("", message.to)
            and sender in ("", message.sender)
            and in_time(message.sent_at or message.created_at)
        ]
        usual = paged(request, "messages", [message.as_json() for message in found])
        return await write(request, or_scripted(step, usual), self.clock, step)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Cancel a scheduled message (Status=canceled), or take its words away (an empty Body)."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        form = await form_of(request)
        message = self.messages.get(request.match_info["sid"])
        step = self.step("cancel", "" if message is None else message.to, request, form)
        if step is not None and not step.accepted:
            return await write(request, or_scripted(step, problem(500, 20500)), self.clock, step)
        if message is None:
            usual = problem(404, 20404)
        elif form.get("Status") == "canceled":
            usual = await self._cancel(message)
        elif form.get("Body") == "":
            message.body = ""
            usual = Answer.of(200, message.as_json())
        else:
            usual = problem(400, 30400)
        return await write(request, or_scripted(step, usual), self.clock, step)

    async def lookup(self, request: web.Request) -> web.StreamResponse:
        """What is known about a number."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self.clock)
        number = request.match_info["number"]
        step = self.step("lookup", number, request)
        return await write(request, or_scripted(step, Answer.of(200, self._known(number))), self.clock, step)

    def _fault(self, form: Mapping[str, str]) -> int | None:
        """The error code of what is wrong with the request."""
        to, sender = form.get("To", ""), form.get("From", "")
        service = form.get("MessagingServiceSid", "")
        account = self.account
        checks = {
            20429: account.create_limit is not None and self._creating > account.create_limit,
            21604: not to,
            21603: not (sender or service),
            21602: not form.get("Body"),
            21211: not E164.fullmatch(to),
            21617: len(form.get("Body", "")) > MAX_BODY,
            21606: bool(sender) and sender not in {FROM_NUMBER, *account.pool},
            21703: bool(service) and not sender and not account.pool,
            21408: to.startswith(tuple(account.disabled_regions)),
            21614: to in account.landlines,
            21608: account.verified is not None and to not in account.verified,
            21610: not service and (sender, to) in account.stopped,
            35114: bool(service) and form.get("ScheduleType") == "fixed" and self._send_at(form) is None,
        }
        return next((code for code, wrong in checks.items() if wrong), None)

    def _send_at(self, form: Mapping[str, str]) -> float | None:
        """The time in SendAt, None where it is not one that can be scheduled for."""
        try:
            when = datetime.fromisoformat(form.get("SendAt", "")).timestamp()
        except ValueError:
            return None
        return when if MIN_SCHEDULE_SECONDS <= when - self.clock.now() <= MAX_SCHEDULE_SECONDS else None

    def take(self, form: Mapping[str, str]) -> Message:
        """The message that this form asks for, on its way to nowhere yet."""
        now, sid = self.clock.now(), new_sid()
        to, service = form["To"], form.get("MessagingServiceSid", "")
        # Without a messaging service Twilio drops the scheduling parameters and sends at once.
        send_at = self._send_at(form) if service and form.get("ScheduleType") == "fixed" else None
        sender = form.get("From") or self.account.sender_for(to)
        status = "scheduled" if send_at is not None else "accepted" if service else "queued"
        entry = self.journal.add(
            carrier="twilio", channel="sms", phone=to, text=form["Body"], at=now, message_id=sid, status=status
        )
        message = Message(
            sid=sid,
            to=to,
            body=form["Body"],
            status=status,
            created_at=now,
            updated_at=now,
            leaves_at=now if send_at is None else send_at,
            entry=entry,
            sender=sender,
            service=service,
            status_callback=form.get("StatusCallback", ""),
            validity=int(form.get("ValidityPeriod") or QUEUE_SECONDS),
            send_at=send_at,
            opted_out=bool(service) and (service, to) in self.account.stopped,
        )
        message.leaves_at = self.account.leaves_at(sender, message.leaves_at, message.segments)
        self.journal.change(entry, segments=message.segments)
        self.messages[sid] = message
        return message

    async def _cancel(self, message: Message) -> Answer:
        if message.status != "scheduled":
            return problem(409, 30409)
        await self.courier.cancel(message)
        return Answer.of(200, message.as_json())

    def _known(self, number: str) -> dict[str, Any]:
        """Every number that is possible exists here: those that are set aside for stories are not assigned anywhere."""
        try:
            parsed = phonenumbers.parse(number)
        except phonenumbers.NumberParseException:
            parsed = None
        valid = parsed is not None and bool(phonenumbers.is_possible_number(parsed))
        kind = "landline" if number in self.account.landlines else "mobile"
        region = phonenumbers.region_code_for_country_code(parsed.country_code or 0) if parsed else None
        return {
            "calling_country_code": str(parsed.country_code) if parsed else None,
            "country_code": region if valid else None,
            "phone_number": number,
            "national_format": phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.NATIONAL)
            if parsed
            else None,
            "valid": valid,
            "validation_errors": [] if valid else ["INVALID_BUT_POSSIBLE"] if parsed else ["NOT_A_NUMBER"],
            "line_type_intelligence": {"type": kind, "carrier_name": "Simulated", "error_code": None}
            if valid
            else None,
            "url": f"/v2/PhoneNumbers/{number}",
        }
