"""App configuration."""

from django.apps import AppConfig


class SafetyConfig(AppConfig):
    """The safety room."""

    name = "safety"

    def ready(self) -> None:
        """Register the system checks."""
        from safety import checks  # noqa: F401, PLC0415 - settings must be complete first
