"""Counts of what happened in this process, such as webhooks for unknown ids. They start at zero with the process."""

import threading
from collections import Counter

_counts: Counter[str] = Counter()
_lock = threading.Lock()


def count(name: str) -> None:
    """One more of it."""
    with _lock:
        _counts[name] += 1


def value(name: str) -> int:
    """How often it happened since the process started."""
    with _lock:
        return _counts[name]


def values() -> dict[str, int]:
    """All that happened at least once, by name."""
    with _lock:
        return dict(_counts)
