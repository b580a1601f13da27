"""Whether those who have a live socket may still have it: for hundreds of them in two queries."""

import hmac
from collections.abc import Sequence
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import ValidationError

from casualmeet import clock


class Permit:
    """The session that a socket was opened with. What it says is decoded again only when its row has changed."""

    def __init__(self, session_key: str) -> None:
        self.session_key = session_key
        self._data = ""
        self._user_id: Any = None
        self._hash = ""

    def reads(self, session_data: str) -> Any:
        """The user id in the session as the database has it now; None when nobody is signed in there."""
        if session_data != self._data:
            self._user_id, self._hash = _decoded(session_data)
            self._data = session_data
        return self._user_id

    def fits(self, user: Any) -> bool:
        """Whether the session is of this user with the password that they have now."""
        fits: bool = user.pk == self._user_id and hmac.compare_digest(
            self._hash.encode(), user.get_session_auth_hash().encode()
        )
        return fits


def holders(permits: Sequence[Permit]) -> list[Any]:
    """For each, its user as the database has them now; None when it is expired, gone, or was signed out of.

    Permits of one user get one and the same object.
    """
    sessions = SessionStore.get_model_class()._default_manager.filter(
        session_key__in={permit.session_key for permit in permits}, expire_date__gt=clock.now()
    )
    found = dict(sessions.values_list("session_key", "session_data"))
    ids = [permit.reads(found[permit.session_key]) if permit.session_key in found else None for permit in permits]
    wanted = {pk for pk in ids if pk is not None}
    active = get_user_model()._default_manager.filter(pk__in=wanted, is_active=True)
    users: dict[Any, Any] = {user.pk: user for user in active}
    return [
        user if (user := users.get(pk)) is not None and permit.fits(user) else None
        for permit, pk in zip(permits, ids, strict=True)
    ]


def _decoded(session_data: str) -> tuple[Any, str]:
    words = SessionStore().decode(session_data)
    user_id = words.get(SESSION_KEY)
    if not user_id or BACKEND_SESSION_KEY not in words:
        return None, ""
    try:
        return get_user_model()._meta.pk.to_python(user_id), str(words.get(HASH_SESSION_KEY, ""))
    except ValidationError:
        return None, ""
