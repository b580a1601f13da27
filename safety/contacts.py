"""Trusted contacts: invited by the person, alerted only once they have accepted, free to leave at any time."""

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from casualmeet import clock
from casualmeet.db import insert_one, retry_transient
from casualmeet.refusal import Refusal
from notifications import inbox, live, optouts, outbox, subscriptions, wake
from notifications.models import Delivery, Priority
from notifications.texts import AlertFacts, Kind
from safety.models import MAX_CONTACTS, Language, TrustedContact, User
from safety.phones import mobile_e164
from safety.wording import clean
from sos.triggers import Recipient

Status = TrustedContact.Status
Asked = TrustedContact.Asked
NOT_ASKED: Final[dict[str, Any]] = {"asked": Asked.NOT, "asked_at": None, "question_id": None}
TOKEN_ALPHABET = "abcdefghijkmnopqrstuvwxyz23456789"  # noqa: S105 - letters that SMS apps leave in a link
TOKEN_LENGTH = 24
# Invitations are texts to strangers that a stranger can cause: so they are limited.
INVITATIONS_PER_NUMBER = (5, timedelta(hours=1))
INVITATIONS_PER_PERSON = (20, timedelta(days=1))


@retry_transient
def invite(person: User, *, name: str, phone: str, language: str = Language.ENGLISH) -> TrustedContact:
    """Add somebody, who is pending until they accept, and text them an invitation.

    Raises Refusal for a bad name, number or language (422), a number listed already (409), and past ten contacts (409).
    """
    name = clean(name, what="The name", limit=80, required=True)
    number = mobile_e164(phone, home=person.phone)
    if language not in Language.values:
        raise Refusal(f"The language must be one of: {', '.join(Language.values)}.", code="bad_language")
    if person.phone and number == person.phone:
        raise Refusal("That is your own number. Add somebody else.", code="own_number")
    _check_invitation_limits(person, number)
    with transaction.atomic():
        contact = _insert(person, name=name, phone=number, language=language)
        outbox.queue([_invitation(contact, person)])
    wake.dispatcher()
    return contact


def answer(contact: TrustedContact, *, accept: bool) -> bool:
    """The contact accepts, declines, or having accepted leaves. False when that is how it stands already."""
    target, sources = (
        (Status.VERIFIED, [Status.PENDING, Status.DECLINED, Status.LEFT])
        if accept
        else (Status.LEFT, [Status.VERIFIED])
        if contact.status == Status.VERIFIED
        else (Status.DECLINED, [Status.PENDING])
    )
    now = clock.now()
    changed = TrustedContact.objects.filter(pk=contact.pk, status__in=sources).update(
        status=target, answered_at=now, **NOT_ASKED
    )
    _take_back_question(contact)
    contact.refresh_from_db()
    if changed:
        if not accept:
            subscriptions.forget(contact.pk)
        _tell_person(contact)
    return bool(changed)


def confirm(contact: TrustedContact) -> bool:
    """The contact was asked, and says that they are still there; False when that is how it stands already."""
    mine = TrustedContact.objects.filter(pk=contact.pk, status=Status.VERIFIED, asked__gt=Asked.NOT)
    changed = mine.update(answered_at=clock.now(), **NOT_ASKED)
    if changed:
        _take_back_question(contact)
        if contact.asked == Asked.TOLD:
            _notify(contact, f"{contact.name} is still your trusted contact", "")
        contact.refresh_from_db()
    return bool(changed)


def remove(contact: TrustedContact) -> None:
    """Take the contact off the list; alerts that were sent stay on record."""
    TrustedContact.objects.filter(pk=contact.pk).delete()
    outbox.cancel_text(outbox.text_id("invitation", contact.pk), now=clock.now())
    _take_back_question(contact)
    subscriptions.forget(contact.pk)
    if contact.status == Status.VERIFIED:
        _warn_if_last(contact, f"{contact.name} was removed")


def has_verified(person: User) -> bool:
    """Whether anybody can be alerted."""
    return TrustedContact.objects.filter(person=person, status=Status.VERIFIED).exists()


def recipients(person_ids: Iterable[UUID]) -> dict[UUID, tuple[Recipient, ...]]:
    """The verified contacts of each person who has some, in the order of their list."""
    found: dict[UUID, tuple[Recipient, ...]] = {}
    rows = TrustedContact.objects.filter(person_id__in=list(person_ids), status=Status.VERIFIED).order_by("slot")
    for person_id, pk, name, phone, language in rows.values_list("person_id", "pk", "name", "phone", "language"):
        found[person_id] = (*found.get(person_id, ()), Recipient(pk, name, phone, language))
    return found


