"""Asking Fast2SMS what became of a message, and what is left in the wallet.

Fast2SMS docs, "Wallet Balance"; the delivery report is known from public clients only, in more than one shape.
Read only: safe to repeat.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from notifications.carriers.receipt import Receipt
from notifications.carriers.transport import Transport, TransportError

WALLET_TOO_LOW: Final = 416

_WORDS: Final[Mapping[str, str]] = {
    "delivered": "delivered",
    **dict.fromkeys(("failed", "undelivered", "rejected", "expired", "blocked"), "failed"),
    **dict.fromkeys(("sent", "submitted", "pending", "queued"), "sent"),
}
_log: Final = logging.getLogger(__name__)


async def fetch_status(
    transport: Transport, headers: Mapping[str, str], message_id: str, *, to: str = ""
) -> Receipt | None:
    """The state of the message with this request id; None when Fast2SMS does not say.

    `headers` hold the key. `to` (E.164) picks the recipient where a report names several.
    """
    if not message_id:
        return None
    fields = await _ask(transport, headers, "GET", f"/dev/dlr/{quote(message_id, safe='')}")
    if fields is None or (fields.get("success") is not True and fields.get("return") is not True):
        return None
    for report in _reports(fields.get("data"), message_id):
        mobile = str(report.get("mobile", ""))
        if to and mobile and mobile[-10:] != to[-10:]:
            continue
        said = report.get("status")
        status = _WORDS.get(said.strip().lower()) if isinstance(said, str) else None
        if status is None:
            _log.warning("Fast2SMS reports a status that is not known: %.30r", said)
            return None
        why = report.get("status_description")
        return Receipt(status, code=why if isinstance(why, str) and status == "failed" else "")
    return None


async def wallet(transport: Transport, headers: Mapping[str, str]) -> float | None:
    """What is left, in rupees; 0 when Fast2SMS says that it is too low; None when it does not say."""
    fields = await _ask(transport, headers, "POST", "/dev/wallet")
    if fields is None:
        return None
    if fields.get("status_code") in (WALLET_TOO_LOW, str(WALLET_TOO_LOW)):
        return 0.0
    if fields.get("return") is not True:
        return None
    return _rupees(fields.get("wallet"))


def _reports(data: object, message_id: str) -> Iterator[dict[str, Any]]:
    """What is said about each recipient of this message; lists of one have been seen without the list."""
    for message in _dicts(data):
        if message.get("request_id", message_id) == message_id:
            yield from _dicts(message.get("delivery_status"))


def _dicts(value: object) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else [value]
    return [row for row in rows if isinstance(row, dict)]


def _rupees(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        amount = float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return amount if math.isfinite(amount) else None


async def _ask(transport: Transport, headers: Mapping[str, str], method: str, path: str) -> dict[str, Any] | None:
    """The answer's fields, refusals included: Fast2SMS's verdict is in the body. None if it is not readable."""
    try:
        reply = await transport.request(method, path, headers=headers)
    except TransportError as failure:
        _log.warning("Fast2SMS could not be asked: %s", failure.detail)
        return None
    fields = reply.fields()
    if fields is None or fields.get("return") is False or fields.get("success") is False:
        _log.warning("Fast2SMS did not say: HTTP %d, code %s", reply.status, (fields or {}).get("status_code"))
    return fields
