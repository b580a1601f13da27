"""What was asked of the carriers, and what each phone got."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Author = Literal["site", "carrier", "person"]
Wanted = str | re.Pattern[str] | Callable[[str], bool]


@dataclass(slots=True)
class Entry:
    """One text, call or push. `phone` is E.164, or the token or endpoint of a push.

    `author` is who wrote it: the site, the carrier of its own (after STOP), or the person who holds the phone.
    `on_phone` is whether the phone shows it: it went out and was not lost on the way.
    """

    number: int
    carrier: str
    channel: str
    phone: str
    text: str
    at: float
    message_id: str
    sender: str = ""
    author: Author = "site"
    status: str = ""
    error_code: int | None = None
    segments: int = 1
    on_phone: bool = False
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. `accepted` is whether the carrier took what it asked for."""

    carrier: str
    operation: str
    phone: str
    at: float
    accepted: bool
    fields: Mapping[str, str]
    headers: Mapping[str, str]


class Journal:
    """May be read from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[Entry] = []
        self._requests: list[Request] = []
        self._strays: list[str] = []

    def add(self, **values: Any) -> Entry:
        with self._changed:
            entry = Entry(number=len(self._entries) + 1, **values)
            self._entries.append(entry)
            self._changed.notify_all()
        return entry

    def change(self, entry: Entry, **values: Any) -> None:
        with self._changed:
            for name, value in values.items():
                setattr(entry, name, value)
            self._changed.notify_all()

    def asked(self, request: Request) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def stray(self, what: str) -> None:
        """Keep a request that no carrier would understand."""
        with self._changed:
            self._strays.append(what)

    def entries(self, phone: str | None = None, *, channel: str | None = None) -> list[Entry]:
        """Everything that was taken, in order, with what people and carriers wrote."""
        with self._changed:
            return [e for e in self._entries if phone in (None, e.phone) and channel in (None, e.channel)]

    def requests(
        self, phone: str | None = None, *, carrier: str | None = None, operation: str | None = "create"
    ) -> list[Request]:
        """Every request, refused ones too. `operation` None: of all kinds."""
        with self._changed:
            return [
                r
                for r in self._requests
                if phone in (None, r.phone) and carrier in (None, r.carrier) and operation in (None, r.operation)
            ]

    def received(self, phone: str | None = None, *, channel: str | None = None) -> list[Entry]:
        """What the site sent and the phone shows, in order."""
        return [e for e in self.entries(phone, channel=channel) if e.author == "site" and e.on_phone]

    def texts(self, phone: str, *, channel: str | None = "sms") -> list[str]:
        """The texts on the phone that the site sent."""
        return [entry.text for entry in self.received(phone, channel=channel)]

    def wait_for(
        self, count: int, phone: str | None = None, *, channel: str | None = None, timeout: float = 10.0
    ) -> list[Entry]:
        """What the phone shows, once that is at least `count`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.received(phone, channel=channel)) >= count, timeout):
                got = len(self.received(phone, channel=channel))
                raise TimeoutError(f"{got} of {count} messages after {timeout:g} s")
        return self.received(phone, channel=channel)

    def assert_exactly(self, phone: str, wanted: Sequence[Wanted], *, channel: str | None = None) -> None:
        """Fail unless the phone shows these and no others, in this order.

        A string is the whole text, a pattern is searched in it, a function says whether it fits. Calls count with what
        they said, pushes with title and body. What was found is no longer unexpected.
        """
        found = self.received(phone, channel=channel)
        if len(found) != len(wanted) or not all(_fits(w, e.text) for w, e in zip(wanted, found, strict=True)):
            raise AssertionError(
                f"{phone} should show {_list(wanted)}\nbut shows {_list(f'[{e.channel}] {e.text}' for e in found)}"
            )
        for entry in found:
            entry.expected = True

    def unexpected(self) -> list[str]:
        """What no assertion has named, and requests that made no sense."""
        with self._changed:
            return [
                *(f"{e.channel} to {e.phone}: {e.text}" for e in self._entries if _surprises(e)),
                *(f"stray request: {stray}" for stray in self._strays),
            ]

    def as_json(self, phone: str | None = None) -> dict[str, Any]:
        with self._changed:
            return {
                "messages": [asdict(e) for e in self._entries if phone in (None, e.phone)],
                "requests": [asdict(r) for r in self._requests if phone in (None, r.phone)],
                "stray": list(self._strays),
            }

    def clear(self) -> None:
        with self._changed:
            self._entries.clear()
            self._requests.clear()
            self._strays.clear()


def _surprises(entry: Entry) -> bool:
    return entry.author == "site" and entry.on_phone and not entry.expected


def _fits(wanted: Wanted, text: str) -> bool:
    if isinstance(wanted, str):
        return wanted == text
    if isinstance(wanted, re.Pattern):
        return wanted.search(text) is not None
    return wanted(text)


def _list(items: Iterable[object]) -> str:
    lines = [f"  - {item}" for item in items]
    return "\n" + "\n".join(lines) if lines else "nothing"
