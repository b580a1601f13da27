"""Bearer tokens as an authentication of the JSON API."""

from django.http import HttpRequest
from ninja.security import HttpBearer

from safety import tokens
from safety.models import User


class BearerToken(HttpBearer):
    """`Authorization: Bearer …`, from POST /api/tokens."""

    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        """The token's person."""
        return tokens.owner(token)
