"""The admin, auth and contenttypes apps as this project installs them: the console as the admin site, and on MongoDB the automatic keys that it needs."""

from django.contrib.admin.apps import AdminConfig
from django.contrib.auth.apps import AuthConfig
from django.contrib.contenttypes.apps import ContentTypesConfig

OBJECT_ID = "django_mongodb_backend.fields.ObjectIdAutoField"


class ConsoleConfig(AdminConfig):
    """The Django admin, with the moderators' console as its site."""

    default_site = "sos.console.ConsoleSite"


class MongoConsoleConfig(ConsoleConfig):
    """The console on MongoDB."""

    default_auto_field = OBJECT_ID


class MongoAuthConfig(AuthConfig):
    """Groups and permissions on MongoDB."""

    default_auto_field = OBJECT_ID


class MongoContentTypesConfig(ContentTypesConfig):
    """Content types on MongoDB."""

    default_auto_field = OBJECT_ID
