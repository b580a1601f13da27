"""The face of Twilio for text messages: create, fetch, list, schedule and cancel; lookups; texts from people.

Twilio docs: "Messages resource", "Message scheduling", "Lookup v2", "Error and warning dictionary". Where the docs say
nothing, the comment says what we assume.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import phonenumbers
from aiohttp import web

from simulator.answers import Answer, scripted, write, write_and_do
from simulator.callbacks import MAX_TWIML, Sent, SiteCaller
from simulator.clock import VirtualClock
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN, FROM_NUMBER, MESSAGING_SERVICE_SID
from simulator.journal import Journal, Request
from simulator.messages import API_VERSION, QUEUE_SECONDS, Courier, Message, new_sid
from simulator.rules import Rules, Step, accept

MAX_BODY: Final = 1600
MIN_SCHEDULE_SECONDS: Final = 15 * 60
MAX_SCHEDULE_SECONDS: Final = 35 * 24 * 3600
STOP_WORDS: Final = frozenset({"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "OPTOUT", "REVOKE"})
START_WORDS: Final = frozenset({"START", "YES", "UNSTOP"})
MAX_REPLIES: Final = 30
REPLY_WINDOW_SECONDS: Final = 30
TOO_MANY_REPLIES: Final = 14107

_E164: Final = re.compile(r"\+[1-9][0-9]{6,14}")
_CODES: Final = {401: 20003, 403: 20403, 404: 20404, 429: 20429, 500: 20500, 503: 20503}
_TEXTS: Final = {
    20003: "Authenticate",
    20404: "The requested resource was not found",
    20429: "Too Many Requests",
    20500: "Internal Server Error",
    20503: "Service Unavailable",
    21211: "The 'To' number is not a valid phone number.",
    21408: "Permission to send an SMS has not been enabled for the region indicated by the 'To' number.",
    21602: "Message body is required.",
    21603: "A 'From' phone number is required.",
    21604: "A 'To' phone number is required.",
    21606: "The 'From' phone number provided is not a valid, SMS-capable inbound phone number for your account.",
    21608: "The number is unverified. Trial accounts cannot send messages to unverified numbers.",
    21610: "Attempt to send to unsubscribed recipient",
    21611: "This 'From' number has exceeded the maximum number of queued messages",
    21614: "'To' number is not a valid mobile number",
    21617: "The concatenated message body exceeds the 1600 character limit.",
    21703: "The Messaging Service does not have a phone number available to send a message",
    30409: "This message cannot be canceled",
    35114: "SendAt must be between 900 seconds and 35 days in the future",
}


class Account:
    """The account's state that decides about messages; tests change it freely.

    pool: the messaging service's numbers. disabled_regions: prefixes such as "+234". landlines: numbers that take no
    texts. verified: with it the account is on trial and reaches only these. mps: texts per second and sender, None for
    no limit. create_limit: requests at the same time, more get a 429. stopped: (sender or service, number).
    """

    def __init__(self) -> None:
        self.pool: list[str] = [FROM_NUMBER]
        self.disabled_regions: set[str] = set()
        self.landlines: set[str] = set()
        self.verified: set[str] | None = None
        self.mps: float | None = None
        self.create_limit: int | None = None
        self.stopped: set[tuple[str, str]] = set()
        self._free_at: dict[str, float] = {}
        self._sticky: dict[str, str] = {}

    def sender_for(self, to: str) -> str:
        """The pool's number that this recipient always hears from."""
        if self._sticky.get(to) not in self.pool:
            self._sticky[to] = self.pool[len(self._sticky) % len(self.pool)]
        return self._sticky[to]

    def leaves_at(self, sender: str, now: float, segments: int) -> float:
        """When the sender's queue lets the next text go; it is taken up for as long as the text is."""
        if self.mps is None:
            return now
        leaves = max(now, self._free_at.get(sender, now))
        self._free_at[sender] = leaves + segments / self.mps
        return leaves


