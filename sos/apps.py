"""App configuration."""

from django.apps import AppConfig


class SosConfig(AppConfig):
    """The sos room."""

    name = "sos"
