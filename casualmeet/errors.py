"""What a person or a client is told when something on our side fails: never a stack trace."""

import logging
import sys
from collections.abc import Callable

from django.db.utils import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

from casualmeet.db import is_transient

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
UNAVAILABLE = "The service can't reach its database right now. Nothing was changed; try again in a few seconds."
API_WORDS = {
    404: ("There is nothing here.", "not_found"),
    405: ("This address does not take that method.", "bad_method"),
}
FAILED = "Something went wrong on our side. Nothing was changed as far as we know; try again."


def is_unavailable(error: BaseException | None) -> bool:
    """Whether the error means that the database could not be reached or did not answer in time."""
    if isinstance(error, OperationalError | InterfaceError):
        return True
    return isinstance(error, DatabaseError) and is_transient(error)


class PlainErrorsMiddleware:
    """Answers a view's database outage with 503 and a retry hint, and speaks JSON under /api/ for Django's own errors."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path.startswith("/api/") and response.status_code in API_WORDS:
            return _api_answer(response)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Called by Django for an exception of the view; None leaves it to Django."""
        if not is_unavailable(error):
            return None
        logger.error("The database failed during %s", request.method, exc_info=error)
        return unavailable(request)


def unavailable(request: HttpRequest) -> HttpResponse:
    """503: the database can't be reached."""
    response = _plain_answer(request, UNAVAILABLE, "database_unavailable", status=503)
    response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500: also reached by errors outside the views, such as a session that can't be stored."""
    if is_unavailable(sys.exc_info()[1]):
        return unavailable(request)
    return _plain_answer(request, FAILED, "server_error", status=500)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - as Django calls it
    """Django's handler404; one text whether a thing is missing or belongs to somebody else."""
    return _plain_answer(request, "There is nothing here.", "not_found", status=404)


def _plain_answer(request: HttpRequest, detail: str, code: str, *, status: int) -> HttpResponse:
    """Rendered without the request's context, which would ask the database for the person."""
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": detail, "code": code}, status=status)
    return HttpResponse(
        render_to_string("casualmeet/problem.html", {"detail": detail, "status": status}), status=status
    )


def _api_answer(response: HttpResponse) -> HttpResponse:
    """Django's own 404 and 405 pages as JSON; what the API said itself stays."""
    if response.get("Content-Type", "").startswith("application/json"):
        return response
    detail, code = API_WORDS[response.status_code]
    answer = JsonResponse({"detail": detail, "code": code}, status=response.status_code)
    if allowed := response.get("Allow"):
        answer["Allow"] = allowed
    return answer
