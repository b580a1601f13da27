"""App configuration."""

from django.apps import AppConfig


class OpsConfig(AppConfig):
    """The ops room."""

    name = "ops"

    def ready(self) -> None:
        """Register the system checks of the site, which is no app itself."""
        from casualmeet import checks  # noqa: F401, PLC0415 - settings must be complete first
