"""The face of Fast2SMS: bulkV2, wallet, delivery report, webhook.

Fast2SMS docs: "Bulk V2", "Wallet balance", "Error codes", "SMS webhook"; the delivery report as public clients read it.
"""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from aiohttp import web

from notifications.texts import gsm
from simulator.answers import Answer, scripted, write, write_and_do
from simulator.callbacks import SiteCaller
from simulator.clock import VirtualClock
from simulator.credentials import FAST2SMS_API_KEY
from simulator.face import Face
from simulator.journal import Entry, Journal
from simulator.rules import Rules, Step, accept

INDIA: Final = "+91"
IST: Final = timezone(timedelta(hours=5, minutes=30))
PROMOTION_HOURS: Final = range(9, 21)
WEBHOOK_SECONDS: Final = 10

_MOBILE: Final = re.compile(r"[6-9][0-9]{9}")
_LINK: Final = re.compile(r"https?://|www\.", re.IGNORECASE)
_ROUTES: Final = frozenset({"q", "dlt", "dlt_manual", "otp"})
_TEXTS: Final = {
    402: "Message Field is Empty",
    404: "Language Field is Required",
    405: "Numbers Field is Required",
    406: "Invalid Sender ID",
    408: "Invalid Route",
    411: "Invalid Numbers",
    412: "Invalid Authentication, Check Authorization Key",
    416: "You do not have sufficient wallet balance",
    417: "Invalid Language, only english or unicode",
    424: "Invalid Message ID",
    426: "Links in variables have to be whitelisted",
    995: "Spamming detected: too many requests for the same number",
    997: "Only numeric values are allowed",
}
_HTTP: Final = {412: 401, 413: 401}


@dataclass(slots=True)
class Report:
    """What became of one text. `status` is in Fast2SMS's own words."""

    request_id: str
    mobile: str
    entry: Entry
    status: str
    description: str
    at: float
    route: str
    language: str
    sender: str
    amount: Decimal

    def as_json(self) -> dict[str, Any]:
        return {
            "mobile": int(self.mobile),
            "status": self.status,
            "status_description": self.description,
            "delivery_time": datetime.fromtimestamp(self.at, IST).strftime("%Y-%m-%d %H:%M:%S"),
            "sms_count": self.entry.segments,
            "amount_debited": str(self.amount),
            "sender_id": self.sender,
            "sms_language": self.language,
        }


