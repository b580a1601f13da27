"""Addresses of the page that an alerted contact sees, and of what the carrier asks during a call to them."""

from django.urls import path, re_path

from sos import views

urlpatterns = [
    # Texts carry the link without a slash at its end; a redirect would cost a round trip on a bad line.
    re_path(r"^i/(?P<token>[a-z0-9]{1,32})/?$", views.alert_page, name="alert"),
    re_path(r"^i/(?P<token>[a-z0-9]{1,32})/push$", views.push_to_contact, name="alert-push"),
    re_path(r"^i/(?P<token>[a-z0-9]{1,32})/push/off$", views.no_push_to_contact, name="alert-push-off"),
    re_path(r"^i/(?P<token>[a-z0-9]{1,32})/opened$", views.alert_opened, name="alert-opened"),
    path("hooks/twilio/voice/<uuid:attempt_id>", views.voice_key, name="twilio-voice"),
]
