"""The one NinjaAPI: its rooms' routers, and errors as {detail, code} with never a stack trace."""

import logging
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, Throttled, ValidationError

from casualmeet import errors
from casualmeet.api_auth import PageSession
from casualmeet.refusal import Refusal
from notifications.api import router as notifications_router
from safety.api import router as safety_router
from safety.api_auth import BearerToken
from safety.models import MeetingTimer
from safety.schemas import timer_data
from sos.models import SosEvent
from sos.schemas import SosDetailOut

logger = logging.getLogger(__name__)

api = NinjaAPI(
    title="CasualMeet Safety",
    version="1",
    description="Meeting safety timers, trusted contacts and SOS. Get a token from `POST /api/tokens`.",
    auth=[BearerToken(), PageSession()],
)
api.add_router("", safety_router)
api.add_router("", notifications_router)

CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 429: "too_many_requests"}


def _answer(request: HttpRequest, status: int, detail: str, code: str, **more: Any) -> HttpResponse:
    return api.create_response(request, {"detail": detail, "code": code, **more}, status=status)


@api.exception_handler(Refusal)
def _refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    more = {} if refusal.current is None else {"current": _state(refusal.current)}
    return _answer(request, refusal.status, refusal.detail, refusal.code, **more)


@api.exception_handler(ObjectDoesNotExist)
def _missing(request: HttpRequest, _error: ObjectDoesNotExist) -> HttpResponse:
    return _answer(request, 404, "There is nothing here.", "not_found")


@api.exception_handler(AuthenticationError)
def _unauthenticated(request: HttpRequest, _error: AuthenticationError) -> HttpResponse:
    return _answer(request, 401, "Send a bearer token, or log in.", "unauthorized")


@api.exception_handler(Throttled)
def _throttled(request: HttpRequest, error: Throttled) -> HttpResponse:
    response = _answer(request, 429, "Too many tries. Wait a minute.", "too_many_requests")
    response["Retry-After"] = str(int(error.wait or 60))
    return response


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, _error: RequestDataTooBig) -> HttpResponse:
    return _answer(request, 400, "This request is too big.", "too_big")


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    return _answer(request, error.status_code, error.message, CODES.get(error.status_code, "error"))


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """One sentence that names each field; an id that is no id is simply not found."""
    problems = [(tuple(problem["loc"]), problem["msg"]) for problem in error.errors]
    if any(where[:1] == ("path",) for where, _ in problems):
        return _answer(request, 404, "There is nothing here.", "not_found")
    said = "; ".join(f"{'.'.join(map(str, where[2:])) or 'body'}: {message}" for where, message in problems)
    return _answer(request, 422, said, "invalid")


@api.exception_handler(Exception)
def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.error("The API failed on %s %s", request.method, request.path, exc_info=error)
    return errors.unavailable(request) if errors.is_unavailable(error) else errors.server_error(request)


def _state(current: MeetingTimer | SosEvent) -> dict[str, Any]:
    """What holds instead, as its own address would show it."""
    return timer_data(current) if isinstance(current, MeetingTimer) else SosDetailOut.from_orm(current).model_dump()