def listed(person: User) -> list[TrustedContact]:
    """The person's contacts in the order of their list, each with whether their number wants no texts."""
    rows = list(TrustedContact.objects.filter(person=person))
    stopped = optouts.stopped([row.phone for row in rows])
    for row in rows:
        row.sms_stopped = row.phone in stopped
    return rows


def access_contact(person: User, contact_id: UUID) -> TrustedContact:
    """The person's own contact; raises TrustedContact.DoesNotExist when it is missing or somebody else's."""
    return TrustedContact.objects.get(pk=contact_id, person=person)


def access_invitation(token: str) -> TrustedContact:
    """The contact whose own link carries this secret; raises TrustedContact.DoesNotExist."""
    return TrustedContact.objects.select_related("person").get(token=token)


def addressee(contact: TrustedContact) -> outbox.Addressee:
    """Where a text to the contact goes, with the link to their own page."""
    link = f"{settings.PUBLIC_BASE_URL}/c/{contact.token}"
    return outbox.Addressee(contact.pk, contact.name, contact.phone, contact.language, link)


def _take_back_question(contact: TrustedContact) -> None:
    """What was asked, as far as it is not out yet: they have answered, or are no contact any more."""
    if contact.question_id:
        outbox.cancel_text(contact.question_id, now=clock.now())


def _insert(person: User, *, name: str, phone: str, language: str) -> TrustedContact:
    """In the lowest free slot; the unique constraints decide races for a slot and for a number."""
    for _ in range(2 * MAX_CONTACTS):
        taken = dict(TrustedContact.objects.filter(person=person).values_list("slot", "phone"))
        if phone in taken.values():
            raise Refusal("This number is among your contacts already.", code="duplicate_contact", status=409)
        free = [slot for slot in range(MAX_CONTACTS) if slot not in taken]
        if not free:
            raise Refusal(f"You have {MAX_CONTACTS} contacts; remove one first.", code="too_many_contacts", status=409)
        contact = TrustedContact(
            id=uuid4(),
            person=person,
            slot=free[0],
            name=name,
            phone=phone,
            language=language,
            token="".join(secrets.choice(TOKEN_ALPHABET) for _ in range(TOKEN_LENGTH)),
            invited_at=clock.now(),
        )
        if insert_one(contact):
            return contact
    raise Refusal("Your contacts are being changed elsewhere. Try again.", code="changed", status=409)


def _invitation(contact: TrustedContact, person: User) -> Delivery:
    facts = AlertFacts(
        kind=Kind.INVITATION, person_name=person.display_name, person_phone=person.phone, happened_at=contact.invited_at
    )
    return outbox.text_to(
        addressee(contact),
        key="invitation",
        kind=Kind.INVITATION,
        facts=facts.to_json(),
        now=contact.invited_at,
        priority=Priority.NORMAL,
        person_id=person.pk,
    )


def _check_invitation_limits(person: User, number: str) -> None:
    invitations = Delivery.objects.filter(kind=Kind.INVITATION)
    for limited, (most, period) in (
        (invitations.filter(person_id=person.pk), INVITATIONS_PER_PERSON),
        (invitations.filter(address=number), INVITATIONS_PER_NUMBER),
    ):
        if limited.filter(created_at__gt=clock.now() - period).count() >= most:
            raise Refusal("Too many invitations. Try again later.", code="too_many_invitations", status=429)


def _tell_person(contact: TrustedContact) -> None:
    """The person learns at once what their contact answered, and when nobody is left to alert."""
    said = {
        Status.VERIFIED.value: f"{contact.name} is now your trusted contact",
        Status.DECLINED.value: f"{contact.name} declined to be your trusted contact",
        Status.LEFT.value: f"{contact.name} is no longer your trusted contact",
    }[contact.status]
    if contact.status == Status.LEFT:
        _warn_if_last(contact, said)
    else:
        _notify(contact, said, "")


def _warn_if_last(contact: TrustedContact, said: str) -> None:
    _notify(contact, said, "" if has_verified(contact.person) else "Nobody would be alerted now. Add a contact.")


def _notify(contact: TrustedContact, title: str, body: str) -> None:
    key = f"contact:{contact.pk}:{contact.status}:{clock.now().isoformat()}"
    inbox.post(
        [
            inbox.notice(
                key=key, recipient_id=contact.person_id, kind="notification", title=title, body=body, now=clock.now()
            )
        ]
    )
    live.publish(live.person_group(contact.person_id))
