"""The database engine: `django_mongodb_backend` with one difference, in how a unique field is indexed.

That backend gives each unique field an index over the documents where the field has its type, which lets several be
empty, as in SQL. But a look-up by equality says nothing of types, so MongoDB may not use such an index
(www.mongodb.com/docs/manual/core/index-partial, "Query Coverage"): each look-up by primary key, session key or token
reads the whole collection. mongodb/django-mongodb-backend#543 mends this in the look-ups, for a later Django than ours.
"""

from typing import Any

from django.db import models
from django_mongodb_backend.base import DatabaseWrapper as MongoWrapper
from django_mongodb_backend.schema import DatabaseSchemaEditor as MongoSchemaEditor
from pymongo import ASCENDING, IndexModel


class DatabaseSchemaEditor(MongoSchemaEditor):
    """Makes the unique indexes of single fields."""

    def _add_field_unique(self, model: type[models.Model], field: Any, column_prefix: str = "") -> None:
        if column_prefix or (field.null and not isinstance(field, models.UUIDField)):
            super()._add_field_unique(model, field, column_prefix=column_prefix)
            return
        # Every look-up of a text implies "more than the empty text", which leaves out null. Ids are kept as texts.
        some = {"partialFilterExpression": {field.column: {"$gt": ""}}} if field.null else {}
        name = str(self._unique_constraint_name(model._meta.db_table, [field.column]))
        index = IndexModel([(field.column, ASCENDING)], name=name, unique=True, **some)
        self.get_collection(model._meta.db_table).create_indexes([index])


class DatabaseWrapper(MongoWrapper):
    """The backend's connection, with the schema editor above."""

    SchemaEditorClass = DatabaseSchemaEditor
