"""Logs as lines of text or of JSON: what they are about is said with each, phone numbers and positions are not.

Nothing that came from outside can forge a line: in text, line breaks and control characters of a message are written
as escapes, and tracebacks are indented; JSON escapes by itself.
"""

import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from casualmeet.databases import process_role

_UUID = r"(?<!\w)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?!\w)"
# A plus (in a form %2B) and digits, or ten to fifteen digits that stand alone; or as people write them, with spaces and
# the like. What stands in an id is none.
_PHONE = re.compile(
    rf"(?P<id>{_UUID})"
    r"|(?:(?<![\w.])\+|%2B)\d{3,13}(?=\d{2}(?!\d))"
    r"|(?<![\w.+])\d{8,13}(?=\d{2}(?!\w|\.\d))"
    r"|(?<![\w.])\+\d(?:[ \xa0().-]{0,2}\d){3,12}(?=[ \xa0().-]{0,2}\d{2}(?!\d))"
    r"|(?<![\w.+-])[6-9]\d{4}[ -]\d{3}(?=\d{2}(?!\w|\.\d))",
    re.IGNORECASE,
)
_POSITION = re.compile(r"-?\d{1,3}\.\d{3,}\s*(?:,|;|%2C)\s*-?\d{1,3}\.\d{3,}", re.IGNORECASE)
_COORDINATE = re.compile(r"((?:(?<![a-z])(?:lat|lon|lng)|(?:lat|long)itude)[^\w-]{1,4})-?\d{1,3}\.\d+", re.IGNORECASE)
# The part of an address that is a key: of a contact's or an invitation's page, of an unsigned webhook.
_SECRET = re.compile(r"(/(?:i|c|hooks/fast2sms)/)[^/\s'\"]+")
# C0, DEL and C1 controls, line and paragraph separators, what turns the direction of text around; and lone surrogates, for
# which a stream that writes UTF-8 would refuse the line.
_NOT_SHOWN = "\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS = re.compile(f"[\n{_NOT_SHOWN}]")
_CONTROLS_IN_TRACEBACK = re.compile(f"[{_NOT_SHOWN}]")

_ABOUT: Final = ("incident_id", "delivery_id", "timer_id")
_about: ContextVar[Mapping[str, str]] = ContextVar("about")


def mask(text: str) -> str:
    """The text with every phone number cut to its last two digits, and every coordinate and secret address removed."""
    masked = _PHONE.sub(lambda found: found["id"] or "[phone]…", _SECRET.sub(r"\1[secret]", text))
    return _COORDINATE.sub(r"\1[position]", _POSITION.sub("[position]", masked))


@contextmanager
def about(*, incident: UUID | None = None, delivery: UUID | None = None, timer: UUID | None = None) -> Iterator[None]:
    """What is logged in this block is about these."""
    given = zip(_ABOUT, (incident, delivery, timer), strict=True)
    token = _about.set({**_about.get({}), **{name: str(pk) for name, pk in given if pk is not None}})
    try:
        yield
    finally:
        _about.reset(token)


class MaskPersonalData(logging.Filter):
    """Masks the finished message of every record, what an exception says, and the stack; adds what it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a wrong log call must not break what it tells about
            text = f"A log call that can't be formatted: {record.msg!r}"
        record.msg, record.args = mask(text), None
        if record.exc_info and not record.exc_text:
            record.exc_text = mask(logging.Formatter().formatException(record.exc_info))
        if record.stack_info:
            record.stack_info = mask(record.stack_info)
        for name, value in _about.get({}).items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class Line(logging.Formatter):
    """One line of text, and a traceback indented below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, with what it is about where that is known and not said yet."""
        line = super().formatMessage(record)
        ids = [(name, getattr(record, name, None)) for name in _ABOUT]
        known = [f"{name.removesuffix('_id')}={mask(str(pk))}" for name, pk in ids if pk and str(pk) not in line]
        return _escaped(" ".join([line, *known]), _CONTROLS)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """UTC, ISO 8601."""
        return _utc(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Indented, so that no line of it looks like one of the log."""
        return _indented(mask(super().formatException(ei)))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """The same."""
        return _indented(stack_info)

    def format(self, record: logging.LogRecord) -> str:
        """The filter has formatted the exception already, for any format."""
        if record.exc_text and not record.exc_text.startswith("  "):
            record.exc_text = _indented(record.exc_text)
        return super().format(record)


class Json(JsonFormatter):
    """One JSON object on a line: time (UTC, ISO 8601), level, logger, message, role and pid of the process, the ids of
    what it is about, and whatever else the call gave.
    """

    def __init__(self) -> None:
        super().__init__(
            ["message"],
            # Python 3.12 adds taskName, whatever the version here. The request is in Django's message.
            reserved_attrs=[*RESERVED_ATTRS, "taskName", "request"],
            static_fields={"role": role()},
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Everything masked: what is nested, or of a type of its own, as its text."""
        return {str(key): _masked(str(key), value) for key, value in log_data.items()}

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        """The fields that every line has come first."""
        log_data.update(time=_utc(record), level=record.levelname, logger=record.name)
        super().add_fields(log_data, record, message_dict)
        log_data["pid"] = record.process or os.getpid()


def role() -> str:
    """What this process is: web, timer, dispatch, scheduler, or the name of a command."""
    if process_role() == "web":
        return "web"
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    return command.removeprefix("run_").removesuffix("_worker") if command.isidentifier() else "command"


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _masked(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        # With its name, which may say that it is a coordinate.
        named = f"{key}={value}"
        shown = mask(named)
        # JSON has no infinity, and no number that is none.
        return value if shown == named and math.isfinite(value) else shown.removeprefix(f"{key}=")
    try:
        return mask(str(value.value if isinstance(value, Enum) else value))
    except Exception:  # noqa: BLE001 - a value that can't be told must not cost the line
        return f"[{type(value).__name__}]"


def _escaped(text: str, controls: re.Pattern[str]) -> str:
    return controls.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in _escaped(text, _CONTROLS_IN_TRACEBACK).split("\n"))
