"""The person's pages. They call verbs and show what comes of it; no rule lives here."""

from typing import Any, cast
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import translation
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from casualmeet import clock
from casualmeet.pages import missing_is_404, secret_link
from casualmeet.refusal import Refusal
from notifications import push_views
from notifications.models import Delivery
from safety import contacts, panic, purging, timers
from safety.forms import EXTENSIONS, ArmForm, ContactForm, PinForm, ProfileForm, SignUpForm, SosForm
from safety.models import MAX_CONTACTS, MeetingTimer, TrustedContact, User
from sos import incidents
from sos.models import AlertedContact, SosEvent

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
    return _home(cast("PersonRequest", request))


def _home(request: PersonRequest, *, status: int = 200, arm_form: ArmForm | None = None, **more: Any) -> HttpResponse:
    person = request.user
    incident = incidents.active_incident(person.pk)
    timer = timers.live_timer(person)
    verified = contacts.recipients([person.pk]).get(person.pk, ())
    if arm_form is None and incident is None and timer is None:
        arm_form = ArmForm(person=person)
    facts = {
        "incident": incident,
        "timer": timer,
        "verified": verified,
        "arm_form": arm_form,
        "extensions": EXTENSIONS,
        "sos_key": uuid4(),
        "now": clock.now(),
    }
    return render(request, "safety/home.html", facts | more, status=status)


@form_page
@never_cache
def sign_up(request: HttpRequest) -> HttpResponse:
    """A new account, signed in at once."""
    if request.user.is_authenticated:
        return redirect("home")
    form = SignUpForm(request.POST or None)
    if request.method != "POST":
        return render(request, "safety/signup.html", {"form": form})
    if form.is_valid():
        try:
            with transaction.atomic():
                person = form.save()
        except IntegrityError:  # the same form sent twice at once, or a name taken since it was checked
            form.add_error("username", "A user with that username already exists.")
        else:
            login(request, person)
            messages.success(request, "Welcome. Add a trusted contact first, so that somebody can be alerted.")
            return redirect("contacts")
    return render(request, "safety/signup.html", {"form": form}, status=INVALID)


@form_page
@login_required
@never_cache
def settings_page(request: PersonRequest) -> HttpResponse:
    """The person's own facts."""
    if request.method != "POST":
        return _settings(request)
    # A copy: the page's header goes on showing the name that is stored.
    form = ProfileForm(request.POST, instance=User.objects.get(pk=request.user.pk))
    if not form.is_valid():
        return _settings(request, status=INVALID, profile=form)
    User.objects.filter(pk=request.user.pk).update(**form.cleaned_data)
    messages.success(request, "Saved.")
    return redirect("settings")


@require_POST
@login_required
@never_cache
def change_pin(request: PersonRequest) -> HttpResponse:
    """Set, change or remove the safe PIN."""
    form = PinForm(request.POST)
    if not form.is_valid():
        return _settings(request, status=INVALID, pin=form)
    try:
        form.apply(request.user)
    except Refusal as refusal:
        form.refuse(refusal)
        return _settings(request, status=refusal.status, pin=form)
    messages.success(request, "Your PIN is removed." if form.removing else "Your PIN is set. Keep it in mind.")
    return redirect("settings")


def _settings(
    request: PersonRequest, *, status: int = 200, profile: ProfileForm | None = None, pin: PinForm | None = None
) -> HttpResponse:
    facts = {
        "profile": profile or ProfileForm(instance=request.user),
        "pin": pin or PinForm(),
        "push": push_views.offer(request.user.pk),
    }
    return render(request, "safety/settings.html", facts, status=status)


@require_POST
@login_required
@never_cache
def arm_timer(request: PersonRequest) -> HttpResponse:
    """Arm a timer; what was refused comes back with all that was typed."""
    form = ArmForm(request.POST, person=request.user)
    if not form.is_valid():
        return _home(request, status=INVALID, arm_form=form)
    try:
        form.arm()
    except Refusal as refusal:
        form.refuse(refusal)
        return _home(request, status=refusal.status, arm_form=form)
    messages.success(request, "Your timer is running. Tap I'm Safe before it ends.")
    return redirect("home")


