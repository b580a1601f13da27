"""App configuration."""

from django.apps import AppConfig


class SafetyConfig(AppConfig):
    """The safety room."""

    name = "safety"
