"""HTTP towards one carrier: pooled, bounded in time and size, and sure about what has left.

What matters to the dispatcher is whether a failed request can have reached the carrier. So every
failure is sorted by that: whatever fails before there is a connection (a name, a refusal, a TLS
handshake) proves that nothing was sent; whatever fails after it leaves the question open.
"""

import asyncio
import base64
import functools
import json
import os
import re
import ssl
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit
from weakref import WeakKeyDictionary

import aiohttp
import certifi
from yarl import URL

from notifications.carriers.base import Answer, ErrorClass, Outcome

CONNECT_TIMEOUT: Final = 3.0
"""Seconds to wait for a connection, per address of the host."""

CONNECT_TRIES: Final = 3
"""Looking the name up, and all addresses of the host together, may take this many times as long."""

READ_TIMEOUT: Final = 8.0
"""Seconds to wait for the answer to begin, and from there for its body to end."""

MAX_IDLE: Final = 45.0
"""Seconds after which an idle connection is replaced rather than trusted.

Firewalls forget idle connections without a word. A request written into such a hole would
cost a full read time-out and leave it open whether the alert went out.
"""

MAX_BODY: Final = 65536
"""Bytes of an answer that are read. Real ones have about one thousand."""

_ALWAYS: Final[Mapping[str, str]] = {
    "User-Agent": aiohttp.http.SERVER_SOFTWARE,
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
}
_MAX_RETRY_AFTER: Final = 86400.0
_ORIGIN: Final = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/.*)?")

