"""People, their contacts and their timers in the admin."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth import admin as auth_admin
from django.contrib.auth import forms as auth_forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from casualmeet.admin import ReadOnlyAdmin
from casualmeet.logs import mask
from casualmeet.refusal import Refusal
from safety import failsafe_alerts, phones
from safety.models import FailSafeAlert, MeetingTimer, TrustedContact, User

if TYPE_CHECKING:
    _Form = ModelForm[User]
    _ChangeForm = auth_forms.UserChangeForm[User]
    _CreationForm = auth_forms.AdminUserCreationForm[User]
    _UserAdmin = auth_admin.UserAdmin[User]
else:
    _Form = ModelForm
    _ChangeForm = auth_forms.UserChangeForm
    _CreationForm = auth_forms.AdminUserCreationForm
    _UserAdmin = auth_admin.UserAdmin

PERSONAL = ["full_name", "phone", "email", "language", "time_zone", "grace_minutes"]


class _PhoneField(_Form):
    """Stores the phone number the way the texts need it."""

    def clean_phone(self) -> str:
        """E.164, or a message that says what is wrong."""
        typed: str = self.cleaned_data["phone"]
        if not typed:
            return ""
        try:
            return phones.mobile_e164(typed)
        except Refusal as refusal:
            raise ValidationError(refusal.detail) from None


class UserForm(_PhoneField, _ChangeForm):
    """For a person who is there already."""

    class Meta(auth_forms.UserChangeForm.Meta):
        model = User


class NewUserForm(_PhoneField, _CreationForm):
    """For a new person."""

    class Meta(auth_forms.AdminUserCreationForm.Meta):
        model = User
        fields = ("username", *PERSONAL)


@admin.register(User)
class UserAdmin(_UserAdmin):
    """People and moderators. The PIN is nobody's business: only whether there is one."""

    form = UserForm
    add_form = NewUserForm
    fieldsets = [
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": [*PERSONAL, "has_safe_pin"]}),
        ("Permissions", {"fields": ["is_active", "is_staff", "is_superuser", "groups", "user_permissions"]}),
        ("Dates", {"fields": ["last_login", "date_joined"]}),
    ]
    add_fieldsets = [
        (
            None,
            {"classes": ["wide"], "fields": ["username", *PERSONAL, "usable_password", "password1", "password2"]},
        ),
    ]
    readonly_fields = ["has_safe_pin", "last_login", "date_joined"]
    list_display = ["username", "full_name", "phone", "time_zone", "is_staff", "is_active", "last_login"]
    list_filter = ["is_staff", "is_superuser", "is_active", "language"]
    search_fields = ["username", "full_name", "phone", "email"]

    @admin.display(boolean=True, description="safe PIN set")
    def has_safe_pin(self, user: User) -> bool:
        """Whether there is one."""
        return bool(user.safe_pin)


@admin.register(TrustedContact)
class TrustedContactAdmin(ReadOnlyAdmin):
    """Whom people want alerted. Only they and their contacts change this."""

    list_display = ["name", "phone", "person", "status", "language", "invited_at", "answered_at"]
    list_filter = ["status", "language"]
    list_select_related = ["person"]
    search_fields = ["name", "phone", "person__full_name", "person__username"]
    search_help_text = "Name or number of the contact, or the person's name"
    # The secret of the contact's own page.
    exclude = ["token"]


@admin.register(MeetingTimer)
class MeetingTimerAdmin(ReadOnlyAdmin):
    """Meeting timers. Their person and the worker change them, nobody else."""

    list_display = ["location_name", "person", "status", "started_at", "expires_at", "escalates_at", "resolved_at"]
    list_filter = ["status"]
    list_select_related = ["person"]
    search_fields = ["location_name", "meet_with", "person__full_name", "person__username"]
    search_help_text = "Place, whom they meet, or the person's name"

    def get_queryset(self, request: Any) -> Any:
        """With the people that the page of one timer names."""
        return super().get_queryset(request).select_related("person", "meet_with_user")


class NeedsALook(admin.SimpleListFilter):
    """Backup alerts that are not as they should be."""

    title = "needs a look"
    parameter_name = "look"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """One choice beside "all"."""
        return [("yes", "Yes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Only those, when asked for."""
        return failsafe_alerts.needing_a_look(queryset) if self.value() == "yes" else queryset


@admin.register(FailSafeAlert)
class FailSafeAlertAdmin(ReadOnlyAdmin):
    """Backup alerts at the carrier: what is wanted, what is known to stand there. A worker alone changes them."""

    list_display = [
        "person",
        "number",
        "state",
        "wanted_at",
        "scheduled_at",
        "asked_at",
        "sent_at",
        "tries",
        "next_try_at",
    ]
    list_filter = [NeedsALook]
    ordering = ["settled", "-wanted_at"]
    # The whole number is with the contact; leases are the workers'.
    exclude = ["phone", "lease_token"]
    readonly_fields = ["number", "state"]

    def get_queryset(self, request: Any) -> Any:
        """With the people and timers that the list names."""
        return super().get_queryset(request).select_related("timer__person")

    @admin.display(description="person")
    def person(self, alert: FailSafeAlert) -> str:
        """Whose contact would be alerted."""
        return alert.timer.person.display_name

    @admin.display(description="contact's number")
    def number(self, alert: FailSafeAlert) -> str:
        """Its last digits."""
        return mask(alert.phone)

    @admin.display(description="state")
    def state(self, alert: FailSafeAlert) -> str:
        """How it stands."""
        return failsafe_alerts.standing(alert)
