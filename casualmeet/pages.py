"""What the pages of every room share."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from django.core.exceptions import ObjectDoesNotExist
from django.http import HttpRequest, HttpResponse
from django.utils.cache import add_never_cache_headers

from casualmeet import errors

View = TypeVar("View", bound=Callable[..., HttpResponse])


def missing_is_404(view: View) -> View:
    """Answer what is not there, and what is somebody else's, with one and the same page."""

    @functools.wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ObjectDoesNotExist as error:
            return errors.not_found(request, error)

    return cast("View", wrapper)


def secret_link(view: View) -> View:
    """For pages whose address is the key: kept by no cache and no search engine, and told to no other site.

    The referrer stays inside the site rather than being dropped: without one a browser sends `Origin: null` with
    the page's own forms, which the CSRF check refuses.
    """

    @functools.wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        add_never_cache_headers(response)
        response["X-Robots-Tag"] = "noindex, nofollow"
        response["Referrer-Policy"] = "same-origin"
        return response

    return cast("View", wrapper)
