"""The phones as pages: their texts and pushes, a reply box, calls to answer. They work without scripts.

What changes by itself is in a frame that is loaded again every few seconds, so that nothing is lost from the reply box.
While a call rings it stays as it is, so that no key is pulled away from under a finger.
"""

import re
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from simulator.callbacks import SiteCaller
from simulator.calls import Call
from simulator.clock import VirtualClock
from simulator.inbound import Inbound
from simulator.journal import Entry, Journal
from simulator.voice import Voice

REFRESH_SECONDS: Final = 3
NEWEST: Final = 200
STYLE: Final = Path(__file__).with_name("style.css")
KEYS: Final = "123456789*0#"

_LINK: Final = re.compile(r"https?://[^\s<>\"]+[^\s<>\".,;:!?)']")
_NUMBER: Final = re.compile(r"\+[1-9][0-9]{6,14}")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; frame-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
_WHO: Final = {"twilio": "Twilio", "fast2sms": "Fast2SMS", "fcm": "FCM", "webpush": "Web Push", "twilio-voice": "call"}


class Pages:
    """Handlers for people."""

    def __init__(
        self, clock: VirtualClock, journal: Journal, *, inbound: Inbound, voice: Voice, caller: SiteCaller
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._inbound = inbound
        self._voice = voice
        self._caller = caller

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.phones),
            web.get("/style.css", self.style),
            web.get("/favicon.ico", self.no_icon),
            web.get("/phone", self.phone),
            web.get("/thread", self.thread),
            web.post("/phone/text", self.text),
            web.post("/phone/call", self.call),
        ]

    async def phones(self, _request: web.Request) -> web.Response:
        """All phones, the one that was heard of last first."""
        last: dict[str, Entry] = {}
        for entry in self._journal.entries():
            if entry.on_phone:
                last.pop(entry.phone, None)
                last[entry.phone] = entry
        rows = "".join(self._row(phone, entry) for phone, entry in reversed(last.items()))
        listed = f'<ul class="phones">{rows}</ul>' if rows else '<p class="note">No phone has got anything yet.</p>'
        return _page(
            "Phones",
            f"""<header><h1>Simulated phones</h1>
<p>What <a href="{escape(self._caller.public_url)}">the site</a> sends is taken by simulated carriers and appears here.</p></header>
<main>{listed}
<form class="another" action="/phone"><label for="number">Another phone</label>
<div><input id="number" name="number" type="tel" placeholder="+447700900123" pattern="\\+[1-9][0-9]{{6,14}}"
 title="With + and the country code" autocomplete="off" required><button>Open</button></div></form></main>""",
            refresh=True,
        )

    async def style(self, _request: web.Request) -> web.Response:
        """The style sheet."""
        return web.Response(text=STYLE.read_text("utf-8"), content_type="text/css")

    async def no_icon(self, _request: web.Request) -> web.Response:
        """Browsers ask for one."""
        return web.Response(status=204)

    async def phone(self, request: web.Request) -> web.Response:
        """One phone."""
        number = request.query.get("number", "").strip()
        if not number:
            raise web.HTTPSeeOther("/")
        shown = escape(number)
        reply = ""
        if _NUMBER.fullmatch(number):
            reply = f"""<form class="reply" method="post" action="/phone/text">
<input type="hidden" name="number" value="{shown}"><label for="text" class="unseen">Text to the site</label>
<input id="text" name="text" maxlength="1600" placeholder="Reply" autocomplete="off" required><button>Send</button></form>"""
        return _page(
            number,
            f"""<header class="bar"><a href="/">&larr; Phones</a><h1>{shown}</h1></header>
<main><iframe name="thread" title="Texts and calls of {shown}" src="/thread?number={quote(number, safe="")}"></iframe>
{reply}</main>""",
            body_class="fixed",
        )

    async def thread(self, request: web.Request) -> web.Response:
        """What a phone shows, the newest first (and lowest)."""
        number = request.query.get("number", "")
        call = self._voice.ringing(number)
        entries = [entry for entry in self._journal.entries(number) if call is None or entry is not call.entry]
        bubbles = "".join(self._bubble(entry) for entry in reversed(entries[-NEWEST:]))
        nothing = "" if bubbles else '<p class="note">Nothing yet.</p>'
        return _page(
            number,
            f'<main>{self._call(call) if call else ""}<ol class="thread" reversed>{bubbles}</ol>{nothing}</main>',
            refresh=call is None,
            body_class="frame",
        )

    async def text(self, request: web.Request) -> web.Response:
        """The person writes."""
        form = await _own_form(request)
        number, text = form.get("number", ""), form.get("text", "").strip()
        if _NUMBER.fullmatch(number) and text:
            await self._inbound.text(number, text)
        raise web.HTTPSeeOther(f"/phone?number={quote(number, safe='')}")

    async def call(self, request: web.Request) -> web.Response:
        """The person answers, presses a key, or hangs up."""
        form = await _own_form(request)
        call = self._voice.calls.get(form.get("sid", ""))
        if call is not None:
            board, do = self._voice.switchboard, form.get("do", "")
            if do == "answer":
                await board.answer(call)
            elif do == "voicemail":
                await board.answer(call, by="machine_start")
            elif do == "decline":
                await board.end(call, "busy" if call.status == "ringing" else "completed")
            elif do in KEYS:
                await board.press(call, do)
        number = form.get("number", "") if call is None else call.to
        raise web.HTTPSeeOther(f"/thread?number={quote(number, safe='')}")

    def _row(self, phone: str, entry: Entry) -> str:
        name = phone if _NUMBER.fullmatch(phone) else f"Push to …{phone[-12:]}"
        ringing = self._voice.ringing(phone)
        state = '<b class="ringing">Ringing</b>' if ringing else f"<time>{self._time(entry.at)}</time>"
        text = self._words(entry)
        return (
            f'<li><a href="/phone?number={quote(phone, safe="")}"><strong>{escape(name)}</strong> {state}'
            f"<span>{escape(text[:120])}</span></a></li>"
        )

    def _bubble(self, entry: Entry) -> str:
        """A text, push or past call. What never reached the phone is there too, and marked."""
        side = {"site": "site", "person": "person", "carrier": "carrier"}[entry.author]
        lost = "" if entry.on_phone else " lost"
        state = entry.status if entry.error_code is None else f"{entry.status} ({entry.error_code})"
        by = _WHO.get(entry.carrier, entry.carrier)
        parts = [self._time(entry.at), by if entry.author == "site" else "", state if entry.author == "site" else ""]
        if lost:
            parts.append("not on the phone")
        text = _linked(self._words(entry))
        icon = "&#9742; " if entry.channel == "voice" else ""
        return (
            f'<li class="{side}{lost}"><p>{icon}{text}</p><small>{escape(", ".join(filter(None, parts)))}</small></li>'
        )

    def _words(self, entry: Entry) -> str:
        """The text, or what was heard of a call."""
        call = self._voice.calls.get(entry.message_id)
        if call is None:
            return entry.text
        return " ".join(call.heard) or ("Call" if call.started_at else "Missed call" if call.ended else "Incoming call")

    def _call(self, call: Call) -> str:
        if call.status == "ringing":
            title, heard = "Incoming call", ""
            buttons = [
                ("answer", "Answer", "good"),
                ("decline", "Decline", "bad"),
                ("voicemail", "To voicemail", "plain"),
            ]
        else:
            title = "On the phone"
            heard = "".join(f"<li>{escape(words)}</li>" for words in call.heard)
            heard = f'<ol class="heard" aria-label="What was said">{heard}</ol>'
            keys = [(key, key, "key") for key in KEYS]
            buttons = [*keys, ("decline", "Hang up", "bad")]
        made = "".join(f'<button name="do" value="{do}" class="{kind}">{name}</button>' for do, name, kind in buttons)
        number = escape(call.sender)
        return f"""<section class="call" aria-live="assertive"><h2>{title} <span>from {number}</span></h2>{heard}
<form method="post" action="/phone/call"><input type="hidden" name="sid" value="{escape(call.sid)}">
<input type="hidden" name="number" value="{escape(call.to)}"><div class="keys">{made}</div></form></section>"""

    def _time(self, when: float) -> str:
        return datetime.fromtimestamp(when, UTC).astimezone().strftime("%H:%M:%S")


def _page(title: str, body: str, *, refresh: bool = False, body_class: str = "") -> web.Response:
    again = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if refresh else ""
    return web.Response(
        text=f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{again}
<title>{escape(title)} - Carrier simulator</title><link rel="stylesheet" href="/style.css"></head>
<body class="{body_class}">
{body}
</body></html>
""",
        content_type="text/html",
        headers=_HEADERS,
    )


def _linked(text: str) -> str:
    """Escaped, with links that open beside the phone."""
    parts: list[str] = []
    end = 0
    for found in _LINK.finditer(text):
        parts.append(escape(text[end : found.start()]))
        url = escape(found[0])
        parts.append(f'<a href="{url}" target="_blank" rel="noopener noreferrer">{url}</a>')
        end = found.end()
    parts.append(escape(text[end:]))
    return "".join(parts)


async def _own_form(request: web.Request) -> dict[str, str]:
    """The form, which no other site may have posted."""
    origin = request.headers.get("Origin")
    if origin not in (None, "null") and urlsplit(origin).netloc != request.host:
        raise web.HTTPForbidden
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