@require_POST
@login_required
@missing_is_404
def check_in(request: PersonRequest, timer_id: UUID) -> HttpResponse:
    """I'm safe."""
    return _end_timer(request, timer_id, verb=timers.check_in, said="Good. Your timer is ended; nobody is alerted.")


@require_POST
@login_required
@missing_is_404
def cancel_timer(request: PersonRequest, timer_id: UUID) -> HttpResponse:
    """The meeting is off."""
    return _end_timer(request, timer_id, verb=timers.cancel, said="Your timer is cancelled; nobody is alerted.")


def _end_timer(request: PersonRequest, timer_id: UUID, *, verb: Any, said: str) -> HttpResponse:
    try:
        verb(timers.access_timer(request.user, timer_id), pin=request.POST.get("pin", ""))
    except Refusal as refusal:
        if refusal.status != 409:
            return _home(request, status=refusal.status, pin_error=refusal.detail)
        messages.error(request, refusal.detail)
    else:
        messages.success(request, said)
    return redirect("home")


@require_POST
@login_required
@missing_is_404
def extend_timer(request: PersonRequest, timer_id: UUID) -> HttpResponse:
    """More time."""
    typed = request.POST.get("minutes", str(timers.EXTENSION_MINUTES))
    minutes = int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 6 else 0
    try:
        timers.extend(timers.access_timer(request.user, timer_id), minutes=minutes)
    except Refusal as refusal:
        messages.error(request, refusal.detail)
    else:
        messages.success(request, f"{minutes} minutes more.")
    return redirect("home")


@form_page
@login_required
@never_cache
def press_sos(request: PersonRequest) -> HttpResponse:
    """GET asks once more, for those who come without JavaScript or without holding the button; POST is the alarm."""
    if request.method != "POST":
        facts = {"sos_key": uuid4(), "incident": incidents.active_incident(request.user.pk)}
        return render(request, "safety/sos_confirm.html", facts)
    form = SosForm(request.POST)
    form.is_valid()
    incident, opened = panic.press(request.user, fix=form.fix(), key=form.idempotency_key(request.user))
    if not opened and not incident.active:
        # The key of an alarm that is over: a page that stayed open since. This press is a new one.
        incident, _ = panic.press(request.user, fix=form.fix())
    return redirect("incident", incident_id=incident.pk)


@require_safe
@login_required
@never_cache
@missing_is_404
def incident_page(request: PersonRequest, incident_id: UUID) -> HttpResponse:
    """What the person in danger sees of their alarm."""
    return _incident(request, incidents.access_incident(request.user.pk, incident_id))


@require_POST
@login_required
@never_cache
@missing_is_404
def confirm_safe(request: PersonRequest, incident_id: UUID) -> HttpResponse:
    """I'm safe: ends the alarm."""
    incident = incidents.access_incident(request.user.pk, incident_id)
    try:
        panic.confirm_safe(request.user, incident, pin=request.POST.get("pin", ""))
    except Refusal as refusal:
        if refusal.status != 409:
            return _incident(request, incident, status=refusal.status, pin_error=refusal.detail)
        messages.error(request, refusal.detail)
    else:
        messages.success(request, "Good that you are safe. Everybody who was alerted is being told.")
    return redirect("incident", incident_id=incident.pk)


def _incident(request: PersonRequest, incident: SosEvent, *, status: int = 200, pin_error: str = "") -> HttpResponse:
    timer = incident.triggered_timer if incident.active else None
    facts = {
        "incident": incident,
        "alerted": _alerted(incident),
        "timeline": incident.timeline.all(),
        "timer": timer or timers.live_timer(request.user),
        "pin_error": pin_error,
        "now": clock.now(),
    }
    return render(request, "safety/incident.html", facts, status=status)


def _alerted(incident: SosEvent) -> list[tuple[AlertedContact, list[Delivery]]]:
    """Each contact with what became of the texts to them."""
    texts: dict[UUID | None, list[Delivery]] = {}
    for delivery in Delivery.objects.filter(incident_id=incident.pk).order_by("created_at"):
        texts.setdefault(delivery.recipient_id, []).append(delivery)
    rows = AlertedContact.objects.filter(incident=incident).order_by("name")
    return [(contact, texts.get(contact.pk, [])) for contact in rows]


