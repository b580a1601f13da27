"""Turns DATABASE_URL into Django's DATABASES, for each of the three databases and each process role."""

import sys
import warnings
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

Role = Literal["web", "worker"]

# docs.djangoproject.com, "Database transactions / SQLite": IMMEDIATE takes the write lock at BEGIN, where the busy
# timeout is honoured; a deferred transaction that upgrades to a write fails at once. FULL keeps the last commit
# (it may be an SOS) through a power loss, which NORMAL does not in WAL mode.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
}
POSTGRES_TIMEOUTS = "-c statement_timeout=10000 -c lock_timeout=3000 -c idle_in_transaction_session_timeout=10000"


def process_role() -> Role:
    """`web` for the server that answers many requests at once; `worker` for every command."""
    program = Path(sys.argv[0])
    daphne = program.stem == "daphne" or program.parts[-2:] == ("daphne", "__main__.py")
    return "web" if daphne or "runserver" in sys.argv[1:2] else "worker"


def is_mongodb(url: str) -> bool:
    """Whether the URL names a MongoDB server."""
    return url.startswith(("mongodb://", "mongodb+srv://", "djongo://"))


def database_settings(url: str, *, role: Role, pool_size: int, var: Path) -> dict[str, Any]:
    """Django's settings for the database that `url` names.

    Raises ImproperlyConfigured, with what to write instead, for a URL it can't use.
    """
    if is_mongodb(url):
        return _mongodb(url, role=role)
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return _sqlite(url, var=var)
    if scheme in {"postgres", "postgresql"}:
        return _postgres(url, role=role, pool_size=pool_size)
    raise ImproperlyConfigured(
        f"DATABASE_URL starts with {scheme!r}; write sqlite:///path/to/file, postgres://user:password@host/name "
        "or mongodb://host/name."
    )


def _sqlite(url: str, *, var: Path) -> dict[str, Any]:
    path = unquote(url.removeprefix("sqlite://").removeprefix("/"))
    if not path:
        raise ImproperlyConfigured("DATABASE_URL names no SQLite file; write sqlite:///path/to/file.")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": SQLITE_OPTIONS,
        # A file, not memory: tests race threads and processes on it, with the production options.
        "TEST": {"NAME": str(var / "test.sqlite3")},
    }


def _postgres(url: str, *, role: Role, pool_size: int) -> dict[str, Any]:
    settings: dict[str, Any] = environ.Env.db_url_config(url)
    options = settings.setdefault("OPTIONS", {})
    options.setdefault("application_name", f"casualmeet-{role}")
    options.setdefault("connect_timeout", 5)
    options.setdefault("options", POSTGRES_TIMEOUTS)
    settings["CONN_MAX_AGE"] = 0
    if role == "web":
        # Each request runs in a thread of its own: a pool bounds the connections, and without the health
        # check it hands out dead ones after a restart of the server.
        options["pool"] = {"min_size": 2, "max_size": pool_size, "timeout": 5}
        settings["CONN_HEALTH_CHECKS"] = True
    return settings


def _mongodb(url: str, *, role: Role) -> dict[str, Any]:
    if url.startswith("djongo://"):
        warnings.warn("DATABASE_URL=djongo://… is read as mongodb://…; see docs/decisions/djongo.md.", stacklevel=2)
        url = "mongodb://" + url.removeprefix("djongo://")
    name = unquote(urlsplit(url).path.removeprefix("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL names no MongoDB database; write mongodb://host/name.")
    return {
        "ENGINE": "casualmeet.mongodb",
        "HOST": url,
        "NAME": name,
        "OPTIONS": {
            "serverSelectionTimeoutMS": 3000,
            "connectTimeoutMS": 3000,
            "socketTimeoutMS": 10000,
            "w": "majority",
            "journal": True,
            "retryWrites": True,
            "appname": f"casualmeet-{role}",
        },
    }
