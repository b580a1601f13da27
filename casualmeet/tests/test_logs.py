"""Logs: as text or as JSON, each line says what it is about, none says who or where, and none can be forged."""

import json
import logging
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from casualmeet import logs
from casualmeet.tests.test_settings import PRINT, python
from testing.processes import BASE_DIR

INCIDENT = UUID("6f4d1d5c-0f5e-4b7c-9b0e-120000000012")  # its last part looks like a phone number
DELIVERY = UUID("0b5f7a52-5f5a-4d8e-9d51-0f8f5c1d2e3f")
PRIVATE = ("98123", "45678", "28.61", "77.20")
NASTY = [
    "fine\n2026-11-30T00:00:00.000Z INFO ops.audit: all is well",
    "fine\r\n2026-11-30T00:00:00.000Z INFO ops.audit: all is well",
    "a\x00b\x07c\x1b[2J\x1b[31mred\x7f\x85\x9b31m",
    "up\u2028and\u2029down \u202egnol\u2066x\u2069",
    '{"level": "INFO"}", "level": "INFO',
    "%s %(x)s {y} \ud800",
    "नमस्ते 👋",
]


class Sink(logging.Handler):
    """Keeps what the console would show."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.addFilter(logs.MaskPersonalData())
        self.written: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(self.format(record))

    @property
    def last(self) -> dict[str, Any]:
        assert "\n" not in self.written[-1]
        found: dict[str, Any] = json.loads(self.written[-1])
        return found


def sink(formatter: logging.Formatter) -> Iterator[Sink]:
    handler = Sink(formatter)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


# Outside the tree of loggers: pytest would keep the records, and what is no valid Unicode breaks its parallel runs.
logger = logging.Logger("casualmeet.tests.logs")  # noqa: LOG001


@pytest.fixture
def as_json() -> Iterator[Sink]:
    yield from sink(logs.Json())


@pytest.fixture
def as_text() -> Iterator[Sink]:
    yield from sink(logs.Line())


class TestJson:
    def test_a_line_says_when_what_and_which_process(self, as_json: Sink) -> None:
        logger.warning("%d of %d", 3, 4)
        found = as_json.last
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
        assert isinstance(found.pop("pid"), int)
        assert isinstance(found.pop("role"), str)
        assert found == {"level": "WARNING", "logger": "casualmeet.tests.logs", "message": "3 of 4"}

    def test_it_says_what_it_is_about(self, as_json: Sink) -> None:
        with logs.about(incident=INCIDENT):
            with logs.about(delivery=DELIVERY):
                logger.warning("within")
            assert (as_json.last["incident_id"], as_json.last["delivery_id"]) == (str(INCIDENT), str(DELIVERY))
            logger.warning("between", extra={"timer_id": DELIVERY})
            assert "delivery_id" not in as_json.last
            assert (as_json.last["incident_id"], as_json.last["timer_id"]) == (str(INCIDENT), str(DELIVERY))
        logger.warning("after")
        assert not {"incident_id", "delivery_id", "timer_id"} & as_json.last.keys()

    def test_what_else_a_call_gives_is_masked_however_it_is_nested(self, as_json: Sink) -> None:
        class Kind(Enum):
            SMS = "sms"

        class Untellable:
            def __str__(self) -> str:
                raise ValueError("no")

        extra = {
            "to": "+919812345678",
            "number": 919812345678,
            "latitude": 28.61390,
            "fix": (28.61390, 77.20900),
            "deep": {"contacts": [{"phone": "98123 45678", "at": {"latitude": 28.6139, "longitude": 77.209}}]},
            "raw": b"To=%2B919812345678",
            "kind": Kind.SMS,
            "broken": Untellable(),
            "ratio": float("nan"),
            "count": 12,
            "share": 0.5,
            "ok": True,
            "nothing": None,
        }
        logger.warning("masked", extra=extra)
        found = as_json.last
        for private in PRIVATE:
            assert private not in as_json.written[-1]
        kept = {name: found[name] for name in ("kind", "ratio", "count", "share", "ok", "nothing")}
        assert kept == {"kind": "sms", "ratio": "nan", "count": 12, "share": 0.5, "ok": True, "nothing": None}

    def test_an_exception_is_told_and_masked(self, as_json: Sink) -> None:
        try:
            raise ValueError("Key (phone)=(+919812345678) near 28.61390, 77.20900\nexists")
        except ValueError:
            logger.exception("It failed", stack_info=True)
        assert "ValueError: Key (phone)=([phone]…78) near [position]\nexists" in as_json.last["exc_info"]
        assert "test_logs.py" in as_json.last["stack_info"]

    @pytest.mark.parametrize("nasty", NASTY)
    def test_whatever_is_said_it_is_one_line_of_ascii(self, as_json: Sink, nasty: str) -> None:
        logger.warning("%s", nasty, extra={"said": nasty})
        assert len(as_json.written) == 1
        assert as_json.written[0].isascii()
        assert as_json.written[0].isprintable()
        assert as_json.last["message"] == as_json.last["said"] == nasty
        assert as_json.last["level"] == "WARNING"


class TestText:
    def test_a_line_says_when_and_what_it_is_about_once(self, as_text: Sink) -> None:
        with logs.about(incident=INCIDENT, delivery=DELIVERY):
            logger.warning("Delivery %s waits", DELIVERY)
        said = rf"WARNING casualmeet\.tests\.logs: Delivery {DELIVERY} waits incident={INCIDENT}"
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z {said}", as_text.written[0])

    @pytest.mark.parametrize("nasty", NASTY)
    def test_nothing_that_is_said_can_pass_for_a_line(self, as_text: Sink, nasty: str) -> None:
        logger.warning("%s", nasty)
        try:
            raise ValueError(nasty)
        except ValueError:
            logger.exception("It failed", stack_info=True)
        first, *rest = "\n".join(as_text.written).split("\n")
        assert first.startswith("2")
        # Only the second call's own line does not lie under one.
        assert [line for line in rest if not line.startswith("  ")] == [as_text.written[1].split("\n")[0]]
        for line in (first, *rest):
            assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", line)
            line.encode()  # as the stream does

    def test_hindi_stays_readable(self, as_text: Sink) -> None:
        logger.warning("नमस्ते")
        assert as_text.written[0].endswith("नमस्ते")


@pytest.mark.parametrize(
    "text",
    [
        "+91 98123 45678",
        "+91-98123-45678",
        "(+91) 98123-45678 or 98123 45678",
        "tel:+919812345678",
        "28.61390;77.20900",
        "q=28.61390%2C77.20900",
        "lat=28.61390&lng=77.20900",
        "'lat': 28.61390, 'lon': 77.20900",
        f"{INCIDENT} of +919812345678",
    ],
)
def test_numbers_and_positions_are_masked_however_they_are_written(text: str) -> None:
    for private in PRIVATE:
        assert private not in logs.mask(text)


def test_the_secret_part_of_an_address_is_masked() -> None:
    assert logs.mask("Not Found: /i/abc123xyz") == "Not Found: /i/[secret]"
    assert logs.mask("GET '/c/abc123xyz/push'") == "GET '/c/[secret]/push'"
    assert logs.mask("Forbidden: /hooks/fast2sms/s3cret") == "Forbidden: /hooks/fast2sms/[secret]"
    assert logs.mask("/api/contacts and/or /hooks/twilio/sms") == "/api/contacts and/or /hooks/twilio/sms"


@pytest.mark.parametrize(
    "text",
    [f"incident {INCIDENT}", f"{INCIDENT},{DELIVERY}", "p50 0.123, p99 0.456 s", "1,000 of 12345 60000", "+1 -1"],
)
def test_ids_and_figures_stay(text: str) -> None:
    assert logs.mask(text) == text


class TestSettings:
    @pytest.mark.processes
    def test_json_is_chosen_by_the_environment(self) -> None:
        source = "import logging, django; django.setup(); logging.getLogger('x').warning('to +919812345678\\n')"
        done = python("-c", source, LOG_FORMAT="json", DJANGO_SETTINGS_MODULE="casualmeet.settings")
        found = json.loads(done.stderr)
        assert (found["message"], found["level"]) == ("to [phone]…78\n", "WARNING")

    def test_another_format_is_refused(self) -> None:
        done = python("-c", PRINT, LOG_FORMAT="xml")
        assert "LOG_FORMAT must be text or json." in done.stderr

    @pytest.mark.parametrize("port", ["65536"])
    def test_a_port_that_can_t_be_is_refused(self, port: str) -> None:
        assert "METRICS_PORT must be a port" in python("-c", PRINT, METRICS_PORT=port).stderr

    @pytest.mark.parametrize(
        ("argv", "role"),
        [
            (["daphne", "casualmeet.asgi:application"], "web"),
            (["manage.py", "runserver"], "web"),
            (["manage.py", "run_timer_worker", "--once"], "timer"),
            (["manage.py", "run_dispatch_worker"], "dispatch"),
            (["manage.py", "run_scheduler"], "scheduler"),
            (["manage.py", "migrate"], "migrate"),
            (["x.py", "+919812345678"], "command"),
            (["x.py"], "command"),
        ],
    )
    def test_the_role_comes_from_the_command(self, monkeypatch: pytest.MonkeyPatch, argv: list[str], role: str) -> None:
        monkeypatch.setattr("sys.argv", argv)
        assert logs.role() == role


def test_no_module_makes_its_own_handlers() -> None:
    """All goes through the one that masks."""
    for app in ("casualmeet", "safety", "sos", "notifications", "ops"):
        for path in (BASE_DIR / app).rglob("*.py"):
            if "tests" not in path.parts:
                assert not re.search(r"StreamHandler\(|basicConfig\(|addHandler\(", path.read_text()), path
