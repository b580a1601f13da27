"""Numbers as people type them."""

import pytest

from casualmeet.refusal import Refusal
from safety.phones import mobile_e164, region_of


@pytest.mark.parametrize(
    ("typed", "home", "stored"),
    [
        ("+91 98123 45678", "", "+919812345678"),
        ("98123 45678", "", "+919812345678"),
        ("09812345678", "", "+919812345678"),
        ("(+91) 98123-45678", "", "+919812345678"),
        ("+91.98123.45678", "", "+919812345678"),
        ("0091 98123 45678", "", "+919812345678"),
        ("९८१२३४५६७८", "", "+919812345678"),
        ("+44 7911 123456", "", "+447911123456"),
        ("07911 123456", "+447911123457", "+447911123456"),
        ("(202) 555-0143", "+12025550142", "+12025550143"),
        ("+1 202 555 0143", "+919812345678", "+12025550143"),
    ],
)
def test_a_mobile_number_becomes_e164_and_is_read_as_one_of_the_persons_country(
    typed: str, home: str, stored: str
) -> None:
    assert mobile_e164(typed, home=home) == stored


@pytest.mark.parametrize(
    "typed",
    [
        "",
        " ",
        "abc",
        "+",
        "12345",
        "+91 12",
        "+91 98123 456789012",
        "+999 12345678",
        "9812345678 ext. 5",
        "+0 1234567",
        "022 2266 1234",
        "+44 20 7946 0018",
        "1800 123 4567",
        "+1 800 555 0199",
        "+91" + "9" * 60,
        "\x00",
        "<b>9</b>",
        "tel:",
        "9812345678;9812345679",
        "+91 98123 45678" + " " * 40,
        "∞",
        "🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂",
    ],
)
def test_what_cannot_be_a_mobile_number_is_refused(typed: str) -> None:
    with pytest.raises(Refusal) as refused:
        mobile_e164(typed)
    assert (refused.value.status, refused.value.code) == (422, "bad_phone")


@pytest.mark.parametrize(
    ("typed", "home"),
    [
        ("112", ""),
        ("100", ""),
        ("108", ""),
        (" 1 1 2 ", ""),
        ("911", "+12025550142"),
        ("999", "+447911123457"),
        ("112", "+447911123457"),
        ("+91112", ""),
        ("+91 100", ""),
        ("+1 911", ""),
    ],
)
def test_emergency_services_cannot_be_a_contact(typed: str, home: str) -> None:
    with pytest.raises(Refusal) as refused:
        mobile_e164(typed, home=home)
    assert refused.value.code == "emergency_number"


@pytest.mark.parametrize(
    ("phone", "region"),
    [("+919812345678", "IN"), ("+447400123456", "GB"), ("", ""), ("nonsense", ""), ("9812345678", "")],
)
def test_the_country_of_a_number(phone: str, region: str) -> None:
    assert region_of(phone) == region
