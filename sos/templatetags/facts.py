"""How pages word ages, distances and positions."""

from datetime import datetime
from typing import Any

from django import template

register = template.Library()


@register.filter
def ago(moment: datetime, now: datetime) -> str:
    """`just now`, `12 min ago`, `3 h ago`, `2 days ago`."""
    minutes = int((now - moment).total_seconds() // 60)
    if minutes < 1:
        return "just now"
    if minutes < 120:
        return f"{minutes} min ago"
    if minutes < 48 * 60:
        return f"{minutes // 60} h ago"
    return f"{minutes // (24 * 60)} days ago"


@register.filter
def distance(metres: float) -> str:
    """`25 m`, `3.2 km`."""
    return f"{round(metres)} m" if metres < 1000 else f"{metres / 1000:.1f} km"


@register.filter
def coordinates(point: dict[str, Any]) -> str:
    """A GeoJSON point as `latitude,longitude`, the same in every locale."""
    longitude, latitude = point["coordinates"]
    return f"{latitude:.5f},{longitude:.5f}"
