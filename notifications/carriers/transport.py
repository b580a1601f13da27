"""HTTP towards one carrier: pooled, bounded in time and size, and sure about what has left.

What matters to the dispatcher is whether a failed request can have reached the carrier.
requests does not say: a TLS handshake that times out looks like an answer that timed out. So
the connections here report whatever fails before the request is written as one kind of error.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.cookies import RequestsCookieJar
from requests.exceptions import InvalidProxyURL, InvalidSchema, InvalidURL, ProxyError
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from notifications.carriers.base import Answer, ErrorClass, Outcome

CONNECT_TIMEOUT: Final = 3.0
"""Seconds to wait for a connection, per address of the host."""

READ_TIMEOUT: Final = 8.0
"""Seconds to wait for the answer to begin, and from there for its body to end."""

POOL_SIZE: Final = 64
"""Connections kept open. Must exceed the threads that send, or they reconnect each time."""

MAX_IDLE: Final = 45.0
"""Seconds after which an idle connection is replaced rather than trusted.

Firewalls forget idle connections without a word. A request written into such a hole would
cost a full read time-out and leave it open whether the alert went out.
"""

MAX_BODY: Final = 65536
"""Bytes of an answer that are read. Real ones have about one thousand."""

_MAX_RETRY_AFTER: Final = 86400.0


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


class Transport:
    """Posts forms to one origin. Safe to share between threads.

    One call can last up to `connect_timeout` for each address of the host, plus twice
    `read_timeout` if the answer trickles in, plus the resolver's time, which the standard
    library can't bound.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
        pool_size: int = POOL_SIZE,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._timeout = (connect_timeout, read_timeout)
        self._session = _session(pool_size)
        self._environment = _environment(self._session, self._base_url)

    def post(
        self,
        path: str,
        *,
        data: Mapping[str, object],
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | AuthBase | None = None,
    ) -> Reply:
        """POST `data` as a form to `path` and return what came back, whatever the status.

        Raises TransportError if nothing came back.
        """
        request = requests.Request("POST", self._base_url + path, data=data, headers=headers, auth=auth)
        try:
            prepared = self._session.prepare_request(request)
        except ValueError as error:
            raise _unsendable(error) from error
        started = time.monotonic()
        try:
            response = self._session.send(
                prepared,
                stream=True,
                allow_redirects=False,
                timeout=self._timeout,
                **self._environment,
            )
        except Exception as error:
            raise _failure(error) from error
        with response:
            body = _read(response, started + sum(self._timeout))
        return Reply(
            response.status_code,
            cast("Mapping[str, str]", response.headers),
            body.decode("utf-8", "replace"),
        )


class _Connection(HTTPConnection):
    """A connection that says so when the request never left, and does not grow old."""

    _answered_at: float | None = None

    def connect(self) -> None:
        try:
            super().connect()
        except ConnectTimeoutError:
            raise  # also NewConnectionError, its subclass
        except Exception as error:
            raise NewConnectionError(self, f"{type(error).__name__}: {error}") from error

    def getresponse(self) -> Any:
        response = super().getresponse()
        self._answered_at = time.monotonic()
        return response

    @property
    def is_connected(self) -> bool:
        # The pool asks this before it reuses a connection.
        if self._answered_at is not None and time.monotonic() - self._answered_at > MAX_IDLE:
            return False
        return super().is_connected


class _TLSConnection(_Connection, HTTPSConnection):
    """The same over TLS; the handshake belongs to connecting."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}


class _NoCookies(RequestsCookieJar):
    """Carriers' front ends set cookies; one jar shared by all threads would mix them up."""

    def extract_cookies(self, *_: Any, **__: Any) -> None:
        return None


def _session(pool_size: int) -> requests.Session:
    session = requests.Session()
    session.cookies = _NoCookies()
    adapter = _Adapter(pool_maxsize=pool_size, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


def _environment(session: requests.Session, url: str) -> dict[str, Any]:
    """Proxies and CA bundle for `url`, read once; after that the session ignores its surroundings.

    requests would look them up for each call, and would let an entry in a .netrc file take the
    place of the carrier's key.
    """
    try:
        found = dict(session.merge_environment_settings(url, {}, None, None, None))
    except ValueError:  # not a URL: the first post says so
        found = {"proxies": {}, "verify": True, "cert": None}
    found.pop("stream", None)
    session.trust_env = False
    return found


def _read(response: requests.Response, deadline: float) -> bytes:
    """The body, or the part of it that came before an error, the deadline or the size limit.

    A part is enough: the status has arrived, and a 2xx whose body does not parse is judged as
    an answer that was lost.
    """
    body = bytearray()
    try:
        while len(body) < MAX_BODY and (part := response.raw.read1(8192, decode_content=True)):
            body += part
            if time.monotonic() > deadline:
                break
    except (HTTPError, OSError):
        pass
    return bytes(body[:MAX_BODY])


def _failure(error: Exception) -> TransportError:
    if isinstance(error, InvalidURL | InvalidSchema | InvalidProxyURL | UnicodeError):
        return _unsendable(error)
    detail = type(error).__name__
    if isinstance(error, requests.RequestException):
        detail += f": {error}"  # others may quote what they choked on, such as a header
    if _never_left(error):
        return TransportError(Outcome.TRANSIENT, "transient", detail)
    return TransportError(Outcome.UNKNOWN, "", detail)


def _never_left(error: Exception) -> bool:
    # ProxyError is only raised while there is no connection to the proxy yet.
    if isinstance(error, requests.ConnectTimeout | ProxyError):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", None), ConnectTimeoutError)


def _unsendable(error: Exception) -> TransportError:
    """The request could not be built from the settings. Their values, such as a key with a line
    break in it, are part of the error's text, so only its name is kept.
    """
    return TransportError(Outcome.PERMANENT, "config", f"request can't be built: {type(error).__name__}")


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
