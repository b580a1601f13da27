"""Addresses of the person's pages, of the page that invites a contact, and of the hook for texts that come in."""

from django.contrib.auth import views as auth
from django.urls import path, re_path

from safety import hooks, views

urlpatterns = [
    path("", views.home, name="home"),
    path("signup/", views.sign_up, name="signup"),
    path(
        "login/",
        auth.LoginView.as_view(template_name="safety/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("settings/", views.settings_page, name="settings"),
    path("settings/pin/", views.change_pin, name="settings-pin"),
    path("timers/arm", views.arm_timer, name="timer-arm"),
    path("timers/<uuid:timer_id>/safe", views.check_in, name="timer-safe"),
    path("timers/<uuid:timer_id>/extend", views.extend_timer, name="timer-extend"),
    path("timers/<uuid:timer_id>/cancel", views.cancel_timer, name="timer-cancel"),
    path("sos/", views.press_sos, name="sos-press"),
    path("sos/<uuid:incident_id>/", views.incident_page, name="incident"),
    path("sos/<uuid:incident_id>/safe", views.confirm_safe, name="incident-safe"),
    path("contacts/", views.contacts_page, name="contacts"),
    path("contacts/<uuid:contact_id>/remove", views.remove_contact, name="contact-remove"),
    path("hooks/twilio/sms", hooks.incoming_text, name="twilio-sms"),
    path("history/", views.history, name="history"),
    path("history/deletions/", views.deletions, name="deletions"),
    # Texts carry the link without a slash at its end; a redirect would cost a round trip on a bad line.
    re_path(r"^c/(?P<token>[a-z0-9]{1,32})/?$", views.invitation, name="invitation"),
    re_path(r"^c/(?P<token>[a-z0-9]{1,32})/push$", views.push_to_contact, name="invitation-push"),
    re_path(r"^c/(?P<token>[a-z0-9]{1,32})/push/off$", views.no_push_to_contact, name="invitation-push-off"),
]
