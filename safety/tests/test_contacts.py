"""Trusted contacts: who may be invited, what they may answer, how many invitations go out, and races for a place."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from casualmeet import clock
from casualmeet.refusal import Refusal
from notifications.models import Delivery, Notification, Priority
from notifications.texts import AlertFacts, Kind, compose
from safety import contacts, panic
from safety.models import MAX_CONTACTS, TrustedContact, User
from safety.tests.factories import ContactFactory, PersonFactory

pytestmark = pytest.mark.django_db

Status = TrustedContact.Status
MEERA = "+919812300001"


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def asha() -> User:
    return PersonFactory.create(username="asha", full_name="Asha Rao", phone="+919812300000")


@pytest.fixture
def meera(asha: User) -> TrustedContact:
    return contacts.invite(asha, name="Meera Nair", phone=MEERA)


def number(index: int) -> str:
    return f"+9198124{index:05d}"


def refusal(person: User, **changes: Any) -> Refusal:
    """What inviting with these values is told; nothing may have been written."""
    before = (TrustedContact.objects.count(), Delivery.objects.count())
    with pytest.raises(Refusal) as refused:
        contacts.invite(person, **{"name": "Meera Nair", "phone": MEERA, **changes})
    assert (TrustedContact.objects.count(), Delivery.objects.count()) == before
    return refused.value


def at_once(*works: Callable[[], object]) -> list[object]:
    """Run all in threads that start together; the results, or what each raised, in order."""
    start = threading.Barrier(len(works))
    results: list[object] = [None] * len(works)

    def run(index: int, work: Callable[[], object]) -> None:
        try:
            start.wait(20)
            results[index] = work()
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def unexpected(results: Sequence[object]) -> list[object]:
    """What is an exception and no refusal."""
    return [one for one in results if isinstance(one, Exception) and not isinstance(one, Refusal)]


class TestInviting:
    def test_it_makes_a_pending_contact_in_the_first_free_place_with_a_secret_link(self, asha: User) -> None:
        meera = contacts.invite(asha, name=" Meera  Nair ", phone="098123 00001", language="hi")
        assert (meera.name, meera.phone, meera.language, meera.status) == ("Meera Nair", MEERA, "hi", "pending")
        assert (meera.slot, meera.answered_at) == (0, None)
        assert len(meera.token) >= 20
        assert meera.token.isalnum()

    def test_the_invitation_is_queued_once_and_overtakes_nobody(self, asha: User, settings: Any) -> None:
        meera = contacts.invite(asha, name="Meera Nair", phone=MEERA, language="hi")
        delivery = Delivery.objects.get()
        assert (delivery.kind, delivery.status, delivery.priority) == ("invitation", "queued", Priority.NORMAL)
        assert (delivery.address, delivery.language, delivery.recipient_id) == (MEERA, "hi", meera.pk)
        assert delivery.person_id == asha.pk
        assert delivery.link == f"{settings.PUBLIC_BASE_URL}/c/{meera.token}"
        facts = AlertFacts.from_json(delivery.facts)
        text = compose(facts, language="en", link=delivery.link, now=clock.now())
        assert "Asha Rao" in text
        assert delivery.link in text

    def test_only_the_verified_are_alerted(self, asha: User, meera: TrustedContact) -> None:
        for status in (Status.PENDING, Status.DECLINED, Status.LEFT):
            TrustedContact.objects.filter(pk=meera.pk).update(status=status)
            assert not contacts.has_verified(asha)
            assert contacts.recipients([asha.pk]) == {}
        TrustedContact.objects.filter(pk=meera.pk).update(status=Status.VERIFIED)
        assert contacts.has_verified(asha)
        ((recipient,),) = contacts.recipients([asha.pk]).values()
        assert (recipient.contact_id, recipient.phone) == (meera.pk, MEERA)

    @pytest.mark.parametrize("typed", [MEERA, "9812300001", "0091 98123-00001", "+91 (98123) 00001"])
    def test_the_same_number_in_another_writing_is_a_duplicate(
        self, asha: User, meera: TrustedContact, typed: str
    ) -> None:
        told = refusal(asha, phone=typed)
        assert (told.code, told.status) == ("duplicate_contact", 409)

    def test_two_people_may_trust_the_same_number(self, asha: User, meera: TrustedContact) -> None:
        assert contacts.invite(PersonFactory.create(), name="Meera", phone=MEERA).phone == MEERA

    def test_what_cannot_be_a_contact_is_refused_with_its_reason(self, asha: User) -> None:
        for typed, code in [
            ("+919812300000", "own_number"),
            ("98123 00000", "own_number"),
            ("112", "emergency_number"),
            ("100", "emergency_number"),
            ("+91 112", "emergency_number"),
            ("+1 911", "emergency_number"),
            ("+44 999", "emergency_number"),
            ("+918022223333", "bad_phone"),
            ("+442079460000", "bad_phone"),
            ("+91981230000", "bad_phone"),
            ("+9198123000011111", "bad_phone"),
            ("+919812300001 ext 5", "bad_phone"),
            ("+800 1234 5678", "bad_phone"),
            ("", "bad_phone"),
            ("meera", "bad_phone"),
            ("+", "bad_phone"),
            ("9" * 1000, "bad_phone"),
            ("\x00" + MEERA + "\x00" * 60, "bad_phone"),
        ]:
            told = refusal(asha, phone=typed)
            assert (told.code, told.status) == (code, 422), typed
        for changes, code in [
            ({"name": " \u200b"}, "empty"),
            ({"name": "x" * 81}, "too_long"),
            ({"language": "fr"}, "bad_language"),
        ]:
            assert refusal(asha, **changes).code == code

    def test_digits_of_other_scripts_are_read_as_digits(self, asha: User) -> None:
        assert contacts.invite(asha, name="Meera", phone="+९१९८१२३००००१").phone == MEERA

    def test_a_foreigners_short_number_is_taken_as_one_of_their_own_country(self) -> None:
        british = PersonFactory.create(phone="+447700900000")
        assert contacts.invite(british, name="Tom", phone="07700 900123").phone == "+447700900123"

    def test_a_refusal_never_shows_the_number(self, asha: User, meera: TrustedContact) -> None:
        assert MEERA not in refusal(asha).detail

    def test_the_eleventh_is_refused_and_a_freed_place_is_used_again(self, asha: User) -> None:
        made = [ContactFactory.create(person=asha, slot=slot, phone=number(slot)) for slot in range(MAX_CONTACTS)]
        told = refusal(asha)
        assert (told.code, told.status) == ("too_many_contacts", 409)
        contacts.remove(made[4])
        assert contacts.invite(asha, name="Meera", phone=MEERA).slot == 4

    def test_inviting_and_removing_in_turns_does_not_text_a_stranger_without_end(self, asha: User) -> None:
        for _ in range(5):
            contacts.remove(contacts.invite(asha, name="Meera", phone=MEERA))
        told = refusal(asha)
        assert (told.code, told.status) == ("too_many_invitations", 429)

    def test_many_people_cannot_text_one_number_without_end(self) -> None:
        for _ in range(5):
            contacts.invite(PersonFactory.create(), name="Meera", phone=MEERA)
        assert refusal(PersonFactory.create()).status == 429

    def test_one_person_cannot_text_many_numbers_without_end(self, asha: User) -> None:
        for index in range(20):
            contacts.remove(contacts.invite(asha, name="N", phone=number(index)))
        assert refusal(asha).status == 429

    def test_the_limits_end(self, asha: User) -> None:
        for _ in range(5):
            contacts.remove(contacts.invite(asha, name="Meera", phone=MEERA))
        Delivery.objects.update(created_at=clock.now() - timedelta(hours=1, seconds=1))
        assert contacts.invite(asha, name="Meera", phone=MEERA).status == "pending"

    def test_p8_the_limits_on_invitations_do_not_touch_an_sos(self, asha: User) -> None:
        ContactFactory.create(person=asha, phone=MEERA)
        for index in range(20):
            contacts.remove(contacts.invite(asha, name="N", phone=number(index)))
        _, opened = panic.press(asha)
        assert opened
        assert Delivery.objects.filter(kind=Kind.SOS, status="queued").count() == 1


def last_notice(person: User) -> Notification:
    return Notification.objects.filter(recipient=person).order_by("-created_at", "-id")[0]


class TestAnswering:
    def test_accepting_leaving_and_accepting_again(self, asha: User, meera: TrustedContact) -> None:
        told = []
        for accept, status in ((True, "verified"), (False, "left"), (True, "verified")):
            assert contacts.answer(meera, accept=accept)
            meera.refresh_from_db()
            assert meera.status == status
            assert meera.answered_at is not None
            told = list(Notification.objects.filter(recipient=asha).values_list("title", flat=True))
        assert len(told) == 3
        assert told.count("Meera Nair is now your trusted contact") == 2
        assert told.count("Meera Nair is no longer your trusted contact") == 1

    def test_declining_and_thinking_again(self, asha: User, meera: TrustedContact) -> None:
        assert contacts.answer(meera, accept=False)
        assert meera.status == "declined"
        assert "declined" in last_notice(asha).title
        assert contacts.answer(meera, accept=True)
        assert meera.status == "verified"

    @pytest.mark.parametrize(("status", "accept"), [("verified", True), ("declined", False), ("left", False)])
    def test_the_same_answer_twice_changes_nothing_and_tells_nobody(
        self, asha: User, meera: TrustedContact, status: str, *, accept: bool
    ) -> None:
        TrustedContact.objects.filter(pk=meera.pk).update(status=status)
        meera.refresh_from_db()
        assert not contacts.answer(meera, accept=accept)
        meera.refresh_from_db()
        assert (meera.status, meera.answered_at) == (status, None)
        assert not Notification.objects.exists()

    def test_the_last_one_leaving_is_announced_at_once(self, asha: User, meera: TrustedContact) -> None:
        other = ContactFactory.create(person=asha, slot=5)
        contacts.answer(meera, accept=True)
        contacts.answer(meera, accept=False)
        assert last_notice(asha).body == ""
        contacts.answer(other, accept=False)
        notice = Notification.objects.get(title=f"{other.name} is no longer your trusted contact")
        assert "Nobody would be alerted" in notice.body

    def test_the_last_verified_one_removed_is_announced_at_once(self, asha: User, meera: TrustedContact) -> None:
        contacts.answer(meera, accept=True)
        contacts.remove(meera)
        notice = Notification.objects.get(title="Meera Nair was removed")
        assert "Nobody would be alerted" in notice.body

    def test_removing_one_who_was_never_verified_tells_nobody_and_takes_the_invitation_back(
        self, asha: User, meera: TrustedContact
    ) -> None:
        contacts.remove(meera)
        assert not Notification.objects.exists()
        assert Delivery.objects.get().status == "cancelled"

    def test_removing_does_not_unsend_what_went_out(self, asha: User, meera: TrustedContact) -> None:
        Delivery.objects.update(status="accepted")
        contacts.remove(meera)
        assert Delivery.objects.get().status == "accepted"

    def test_an_unknown_or_removed_link_is_not_there(self, meera: TrustedContact) -> None:
        assert contacts.access_invitation(meera.token) == meera
        contacts.remove(meera)
        for token in (meera.token, "", "x" * 24, "\ud7ff"):
            with pytest.raises(TrustedContact.DoesNotExist):
                contacts.access_invitation(token)

    def test_somebody_elses_contact_is_not_there(self, asha: User, meera: TrustedContact) -> None:
        assert contacts.access_contact(asha, meera.pk) == meera
        with pytest.raises(TrustedContact.DoesNotExist):
            contacts.access_contact(PersonFactory.create(), meera.pk)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_twenty_invitations_at_once_fill_ten_places_and_none_twice(self, asha: User) -> None:
        results = at_once(
            *[lambda index=index: contacts.invite(asha, name="N", phone=number(index)) for index in range(20)]
        )
        assert not unexpected(results)
        rows = list(TrustedContact.objects.values_list("slot", "phone"))
        assert sorted(slot for slot, _ in rows) == list(range(MAX_CONTACTS))
        assert len({phone for _, phone in rows}) == MAX_CONTACTS
        assert len([one for one in results if isinstance(one, TrustedContact)]) == MAX_CONTACTS
        assert {one.status for one in results if isinstance(one, Refusal)} == {409}
        assert Delivery.objects.filter(kind="invitation").count() == MAX_CONTACTS

    def test_the_same_number_twenty_times_at_once_is_one_contact_and_one_invitation(self, asha: User) -> None:
        results = at_once(*[lambda: contacts.invite(asha, name="Meera", phone=MEERA)] * 20)
        assert not unexpected(results)
        assert TrustedContact.objects.count() == 1
        assert Delivery.objects.count() == 1
        codes = {one.code for one in results if isinstance(one, Refusal)}
        assert codes <= {"duplicate_contact", "too_many_invitations"}

    def test_an_answer_given_ten_times_at_once_is_told_once(self, asha: User) -> None:
        meera = contacts.invite(asha, name="Meera", phone=MEERA)
        results = at_once(
            *[lambda: contacts.answer(TrustedContact.objects.get(pk=meera.pk), accept=True)] * 10,
        )
        assert sorted(map(str, results)) == ["False"] * 9 + ["True"]
        assert Notification.objects.count() == 1

    def test_accepting_while_being_removed_ends_in_one_of_the_two(self, asha: User) -> None:
        meera = contacts.invite(asha, name="Meera", phone=MEERA)
        results = at_once(
            lambda: contacts.answer(contacts.access_invitation(meera.token), accept=True),
            lambda: contacts.remove(contacts.access_contact(asha, meera.pk)),
        )
        assert not [one for one in unexpected(results) if not isinstance(one, TrustedContact.DoesNotExist)]
        assert not TrustedContact.objects.exists()
        assert not contacts.has_verified(asha)
