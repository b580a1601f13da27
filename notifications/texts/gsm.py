"""How many parts an SMS takes (3GPP TS 23.038 alphabets, TS 23.040 concatenation)."""

from typing import Final

GSM7_BASIC: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
"""Characters of the GSM-7 default alphabet, one septet each."""

GSM7_EXTENSION: Final = frozenset("^{}[]~\\|€\f")
"""Characters sent as an escape plus one septet, so they count two."""

_GSM7 = GSM7_BASIC | GSM7_EXTENSION

GSM7_SINGLE, GSM7_PART = 160, 153
UCS2_SINGLE, UCS2_PART = 70, 67


def is_gsm7(text: str) -> bool:
    """Whether every character of `text` is in the GSM-7 alphabet or its extension table."""
    return _GSM7.issuperset(text)


def units(text: str, *, gsm: bool | None = None) -> int:
    """Length of `text` as a carrier counts it: septets in GSM-7, else UTF-16 code units. `gsm`: where it is known."""
    if not (is_gsm7(text) if gsm is None else gsm):
        return utf16_units(text)
    if GSM7_EXTENSION.isdisjoint(text):  # nearly always, and fast
        return len(text)
    return len(text) + sum(char in GSM7_EXTENSION for char in text)


def utf16_units(text: str) -> int:
    """Length of `text` in UTF-16 code units: characters outside the BMP count two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def segments(text: str, *, gsm: bool | None = None) -> int:
    """Number of SMS parts `text` is sent (and billed) as. `gsm`: whether it is GSM-7, where that is known.

    GSM-7: 160 septets alone, 153 per part. UCS-2: 70 code units alone, 67 per part. An escape
    pair or a surrogate pair is never split over two parts, so a part may stay one unit short.
    An empty text still takes one message.
    """
    gsm = is_gsm7(text) if gsm is None else gsm
    if gsm:
        wide, single, part = GSM7_EXTENSION, GSM7_SINGLE, GSM7_PART
    else:
        wide = frozenset(char for char in text if char > "\uffff")
        single, part = UCS2_SINGLE, UCS2_PART
    if units(text, gsm=gsm) <= single:
        return 1
    if wide.isdisjoint(text):
        return -(-len(text) // part)
    parts, used = 1, 0
    for char in text:
        width = 2 if char in wide else 1
        if used + width > part:
            parts, used = parts + 1, 0
        used += width
    return parts
