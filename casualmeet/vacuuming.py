"""PostgreSQL's vacuum, for tables whose rows soon leave the index that the workers look into.

An expired timer's entry stays in the index of live ones until a vacuum, and each look for the next one passes over it:
287 pages instead of 3 after five minutes of 100 a second. By default that vacuum comes when a fifth of a table has
changed, and leaves the indexes alone where a fiftieth has.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

# PostgreSQL docs, "CREATE TABLE", Storage Parameters.
EARLY = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000", "vacuum_index_cleanup": "on"}


def vacuum_early(*tables: str) -> migrations.RunPython:
    """A migration's operation: have these tables vacuumed when a fiftieth has changed, always with their indexes.

    It waits for a vacuum of the table and for nothing else, and nothing waits for it. Does nothing on other databases.
    """

    def change(editor: BaseDatabaseSchemaEditor, how: str) -> None:
        for table in tables if editor.connection.vendor == "postgresql" else ():
            editor.execute(f"ALTER TABLE {editor.quote_name(table)} {how}")

    def forwards(_apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
        change(editor, f"SET ({', '.join(f'{name} = {value}' for name, value in EARLY.items())})")

    def backwards(_apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
        change(editor, f"RESET ({', '.join(EARLY)})")

    return migrations.RunPython(forwards, backwards)
