"""What a text is about, apart from how it is worded: the one object behind every message."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

_TEXT = ("person_name", "person_phone", "reference", "meet_with", "place_name", "time_zone", "agreed_word", "said")
_MOMENTS = ("happened_at", "opened_at", "located_at")
_NUMBERS = ("latitude", "longitude", "accuracy_m")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Kind(StrEnum):
    """What a text tells its reader."""

    MISSED_CHECK_IN = "missed_check_in"
    SOS = "sos"
    DURESS = "duress"
    UPDATE = "update"
    ALL_CLEAR = "all_clear"
    CHECK_PROMPT = "check_prompt"
    INVITATION = "invitation"
    FAIL_SAFE = "fail_safe"
    REPLY = "reply"
    RECONFIRM = "reconfirm"
    DIGEST = "digest"
    SELF_TEST = "self_test"


ALERTS = frozenset({Kind.MISSED_CHECK_IN, Kind.SOS, Kind.DURESS})
"""The kinds that call for help."""

SAID = frozenset({Kind.REPLY, Kind.DIGEST, Kind.SELF_TEST})
"""The kinds whose whole text was composed when they were queued."""


def format_position(latitude: float, longitude: float) -> str:
    """Degrees (WGS 84) as `28.61390,77.20900`: ASCII, five decimals, about a metre.

    Raises ValueError where the numbers are not finite or not on the globe.
    """
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):  # false for NaN too
        raise ValueError("not a position on the globe")
    # Adding 0.0 turns the -0.0 that rounding may leave into 0.0.
    return f"{round(latitude, 5) + 0.0:.5f},{round(longitude, 5) + 0.0:.5f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFacts:
    """Everything a text may say, as it stood when the message was queued.

    `happened_at` is the missed deadline, the press, the update, the moment safety was confirmed
    or, for a check prompt, the deadline to come. Datetimes are aware and kept in UTC; naive ones
    raise ValueError. Degrees are WGS 84, `accuracy_m` metres, `late_seconds` how long after it
    was due the alert was made. A position that can't be true (not finite, off the globe, 0,0, half
    missing) counts as none; NUL and lone surrogates, which databases refuse, are removed.
    `agreed_word` is the authenticity word of the contact who is written to. `said` is the whole text of
    the kinds in SAID, such as a reply's from `compose_answer`.
    """

    kind: Kind
    person_name: str
    happened_at: datetime
    person_phone: str = ""
    reference: str = ""
    opened_at: datetime | None = None
    latitude: float | None = None
    longitude: float | None = None
    accuracy_m: float | None = None
    located_at: datetime | None = None
    meet_with: str = ""
    place_name: str = ""
    time_zone: str = "UTC"
    confirmed_with_pin: bool = False
    minutes_left: int | None = None
    late_seconds: int = 0
    agreed_word: str = ""
    said: str = ""

    def __post_init__(self) -> None:
        # A text is read back for each message that is sent: what needs no change is left alone.
        for name in _TEXT:
            text = getattr(self, name)
            if _UNSTORABLE.search(text):
                object.__setattr__(self, name, _UNSTORABLE.sub("", text))
        for name in _MOMENTS:
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is not UTC:
                object.__setattr__(self, name, _utc(moment))
        if not (self.latitude is self.longitude is None) and not _believable(self.latitude, self.longitude):
            object.__setattr__(self, "latitude", None)
            object.__setattr__(self, "longitude", None)
        accuracy = self.accuracy_m
        if accuracy is not None and not (math.isfinite(accuracy) and accuracy >= 0):
            object.__setattr__(self, "accuracy_m", None)

    @property
    def point(self) -> str:
        """The position as text, or "" if there is none."""
        if self.latitude is None or self.longitude is None:
            return ""
        return format_position(self.latitude, self.longitude)

    def to_json(self) -> dict[str, Any]:
        """The facts in JSON types only, datetimes as ISO 8601 in UTC; see `from_json`."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["kind"] = self.kind.value
        for name in _MOMENTS:
            data[name] = data[name].isoformat() if data[name] else None
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AlertFacts":
        """The facts that `to_json` wrote, also by an older or a newer version of this class.

        Unknown keys are ignored; a missing or null optional key takes its default. Raises KeyError
        without kind, person_name or happened_at and ValueError for a kind or time that is none.
        """
        known = cls.__dataclass_fields__
        values = {key: value for key, value in data.items() if value is not None and key in known}
        values["kind"] = Kind(data["kind"])
        values["person_name"] = str(data["person_name"])
        values["happened_at"] = datetime.fromisoformat(data["happened_at"])
        for name in ("opened_at", "located_at"):
            if name in values:
                values[name] = datetime.fromisoformat(values[name])
        for name in _NUMBERS:
            if name in values:
                values[name] = float(values[name])
        return cls(**values)


def _utc(moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    if moment.utcoffset() is None:
        raise ValueError("a time without a zone")
    return moment.astimezone(UTC)


def _believable(latitude: float | None, longitude: float | None) -> bool:
    if latitude is None or longitude is None:
        return False
    try:
        return format_position(latitude, longitude) != "0.00000,0.00000"
    except ValueError:
        return False
