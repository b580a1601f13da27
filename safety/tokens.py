"""Bearer tokens of the JSON API."""

import hashlib
import secrets

from casualmeet import clock
from safety.models import ApiToken, User


def issue(user: User) -> str:
    """A new token; only its digest is kept, so it is shown once."""
    token = secrets.token_urlsafe(32)
    ApiToken.objects.create(user=user, digest=_digest(token), created_at=clock.now())
    return token


def owner(token: str) -> User | None:
    """The active user that a token belongs to."""
    found = ApiToken.objects.select_related("user").filter(digest=_digest(token), user__is_active=True).first()
    return found.user if found else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
