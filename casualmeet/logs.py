"""Keeps phone numbers and positions out of the logs."""

import logging
import re

# A plus (in a form %2B) and digits, or ten to fifteen digits that stand alone.
_PHONE = re.compile(
    r"(?:(?<![\w.])\+|%2B)\d{3,13}(?=\d{2}(?!\d))|(?<![\w.+])\d{8,13}(?=\d{2}(?!\w|\.\d))", re.IGNORECASE
)
_POSITION = re.compile(r"-?\d{1,3}\.\d{3,}\s*,\s*-?\d{1,3}\.\d{3,}")
_COORDINATE = re.compile(r"((?:lat|long)itude[^\w-]{1,4})-?\d{1,3}\.\d+", re.IGNORECASE)


def mask(text: str) -> str:
    """The text with every phone number cut to its last two digits and every coordinate removed."""
    return _COORDINATE.sub(r"\1[position]", _POSITION.sub("[position]", _PHONE.sub("[phone]…", text)))


class MaskPersonalData(logging.Filter):
    """Masks the finished message of every record, and what an exception says."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a wrong log call must not break what it tells about
            text = f"A log call that can't be formatted: {record.msg!r}"
        record.msg, record.args = mask(text), None
        if record.exc_info and not record.exc_text:
            record.exc_text = mask(logging.Formatter().formatException(record.exc_info))
        return True
