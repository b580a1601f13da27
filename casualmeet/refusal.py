"""How a verb says no: a reason for people, a code for programs, and what holds instead."""

from typing import Any


class Refusal(Exception):
    """A request that was understood and refused; nothing was changed.

    `status` is the HTTP status it becomes; `current` is the state that stands in the way, if any.
    """

    def __init__(self, detail: str, *, code: str, status: int = 422, current: Any = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        self.status = status
        self.current = current
