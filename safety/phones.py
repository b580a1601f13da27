"""Phone numbers as people type them, made E.164 or refused with a reason."""

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, PhoneNumberType, shortnumberinfo

from casualmeet.refusal import Refusal

DEFAULT_REGION = "IN"
MOBILE = {PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE_OR_MOBILE, PhoneNumberType.PERSONAL_NUMBER}
MAX_TYPED = 40


def mobile_e164(typed: str, *, home: str = "") -> str:
    """The number as E.164. Without a country code it is taken as one of the country of `home` (E.164), else of India.

    Raises Refusal for an emergency number and for what can't be a mobile number.
    """
    region = region_of(home) or DEFAULT_REGION
    if len(typed) > MAX_TYPED:
        raise _invalid()
    if shortnumberinfo.is_emergency_number(typed, region):
        raise _emergency()
    try:
        number = phonenumbers.parse(typed, region)
    except NumberParseException:
        raise _invalid() from None
    national = str(number.national_number)
    if any(shortnumberinfo.is_emergency_number(national, code) for code in _regions(number)):
        raise _emergency()
    if number.extension or not _may_be_mobile(number):
        raise _invalid()
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def region_of(phone: str) -> str:
    """The country (ISO 3166) of an E.164 number; of a range that is not known, the main one of its country code."""
    try:
        number = phonenumbers.parse(phone, None)
    except NumberParseException:
        return ""
    region = phonenumbers.region_code_for_number(number)
    return region or phonenumbers.region_code_for_country_code(number.country_code or 0)


def _regions(number: PhoneNumber) -> list[str]:
    return list(phonenumbers.region_codes_for_country_code(number.country_code or 0))


def _may_be_mobile(number: PhoneNumber) -> bool:
    """Known ranges must be mobile; unknown ones must at least have a mobile number's length."""
    if phonenumbers.is_valid_number(number):
        return phonenumbers.number_type(number) in MOBILE
    return bool(phonenumbers.is_possible_number_for_type(number, PhoneNumberType.MOBILE))


def _invalid() -> Refusal:
    return Refusal(
        "This is not a mobile number. Write it with its country code, such as +91 98123 45678.", code="bad_phone"
    )


def _emergency() -> Refusal:
    return Refusal("Emergency services can't be a trusted contact. Add somebody you know.", code="emergency_number")