@form_page
@login_required
@never_cache
def contacts_page(request: PersonRequest) -> HttpResponse:
    """The list, and the form that invites somebody."""
    if request.method != "POST":
        return _contacts(request, ContactForm())
    form = ContactForm(request.POST)
    if not form.is_valid():
        return _contacts(request, form, status=INVALID)
    try:
        contact = form.invite(request.user)
    except Refusal as refusal:
        form.refuse(refusal)
        return _contacts(request, form, status=refusal.status)
    messages.success(request, f"We are texting {contact.name} an invitation. They are alerted once they accept.")
    return redirect("contacts")


def _contacts(request: PersonRequest, form: ContactForm, *, status: int = 200) -> HttpResponse:
    rows = contacts.listed(request.user)
    facts = {
        "contacts": rows,
        "form": form,
        "most": MAX_CONTACTS,
        "full": len(rows) >= MAX_CONTACTS,
        "our_number": settings.TWILIO_FROM if settings.TWILIO_FROM.startswith("+") else "",
    }
    return render(request, "safety/contacts.html", facts, status=status)


@require_POST
@login_required
@missing_is_404
def remove_contact(request: PersonRequest, contact_id: UUID) -> HttpResponse:
    """Take a contact off the list."""
    contact = contacts.access_contact(request.user, contact_id)
    contacts.remove(contact)
    messages.success(request, f"{contact.name} is removed and won't be alerted.")
    return redirect("contacts")


@require_safe
@login_required
@never_cache
def history(request: PersonRequest) -> HttpResponse:
    """The newest timers and alarms."""
    alarms = list(SosEvent.objects.filter(person=request.user)[:NEWEST])
    by_timer = {alarm.triggered_timer_id: alarm for alarm in alarms}
    rows = MeetingTimer.objects.filter(person=request.user)[:NEWEST]
    facts = {"alarms": alarms, "timers": [(timer, by_timer.get(timer.pk)) for timer in rows]}
    return render(request, "safety/history.html", facts)


@require_safe
@login_required
@never_cache
def deletions(request: PersonRequest) -> HttpResponse:
    """What was deleted about the person, and what will be."""
    facts = {
        "receipts": purging.receipts_of(request.user, most=NEWEST),
        "positions_hours": settings.PURGE_POSITIONS_HOURS,
        "timers_days": settings.PURGE_TIMERS_DAYS,
        "details_days": settings.PURGE_INCIDENT_DETAILS_DAYS,
        "incidents_days": settings.PURGE_INCIDENTS_DAYS,
        "receipts_days": settings.PURGE_RECEIPTS_DAYS,
    }
    return render(request, "safety/deletions.html", facts)


@form_page
@secret_link
@missing_is_404
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """The contact's own page: GET says who asks and what it means, POST accepts, declines, confirms or leaves."""
    contact = contacts.access_invitation(token)
    answer = request.POST.get("answer")
    if request.method == "POST" and answer in {"accept", "confirm", "decline", "leave"}:
        if answer == "confirm":
            contacts.confirm(contact)
        else:
            contacts.answer(contact, accept=answer == "accept")
        return redirect("invitation", token=token)
    facts = {"contact": contact, "person": contact.person, "push": push_views.offer(contact.pk)}
    with translation.override(contact.language):
        return render(request, "safety/invitation.html", facts, status=400 if request.method == "POST" else 200)


@csrf_exempt
@require_POST
@secret_link
@missing_is_404
def push_to_contact(request: HttpRequest, token: str) -> HttpResponse:
    """Have the contact's browser alerted too; only somebody who accepted is alerted at all."""
    contact = contacts.access_invitation(token)
    if contact.status != TrustedContact.Status.VERIFIED:
        return push_views.refused(Refusal("Accept first.", code="not_accepted", status=409))
    return push_views.subscribed(request, contact.pk)


@csrf_exempt
@require_POST
@secret_link
@missing_is_404
def no_push_to_contact(request: HttpRequest, token: str) -> HttpResponse:
    """End the notifications in the contact's browser; they stay a contact, and get texts."""
    return push_views.left(request, contacts.access_invitation(token).pk)
