"""The safe PIN: its shape, what a wrong one changes (nothing), and the pause after guessing."""

from datetime import timedelta
from typing import Any

import pytest

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety import panic, pins, timers
from safety.models import MeetingTimer, User
from safety.tests.people import Clock, people, timers_for
from sos.models import SosEvent

PIN = "4711"


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def asha(db: None, settings: Any) -> User:
    """A person with a PIN; hashed quickly, since a test hashes often."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    person = people(1)[0]
    pins.set_pin(person, new=PIN)
    return fresh(person)


def fresh(person: User) -> User:
    """As the next request reads them."""
    return User.objects.get(pk=person.pk)


def refused(status: int, code: str, verb: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(Refusal) as caught:
        verb(*args, **kwargs)
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize(
    "shape",
    [
        "1",
        "123",
        "123456789",
        "12a4",
        " 1234",
        "1234 ",
        "1234\n",
        "12 34",
        "+1234",
        "12.4",
        "-1234",
        "\x001234",
        "abcd",
        "١٢٣٤",
        "१२३४",
        "１２３４",
        "①②③④",
        "1234" * 500,
    ],
)
def test_a_pin_is_four_to_eight_ascii_digits(shape: str) -> None:
    """Refused before the database is asked anything."""
    refused(422, "bad_pin", pins.set_pin, User(), new=shape)


@pytest.mark.parametrize("shape", ["0000", "12345678", "00000"])
def test_other_pins_are_taken_and_stored_only_as_a_hash(asha: User, shape: str) -> None:
    pins.set_pin(asha, new=shape, current=PIN)
    assert shape not in fresh(asha).safe_pin
    assert pins.check(fresh(asha), shape)
    refused(403, "wrong_pin", pins.check, fresh(asha), PIN)


def test_changing_or_removing_needs_the_current_pin(asha: User) -> None:
    refused(403, "pin_required", pins.set_pin, asha, new="9999")
    refused(403, "wrong_pin", pins.set_pin, asha, new="9999", current="0000")
    refused(403, "wrong_pin", pins.set_pin, fresh(asha), new="", current="0000")
    assert pins.check(fresh(asha), PIN)
    pins.set_pin(fresh(asha), new="", current=PIN)
    assert not pins.check(fresh(asha), "anything")


def test_of_two_changes_decided_on_the_same_pin_only_one_succeeds(asha: User) -> None:
    """Nobody is told that a PIN was set which was not."""
    stale = fresh(asha)
    pins.set_pin(asha, new="1111", current=PIN)
    refused(409, "changed", pins.set_pin, stale, new="2222", current=PIN)
    assert pins.check(fresh(asha), "1111")


WRONG = ["", "4712", "471", "47111", " 4711", "4711 ", "٤٧١١", "\x004711", "4711\x00", "x" * 10_000]


def test_a_wrong_pin_changes_nothing_about_timer_or_incident(
    asha: User, wall: Clock, subtests: pytest.Subtests
) -> None:
    (timer,) = timers_for([asha], escalates_at=wall.now + timedelta(hours=1))
    incident, _ = panic.press(asha)
    before = MeetingTimer.objects.values().get(), SosEvent.objects.values().get()
    for wrong in WRONG:
        code = "wrong_pin" if wrong else "pin_required"
        User.objects.filter(pk=asha.pk).update(pin_failures=0)
        with subtests.test(wrong=wrong[:10]):
            for verb in (timers.check_in, timers.cancel):
                refused(403, code, verb, timer, pin=wrong)
            refused(403, code, panic.confirm_safe, asha, incident, pin=wrong)
    assert (MeetingTimer.objects.values().get(), SosEvent.objects.values().get()) == before


def test_the_right_pin_works_for_timer_and_incident_and_extending_needs_none(asha: User, wall: Clock) -> None:
    (timer,) = timers_for([asha], escalates_at=wall.now + timedelta(hours=1))
    incident, _ = panic.press(asha)
    assert timers.check_in(timers.extend(timer), pin=PIN).status == "safe"
    assert panic.confirm_safe(asha, incident, pin=PIN).resolution == "pin"


def test_ten_wrong_pins_in_a_row_are_followed_by_a_pause_of_five_minutes(asha: User, wall: Clock) -> None:
    for _ in range(10):
        refused(403, "wrong_pin", pins.check, fresh(asha), "0000")
    refused(429, "pin_locked", pins.check, fresh(asha), PIN)
    wall.move(minutes=5, milliseconds=-1)
    refused(429, "pin_locked", pins.check, fresh(asha), PIN)
    wall.move(milliseconds=1)
    assert pins.check(fresh(asha), PIN)


def test_guesses_made_at_the_same_time_get_no_more_tries(asha: User, wall: Clock) -> None:
    at_once = [fresh(asha) for _ in range(11)]
    for person in at_once[:10]:
        refused(403, "wrong_pin", pins.check, person, "0000")
    refused(429, "pin_locked", pins.check, at_once[10], PIN)


def test_a_crash_amid_the_last_try_does_not_lock_for_good(asha: User, wall: Clock) -> None:
    User.objects.filter(pk=asha.pk).update(pin_failures=10)
    refused(429, "pin_locked", pins.check, fresh(asha), PIN)
    wall.move(minutes=5)
    assert pins.check(fresh(asha), PIN)


def test_a_right_pin_starts_the_count_anew_and_a_missing_one_does_not_count(asha: User) -> None:
    for _ in range(9):
        refused(403, "wrong_pin", pins.check, fresh(asha), "0000")
    for _ in range(5):
        refused(403, "pin_required", pins.check, fresh(asha), "")
    assert pins.check(fresh(asha), PIN)
    for _ in range(9):
        refused(403, "wrong_pin", pins.check, fresh(asha), "0000")
    assert pins.check(fresh(asha), PIN)


def test_who_has_no_pin_needs_none(db: None, wall: Clock) -> None:
    ravi = people(1, name="ravi")[0]
    (timer,) = timers_for([ravi], escalates_at=wall.now + timedelta(hours=1))
    assert timers.check_in(timer, pin="whatever").status == "safe"
    incident, _ = panic.press(ravi)
    assert panic.confirm_safe(ravi, incident).resolution == "app"
