"""Who takes pushes, and on which browsers and apps.

An owner is a person or a trusted contact. Pushes are a fast extra beside texts and calls: losing a subscription
loses speed, never the alert.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

from django.contrib.auth import get_user_model
from django.db.models import F

from casualmeet import clock
from casualmeet.db import insert_one, retry_transient
from casualmeet.refusal import Refusal
from notifications import inbox, live, receipts
from notifications.carriers import fcm, webpush
from notifications.carriers.base import Answer, Outcome, PushTarget
from notifications.models import Channel, DeliveryAttempt, PushSubscription
from notifications.outbox import NAMESPACE

MAX_PER_OWNER: Final = 10
REFUSALS_IN_A_ROW: Final = 5
INSERT_TRIES: Final = 3  # it may be there when inserted, and gone when updated

Kind = PushSubscription.Kind
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Firebase does not say what a token looks like; all that were seen fit, and nothing else may go into a request.
_TOKEN: Final = re.compile(r"[A-Za-z0-9_:.~%=-]{20,1000}")


@retry_transient
def subscribe(owner_id: UUID, *, kind: str, endpoint: str, p256dh: str = "", auth: str = "") -> PushSubscription:
    """Have this browser, or this app's token as `endpoint`, alerted for the owner; again renews it.

    Beyond ten of an owner the oldest go. Raises Refusal (422) for an endpoint that is not a known push service's, for
    a token or keys that can't be, and (404) where this site sends no pushes of that kind.
    """
    _check(kind, endpoint=endpoint, p256dh=p256dh, auth=auth)
    digest = _digest(endpoint)
    values = {
        "owner_id": owner_id,
        "kind": kind,
        "endpoint": endpoint,
        "endpoint_digest": digest,
        "p256dh": p256dh.rstrip("="),
        "auth": auth.rstrip("="),
        "created_at": clock.now(),
        "refusals": 0,
        "disabled_at": None,
    }
    # The key follows from owner and endpoint: subscribing twice at once is once.
    row = PushSubscription(id=uuid5(NAMESPACE, f"push:{owner_id}:{digest}"), **values)
    for _ in range(INSERT_TRIES):
        if insert_one(row) or PushSubscription.objects.filter(pk=row.pk).update(**values):
            break
    _leave_other_persons(row)
    _drop_oldest(owner_id)
    return row


def unsubscribe(owner_id: UUID, subscription_id: UUID) -> None:
    """Raises PushSubscription.DoesNotExist when it is missing or somebody else's."""
    deleted, _ = PushSubscription.objects.filter(pk=subscription_id, owner_id=owner_id).delete()
    if not deleted:
        raise PushSubscription.DoesNotExist("no such subscription")


def leave_browser(owner_id: UUID, endpoint: str) -> None:
    """No more pushes for the owner in the browser with this endpoint; again is the same."""
    PushSubscription.objects.filter(owner_id=owner_id, endpoint_digest=_digest(endpoint)).delete()


def forget(owner_id: UUID) -> None:
    """The owner wants no more pushes anywhere."""
    PushSubscription.objects.filter(owner_id=owner_id).delete()


def of(owner_ids: Iterable[UUID]) -> dict[UUID, tuple[PushSubscription, ...]]:
    """The working subscriptions of each owner who has some, the newest first."""
    found: dict[UUID, tuple[PushSubscription, ...]] = {}
    rows = PushSubscription.objects.filter(owner_id__in=list(owner_ids), disabled_at__isnull=True)
    for row in rows.order_by("-created_at", "id"):
        found[row.owner_id] = (*found.get(row.owner_id, ()), row)
    return found


def targets(addresses: Iterable[str]) -> dict[UUID, PushTarget]:
    """Where pushes to these addresses, subscriptions' ids, go; what is gone, disabled or no id is left out."""
    ids = [address for address in addresses if _UUID.fullmatch(address)]
    rows = PushSubscription.objects.filter(pk__in=ids, disabled_at__isnull=True)
    return {row.pk: PushTarget(row.kind, row.endpoint, row.p256dh, row.auth) for row in rows}


def standing(owner_id: UUID) -> tuple[list[str], bool]:
    """The digests of the owner's browsers that work; and whether all they had were disabled, so that they are asked
    to subscribe again.
    """
    browsers = PushSubscription.objects.filter(owner_id=owner_id, kind=Kind.WEB_PUSH)
    rows = browsers.values_list("endpoint_digest", "disabled_at")
    working = [digest for digest, disabled_at in rows if disabled_at is None]
    return working, bool(rows) and not working


