"""Reports to the operators: complete, masked, repeated where that helps, and never in the way of the caller."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from casualmeet import sentry
from ops import reporting


class OnCall:
    """Takes events as PagerDuty does, or answers as told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.drip_seconds = 0.0
        on_call = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                on_call.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(on_call.answers.pop(0) if on_call.answers else 202)
                self.end_headers()
                until = time.monotonic() + on_call.drip_seconds
                while time.monotonic() < until:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)

            def log_message(self, *_args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v2/enqueue"


@pytest.fixture
def on_call(settings: Any) -> Iterator[OnCall]:
    there = OnCall()
    threading.Thread(target=there.server.serve_forever, args=(0.02,), daemon=True).start()
    settings.PAGERDUTY_ROUTING_KEY = "r" * 32
    settings.PAGERDUTY_EVENTS_URL = there.url
    yield there
    there.server.shutdown()
    there.server.server_close()


def test_a_report_is_an_event_of_pagerduty_s_shape_with_personal_data_masked(on_call: OnCall) -> None:
    details = {"last": "text to +447700900123", "latitude": 51.5074, "rows": [{"at": "51.50740, -0.12780"}], "count": 2}
    reporting.report("No word from +447700900123", key="job:digest", severity="critical", details=details)
    reporting.acknowledge("job:digest")
    reporting.resolve("job:digest")
    trigger, acknowledge, resolve = on_call.events
    assert trigger["routing_key"] == "r" * 32
    assert (trigger["event_action"], trigger["dedup_key"]) == ("trigger", "job:digest")
    assert trigger["payload"]["summary"] == "No word from [phone]…23"
    assert trigger["payload"]["severity"] == "critical"
    assert trigger["payload"]["source"]
    assert trigger["payload"]["custom_details"] == {
        "last": "text to [phone]…23",
        "latitude": "[position]",
        "rows": [{"at": "[position]"}],
        "count": 2,
    }
    for event, action in ((acknowledge, "acknowledge"), (resolve, "resolve")):
        assert event == {"routing_key": "r" * 32, "event_action": action, "dedup_key": "job:digest"}


def test_what_passes_is_tried_again_and_a_refusal_is_not(on_call: OnCall, caplog: pytest.LogCaptureFixture) -> None:
    on_call.answers = [503, 429, 202, 400]
    reporting.report("Late", key="late")
    assert len(on_call.events) == 3
    assert "not told" not in caplog.text
    reporting.report("Late", key="late")
    assert len(on_call.events) == 4
    assert "not told (trigger, late): status 400" in caplog.text
    assert "rrrr" not in caplog.text


def test_nothing_holds_the_caller_up(
    on_call: OnCall, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting, "LIMIT_SECONDS", 0.4)
    on_call.drip_seconds = 2
    for url in (on_call.url, "http://127.0.0.1:1/", "nonsense"):
        settings.PAGERDUTY_EVENTS_URL = url
        started = time.monotonic()
        reporting.report("Late", key="late", details={"odd": object()})
        assert time.monotonic() - started < 1.5
    assert "not told" in caplog.text


def test_without_a_key_it_is_only_logged(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.PAGERDUTY_ROUTING_KEY = ""
    reporting.report("Late by +447700900123", key="late")
    reporting.resolve("late")
    assert "Late by [phone]…23 [late]" in caplog.text


def test_sentry_gets_no_request_and_no_personal_data() -> None:
    kept = sentry.before_send(
        {
            "message": "No word from +447700900123",
            "exception": {"values": [{"type": "ValueError", "value": "51.50740, -0.12780"}]},
            "request": {"url": "https://safety.example.org/c/secret"},
            "user": {"id": "7"},
        },
        {},
    )
    assert kept == {
        "message": "No word from [phone]…23",
        "exception": {"values": [{"type": "ValueError", "value": "[position]"}]},
    }


def test_a_wrong_dsn_is_told_at_start() -> None:
    with pytest.raises(ImproperlyConfigured, match="SENTRY_DSN must be like https://key@host/number"):
        sentry.start("https://sentry.example.org", environment="test")
