"""The OAuth token of a Google service account: fetched off the event loop, kept, and renewed before it ends.

Google docs, "Using OAuth 2.0 for Server to Server Applications": a token lasts about an hour.
"""

import asyncio
import json
import time
from datetime import UTC
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2.service_account import Credentials

from notifications.carriers.base import Outcome
from notifications.carriers.transport import TransportError

RENEW_BEFORE: Final = 300.0
"""Seconds before its end at which a token is renewed."""

USABLE_UNTIL: Final = 30.0
"""Seconds before its end up to which a token that could not be renewed is still sent."""

REFRESH_TIMEOUT: Final = 5.0
"""Seconds for one request to the token endpoint, and for all its tries together a second time as long."""


class TokenSource(Protocol):
    """Where a bearer token comes from."""

    project_id: str

    async def token(self) -> str: ...

    def refused(self, token: str) -> None: ...


class FixedToken:
    """A token that never changes, for a stand-in that does not look at it."""

    def __init__(self, project_id: str, token: str) -> None:
        self.project_id = project_id
        self._token = token

    async def token(self) -> str:
        """The token."""
        return self._token

    def refused(self, token: str) -> None:
        """There is no other."""


class ServiceAccount:
    """Tokens for one scope. `info` is the JSON key file's content; raises ValueError if it is not one."""

    def __init__(self, info: dict[str, Any], *, scope: str) -> None:
        try:
            self._credentials: Any = Credentials.from_service_account_info(info, scopes=[scope])  # type: ignore[no-untyped-call]
        except (GoogleAuthError, ValueError, TypeError, KeyError, AttributeError) as error:
            # The library's own words may quote the key.
            raise ValueError(f"not a service account's key: {type(error).__name__}") from None
        self.project_id = str(self._credentials.project_id or "")
        if not self.project_id:
            raise ValueError("not a service account's key: no project_id")
        self._request: Any = Request()
        self._token = ""
        self._ends = 0.0
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def token(self) -> str:
        """A token that lasts. Raises TransportError when there is none to be had; nothing was sent then."""
        # A lock belongs to one event loop.
        renewing = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        if self._left() > RENEW_BEFORE or (self._left() > USABLE_UNTIL and renewing.locked()):
            return self._token
        async with renewing:
            if self._left() <= RENEW_BEFORE:
                await self._renew()
        return self._token

    def refused(self, token: str) -> None:
        """This token was refused: the next call fetches another one."""
        if token == self._token:
            self._ends = 0.0

    def _left(self) -> float:
        return self._ends - time.monotonic()

    async def _renew(self) -> None:
        try:
            # The library blocks: on the network, and while it signs.
            await asyncio.wait_for(asyncio.to_thread(self._credentials.refresh, self._bounded), 2 * REFRESH_TIMEOUT)
        except (GoogleAuthError, OSError, ValueError, TimeoutError) as error:
            if self._left() <= USABLE_UNTIL:
                raise _no_token(error) from error
            return
        self._token = str(self._credentials.token)
        expiry = self._credentials.expiry
        lasts = expiry.replace(tzinfo=UTC).timestamp() - time.time() if expiry else 2 * RENEW_BEFORE
        self._ends = time.monotonic() + lasts

    def _bounded(self, *args: Any, **kwargs: Any) -> Any:
        """The library's own request waits two minutes."""
        return self._request(*args, **{**kwargs, "timeout": REFRESH_TIMEOUT})


def read_info(setting: str) -> dict[str, Any]:
    """The content of a key file, given as the JSON itself or as the file's path. Raises ValueError."""
    try:
        text = setting if setting.lstrip().startswith("{") else Path(setting).read_text(encoding="utf-8")
        info = json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"not a service account's key: {type(error).__name__}") from None
    return info if isinstance(info, dict) else {}


def _no_token(error: Exception) -> TransportError:
    """An account that Google refuses is a matter of the settings; anything else may pass."""
    detail = f"no OAuth token: {type(error).__name__}"
    passing = isinstance(error, OSError | TimeoutError) or getattr(error, "retryable", False)
    if passing or type(error).__name__ == "TransportError":
        return TransportError(Outcome.TRANSIENT, "transient", detail)
    return TransportError(Outcome.PERMANENT, "auth", detail)
