"""Asking Twilio what became of a message or a call, and whether one was created at all.

Twilio docs, "Messages resource" and "Calls resource" (fetch, read multiple). Read only: safe to repeat.
"""

import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode

from notifications.carriers.receipt import Receipt
from notifications.carriers.transport import Transport, TransportError, path_of

PAGE_SIZE: Final = 20
"""Messages asked for at a time: an answer must fit into what is read of one."""

MOST_PAGES: Final = 15

CLOCKS_APART: Final = timedelta(seconds=5)
"""How far Twilio's clock may be behind ours."""

_SID: Final = re.compile(r"(SM|MM|CA)[0-9a-fA-F]{32}")
_NOT_OUT: Final = frozenset({"failed", "undelivered", "canceled"})
_log: Final = logging.getLogger(__name__)


async def fetch_status(transport: Transport, auth: tuple[str, str], message_id: str) -> Receipt | None:
    """The state of the message or call with this SID; None when Twilio does not say.

    `auth` is the account SID and its token.
    """
    sid = _SID.fullmatch(message_id)
    if sid is None:
        return None
    resource = "Calls" if sid[1] == "CA" else "Messages"
    fields = await _get(transport, auth, f"{_account(auth)}/{resource}/{message_id}.json")
    status = (fields or {}).get("status")
    if fields is None or fields.get("sid") != message_id or not isinstance(status, str):
        return None
    if resource == "Calls":
        return Receipt(call_status(status, fields.get("answered_by")))
    code = fields.get("error_code")
    return Receipt(status, code=str(code) if isinstance(code, int | str) else "")


async def find_message(
    transport: Transport, auth: tuple[str, str], *, to: str, since: datetime, reference: str
) -> str | None:
    """The SID of the message to `to` (E.164), created at `since` or later, whose text holds `reference`; else None.

    For a call whose answer was lost. None also when Twilio does not answer, and for a message that it gave up on.
    """
    # Twilio tells whole seconds.
    earliest = since.replace(microsecond=0) - CLOCKS_APART
    try:
        async for message in messages_to(transport, auth, to, since=earliest):
            if reference and _is_ours(message, to=to, earliest=earliest, reference=reference):
                return str(message["sid"])
    except Untold:
        pass
    return None


class Untold(Exception):
    """Twilio did not answer, or not with all that was asked for."""


async def messages_to(
    transport: Transport, auth: tuple[str, str], to: str, *, since: datetime
) -> AsyncIterator[dict[str, Any]]:
    """The messages to this number, at least those created since then. Raises Untold where that can't be told.

    Not filtered by DateSent, which a message that still waits does not have. Twilio lists the newest first; by which of
    its times is not said, so a whole page must be older to end it.
    """
    path: str | None = f"{_account(auth)}/Messages.json?{urlencode({'To': to, 'PageSize': PAGE_SIZE})}"
    for _ in range(MOST_PAGES):
        if path is None:
            return
        fields = await _get(transport, auth, path)
        if fields is None or not isinstance(fields.get("messages"), list):
            raise Untold
        page = [message for message in fields["messages"] if isinstance(message, dict)]
        for message in page:
            yield message
        if page and all(_created(message) < since for message in page):
            return
        following = fields.get("next_page_uri")
        path = path_of(following) if isinstance(following, str) and following else None
    raise Untold


def call_status(status: str, answered_by: object) -> str:
    """The state of a call, where a machine that answered makes "voicemail" of "completed"; a fax is a machine too."""
    by_machine = isinstance(answered_by, str) and answered_by.startswith(("machine", "fax"))
    return "voicemail" if status == "completed" and by_machine else status


def _is_ours(message: dict[str, Any], *, to: str, earliest: datetime, reference: str) -> bool:
    sid, body, created = message.get("sid"), message.get("body"), moment(message.get("date_created"))
    return (
        isinstance(sid, str)
        and _SID.fullmatch(sid) is not None
        and isinstance(body, str)
        and reference in body
        and message.get("to") == to
        and message.get("direction") != "inbound"
        and message.get("status") not in _NOT_OUT
        and created is not None
        and created >= earliest
    )


def _created(message: dict[str, Any]) -> datetime:
    """When it was created; without a time that can be read it counts as new."""
    return moment(message.get("date_created")) or datetime.max.replace(tzinfo=UTC)


def _account(auth: tuple[str, str]) -> str:
    return f"/2010-04-01/Accounts/{auth[0]}"


async def _get(transport: Transport, auth: tuple[str, str], path: str) -> dict[str, Any] | None:
    """The answer's fields; None for anything but a readable success, whose reason goes to the log."""
    try:
        reply = await transport.request("GET", path, auth=auth)
    except TransportError as failure:
        _log.warning("Twilio could not be asked: %s", failure.detail)
        return None
    fields = reply.fields()
    if not 200 <= reply.status < 300 or fields is None:
        _log.warning("Twilio did not say: HTTP %d, code %s", reply.status, (fields or {}).get("code"))
        return None
    return fields


def moment(value: object) -> datetime | None:
    """A time as Twilio writes it, RFC 2822, or in ISO 8601; None where it is neither."""
    if not isinstance(value, str):
        return None
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            at = read(value)
        except (ValueError, OverflowError):
            continue
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None
