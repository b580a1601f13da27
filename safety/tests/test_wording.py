"""What people type, cleaned before it is stored."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casualmeet.refusal import Refusal
from safety.wording import BIDI, clean


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("Cafe Blue", "Cafe Blue"),
        ("  Cafe \t Blue \n", "Cafe Blue"),
        ("one\r\ntwo\u2028three\u2029four\x0bfive", "one two three four five"),
        ("<script>alert('x')</script>", "<script>alert('x')</script>"),
        ("a & b \"c\" 'd' {{ e }} %s \\n", "a & b \"c\" 'd' {{ e }} %s \\n"),
        ("nul\x00byte", "nulbyte"),
        ("bell\x07 and escape\x1b[31m", "bell and escape[31m"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("\u2066left\u2069 \u200eright\u200f", "left right"),
        ("\ud800lone surrogate", "lone surrogate"),
        ("private \ue000use", "private use"),
        ("Cafe\u0301", "Caf\u00e9"),
        ("प्रिया शर्मा", "प्रिया शर्मा"),
        ("क्\u200dष", "क्\u200dष"),
        ("👩\u200d👧 at the park", "👩\u200d👧 at the park"),
        ("كافيه", "كافيه"),
        ("\u00a0\u3000", ""),
        ("", ""),
    ],
)
def test_invisible_characters_go_white_space_folds_and_markup_stays(typed: str, kept: str) -> None:
    assert clean(typed, what="The place", limit=120) == kept


@pytest.mark.parametrize(
    "typed", ["", " ", "\n\t", "\x00", "\u202e\u200f", "\u200b", "\u200d\ufe0f", "\u0301", "\ufeff"]
)
def test_what_shows_nothing_is_empty(typed: str) -> None:
    with pytest.raises(Refusal) as refused:
        clean(typed, what="The place", limit=120, required=True)
    assert (refused.value.status, refused.value.code) == (422, "empty")
    assert refused.value.detail.startswith("The place is empty")


def test_the_limit_counts_what_is_kept() -> None:
    assert clean("x" * 120 + "\x00" * 50 + " " * 50, what="The place", limit=120) == "x" * 120
    with pytest.raises(Refusal) as refused:
        clean("x" * 121, what="The place", limit=120)
    assert (refused.value.code, "121" in refused.value.detail) == ("too_long", True)


@given(st.text(max_size=60))
def test_cleaning_is_one_line_without_controls_and_doing_it_again_changes_nothing(typed: str) -> None:
    kept = clean(typed, what="It", limit=1000)
    assert clean(kept, what="It", limit=1000) == kept
    assert not BIDI & set(kept)
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in kept)
    assert kept == kept.strip()
    assert "  " not in kept
