"""One set of migrations for three databases."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from casualmeet.vacuuming import EARLY
from notifications.models import Delivery, DeliveryAttempt
from safety.models import MeetingTimer
from sos.models import SosEvent

OWN = [
    path
    for app in ("safety", "sos", "notifications")
    for path in (settings.BASE_DIR / app / "migrations").glob("0*.py")
]


@pytest.mark.django_db
def test_the_models_and_the_migrations_say_the_same():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("path", OWN, ids=lambda path: f"{path.parent.parent.name}/{path.name}")
def test_own_migrations_name_contrib_apps_only_by_their_first_migration(path: Path):
    """MongoDB has other migrations for these apps: any other name would not be found there."""
    named = re.findall(r"\(['\"](auth|contenttypes|admin)['\"], ['\"]([^'\"]+)['\"]\)", path.read_text())
    assert {name for _, name in named} <= {"__first__"}


def test_there_are_own_migrations():
    assert OWN


@pytest.mark.django_db
def test_postgresql_vacuums_what_the_workers_look_into_long_before_a_fifth_of_it_has_changed():
    """Until then each look for the next timer, or message, passes over all those that were dealt with."""
    if connection.vendor != "postgresql":
        pytest.skip("the others have no vacuum to wait for")
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL AND relkind = 'r'")
        told = {table: dict(option.split("=") for option in options) for table, options in cursor.fetchall()}
    looked_into = [MeetingTimer, SosEvent, Delivery, DeliveryAttempt]
    assert {model._meta.db_table: EARLY for model in looked_into} == {
        table: options for table, options in told.items() if not table.startswith("pg_")
    }
