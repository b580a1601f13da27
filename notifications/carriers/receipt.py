"""What a carrier says about a message when it is asked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """`status` in the words that notifications.receipts ranks; `code` is the carrier's reason for a failure."""

    status: str
    code: str = ""
