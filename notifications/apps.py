"""App configuration."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """The notifications room."""

    name = "notifications"
