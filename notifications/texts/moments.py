"""Local times as texts show them, the same under every locale."""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def zone(name: str) -> tzinfo:
    """The IANA zone `name`, or UTC where there is no such zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a key; a directory such as "Asia"
        return UTC


def clock(moment: datetime, where: tzinfo) -> str:
    """Local time of day, `21:30`."""
    local = moment.astimezone(where)
    return f"{local.hour:02d}:{local.minute:02d}"


def clock_zone(moment: datetime, where: tzinfo) -> str:
    """Local time of day with the zone in force at that moment: `21:30 IST`, `21:30 UTC+05:45`."""
    local = moment.astimezone(where)
    name = local.tzname() or ""
    if not re.fullmatch(r"[A-Za-z]{2,5}", name):
        name = _offset(local.utcoffset() or timedelta())
    return f"{clock(moment, where)} {name}"


def _offset(offset: timedelta) -> str:
    minutes = round(offset / timedelta(minutes=1))
    if not minutes:
        return "UTC"
    sign = "-" if minutes < 0 else "+"
    return f"UTC{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def day(moment: datetime, where: tzinfo) -> str:
    """Local date, `14 Mar`."""
    return date_in_short(moment.astimezone(where))


def date_in_short(local: date) -> str:
    """`14 Mar`."""
    return f"{local.day} {_MONTHS[local.month - 1]}"