class Twilio:
    """Handlers belong to the simulator's event loop."""

    def __init__(
        self, clock: VirtualClock, journal: Journal, rules: Rules, caller: SiteCaller, *, inbound_url: str, pace: float
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._rules = rules
        self._caller = caller
        self._courier = Courier(clock, journal, caller, pace=pace)
        self._creating = 0
        self._replies: dict[tuple[str, str], list[float]] = {}
        self.inbound_url = inbound_url
        self.account = Account()
        self.messages: dict[str, Message] = {}

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
            return await write(request, denied, self._clock)
        form = await form_of(request)
        to = form.get("To", "")
        self._creating += 1
        try:
            step = self._rules.take("create", "twilio", to) or accept
            refusal = self._refusal(form, step)
            self._note("create", to, request, form, accepted=refusal is None)
            if refusal is not None:
                return await write(request, scripted(step, refusal), self._clock, step)
            message = self._take(form)
            answer = scripted(step, Answer.of(step.status or 201, message.as_json()))
            return await write_and_do(request, answer, self._clock, step, self._courier.carry(message, step))
        finally:
            self._creating -= 1

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        """One message by its SID."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self._clock)
        message = self.messages.get(request.match_info["sid"])
        to = "" if message is None else message.to
        step = self._scripted("fetch", to, request)
        usual = problem(404, 20404) if message is None else Answer.of(200, message.as_json())
        return await write(request, _or_scripted(step, usual), self._clock, step)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Messages, the newest first, by To, From and DateSent (=, >=, <=).

        Messages that have not left yet count with the time they were created; the docs do not say.
        """
        if (denied := denial(request)) is not None:
            return await write(request, denied, self._clock)
        step = self._scripted("list", request.query.get("To", ""), request)
        fits = _filter(request.query)
        found = [m for m in reversed(self.messages.values()) if fits(m)]
        size = min(int(request.query.get("PageSize", 50)), 1000)
        page = int(request.query.get("Page", 0))
        shown = found[page * size : (page + 1) * size]
        more = len(found) > (page + 1) * size

        def uri(number: int) -> str:
            return f"{request.path}?{urlencode({**request.query, 'PageSize': size, 'Page': number})}"

        usual = Answer.of(
            200,
            {
                "messages": [message.as_json() for message in shown],
                "page": page,
                "page_size": size,
                "start": page * size,
                "end": page * size + max(0, len(shown) - 1),
                "uri": uri(page),
                "first_page_uri": uri(0),
                "previous_page_uri": uri(page - 1) if page else None,
                "next_page_uri": uri(page + 1) if more else None,
            },
        )
        return await write(request, _or_scripted(step, usual), self._clock, step)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Cancel a scheduled message (Status=canceled), or take its words away (an empty Body)."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self._clock)
        form = await form_of(request)
        message = self.messages.get(request.match_info["sid"])
        step = self._scripted("cancel", "" if message is None else message.to, request, form)
        if step is not None and not step.accepted:
            return await write(request, _or_scripted(step, problem(500, 20500)), self._clock, step)
        if message is None:
            usual = problem(404, 20404)
        elif form.get("Status") == "canceled":
            usual = await self._cancel(message)
        elif form.get("Body") == "":
            message.body = ""
            usual = Answer.of(200, message.as_json())
        else:
            usual = problem(400, 30400)
        return await write(request, _or_scripted(step, usual), self._clock, step)

    async def lookup(self, request: web.Request) -> web.StreamResponse:
        """What is known about a number."""
        if (denied := denial(request)) is not None:
            return await write(request, denied, self._clock)
        number = request.match_info["number"]
        step = self._scripted("lookup", number, request)
        return await write(request, _or_scripted(step, Answer.of(200, self._known(number))), self._clock, step)

    async def text_from_person(self, phone: str, text: str, *, to: str = "", **more: str) -> Sent:
        """A person texts one of our numbers: tell the site, and pass on what its answer says."""
        sender = to or self._last_sender(phone)
        in_pool = sender in self.account.pool
        word = text.strip().upper()
        fields = {
            "AccountSid": ACCOUNT_SID,
            "ApiVersion": API_VERSION,
            "Body": text,
            "From": phone,
            "MessageSid": new_sid(),
            "NumMedia": "0",
            "NumSegments": "1",
            "SmsStatus": "received",
            "To": sender,
        }
        fields["SmsSid"] = fields["SmsMessageSid"] = fields["MessageSid"]
        if in_pool:
            fields["MessagingServiceSid"] = MESSAGING_SERVICE_SID
        if word in STOP_WORDS | START_WORDS:
            fields["OptOutType"] = "STOP" if word in STOP_WORDS else "START"
        self._journal.add(
            carrier="twilio",
            channel="sms",
            phone=phone,
            text=text,
            at=self._clock.now(),
            message_id=fields["MessageSid"],
            sender=sender,
            author="person",
            status="received",
            on_phone=True,
        )
        self._obey(word, phone, sender, in_pool=in_pool)
        sent = await self._caller.tell(self.inbound_url, {**fields, **more})
        assert sent is not None
        for reply in _replies(sent.body) if sent.ok else ():
            self._reply(phone, sender, reply, in_pool=in_pool)
        return sent

    def _refusal(self, form: Mapping[str, str], step: Step) -> Answer | None:
        if not step.accepted:
            status = step.status or 400
            return problem(status, step.code or _CODES.get(status, status), step.message)
        limit = self.account.create_limit
        if limit is not None and self._creating > limit:
            return problem(429, 20429)
        code = self._fault(form)
        return None if code is None else problem(429 if code == 21611 else 400, code)

    def _fault(self, form: Mapping[str, str]) -> int | None:
        """The error code of what is wrong with the request."""
        to, sender = form.get("To", ""), form.get("From", "")
        service = form.get("MessagingServiceSid", "")
        account = self.account
        checks = {
            21604: not to,
            21603: not (sender or service),
            21602: not form.get("Body"),
            21211: not _E164.fullmatch(to),
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
        return when if MIN_SCHEDULE_SECONDS <= when - self._clock.now() <= MAX_SCHEDULE_SECONDS else None

    def _take(self, form: Mapping[str, str]) -> Message:
        now, sid = self._clock.now(), new_sid()
        to, service = form["To"], form.get("MessagingServiceSid", "")
        # Without a messaging service Twilio drops the scheduling parameters and sends at once.
        send_at = self._send_at(form) if service and form.get("ScheduleType") == "fixed" else None
        sender = form.get("From") or self.account.sender_for(to)
        status = "scheduled" if send_at is not None else "accepted" if service else "queued"
        entry = self._journal.add(
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
        self._journal.change(entry, segments=message.segments)
        self.messages[sid] = message
        return message

    async def _cancel(self, message: Message) -> Answer:
        if message.status != "scheduled":
            return problem(409, 30409)
        await self._courier.cancel(message)
        return Answer.of(200, message.as_json())

    def _known(self, number: str) -> dict[str, Any]:
        try:
            parsed = phonenumbers.parse(number)
        except phonenumbers.NumberParseException:
            parsed = None
        valid = parsed is not None and bool(phonenumbers.is_valid_number(parsed))
        kind = "landline" if number in self.account.landlines else "mobile"
        return {
            "calling_country_code": str(parsed.country_code) if parsed else None,
            "country_code": phonenumbers.region_code_for_number(parsed) if parsed and valid else None,
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

    def _last_sender(self, phone: str) -> str:
        mine = [m.sender for m in self.messages.values() if m.to == phone and m.sender]
        return mine[-1] if mine else FROM_NUMBER

    def _obey(self, word: str, phone: str, sender: str, *, in_pool: bool) -> None:
        keys = {(sender, phone), *({(MESSAGING_SERVICE_SID, phone)} if in_pool else ())}
        if word in STOP_WORDS:
            self.account.stopped |= keys
            note = "You have successfully been unsubscribed. You will not receive any more messages from this number."
        elif word in START_WORDS:
            self.account.stopped -= keys
            note = "You have successfully been re-subscribed to messages from this number."
        else:
            return
        self._journal.add(
            carrier="twilio",
            channel="sms",
            phone=phone,
            text=f"{note} Reply {'START to resubscribe' if word in STOP_WORDS else 'STOP to unsubscribe'}.",
            at=self._clock.now(),
            message_id=new_sid(),
            sender=sender,
            author="carrier",
            status="delivered",
            on_phone=True,
        )

    def _reply(self, phone: str, sender: str, text: str, *, in_pool: bool) -> None:
        """Send what the answer to an inbound text asked for; beyond thirty in thirty seconds nothing is sent."""
        now = self._clock.now()
        recent = [at for at in self._replies.get((sender, phone), []) if at > now - REPLY_WINDOW_SECONDS]
        if len(recent) >= MAX_REPLIES:
            self._caller.alerts.append(TOO_MANY_REPLIES)
            return
        self._replies[sender, phone] = [*recent, now]
        message = self._take({"To": phone, "From": sender, "Body": text})
        message.opted_out = (sender, phone) in self.account.stopped
        message.direction = "outbound-reply"
        if in_pool:
            message.service = MESSAGING_SERVICE_SID
        self._clock.spawn(self._courier.carry(message, accept))

    def _scripted(
        self, operation: str, to: str, request: web.Request, form: Mapping[str, str] | None = None
    ) -> Step | None:
        step = self._rules.take(operation, "twilio", to)
        self._note(operation, to, request, form or dict(request.query), accepted=step is None or step.accepted)
        return step

    def _note(
        self, operation: str, to: str, request: web.Request, fields: Mapping[str, str], *, accepted: bool
    ) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self._journal.asked(Request("twilio", operation, to, self._clock.now(), accepted, dict(fields), headers))


def problem(status: int, code: int, message: str = "") -> Answer:
    """An error in Twilio's form."""
    return Answer.of(
        status,
        {
            "code": code,
            "message": message or _TEXTS.get(code, f"Error {code}"),
            "more_info": f"https://www.twilio.com/docs/errors/{code}",
            "status": status,
        },
    )


def denial(request: web.Request) -> Answer | None:
    """Why this request is not let in: wrong credentials, or somebody else's account."""
    wanted = base64.b64encode(f"{ACCOUNT_SID}:{AUTH_TOKEN}".encode()).decode()
    if request.headers.get("Authorization") != f"Basic {wanted}":
        return problem(401, 20003)
    if request.match_info.get("account", ACCOUNT_SID) != ACCOUNT_SID:
        return problem(404, 20404)
    return None


async def form_of(request: web.Request) -> dict[str, str]:
    """The posted form; the last of repeated names wins."""
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}


def _or_scripted(step: Step | None, usual: Answer) -> Answer:
    if step is None:
        return usual
    if step.accepted:
        return scripted(step, usual)
    status = step.status or 400
    return scripted(step, problem(status, step.code or _CODES.get(status, status), step.message))


def _filter(query: Any) -> Callable[[Message], bool]:
    """What a list's query lets through."""
    tests: list[Callable[[Message], bool]] = []
    if to := query.get("To"):
        tests.append(lambda m: m.to == to)
    if sender := query.get("From"):
        tests.append(lambda m: m.sender == sender)
    if after := query.get("DateSent>"):
        start = _instant(after)
        tests.append(lambda m: (m.sent_at or m.created_at) >= start)
    if before := query.get("DateSent<"):
        end = _instant(before, end_of_day=True)
        tests.append(lambda m: (m.sent_at or m.created_at) <= end)
    if on := query.get("DateSent"):
        first, last = _instant(on), _instant(on, end_of_day=True)
        tests.append(lambda m: first <= (m.sent_at or m.created_at) <= last)
    return lambda message: all(test(message) for test in tests)


def _instant(text: str, *, end_of_day: bool = False) -> float:
    """A date (UTC) or a time, as seconds since 1970."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return (start + timedelta(days=1 if end_of_day else 0)).timestamp()


def _replies(body: str) -> list[str]:
    """The texts of the Message verbs in a TwiML answer."""
    if not body.strip() or len(body) > MAX_TWIML:
        return []
    try:
        root = ET.fromstring(body)
    except ET.ParseError:
        return []
    return ["".join(node.itertext()).strip() for node in root.iter("Message")]
