"""What `casualmeet.mongodb` is for: look-ups by a unique field are served by its index."""

from typing import Any
from uuid import uuid4

import pytest
from django.contrib.sessions.models import Session
from django.db import IntegrityError, connection, models

from casualmeet import clock
from safety.tests.factories import PersonFactory
from sos.models import SosEvent

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "mongodb", reason="is about MongoDB"),
]


def stages(model: type[models.Model], looked_for: dict[str, Any]) -> str:
    command = {"find": model._meta.db_table, "filter": looked_for}
    mongodb: Any = connection
    return str(mongodb.database.command("explain", command)["queryPlanner"]["winningPlan"])


@pytest.mark.parametrize(
    ("model", "looked_for"),
    [
        (SosEvent, {"id": str(uuid4())}),
        (SosEvent, {"id": {"$in": [str(uuid4()), str(uuid4())]}}),
        (SosEvent, {"open_key": str(uuid4())}),
        (Session, {"session_key": "abc"}),
    ],
    ids=["key", "keys", "key that may be empty", "session"],
)
def test_a_unique_field_is_looked_up_in_its_index(model: type[models.Model], looked_for: dict[str, Any]):
    assert "IXSCAN" in stages(model, looked_for)


def test_a_key_is_given_once():
    person = PersonFactory.create()
    with pytest.raises(IntegrityError):
        PersonFactory(id=person.pk, username="other")


def test_a_field_that_may_be_empty_is_empty_often_and_else_unique():
    person, key, now = PersonFactory.create(), uuid4(), clock.now()
    for open_key in (None, None, key):
        SosEvent.objects.create(
            person=person, open_key=open_key, reference="A2B", source="manual", happened_at=now, opened_at=now
        )
    with pytest.raises(IntegrityError):
        SosEvent.objects.create(
            person=person, open_key=key, reference="A2B", source="manual", happened_at=now, opened_at=now
        )
