"""Asking Twilio what became of a message or a call, and whether one was created at all.

Twilio docs, "Messages resource" and "Calls resource" (fetch, read multiple). Read only: safe to repeat.
"""

import logging
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode

from notifications.carriers.receipt import Receipt
from notifications.carriers.transport import Transport, TransportError

PAGE_SIZE: Final = 50
"""Messages to one number that are looked through, the newest first."""

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
    fields = await _get(transport, auth, f"{resource}/{message_id}.json")
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
    Not filtered by DateSent, which a message that still waits does not have.
    """
    query = urlencode({"To": to, "PageSize": PAGE_SIZE})
    fields = await _get(transport, auth, f"Messages.json?{query}")
    messages = (fields or {}).get("messages")
    # Twilio tells whole seconds.
    earliest = since.replace(microsecond=0) - CLOCKS_APART
    for message in messages if isinstance(messages, list) and reference else []:
        if isinstance(message, dict) and _is_ours(message, to=to, earliest=earliest, reference=reference):
            return str(message["sid"])
    return None


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


async def _get(transport: Transport, auth: tuple[str, str], resource: str) -> dict[str, Any] | None:
    """The answer's fields; None for anything but a readable success, whose reason goes to the log."""
    try:
        reply = await transport.request("GET", f"/2010-04-01/Accounts/{auth[0]}/{resource}", auth=auth)
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
