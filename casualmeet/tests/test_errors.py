"""What people and clients are told when something fails: plainly, with a retry hint, and never a stack trace."""

import logging
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db.utils import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError
from django.test import Client, RequestFactory
from pymongo.errors import ServerSelectionTimeoutError

from casualmeet import errors
from casualmeet.logs import MaskPersonalData, mask
from safety import tokens
from safety.models import User
from safety.tests.factories import PersonFactory

pytestmark = pytest.mark.filterwarnings("ignore:No directory at")

GONE = "connection to server at 10.0.0.7 failed: secret-host refused"
INSIDES = ("Traceback", "secret-host", "10.0.0.7", "OperationalError", 'File "', "site-packages")


@pytest.fixture
def asha(settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return PersonFactory.create(username="asha")


@pytest.fixture
def client() -> Client:
    """A client that sees a 500 rather than an exception."""
    return Client(raise_request_exception=False)


def database_away(*_: object, **__: object) -> None:
    raise OperationalError(GONE)


def broken(*_: object, **__: object) -> None:
    raise RuntimeError(GONE)


def assert_plain(response: Any) -> None:
    text = response.content.decode()
    for inside in INSIDES:
        assert inside not in text


class TestWhatCountsAsUnavailable:
    @pytest.mark.parametrize(
        "error", [OperationalError(GONE), InterfaceError("cursor closed"), DatabaseError("database is locked")]
    )
    def test_a_database_that_does_not_answer(self, error: Exception) -> None:
        assert errors.is_unavailable(error)

    def test_a_mongodb_failover(self) -> None:
        error = DatabaseError("no primary")
        error.__cause__ = ServerSelectionTimeoutError("no primary")
        assert errors.is_unavailable(error)

    def test_a_postgresql_server_that_shuts_down(self) -> None:
        error = DatabaseError("terminating connection")
        error.__cause__ = psycopg.errors.AdminShutdown("terminating connection")
        assert errors.is_unavailable(error)

    @pytest.mark.parametrize(
        "error", [IntegrityError("duplicate"), DataError("too long"), DatabaseError("?"), ValueError("x"), None]
    )
    def test_a_mistake_of_ours_does_not(self, error: Exception | None) -> None:
        assert not errors.is_unavailable(error)


@pytest.mark.django_db
class TestDatabaseAway:
    def test_the_api_says_503_in_json_with_a_retry_hint(
        self, asha: User, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        headers = {"authorization": f"Bearer {tokens.issue(asha)}"}
        for target in ("safety.tokens.owner", "safety.timers.access_timer", "notifications.inbox.access_notification"):
            with monkeypatch.context() as patch:
                patch.setattr(target, database_away)
                path = "timers/00000000-0000-4000-8000-000000000000"
                if "inbox" in target:
                    path = "notifications/00000000-0000-4000-8000-000000000000/read"
                ask = client.put if "inbox" in target else client.get
                response = ask(f"/api/{path}", headers=headers)
            assert response.status_code == 503
            assert response.json() == {"detail": errors.UNAVAILABLE, "code": "database_unavailable"}
            assert int(response["Retry-After"]) > 0

    def test_a_page_says_503_with_a_retry_hint_where_the_session_cannot_be_read(
        self, asha: User, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.force_login(asha)
        monkeypatch.setattr(SessionStore, "load", database_away)
        for path in ("/", "/contacts/", "/history/", "/admin/"):
            response = client.get(path)
            assert response.status_code == 503, path
            assert response["Content-Type"].startswith("text/html")
            assert int(response["Retry-After"]) > 0
            assert "database" in response.content.decode()
            assert_plain(response)

    def test_the_api_says_503_where_the_session_cannot_be_read(
        self, asha: User, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.force_login(asha)
        monkeypatch.setattr(SessionStore, "load", database_away)
        response = client.get("/api/timers")
        assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")

    def test_logging_in_says_503(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("safety.api.authenticate", database_away)
        typed = {"username": "a", "password": "b"}
        response = client.post("/api/tokens", typed, content_type="application/json")
        assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")

    def test_the_page_of_a_failure_asks_the_database_nothing(
        self, asha: User, client: Client, django_assert_num_queries: Any
    ) -> None:
        request = RequestFactory().get("/")
        with django_assert_num_queries(0):
            response = errors.unavailable(request)
            assert response.status_code == 503


@pytest.mark.django_db
class TestOtherFailures:
    def test_an_unexpected_exception_on_a_page_is_a_plain_500(
        self, asha: User, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.force_login(asha)
        monkeypatch.setattr(SessionStore, "load", broken)
        response = client.get("/")
        assert response.status_code == 500
        assert response["Content-Type"].startswith("text/html")
        assert_plain(response)

    def test_an_unknown_page_is_a_plain_404(self, client: Client) -> None:
        response = client.get("/no/such/page")
        assert response.status_code == 404
        assert response["Content-Type"].startswith("text/html")
        assert "nothing here" in response.content.decode().lower()

    @pytest.mark.parametrize("path", ["/api/nope", "/api/", "/api/timers/"])
    def test_an_unknown_address_of_the_api_is_a_404_in_json(self, client: Client, path: str) -> None:
        response = client.get(path)
        assert response.status_code == 404
        assert response.json() == {"detail": "There is nothing here.", "code": "not_found"}

    def test_a_host_that_is_not_ours_is_400(self, client: Client) -> None:
        response = client.get("/no/such/page", headers={"host": "evil.example"})
        assert response.status_code == 400
        assert_plain(response)

    def test_server_error_recognises_the_database_from_the_exception_being_handled(self) -> None:
        request = RequestFactory().get("/api/timers")
        assert sys.exc_info()[1] is None
        assert errors.server_error(request).status_code == 500
        try:
            database_away()
        except OperationalError:
            assert errors.server_error(request).status_code == 503


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, list[str]]]:
    """A logger with the console's filter and format, and what it wrote."""
    written: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler = Keep()
    handler.addFilter(MaskPersonalData())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("casualmeet.tests.masking")
    logger.addHandler(handler)
    yield logger, written
    logger.removeHandler(handler)


class TestLogsHideWhoAndWhere:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("to +919812345678", "to [phone]…78"),
            ("to +919812345678.", "to [phone]…78."),
            ("(+447700900123)", "([phone]…23)"),
            ("numbers=9812345678", "numbers=[phone]…78"),
            ("call 9812345678.", "call [phone]…78."),
            ("919812345678,", "[phone]…78,"),
            ("To=%2B919812345678&Body=x", "To=[phone]…78&Body=x"),
            ('{"phone": "+14155552671"}', '{"phone": "[phone]…71"}'),
            ("at 28.61390,77.20900 now", "at [position] now"),
            ("[77.59456, -12.97162]", "[[position]]"),
            ("{'latitude': 12.97162, 'longitude': 77.59456}", "{'latitude': [position], 'longitude': [position]}"),
            ("latitude=-12.9 longitude=77.5", "latitude=[position] longitude=[position]"),
        ],
    )
    def test_numbers_and_positions_are_masked(self, text: str, shown: str) -> None:
        assert mask(text) == shown

    @pytest.mark.parametrize(
        "text",
        [
            "processed=500 incidents_opened=12",
            "Delivery 6f4d1d5c-0f5e-4b7c-9b0e-3c1c2a7d9e10 is a dead letter: config 21608",
            "Cycle took 0.123 s, 12.5 ms each",
            "version 5.2.19, port 8000",
            "2026-11-29T17:37:45.145Z",
            "SM0123456789abcdef0123456789abcdef",
        ],
    )
    def test_what_operators_need_stays(self, text: str) -> None:
        assert mask(text) == text

    def test_arguments_and_exceptions_are_masked_too(self, lines: tuple[logging.Logger, list[str]]) -> None:
        logger, written = lines
        logger.warning("No answer for %s at %s", "+919812345678", (28.6139, 77.209))
        try:
            raise ValueError("Key (phone)=(+919812345678) already exists near 28.61390, 77.20900")
        except ValueError:
            logger.exception("It failed for %s", "+447700900123")
        text = "\n".join(written)
        assert "ValueError" in text
        for private in ("9812345678", "7700900123", "28.61", "77.20"):
            assert private not in text

    def test_a_wrong_log_call_breaks_nothing(self, lines: tuple[logging.Logger, list[str]]) -> None:
        logger, written = lines
        wrong: list[tuple[str, str]] = [("%d of %d", "one"), ("%d", "many"), ("%q", "x")]
        for text, argument in wrong:
            logger.warning(text, argument)
        assert len(written) == 3

    def test_the_console_uses_it(self) -> None:
        from django.conf import settings

        console: dict[str, Any] = settings.LOGGING["handlers"]["console"]  # type: ignore[index]
        assert console["filters"] == ["mask"]
