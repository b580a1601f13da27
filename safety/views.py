"""The person's pages. They call verbs and show what comes of it; no rule lives here."""

from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from django import forms
from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from casualmeet import clock
from casualmeet.pages import missing_is_404, secret_link
from casualmeet.refusal import Refusal
from notifications import outbox
from safety import contacts, panic, timers
from safety.forms import EXTENSIONS, ArmForm, ContactForm, PinForm, ProfileForm, SignUpForm, SosForm
from safety.models import MAX_CONTACTS, MeetingTimer, TrustedContact, User
from sos import incidents
from sos.models import SosEvent

NEWEST = 50
INVALID = 422
form_page = require_http_methods(["GET", "HEAD", "POST"])


class PersonRequest(HttpRequest):
    """A request of somebody who is signed in."""

    user: User


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """The landing page; signed in: the alarm, the running timer, or the form that arms one."""
    if not request.user.is_authenticated:
        return render(request, "safety/landing.html")
    return _home(cast(PersonRequest, request))
