"""App configuration."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """The notifications room."""

    name = "notifications"

    def ready(self) -> None:
        """Register the system checks."""
        from notifications import checks  # noqa: F401, PLC0415 - settings must be complete first