# No connection, so nothing was sent: looked-up names, refusals, handshakes, proxies, and the time for all that.
_NEVER_LEFT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class TransportError(Exception):
    """No answer. `outcome` is UNKNOWN if the request can have reached the carrier."""

    def __init__(self, outcome: Outcome, error_class: ErrorClass, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.error_class = error_class
        self.detail = detail

    def answer(self) -> Answer:
        return Answer(self.outcome, error_class=self.error_class, detail=self.detail)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: status, headers, and as much of the body as could be read."""

    status: int
    headers: Mapping[str, str]
    text: str

    def fields(self) -> dict[str, Any] | None:
        """The body as a JSON object, None if it is anything else."""
        try:
            body = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return body if isinstance(body, dict) else None

    @property
    def retry_after(self) -> float | None:
        """Seconds the carrier asks us to wait (RFC 9110, Retry-After), None if it does not.

        A date is read against the answer's own Date header, so that the carrier's clock is
        compared with itself; only without one the local clock is used.
        """
        value = self.headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdigit():
            return min(float(value[:10]), _MAX_RETRY_AFTER)
        at = _timestamp(value)
        if at is None:
            return None
        now = _timestamp(self.headers.get("Date", ""))
        return min(max(at - (time.time() if now is None else now), 0.0), _MAX_RETRY_AFTER)


@dataclass(frozen=True, slots=True)
class _Line:
    """What one event loop has to the origin: pooled connections, and what to ask the pool for one with."""

    session: aiohttp.ClientSession
    origin: aiohttp.ClientRequest


class Transport:
    """Requests to one origin. One for the life of a carrier; each event loop gets connections of its own."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._read_timeout = read_timeout
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TRIES * connect_timeout, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._longest = CONNECT_TRIES * connect_timeout + 2 * read_timeout
        self._usable = bool(_ORIGIN.fullmatch(self._base_url))
        self._proxy = _proxy(self._base_url) if self._usable else None
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    async def request(
        self,
        method: str,
        path: str,
        *,
        data: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> Reply:
        """What came back for a form (`data`) or bytes (`body`), whatever the status.

        Redirects are not followed. Raises TransportError if nothing came back.
        """
        if not self._usable:
            raise TransportError(Outcome.PERMANENT, "config", "the base URL is not an http(s) address")
        try:
            sent = {**(headers or {}), **_basic(auth)}
            if data is not None:
                body = _form(data)
                sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
            elif body is None and method != "GET":
                body = b""  # its length is told (RFC 9110, 8.6)
            if self._proxy is not None:
                return await self._ask(method, path, body, _checked(sent))
            try:
                return await self._exchange(method, path, body, _checked(sent))
            except aiohttp.ClientConnectionError as error:
                # Mostly a pooled connection that the other side had closed. To read once more is safe.
                if method != "GET" or isinstance(error, (*_NEVER_LEFT, TimeoutError)):
                    raise
                return await self._exchange(method, path, body, _checked(sent))
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            raise _failure(error) from error

    async def close(self) -> None:
        """Close this event loop's connections; the next request opens new ones."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.session.close()

    async def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """One write, one read, over a pooled connection.

        The session's own way costs three times the processor time, and requests are what a dispatcher spends its
        time on. Looked-up names, TLS, the pool and the parser are aiohttp's here too.
        """
        head = _head(method, self._base_url, path)
        if body is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        lines = "".join([f"{name}: {value}\r\n" for name, value in {**_ALWAYS, **headers}.items()])
        line = self._line()
        try:
            connection = await line.session.connector.connect(line.origin, [], self._timeout)  # type: ignore[union-attr]
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("no connection in time") from error
        try:
            protocol = connection.protocol
            if protocol is None or protocol.transport is None or protocol.transport.is_closing():
                raise aiohttp.ClientConnectionResetError("the connection is closing")
            protocol.set_response_params()
            protocol.transport.write(f"{head}{lines}\r\n".encode("ascii") + (body or b""))
            async with asyncio.timeout(self._read_timeout):
                message, payload = await protocol.read()
                while message.code < 200 and message.code != 101:
                    message, payload = await protocol.read()
            content = await _read(payload, self._read_timeout)
        except BaseException:
            connection.close()
            raise
        # Closes it instead where the answer was not read to its end.
        connection.release()
        return Reply(message.code, cast("Mapping[str, str]", message.headers), content.decode("utf-8", "replace"))

    async def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """Through the session, which knows how to ask a proxy."""
        async with (
            asyncio.timeout(self._longest),
            self._line().session.request(
                method,
                self._base_url + path,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=self._timeout,
                proxy=self._proxy,
            ) as response,
        ):
            content = await _read(response.content, self._read_timeout)
        return Reply(response.status, cast("Mapping[str, str]", response.headers), content.decode("utf-8", "replace"))

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(loop)) is None:
            # The dispatcher limits what is out at the same time; a second limit here would only make it wait unseen.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=MAX_IDLE, ssl=_certificates())
            # Carriers' front ends set cookies; one jar for all calls would mix them up.
            session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
            line = _Line(session, aiohttp.ClientRequest("POST", URL(self._base_url), loop=loop))
            self._lines[loop] = line
        return line


@functools.lru_cache(maxsize=1000)
def _head(method: str, base_url: str, path: str) -> str:
    """The first lines of a request. Raises ValueError for an address that can't be."""
    url = URL(base_url + path)
    return f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"


def _certificates() -> ssl.SSLContext:
    """Whom to trust: REQUESTS_CA_BUNDLE or SSL_CERT_FILE where the operator set one, else Mozilla's list."""
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    return _trusting(named or certifi.where())


@functools.cache
def _trusting(cafile: str) -> ssl.SSLContext:
    """Reading the list takes 50 ms, and each event loop asks for it."""
    return ssl.create_default_context(cafile=cafile)


def _proxy(url: str) -> str | None:
    """The proxy of the environment for this origin, read once."""
    parts = urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _form(data: Mapping[str, object]) -> bytes:
    """A list is one field for each of its values, as Twilio wants it."""
    return urlencode(data, doseq=True).encode("ascii")


@functools.lru_cache(maxsize=10)
def _basic(auth: tuple[str, str] | None) -> Mapping[str, str]:
    if auth is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(":".join(auth).encode("latin-1")).decode()}


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """A key with a line break in it, or with letters no header can carry, is a mistake in the settings."""
    for value in headers.values():
        if not value.isascii() or not value.isprintable() or value != value.strip():
            raise ValueError("a header that can't be sent")
    return headers


async def _read(body: aiohttp.StreamReader, seconds: float) -> bytes:
    """The body, or the part of it that came before an error, the time or the size limit.

    A part is enough: the status has arrived, and a 2xx whose body does not parse is judged as
    an answer that was lost.
    """
    content = bytearray()
    try:
        if body.is_eof():  # it came with the status, as nearly always
            content += body.read_nowait()
        else:
            async with asyncio.timeout(seconds):
                while len(content) < MAX_BODY and (part := await body.read(8192)):
                    content += part
    except (aiohttp.ClientError, OSError):
        pass
    return bytes(content[:MAX_BODY])


def _failure(error: Exception) -> TransportError:
    """The failure, sorted by whether the request can have left."""
    detail = type(error).__name__
    if isinstance(error, _NEVER_LEFT):
        return TransportError(Outcome.TRANSIENT, "transient", f"{detail}: {error}")
    if isinstance(error, ValueError):
        # Built from settings that can't be. Their values, such as a key with a line break in it, are part of the
        # error's text, so only its name is kept.
        return TransportError(Outcome.PERMANENT, "config", f"request can't be built: {detail}")
    return TransportError(Outcome.UNKNOWN, "", detail)


def _timestamp(value: str) -> float | None:
    try:
        at = parsedate_to_datetime(value)
        # HTTP dates are GMT, however they say so; "-0000" would be read as local time.
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def path_of(url: str) -> str:
    """Path and query of `url`."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path
