"""The safe PIN: what a person must type to be believed that they are safe."""

import re
from datetime import timedelta

from django.contrib.auth.hashers import check_password, make_password
from django.db.models import F, Q

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety.models import User

SHAPE = re.compile(r"[0-9]{4,8}")
# Guessing: after ten wrong ones in a row, a pause.
MAX_FAILURES = 10
PAUSE = timedelta(minutes=5)


def set_pin(person: User, *, new: str, current: str = "") -> None:
    """Set the PIN, or with an empty `new` remove it; changing one needs the current one.

    Raises Refusal for a wrong current PIN, for one that is not 4 to 8 digits, and when it was changed meanwhile (409).
    """
    if new and not SHAPE.fullmatch(new):
        raise Refusal("A PIN has 4 to 8 digits.", code="bad_pin")
    check(person, current)
    hashed = make_password(new) if new else ""
    if not User.objects.filter(pk=person.pk, safe_pin=person.safe_pin).update(safe_pin=hashed, pin_failures=0):
        raise Refusal("Your PIN was changed at the same moment. Try again.", code="changed", status=409)
    person.safe_pin = hashed


def check(person: User, pin: str) -> bool:
    """True when the PIN is right, False when the person has none. Raises Refusal (403, 429) when it is missing or wrong."""
    if not person.safe_pin:
        return False
    if not pin:
        raise Refusal("Your PIN is needed.", code="pin_required", status=403)
    _take_a_try(person)
    if not check_password(pin, person.safe_pin):
        _lock_after_the_last(person)
        raise Refusal("That is not your PIN. Nothing was changed.", code="wrong_pin", status=403)
    User.objects.filter(pk=person.pk).update(pin_failures=0, pin_locked_until=None)
    return True


def _take_a_try(person: User) -> None:
    """Counted before the PIN is looked at, so that guesses made at the same time get no more tries than others."""
    unlocked = Q(pin_locked_until__isnull=True) | Q(pin_locked_until__lte=clock.now())
    mine = User.objects.filter(unlocked, pk=person.pk, pin_failures__lt=MAX_FAILURES)
    if not mine.update(pin_failures=F("pin_failures") + 1):
        _lock_after_the_last(person)
        raise Refusal("Too many wrong PINs. Wait five minutes.", code="pin_locked", status=429)


def _lock_after_the_last(person: User) -> None:
    User.objects.filter(pk=person.pk, pin_failures__gte=MAX_FAILURES).update(
        pin_failures=0, pin_locked_until=clock.now() + PAUSE
    )
