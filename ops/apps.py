"""App configuration."""

from django.apps import AppConfig


class OpsConfig(AppConfig):
    """The ops room."""

    name = "ops"
