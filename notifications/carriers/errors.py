"""The carriers' error codes as data: code to class, class to outcome.

Both vendors say that codes come and go. A code that is not listed is judged by the HTTP status
it came with, and the raw answer is kept on the attempt, so a new code costs a wrong class once,
not an alert.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from notifications.carriers.base import ErrorClass, Outcome


def _table(rows: Mapping[ErrorClass, tuple[int, ...]]) -> Mapping[int, ErrorClass]:
    return MappingProxyType({code: kind for kind, codes in rows.items() for code in codes})


# Twilio docs, "Error and Warning Dictionary". The 300xx codes come with a delivery status, not
# with the answer to the request; they are here so that receipts are judged by the same table.
TWILIO_ERRORS: Final = _table(
    {
        "auth": (20003,),
        "bad_recipient": (21211, 21214, 21217, 21614, 21635, 30005, 30006, 60205),
        "config": (
            *(10001, 11100, 20404),
            *(21205, 21212, 21606, 21608, 21609, 21659, 21703, 21704),
            *(30002, 30018, 30024, 30032, 30034),
        ),
        "content": (21602, 21617, 30007, 30019),
        "expired": (30036,),
        "geo": (13227, 21215, 21216, 21408, 21612, 32203, 63026),
        "opt_out": (21610, 30004),
        "throttled": (10004, 20429, 21611, 30022, 30023, 63018),
        "transient": (20500, 30001, 30003, 30008, 30017, 30410, 30500, 60005),
    }
)

# Fast2SMS docs, "Error Codes". These are numbers in the body, not HTTP statuses: 401 is "sender
# missing" and 500 is "blacklisted at DLT". 407 (bad words) and 426 (a link in a variable) are
# the fault of one text, so they must not count against the carrier's health as "config" does.
FAST2SMS_ERRORS: Final = _table(
    {
        "auth": (412, 413),
        "bad_recipient": (411,),
        "config": (
            *(401, 402, 403, 404, 405, 406, 408, 409, 410),
            *(414, 415, 416, 417, 424, 425, 500),
            *(990, 996, 997, 998, 999),
        ),
        "content": (407, 426),
        "throttled": (995,),
    }
)

_RETRY_LATER: Final[frozenset[ErrorClass]] = frozenset({"throttled", "transient"})

# 408 and 425: the server says that it did not take the request in. 500 is the carrier's own failure (its other codes
# with that status are transient too), 503 a refusal to serve.
_NOT_PROCESSED: Final = frozenset({408, 425, 429, 500, 503})


def twilio_error(code: int) -> tuple[Outcome, ErrorClass] | None:
    """Outcome and class of a Twilio error code, None if it is not listed."""
    kind = TWILIO_ERRORS.get(code)
    if kind is None:
        return None
    return (Outcome.TRANSIENT if kind in _RETRY_LATER else Outcome.PERMANENT), kind


def fast2sms_error(code: int) -> tuple[Outcome, ErrorClass] | None:
    """Outcome and class of a Fast2SMS body code, None if it is not listed.

    All are permanent. 995 (too many to one number) would pass in some minutes, but an alert
    can't wait for that: permanent makes the dispatcher turn to the next carrier now.
    """
    kind = FAST2SMS_ERRORS.get(code)
    return None if kind is None else (Outcome.PERMANENT, kind)


def http_error(status: int, *, readable: bool) -> tuple[Outcome, ErrorClass]:
    """Outcome and class of an answer that carries no known code and no message id.

    `readable` says whether the body was an error in the carrier's own form. A bare 502 or
    504 comes from something in front of the carrier and does not tell whether the request got
    through. A 2xx without a message id tells as little.
    """
    if status == 429:
        return Outcome.TRANSIENT, "throttled"
    if status in _NOT_PROCESSED or (status >= 500 and readable):
        return Outcome.TRANSIENT, "transient"
    if status in (401, 403):
        return Outcome.PERMANENT, "auth"
    if 400 <= status < 500:
        return Outcome.PERMANENT, ""
    if 300 <= status < 400:
        return Outcome.PERMANENT, "config"  # a redirect: the base URL is not the carrier's
    return Outcome.UNKNOWN, ""
