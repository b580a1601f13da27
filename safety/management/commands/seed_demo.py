"""Makes the demo logins: a person with verified contacts, and a moderator."""

import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Permission
from django.core.management.base import BaseCommand, CommandError

from casualmeet import clock
from safety.models import TrustedContact, User

CONTACTS = [("Meera Nair", "+919812345671", "en"), ("Ravi Verma", "+919812345672", "hi")]
PASSWORD_FILE = settings.VAR_DIR / "demo-password"


class Command(BaseCommand):
    """manage.py seed_demo"""

    help = "Create the demo person `asha` and the demo `moderator`, once, and print their logins."

    def handle(self, **_options: Any) -> None:
        """Run. What is there already stays as it is, except that DEMO_PASSWORD sets the password."""
        if not settings.DEBUG and not settings.DEMO_PASSWORD:
            raise CommandError("Demo logins are for DEBUG=on; outside it set DEMO_PASSWORD.")
        password = _password()
        asha = _login(
            "asha",
            password,
            full_name="Asha Rao",
            phone="+919812345670",
            time_zone="Asia/Kolkata",
        )
        for slot, (name, phone, language) in enumerate(CONTACTS):
            _verified_contact(asha, slot=slot, name=name, phone=phone, language=language)
        moderator = _login("moderator", password, full_name="Demo Moderator", is_staff=True)
        moderator.user_permissions.set(
            Permission.objects.filter(
                codename__in=[
                    "view_sosevent",
                    "receive_digest",
                    "view_delivery",
                    "change_delivery",
                    "view_meetingtimer",
                ]
            )
        )
        self.stdout.write(
            f"\n  Open       {settings.PUBLIC_BASE_URL}/\n"
            f"  Person     asha / {password}\n"
            f"  Moderator  moderator / {password}   at {settings.PUBLIC_BASE_URL}/admin/\n"
        )


def _password() -> str:
    """DEMO_PASSWORD, or one made up at the first run and kept beside the database."""
    if settings.DEMO_PASSWORD:
        return str(settings.DEMO_PASSWORD)
    if not PASSWORD_FILE.exists():
        PASSWORD_FILE.write_text(secrets.token_urlsafe(9))
        PASSWORD_FILE.chmod(0o600)
    return PASSWORD_FILE.read_text().strip()


def _login(username: str, password: str, **fields: Any) -> User:
    user, _created = User.objects.get_or_create(username=username, defaults=fields)
    if not user.check_password(password):
        user.set_password(password)
        user.save(update_fields=["password"])
    return user


def _verified_contact(person: User, *, slot: int, name: str, phone: str, language: str) -> None:
    now = clock.now()
    TrustedContact.objects.get_or_create(
        person=person,
        phone=phone,
        defaults={
            "slot": slot,
            "name": name,
            "language": language,
            "status": TrustedContact.Status.VERIFIED,
            "token": secrets.token_hex(12),
            "invited_at": now,
            "answered_at": now,
        },
    )
