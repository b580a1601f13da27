"""Tells whoever supervises this process that its loop still turns: systemd's watchdog, or a file that a probe looks at.

It says nothing about the work: a loop that turns while the database is gone is alive, and a restart would not help it.
"""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

from django.conf import settings

BEAT_SECONDS = 1.0

_last = -BEAT_SECONDS


def beat() -> None:
    """Say so, at most once a second. Only the main thread's loop counts: those beside it must not speak for it."""
    global _last
    if threading.current_thread() is not threading.main_thread() or time.monotonic() - _last < BEAT_SECONDS:
        return
    _last = time.monotonic()
    if settings.ALIVE_FILE:
        # A full disk keeps no existing file from being touched; where it is gone the probe will say so.
        with contextlib.suppress(OSError):
            Path(settings.ALIVE_FILE).touch()
    if address := os.environ.get("NOTIFY_SOCKET"):
        with contextlib.suppress(OSError):
            _notify(address)


def _notify(address: str) -> None:
    """As sd_notify(3) says: a datagram to the socket that systemd names; @ stands for its abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto(b"WATCHDOG=1", f"\0{address[1:]}" if address.startswith("@") else address)
