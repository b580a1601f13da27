"""Requests from Twilio to the site: signed, bounded in time, tried again as the URL's fragment says.

Twilio docs, "Security" (signature), "Webhooks connection overrides" and "Outbound message status in status callbacks".
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, urldefrag, urlencode, urljoin, urlsplit

import aiohttp

from simulator.clock import VirtualClock
from simulator.credentials import AUTH_TOKEN, PREVIOUS_AUTH_TOKEN
from simulator.rules import Callbacks

TOTAL_MS: Final = 15_000
CONNECT_MS: Final = 5_000
MAX_TWIML: Final = 64 * 1024
USER_AGENT: Final = "TwilioProxy/1.1"
OTHER_ACCOUNT: Final = "AC" + "0" * 32

_PORTS: Final = {"http": 80, "https": 443}
_USUAL: Final = Callbacks()


@dataclass(frozen=True, slots=True)
class Sent:
    """One request to the site, and its answer: status 0 where none came ("ct": no connection, "rt": no answer in time)."""

    url: str
    fields: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    status: int = 0
    body: str = ""
    trouble: str = ""
    tries: int = 1

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and what to try again. All times are in seconds."""

    connect: float = CONNECT_MS / 1000
    read: float = TOTAL_MS / 1000
    total: float = TOTAL_MS / 1000
    retries: int = 1
    on: tuple[str, ...] = ("ct",)

    @classmethod
    def of(cls, fragment: str) -> "Patience":
        """From `#ct=2000&rt=5000&tt=15000&rc=3&rp=5xx,ct,rt`; no more than Twilio allows."""
        given = dict(parse_qsl(fragment))
        return cls(
            connect=min(int(given.get("ct", CONNECT_MS)), 10_000) / 1000,
            read=min(int(given.get("rt", TOTAL_MS)), TOTAL_MS) / 1000,
            total=min(int(given.get("tt", TOTAL_MS)), TOTAL_MS) / 1000,
            retries=min(int(given.get("rc", 1)), 5),
            on=tuple(given.get("rp", "ct").split(",")),
        )

    def again(self, sent: Sent) -> bool:
        """Whether this answer is one of those to try again."""
        if sent.ok:
            return False
        kind = sent.trouble or f"{sent.status // 100}xx"
        return kind in self.on or "all" in self.on


