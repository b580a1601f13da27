"""What the pages' forms read. The rules are the verbs': a form only turns text into values and shows a refusal."""

import zoneinfo
from typing import Any
from uuid import UUID, uuid4, uuid5

from django import forms
from django.conf import settings
from django.contrib.auth.forms import UserCreationForm

from casualmeet import clock
from casualmeet.refusal import Refusal
from safety import contacts, pins, positions, timers
from safety.models import MAX_GRACE_MINUTES, Language, TrustedContact, User
from safety.phones import mobile_e164
from safety.wording import clean
from sos.triggers import Fix

QUICK_MINUTES = [30, 60, 90, 120]
EXTENSIONS = [5, 15, 30, 60]
# One or more per offset: a list of all 600 would be most of the page. Any IANA name is accepted.
ZONES = [
    "Pacific/Honolulu America/Anchorage America/Los_Angeles America/Phoenix America/Denver America/Chicago",
    "America/Mexico_City America/New_York America/Toronto America/Bogota America/Lima America/Halifax America/Caracas",
    "America/Santiago America/St_Johns America/Sao_Paulo America/Argentina/Buenos_Aires Atlantic/Azores UTC",
    "Europe/London Europe/Dublin Europe/Lisbon Africa/Lagos Africa/Casablanca Europe/Paris Europe/Berlin Europe/Madrid",
    "Europe/Rome Europe/Amsterdam Europe/Warsaw Africa/Cairo Africa/Johannesburg Europe/Athens Europe/Kyiv",
    "Asia/Jerusalem Europe/Istanbul Europe/Moscow Asia/Riyadh Africa/Nairobi Asia/Tehran Asia/Dubai Asia/Kabul",
    "Asia/Karachi Asia/Tashkent Asia/Kolkata Asia/Colombo Asia/Kathmandu Asia/Dhaka Asia/Yangon Asia/Bangkok",
    "Asia/Jakarta Asia/Ho_Chi_Minh Asia/Singapore Asia/Kuala_Lumpur Asia/Manila Asia/Hong_Kong Asia/Shanghai",
    "Australia/Perth Asia/Tokyo Asia/Seoul Australia/Adelaide Australia/Brisbane Australia/Sydney Pacific/Noumea",
    "Pacific/Auckland Pacific/Tongatapu",
]
COMMON_ZONES = " ".join(ZONES).split()


class RefusableForm(forms.Form):
    """A form that can show what a verb refused, beside the field it is about."""

    FIELD_BY_CODE: dict[str, str] = {}

    def refuse(self, refusal: Refusal) -> None:
        """Show the refusal."""
        self.add_error(self.FIELD_BY_CODE.get(refusal.code), refusal.detail)


def _zone_field() -> forms.CharField:
    choices = [(name, name.replace("_", " ")) for name in COMMON_ZONES]
    return forms.CharField(label="Time zone", max_length=64, widget=forms.Select(choices=choices))


def _phone_field() -> forms.CharField:
    return forms.CharField(
        label="Your mobile number",
        max_length=40,
        help_text="With country code, such as +91 98123 45678. Your contacts call you on it.",
        widget=forms.TextInput(attrs={"type": "tel", "autocomplete": "tel", "inputmode": "tel"}),
    )


def _grace_field(label: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        min_value=0,
        max_value=MAX_GRACE_MINUTES,
        help_text=f"How long the alarm still waits after the deadline: 0 to {MAX_GRACE_MINUTES}.",
        widget=forms.NumberInput(attrs={"inputmode": "numeric"}),
    )


