"""One set of migrations for three databases."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

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
