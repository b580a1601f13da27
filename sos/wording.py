"""How pages and timelines word durations, ages, distances and positions."""

from datetime import datetime
from typing import Any

from django.utils.translation import gettext

ROUGH_METRES = 500
LATE_SECONDS = 60


def in_words(seconds: float) -> str:
    """A duration for people: 45 s, 12 min, 3 h 05 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def ago(moment: datetime, now: datetime) -> str:
    """`just now`, `12 min ago`, `3 h ago`, `2 days ago`, in the language of the page."""
    minutes = int((now - moment).total_seconds() // 60)
    if minutes < 1:
        return gettext("just now")
    if minutes < 120:
        return gettext("%(count)d min ago") % {"count": minutes}
    if minutes < 48 * 60:
        return gettext("%(count)d h ago") % {"count": minutes // 60}
    return gettext("%(count)d days ago") % {"count": minutes // (24 * 60)}


def distance(metres: float) -> str:
    """`25 m`, `3.2 km`."""
    if metres < 1000:
        return gettext("%(count)d m") % {"count": round(metres)}
    return gettext("%(count).1f km") % {"count": metres / 1000}


def accuracy(metres: float | None) -> str:
    """Within 25 m, or approximate: within 2.0 km; empty when it is not known."""
    if metres is None:
        return ""
    within = f"within {distance(metres)}"
    return f"approximate: {within}" if metres > ROUGH_METRES else within


def coordinates(point: dict[str, Any] | None) -> str:
    """A GeoJSON point as latitude,longitude, the same in every locale; empty without one."""
    if not point:
        return ""
    longitude, latitude = point["coordinates"]
    return f"{latitude:.5f},{longitude:.5f}"
