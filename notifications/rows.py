"""Rows as the database has them: cheap to read in great numbers and to compare, and made into models only where needed."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, models

M = TypeVar("M", bound=models.Model)
Row = tuple[Any, ...]


class Table:
    """The columns of one model, in the order of its rows here."""

    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self.names = [field.attname for field in model._meta.concrete_fields]
        self._places = {name: place for place, name in enumerate(self.names)}

    def read(self, query: "models.QuerySet[Any]") -> list[Row]:
        """All columns of these rows."""
        return list(query.values_list(*self.names))

    def place(self, name: str) -> int:
        """Which column that is."""
        return self._places[name]

    def value(self, row: Row, name: str) -> Any:
        """One column of a row."""
        return row[self._places[name]]

    def thaw(self, row: Row) -> Any:
        """The model that the row is."""
        return self.model.from_db(DEFAULT_DB_ALIAS, self.names, row)

    def freeze(self, thing: models.Model) -> Row:
        """The row that the model is."""
        return tuple(getattr(thing, name) for name in self.names)


def newest_of_each(
    read: Callable[[Sequence[UUID], int], list[Row]], ids: Sequence[UUID], *, most: int, whose: int
) -> dict[UUID, list[Row]]:
    """At most `most` rows of each id, in few queries, without ever reading many more than that.

    `read(ids, limit)` gives their newest rows; column `whose` of a row says whose it is.
    """
    if not ids:
        return {}
    limit = most * len(ids)
    rows = read(ids, limit)
    if len(rows) >= limit and len(ids) > 1:
        # Some have more than their share, and so others' may be missing.
        half = len(ids) // 2
        return newest_of_each(read, ids[:half], most=most, whose=whose) | newest_of_each(
            read, ids[half:], most=most, whose=whose
        )
    found: dict[UUID, list[Row]] = {}
    for row in rows:
        found.setdefault(row[whose], []).append(row)
    return {owner: theirs[:most] for owner, theirs in found.items()}