class PersonFields(forms.Form):
    """The cleaning that sign-up and settings share."""

    def clean_full_name(self) -> str:
        """One line, with something visible in it."""
        return _unless_refused(clean, self.cleaned_data["full_name"], what="Your name", limit=80, required=True)

    def clean_phone(self) -> str:
        """As E.164."""
        return _unless_refused(mobile_e164, self.cleaned_data["phone"])

    def clean_time_zone(self) -> str:
        """A zone that this machine knows."""
        name: str = self.cleaned_data["time_zone"]
        if name not in zoneinfo.available_timezones():
            raise forms.ValidationError("This time zone is not known. Choose one from the list.")
        return name

    def offer_zone(self, name: str) -> None:
        """Let the list show a zone that is not among the common ones."""
        widget = self.fields["time_zone"].widget
        if name in zoneinfo.available_timezones() and name not in COMMON_ZONES and isinstance(widget, forms.Select):
            widget.choices = [(name, name.replace("_", " ")), *widget.choices]


class SignUpForm(PersonFields, UserCreationForm):  # type: ignore[type-arg]
    """A new person."""

    full_name = forms.CharField(
        label="Full name",
        max_length=80,
        help_text="Alerts say this name to your contacts.",
        widget=forms.TextInput(attrs={"autocomplete": "name"}),
    )
    phone = _phone_field()
    time_zone = _zone_field()

    field_order = ["full_name", "username", "phone", "time_zone", "password1", "password2"]

    class Meta:
        model = User
        fields = ["full_name", "username", "phone", "time_zone"]
        help_texts = {"username": "To log in with: letters, digits and @ . + - _"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password1"].help_text = "At least 8 characters, not all digits, not a common one."
        self.fields["password2"].help_text = ""
        self.fields["password2"].label = "Password again"
        self.fields["time_zone"].initial = "Asia/Kolkata"
        self.offer_zone(str(self.data.get("time_zone", "")))
        self.fields["username"].widget.attrs.pop("autofocus", None)
        if not self.is_bound:
            self.fields["time_zone"].widget.attrs["data-guess"] = "yes"


class ProfileForm(PersonFields, forms.ModelForm):  # type: ignore[type-arg]
    """The person's own facts."""

    full_name = forms.CharField(label="Full name", max_length=80)
    phone = _phone_field()
    time_zone = _zone_field()
    grace_minutes = _grace_field("Usual grace, in minutes")

    class Meta:
        model = User
        fields = ["full_name", "phone", "time_zone", "language", "grace_minutes"]
        labels = {"language": "Language of texts to you"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offer_zone(str(self.data.get("time_zone", self.instance.time_zone)))


class ArmForm(RefusableForm):
    """A timer to arm."""

    FIELD_BY_CODE = {
        "bad_duration": "duration_minutes",
        "bad_grace": "grace_minutes",
        "no_verified_contact": "moderators_only",
    }

    location_name = forms.CharField(
        label="Where",
        max_length=120,
        widget=forms.TextInput(attrs={"placeholder": "Cafe Blue, MG Road", "autocomplete": "off"}),
    )
    meet_with = forms.CharField(
        label="Whom you meet",
        max_length=120,
        required=False,
        help_text="A name, a profile, anything that helps to find them.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    duration_minutes = forms.IntegerField(
        label="How long, in minutes", initial=60, widget=forms.NumberInput(attrs={"inputmode": "numeric"})
    )
    note = forms.CharField(
        label="Note for your contacts",
        max_length=500,
        required=False,
        help_text="How you get there, what you wear. They see it only if the alarm starts.",
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    grace_minutes = _grace_field("Grace, in minutes")
    moderators_only = forms.BooleanField(label="Alert only the moderators", required=False)

    def __init__(self, *args: Any, person: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.person = person
        self.fields["grace_minutes"].initial = person.grace_minutes
        self.fields["grace_minutes"].required = False
        number = self.fields["duration_minutes"].widget
        number.attrs |= {"min": settings.MIN_TIMER_MINUTES, "max": timers.MAX_MINUTES}

    @property
    def quick_minutes(self) -> list[int]:
        """What one tap offers."""
        return QUICK_MINUTES

    def arm(self) -> None:
        """Start the timer. Raises Refusal."""
        timers.arm(self.person, **self.cleaned_data)


class ContactForm(RefusableForm):
    """Somebody to invite."""

    FIELD_BY_CODE = {
        "empty": "name",
        "bad_phone": "phone",
        "emergency_number": "phone",
        "own_number": "phone",
        "duplicate_contact": "phone",
        "bad_language": "language",
    }

    name = forms.CharField(label="Name", max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    phone = forms.CharField(
        label="Mobile number",
        max_length=40,
        help_text="With country code, such as +91 98123 45678.",
        widget=forms.TextInput(attrs={"type": "tel", "autocomplete": "off", "inputmode": "tel"}),
    )
    language = forms.ChoiceField(label="Language of their texts", choices=Language.choices, initial=Language.ENGLISH)

    def invite(self, person: User) -> TrustedContact:
        """Add and invite them. Raises Refusal."""
        return contacts.invite(person, **self.cleaned_data)


class PinForm(RefusableForm):
    """Set, change or remove the safe PIN."""

    FIELD_BY_CODE = {"bad_pin": "new_pin", "pin_required": "current_pin", "wrong_pin": "current_pin"}
    DIGITS = {"inputmode": "numeric", "autocomplete": "off"}

    current_pin = forms.CharField(
        label="Current PIN", max_length=20, required=False, widget=forms.PasswordInput(attrs=DIGITS)
    )
    new_pin = forms.CharField(
        label="New PIN",
        max_length=20,
        required=False,
        help_text="4 to 8 digits.",
        widget=forms.PasswordInput(attrs=DIGITS),
    )
    repeat_pin = forms.CharField(
        label="New PIN again", max_length=20, required=False, widget=forms.PasswordInput(attrs=DIGITS)
    )

    @property
    def removing(self) -> bool:
        """Whether the button was the one that removes the PIN."""
        return "remove" in self.data

    def clean(self) -> dict[str, Any]:
        """A new PIN is typed twice; an empty one is a mistake, not a removal."""
        values = super().clean() or {}
        if self.removing:
            return values
        if not values.get("new_pin"):
            self.add_error("new_pin", "Type the new PIN: 4 to 8 digits.")
        elif values["new_pin"] != values.get("repeat_pin"):
            self.add_error("repeat_pin", "The two are not the same. Type the new PIN twice.")
        return values

    def apply(self, person: User) -> None:
        """Set, change or remove. Raises Refusal."""
        new = "" if self.removing else self.cleaned_data["new_pin"]
        pins.set_pin(person, new=new, current=self.cleaned_data["current_pin"])


class SosForm(forms.Form):
    """A press of the SOS button. Nothing in it can stop the alarm: what is wrong is left out."""

    key = forms.UUIDField(required=False)
    latitude = forms.FloatField(required=False)
    longitude = forms.FloatField(required=False)
    accuracy_m = forms.FloatField(required=False)

    def idempotency_key(self, person: User) -> UUID:
        """The same for a double submit; nobody can make it that of somebody else's alarm."""
        return uuid5(person.pk, str(self.cleaned_data.get("key") or uuid4()))

    def fix(self) -> Fix | None:
        """The position, if there is a believable one."""
        latitude, longitude = self.cleaned_data.get("latitude"), self.cleaned_data.get("longitude")
        if latitude is None or longitude is None:
            return None
        accuracy = self.cleaned_data.get("accuracy_m")
        try:
            return positions.checked_fix(
                latitude=latitude, longitude=longitude, accuracy_m=accuracy, captured_at=None, now=clock.now()
            )
        except Refusal:
            return None


def _unless_refused(verb: Any, *args: Any, **kwargs: Any) -> str:
    """What the verb returns, or its refusal as the field's error."""
    try:
        return str(verb(*args, **kwargs))
    except Refusal as refusal:
        raise forms.ValidationError(refusal.detail, code=refusal.code) from refusal