def note_answers(answered: Sequence[tuple[UUID, Answer]]) -> None:
    """What the answers of push services mean for the subscriptions they were about."""
    accepted = [pk for pk, answer in answered if answer.outcome is Outcome.ACCEPTED]
    gone = [pk for pk, answer in answered if answer.error_class == "gone"]
    if accepted:
        note_success(accepted)
    if gone:
        remove_gone(gone)
    for pk, answer in answered:
        if answer.error_class == "auth":
            note_refusal(pk)
        elif answer.error_class == "bad_recipient":
            _disable(PushSubscription.objects.filter(pk=pk).first(), now=clock.now())


def note_success(subscription_ids: Iterable[UUID]) -> None:
    """A service took a push for them: earlier refusals were not theirs."""
    PushSubscription.objects.filter(pk__in=list(subscription_ids), refusals__gt=0).update(refusals=0)


def note_refusal(subscription_id: UUID) -> None:
    """A service refused our signature (401, 403). It may be our fault, or the browser subscribed with an older key.

    The fifth in a row disables a browser's subscription. An app's token says nothing about our credentials.
    """
    mine = PushSubscription.objects.filter(pk=subscription_id, kind=Kind.WEB_PUSH)
    if mine.update(refusals=F("refusals") + 1):
        _disable(mine.filter(refusals__gte=REFUSALS_IN_A_ROW).first(), now=clock.now())


def remove_gone(subscription_ids: Iterable[UUID]) -> None:
    """The service said that there is no such browser or app any more."""
    PushSubscription.objects.filter(pk__in=list(subscription_ids)).delete()


def note_shown(attempt_id: UUID) -> bool:
    """The phone has shown the push of this attempt: only that is "delivered". False when it changes nothing.

    Nobody signs this word, but who knows the attempt's id has read the message. Texts and calls have other receipts.
    """
    attempt = DeliveryAttempt.objects.select_related("delivery").filter(pk=attempt_id).first()
    if attempt is None or attempt.delivery.channel != Channel.PUSH:
        return False
    return receipts.record(attempt_id, "delivered", code="", carrier=attempt.carrier, now=clock.now())


def _check(kind: str, *, endpoint: str, p256dh: str, auth: str) -> None:
    if kind == Kind.FCM:
        if not fcm.is_offered():
            raise Refusal("This site sends no pushes to apps.", code="no_push", status=404)
        if not _TOKEN.fullmatch(endpoint):
            raise Refusal("This is not an FCM token.", code="bad_token")
    elif kind == Kind.WEB_PUSH:
        if not webpush.public_key():
            raise Refusal("This site sends no pushes.", code="no_push", status=404)
        if webpush.endpoint_origin(endpoint) is None:
            raise Refusal("This is not the address of a known push service.", code="bad_endpoint")
        if not webpush.keys_are_valid(p256dh, auth):
            raise Refusal("These are not a browser's push keys.", code="bad_keys")
    else:
        raise Refusal(f"The kind must be one of: {', '.join(Kind.values)}.", code="bad_kind")


def _digest(endpoint: str) -> str:
    # A lone surrogate is no address of anybody's; it must only not break anything.
    return hashlib.sha256(endpoint.encode(errors="surrogatepass")).hexdigest()


def _leave_other_persons(row: PushSubscription) -> None:
    """A browser is one person's at a time: who signs in on it ends the pushes for who did before.

    Contacts have no login; one phone may be the contact of many.
    """
    people = get_user_model()._default_manager
    if not people.filter(pk=row.owner_id).exists():
        return
    others = PushSubscription.objects.filter(endpoint_digest=row.endpoint_digest).exclude(owner_id=row.owner_id)
    owners = list(others.values_list("owner_id", flat=True))
    before = list(people.filter(pk__in=owners).values_list("pk", flat=True)) if owners else []
    if before:
        PushSubscription.objects.filter(endpoint_digest=row.endpoint_digest, owner_id__in=before).delete()


def _drop_oldest(owner_id: UUID) -> None:
    newest_first = PushSubscription.objects.filter(owner_id=owner_id).order_by("-created_at", "id")
    surplus = list(newest_first.values_list("pk", flat=True)[MAX_PER_OWNER : 2 * MAX_PER_OWNER])
    if surplus:
        PushSubscription.objects.filter(pk__in=surplus).delete()


def _disable(row: PushSubscription | None, *, now: datetime) -> None:
    """Stop using it and ask its person, once, to subscribe again. A contact is asked on their own page."""
    if row is None or not PushSubscription.objects.filter(pk=row.pk, disabled_at__isnull=True).update(disabled_at=now):
        return
    if get_user_model()._default_manager.filter(pk=row.owner_id).exists():
        again = inbox.notice(
            key=f"push-disabled:{row.pk}:{now.isoformat()}",
            recipient_id=row.owner_id,
            kind="notification",
            title="Notifications in one of your browsers stopped",
            body="Its push service refuses them. Turn them on again under Settings, in that browser.",
            now=now,
        )
        inbox.post([again])
        live.publish(live.person_group(row.owner_id))
