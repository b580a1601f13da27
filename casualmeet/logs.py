"""Keeps phone numbers and positions out of the logs."""

import logging
import re

_PHONE = re.compile(r"(?<![\w.])\+\d{3,11}(?=\d{2}(?!\d))|(?<![\w.])\d{8}(?=\d{2}(?![\w.]))")
_POSITION = re.compile(r"-?\d{1,3}\.\d{3,}\s*,\s*-?\d{1,3}\.\d{3,}")


def mask(text: str) -> str:
    """The text with every phone number cut to its last two digits and every coordinate pair removed."""
    return _POSITION.sub("[position]", _PHONE.sub("[phone]…", text))


class MaskPersonalData(logging.Filter):
    """Masks the finished message of every record, and what an exception says."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = mask(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = mask(logging.Formatter().formatException(record.exc_info))
        return True
