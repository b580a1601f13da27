"""What Twilio's resources share: the account, credentials, errors, dates."""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from simulator.answers import Answer, scripted
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN, FROM_NUMBER
from simulator.rules import Step

E164: Final = re.compile(r"\+[1-9][0-9]{6,14}")
BUSY: Final = frozenset({20429, 21611})
CODES: Final = {401: 20003, 403: 20403, 404: 20404, 429: 20429, 500: 20500, 503: 20503}
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
    advanced_opt_out: the service tells of STOP and START words with OptOutType.
    """

    def __init__(self) -> None:
        self.pool: list[str] = [FROM_NUMBER]
        self.disabled_regions: set[str] = set()
        self.landlines: set[str] = set()
        self.verified: set[str] | None = None
        self.mps: float | None = None
        self.create_limit: int | None = None
        self.stopped: set[tuple[str, str]] = set()
        self.advanced_opt_out = False
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


def refusal(step: Step, fault: int | None) -> Answer | None:
    """The scripted refusal, else the one for the fault; None where there is neither."""
    if not step.accepted:
        status = step.status or 400
        return problem(status, step.code or CODES.get(status, status), step.message)
    return None if fault is None else problem(429 if fault in BUSY else 400, fault)


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


def or_scripted(step: Step | None, usual: Answer) -> Answer:
    """The usual answer, unless the step has another."""
    if step is None:
        return usual
    return scripted(step, refusal(step, None) or usual)


def paged(request: web.Request, name: str, rows: list[dict[str, Any]]) -> Answer:
    """One page of a list, as the query's PageSize and Page ask."""
    size = min(int(request.query.get("PageSize", 50)), 1000)
    page = int(request.query.get("Page", 0))
    shown = rows[page * size : (page + 1) * size]

    def uri(number: int) -> str:
        return f"{request.path}?{urlencode({**request.query, 'PageSize': size, 'Page': number})}"

    return Answer.of(
        200,
        {
            name: shown,
            "page": page,
            "page_size": size,
            "start": page * size,
            "end": page * size + max(0, len(shown) - 1),
            "uri": uri(page),
            "first_page_uri": uri(0),
            "previous_page_uri": uri(page - 1) if page else None,
            "next_page_uri": uri(page + 1) if len(rows) > (page + 1) * size else None,
        },
    )


def date_filter(query: Mapping[str, str], name: str) -> Callable[[float], bool]:
    """Whether a time (seconds since 1970) is let through by the query's `name`, `name>` (from) and `name<` (until)."""
    on, after, before = query.get(name), query.get(f"{name}>"), query.get(f"{name}<")
    earliest = max((instant(text) for text in (on, after) if text), default=float("-inf"))
    latest = min((instant(text, end_of_day=True) for text in (on, before) if text), default=float("inf"))
    return lambda when: earliest <= when <= latest


def instant(text: str, *, end_of_day: bool = False) -> float:
    """A date (UTC) or a time, as seconds since 1970."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return (start + timedelta(days=1 if end_of_day else 0)).timestamp()