class Fast2SMS(Face):
    """Tests change its state freely.

    balance, price: in rupees; price is for one segment. templates: what DLT message ids stand for, with {#var#} for the
    variables; None takes every id. promotional: ids of templates that only go out by day. repeat_limit: texts to one
    number within `cooldown` seconds before more are refused with 995; None for no limit. webhook: where the site is
    told, empty for nowhere. whitelisted: starts of links that variables may hold.
    """

    name = "fast2sms"

    def __init__(self, clock: VirtualClock, journal: Journal, rules: Rules, caller: SiteCaller, *, pace: float) -> None:
        super().__init__(clock, journal, rules)
        self._caller = caller
        self._pace = pace
        self._recent: dict[str, list[float]] = {}
        self.webhook = ""
        self.webhook_form = False
        self.balance = Decimal("1000.0000")
        self.price = Decimal("5.0000")
        self.templates: dict[str, str] | None = None
        self.promotional: set[str] = set()
        self.repeat_limit: int | None = None
        self.cooldown = 300.0
        self.whitelisted: tuple[str, ...] = ("http",)
        self.reports: dict[str, Report] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.route("*", "/dev/bulkV2", self.bulk),
            web.route("*", "/dev/wallet", self.wallet),
            web.get("/dev/dlr/{request_id}", self.delivery_report),
        ]

    async def bulk(self, request: web.Request) -> web.StreamResponse:
        """Take a text, or say why not."""
        form = await _fields(request)
        number = form.get("numbers", "")
        to = INDIA + number
        step = self.rules.take("create", self.name, to) or accept
        code = self._fault(request, form) if step.accepted else step.code or step.status or 400
        self.asked("create", to, request, form, accepted=code is None)
        if code is not None:
            status = step.status if not step.accepted and step.status else _HTTP.get(code, 400)
            no = _refusal(code, status, step.message)
            return await write(request, scripted(step, no), self.clock, step)
        report = self._take(form, to)
        said = {"return": True, "request_id": report.request_id, "message": ["SMS sent successfully."]}
        answer = scripted(step, Answer.of(step.status or 200, said))
        return await write_and_do(request, answer, self.clock, step, self._carry(report, step, form))

    async def wallet(self, request: web.Request) -> web.StreamResponse:
        """What is left."""
        said = {
            "return": True,
            "wallet": f"{self.balance:.4f}",
            "sms_count": int(self.balance / self.price),
        }
        return await self._told(request, "wallet", "", Answer.of(200, said))

    async def delivery_report(self, request: web.Request) -> web.StreamResponse:
        """What became of one request."""
        report = self.reports.get(request.match_info["request_id"])
        if report is None:
            usual = Answer.of(404, {"success": False, "message": "Invalid request_id"})
        else:
            row = {"request_id": report.request_id, "delivery_status": [report.as_json()]}
            usual = Answer.of(200, {"success": True, "data": [row]})
        return await self._told(request, "dlr", "" if report is None else report.entry.phone, usual)

    async def _told(self, request: web.Request, operation: str, to: str, usual: Answer) -> web.StreamResponse:
        step = self.step(operation, to, request)
        if not _has_key(request, request.query):
            usual = _refusal(412, 401)
        elif step is not None and not step.accepted:
            usual = _refusal(step.code or step.status or 400, step.status or 400, step.message)
        return await write(request, scripted(step or accept, usual), self.clock, step)

    def _fault(self, request: web.Request, form: Mapping[str, str]) -> int | None:
        """The error code of what is wrong with the request."""
        route, number = form.get("route", ""), form.get("numbers", "")
        variables = form.get("variables_values", "")
        checks = {
            412: not _has_key(request, form),
            408: route not in _ROUTES,
            405: not number,
            411: not _MOBILE.fullmatch(number),
            402: not form.get("message") and route != "otp",
            404: route == "q" and not form.get("language"),
            417: route == "q" and form.get("language", "") not in {"", "english", "unicode"},
            406: route.startswith("dlt") and not re.fullmatch("[A-Za-z]{3,6}", form.get("sender_id", "")),
            424: route == "dlt" and self.templates is not None and form.get("message") not in self.templates,
            426: route == "dlt" and any(self._forbidden(word) for word in re.split(r"[|\s]", variables)),
            997: route == "otp" and not variables.isdigit(),
            416: self.balance < self.price,
            995: self._too_often(number),
        }
        return next((code for code, wrong in checks.items() if wrong), None)

    def _forbidden(self, word: str) -> bool:
        return _LINK.match(word) is not None and not word.startswith(self.whitelisted)

    def _too_often(self, number: str) -> bool:
        if self.repeat_limit is None:
            return False
        since = self.clock.now() - self.cooldown
        recent = [at for at in self._recent.get(number, []) if at > since]
        return len(recent) >= self.repeat_limit

    def _take(self, form: Mapping[str, str], to: str) -> Report:
        now, text = self.clock.now(), self._text(form)
        request_id = secrets.token_hex(8)[:15]
        self._recent.setdefault(form["numbers"], []).append(now)
        segments = gsm.segments(text)
        amount = self.price * segments
        self.balance -= amount
        entry = self.journal.add(
            carrier=self.name,
            channel="sms",
            phone=to,
            text=text,
            at=now,
            message_id=request_id,
            sender=form.get("sender_id") or "Fast2SMS",
            status="Sent",
            segments=segments,
        )
        report = Report(
            request_id=request_id,
            mobile=form["numbers"],
            entry=entry,
            status="Sent",
            description="Submitted to operator",
            at=now,
            route=form["route"],
            language=form.get("language", "english"),
            sender=form.get("sender_id", ""),
            amount=amount,
        )
        self.reports[request_id] = report
        return report

    def _text(self, form: Mapping[str, str]) -> str:
        """What the phone shows: on the DLT route the template with its variables, where it is known."""
        if form["route"] == "otp":
            return f"Your OTP is: {form['variables_values']}"
        if form["route"] != "dlt":
            return form["message"]
        values = form.get("variables_values", "")
        template = (self.templates or {}).get(form["message"])
        if template is None:
            return f"{form['message']}|{values}"
        for value in values.split("|"):
            template = template.replace("{#var#}", value, 1)
        return template

    async def _carry(self, report: Report, step: Step, form: Mapping[str, str]) -> None:
        """Deliver it, or not, and tell the site where it asked to be told."""
        await self.clock.sleep(self._pace)
        if step.ends == "sent":
            self.journal.change(report.entry, on_phone=True)
            return
        hour = datetime.fromtimestamp(self.clock.now(), IST).hour
        by_night = form.get("message") in self.promotional and hour not in PROMOTION_HOURS
        report.at = self.clock.now()
        if by_night or step.ends in {"failed", "undelivered"}:
            report.status = "Failed"
            report.description = "Promotional text outside 9 to 21 h" if by_night else f"Error {step.error_code}"
        else:
            report.status, report.description = "Delivered", "Delivered to the handset"
        arrived = report.status == "Delivered"
        self.journal.change(report.entry, status=report.status, on_phone=arrived, error_code=step.error_code)
        if self.webhook and not step.callbacks.lost:
            await self.clock.sleep(step.callbacks.late)
            for _ in range(step.callbacks.copies + 1):
                await self._tell(report)

    async def _tell(self, report: Report) -> None:
        fields = {"request_id": report.request_id, "route": report.route, **report.as_json()}
        await self._caller.post_plainly(self.webhook, fields, as_form=self.webhook_form)


def _has_key(request: web.Request, form: Mapping[str, str]) -> bool:
    given = request.headers.get("authorization") or form.get("authorization")
    return given == FAST2SMS_API_KEY


def _refusal(code: int, status: int, message: str = "") -> Answer:
    return Answer.of(status, {"return": False, "status_code": code, "message": message or _TEXTS.get(code, "Error")})


async def _fields(request: web.Request) -> dict[str, str]:
    """The query, or the posted form or JSON."""
    if request.method == "GET":
        return dict(request.query)
    if request.content_type == "application/json":
        try:
            given = json.loads(await request.read())
        except ValueError:
            return {}
        return {name: str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
