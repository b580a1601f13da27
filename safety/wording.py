"""What people type: names, places and notes, cleaned before they are stored."""

import unicodedata

from casualmeet.refusal import Refusal

# Invisible characters that turn, hide or break what others read: controls, line and paragraph separators, surrogates.
FORBIDDEN = {"Cc", "Zl", "Zp", "Cs", "Co", "Cn"}
# Marks that reverse the text around them (Unicode 15, section 23.2, "Bidirectional ordering controls").
BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


def clean(text: str, *, what: str, limit: int, required: bool = False) -> str:
    """One line of text: white space folded, invisible characters dropped. Markup stays: it is escaped where shown.

    Raises Refusal when it is longer than `limit` characters, or empty though required.
    """
    visible = "".join(" " if char.isspace() else char for char in unicodedata.normalize("NFC", text))
    kept = (char for char in visible if unicodedata.category(char) not in FORBIDDEN and char not in BIDI)
    line = " ".join("".join(kept).split())
    if required and not any(unicodedata.category(char)[0] in "LNSP" for char in line):
        raise Refusal(f"{what} is empty. Please fill it in.", code="empty")
    if len(line) > limit:
        raise Refusal(f"{what} is too long: {len(line)} characters, at most {limit}.", code="too_long")
    return line