def signature(url: str, fields: Sequence[tuple[str, str]] | Mapping[str, str], token: str = AUTH_TOKEN) -> str:
    """The value of X-Twilio-Signature for a form posted to `url`, which is taken with its query, without fragment."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    text = urldefrag(url).url + "".join(f"{name}{value}" for name, value in sorted(set(pairs)))
    return base64.b64encode(hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()).decode()


class SiteCaller:
    """Posts forms to the site.

    `site` is where it listens. `public_url`, if that is another, is the address it believes to have: URLs that start with it
    are signed as they are, and go to `site` with the headers a proxy would set.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.site = self.public_url = ""
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self.sent: list[Sent] = []
        self.alerts: list[int] = []

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=True)

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    def absolute(self, url: str, base: str = "") -> str:
        """`url` as Twilio resolves it: relative to the document it came with, or to the site."""
        return urljoin(base or self.public_url + "/", url)

    async def tell(self, url: str, fields: Mapping[str, str], faults: Callbacks = _USUAL) -> None:
        """Post one status callback, with its faults and its copies."""
        if faults.lost or not url:
            return
        if faults.late:
            await self._clock.sleep(faults.late)
        sent = await self.send(url, fields, faults)
        for _ in range(faults.copies):
            await self.replay(sent)

    async def send(self, url: str, fields: Mapping[str, str], faults: Callbacks = _USUAL) -> Sent:
        """Post one request, wrong in the ways that `faults` say, and return what came of it."""
        form, token = dict(fields), AUTH_TOKEN
        if faults.wrong_account:
            form["AccountSid"] = OTHER_ACCOUNT
        if faults.unknown_sid:
            form.update({name: f"{form[name][:2]}{secrets.token_hex(16)}" for name in _SIDS if name in form})
        if faults.forged:
            token = "not-" + AUTH_TOKEN
        elif faults.old_token:
            token = PREVIOUS_AUTH_TOKEN
        signed = _with_port(url) if faults.port_in_signature else url
        headers = {
            "X-Twilio-Signature": signature(signed, form, token),
            "I-Twilio-Idempotency-Token": secrets.token_hex(16),
        }
        return await self._post_patiently(url, form, headers)

    async def replay(self, sent: Sent) -> Sent:
        """The very same request again."""
        return await self._post_patiently(sent.url, dict(sent.fields), dict(sent.headers))

    async def post_plainly(self, url: str, fields: Mapping[str, object], *, as_form: bool = False) -> Sent:
        """Post unsigned JSON, or a form, once: other carriers' webhooks."""
        form = {name: str(value) for name, value in fields.items()}
        if as_form:
            sent = await self._post(url, form, {}, Patience(), TOTAL_MS / 1000)
        else:
            body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
            sent = await self._post(url, form, headers, Patience(), TOTAL_MS / 1000, body=body)
        self.sent.append(sent)
        return sent

    async def _post_patiently(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Sent:
        bare, fragment = urldefrag(url)
        patience = Patience.of(fragment)
        deadline = time.monotonic() + patience.total
        for tried in range(1, patience.retries + 2):
            left = deadline - time.monotonic()
            sent = replace(await self._post(bare, form, headers, patience, left), tries=tried, url=url)
            self.sent.append(sent)
            if not patience.again(sent) or deadline - time.monotonic() <= 0:
                break
        if not sent.ok:
            self.alerts.append(11205 if sent.trouble == "ct" else 11200)
        return sent

    async def _post(
        self,
        url: str,
        form: Mapping[str, str],
        headers: Mapping[str, str],
        patience: Patience,
        left: float,
        *,
        body: bytes | None = None,
    ) -> Sent:
        assert self._session is not None
        target, extra = self._behind_proxy(url)
        limits = aiohttp.ClientTimeout(total=left, sock_connect=patience.connect, sock_read=patience.read)
        try:
            async with self._session.post(
                target,
                data=urlencode(form).encode() if body is None else body,
                headers={
                    "Content-Type": "application/x-www-form-urlencoded; charset=UTF-8",
                    "User-Agent": USER_AGENT,
                    "Accept": "*/*",
                    **headers,
                    **extra,
                },
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                text = await _read(answer)
                return Sent(url, form, headers, answer.status, text)
        except aiohttp.ClientConnectorError:
            return Sent(url, form, headers, trouble="ct")
        except TimeoutError as error:
            trouble = "ct" if isinstance(error, aiohttp.ConnectionTimeoutError) else "rt"
            return Sent(url, form, headers, trouble=trouble)
        except aiohttp.ClientError:
            return Sent(url, form, headers, trouble="rt")

    def _behind_proxy(self, url: str) -> tuple[str, dict[str, str]]:
        if self.public_url == self.site or not url.startswith(self.public_url + "/"):
            return url, {}
        public = urlsplit(self.public_url)
        return self.site + url.removeprefix(self.public_url), {
            "Host": public.netloc,
            "X-Forwarded-Proto": public.scheme,
        }


async def _read(answer: aiohttp.ClientResponse) -> str:
    """The body, no more than one byte above what TwiML may have."""
    content = bytearray()
    while len(content) <= MAX_TWIML and (part := await answer.content.read(MAX_TWIML + 1 - len(content))):
        content += part
    return content.decode("utf-8", "replace")


_SIDS: Final = ("MessageSid", "SmsSid", "SmsMessageSid", "CallSid")


def _with_port(url: str) -> str:
    parts = urlsplit(url)
    if parts.port is not None or not parts.hostname:
        return url
    return parts._replace(netloc=f"{parts.netloc}:{_PORTS[parts.scheme]}").geturl()
