"""A rolling upgrade: what old and new code do side by side on one database, which the new code has migrated."""

from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection, models
from django.db.migrations import AddField, CreateModel, DeleteModel, RemoveField, RenameField, RenameModel
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration
from django.test import Client

from casualmeet import clock
from casualmeet.db import insert_missing
from safety.tests.factories import PersonFactory

OURS = ("safety", "sos", "notifications", "ops")


@pytest.fixture(scope="module")
def loader() -> MigrationLoader:
    """The migrations as files; no database is asked."""
    return MigrationLoader(None)


def later(loader: MigrationLoader) -> list[Migration]:
    """Our migrations after the first of each app."""
    chosen = [(app, name) for app, name in loader.disk_migrations if app in OURS and not name.startswith("0001_")]
    return [loader.disk_migrations[key] for key in sorted(chosen)]


def test_every_column_that_a_table_gets_later_may_be_left_out_of_an_insert(loader: MigrationLoader) -> None:
    """Django's own default is not in the database, so an old worker's INSERT would fail on a new NOT NULL column."""
    state = loader.project_state()
    added = [
        (migration, operation)
        for migration in later(loader)
        for operation in migration.operations
        if isinstance(operation, AddField) and not _made_in(migration, operation.model_name)
    ]
    assert len(added) > 5
    for migration, operation in added:
        model = state.models.get((migration.app_label, operation.model_name_lower))
        field = model.fields.get(operation.name) if model else None
        if field is not None and not field.many_to_many:
            assert field.null or field.has_db_default(), f"{migration}: {operation.describe()}"


def _made_in(migration: Migration, model_name: str) -> bool:
    made = {operation.name_lower for operation in migration.operations if isinstance(operation, CreateModel)}
    return model_name.lower() in made


def test_a_default_of_the_database_is_also_djangos(loader: MigrationLoader) -> None:
    """Otherwise a row that was not saved yet holds an expression in its place, which `casualmeet.bulk` can't write."""
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if model._meta.app_label in OURS and field.has_db_default():
                assert field.has_default(), field
                assert field.get_default() == field.db_default, field


def test_nothing_is_renamed_and_what_goes_goes_in_a_migration_of_its_own(loader: MigrationLoader) -> None:
    for migration in later(loader):
        for operation in migration.operations:
            assert not isinstance(operation, RenameField | RenameModel), f"{migration}: {operation.describe()}"
            if isinstance(operation, RemoveField | DeleteModel):
                assert "_remove_" in migration.name, f"{migration}: {operation.describe()}"


def old(app: str, name: str) -> type[models.Model]:
    """The model as the first version has it."""
    state = MigrationLoader(connection).project_state([(app, "0001_initial")])
    return state.apps.get_model(app, name)


@pytest.mark.django_db
def test_rows_of_an_old_worker_go_into_the_tables_of_today_and_todays_code_reads_them() -> None:
    """As expiry and dispatcher write them, past Django's ORM."""
    now: datetime = clock.now()
    person = PersonFactory.create()
    incident, delivery, attempt = uuid4(), uuid4(), uuid4()
    rows: list[tuple[str, str, dict[str, Any]]] = [
        (
            "sos",
            "SosEvent",
            {"id": incident, "person_id": person.pk, "source": "manual", "happened_at": now, "opened_at": now},
        ),
        ("sos", "AlertedContact", {"incident_id": incident, "contact_id": uuid4(), "token": "a"}),
        ("sos", "TimelineEntry", {"incident_id": incident, "at": now, "kind": "opened"}),
        ("notifications", "Delivery", {"id": delivery, "facts": {}, "created_at": now, "next_attempt_at": now}),
        ("notifications", "DeliveryAttempt", {"id": attempt, "delivery_id": delivery, "number": 1, "started_at": now}),
        ("notifications", "Notification", {"recipient_id": person.pk, "created_at": now}),
    ]
    for app, name, fields in rows:
        model = old(app, name)
        insert_missing(model, [model(**fields)])
        assert apps.get_model(app, name).objects.count() == 1, name
    today = apps.get_model("notifications", "DeliveryAttempt").objects.get()
    if connection.vendor != "mongodb":  # which has no defaults; docs/operators.md, "Upgrades"
        assert (today.receipt, today.receipt_code, today.receipt_rank) == ("", "", 0)
        assert apps.get_model("sos", "SosEvent").objects.get().wave == 1


@pytest.mark.django_db
def test_a_new_secret_key_signs_nobody_out_while_the_old_one_is_a_fallback(settings: Any, client: Client) -> None:
    client.force_login(PersonFactory.create())
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new-" + "n" * 50, [settings.SECRET_KEY]
    assert client.get("/contacts/").status_code == 200
    # From its first page on, a session is of the new key.
    settings.SECRET_KEY_FALLBACKS = []
    assert client.get("/contacts/").status_code == 200


@pytest.mark.django_db
def test_without_it_everybody_signs_in_again(settings: Any, client: Client) -> None:
    client.force_login(PersonFactory.create())
    settings.SECRET_KEY = "new-" + "n" * 50
    assert client.get("/contacts/").status_code == 302
