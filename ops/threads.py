"""Work that somebody waits for, but not for ever."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

R = TypeVar("R")


def in_thread(work: Callable[[], R]) -> Future[R]:
    """Begin the work in a thread that keeps no process from ending, so that the caller may stop waiting for it."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
