"""Addresses of the in-app notifications and of the simulated phone."""

from django.urls import path

from notifications import views

urlpatterns = [
    path("notifications/", views.notifications_page, name="notifications"),
    path("notifications/<uuid:notification_id>/read", views.read_notification, name="notification-read"),
    path("phone/", views.simulated_phone, name="phone"),
]
