"""Addresses of the in-app notifications, of what pushes need, of the simulated phone, and of what carriers call."""

from django.urls import path

from notifications import push_views, receipt_views, views

urlpatterns = [
    path("notifications/", views.notifications_page, name="notifications"),
    path("notifications/<uuid:notification_id>/read", views.read_notification, name="notification-read"),
    path("sw.js", push_views.service_worker, name="service-worker"),
    path("push/receipt", push_views.push_receipt, name="push-receipt"),
    path("phone/", views.simulated_phone, name="phone"),
    path("hooks/twilio/status/<uuid:attempt_id>", receipt_views.twilio_status, name="twilio-status"),
    path("hooks/fast2sms/<str:secret>", receipt_views.fast2sms_status, name="fast2sms-status"),
]
