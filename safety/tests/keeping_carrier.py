"""A carrier that keeps messages until their time, as Twilio does; over HTTP, on the test's clock."""

import contextlib
import json
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

ACCOUNT: Final = "AC" + "0123456789abcdef" * 2
TOKEN: Final = "kept-token"
SERVICE: Final = "MG" + "0123456789abcdef" * 2
BASE: Final = f"/2010-04-01/Accounts/{ACCOUNT}/Messages"
SETTINGS: Final = {
    "FAIL_SAFE": True,
    "TWILIO_ACCOUNT_SID": ACCOUNT,
    "TWILIO_AUTH_TOKEN": TOKEN,
    "TWILIO_MESSAGING_SERVICE_SID": SERVICE,
}


@dataclass
class Kept:
    """A message at the carrier."""

    sid: str
    to: str
    body: str
    created: datetime
    send_at: datetime
    status: str = "scheduled"
    listed_from: datetime = field(default=datetime.min.replace(tzinfo=UTC))

    def as_json(self) -> dict[str, Any]:
        return {
            "sid": self.sid,
            "to": self.to,
            "body": self.body,
            "status": self.status,
            "date_created": format_datetime(self.created),
            "error_code": None,
        }


class KeepingCarrier:
    """`faults` holds, for each of create, cancel, fetch and list, what befalls the next requests: "lost" (done, but the
    connection breaks), "broken" (not done, the connection breaks), a Twilio error code with 400, or an HTTP status.
    `before` is called with the operation's name before it is done, in the server's thread.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.kept: dict[str, Kept] = {}
        self.log: list[str] = []
        self.faults: dict[str, list[str | int]] = defaultdict(list)
        self.before: Callable[[str], object] = lambda _: None
        self.surfaces_after = timedelta(0)
        self.taken_as = "scheduled"
        self.lock = threading.RLock()

    def __enter__(self) -> Self:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def scheduled(self) -> list[Kept]:
        """What will go out."""
        with self.lock:
            self.send_due()
            return [message for message in self.kept.values() if message.status == "scheduled"]

    def sent(self) -> list[Kept]:
        """What went out."""
        with self.lock:
            self.send_due()
            return [message for message in self.kept.values() if message.status == "delivered"]

    def send_due(self) -> None:
        """What a carrier does by itself."""
        for message in self.kept.values():
            if message.status == "scheduled" and message.send_at <= self.now():
                message.status = "delivered"

    def answer(self, method: str, path: str, form: dict[str, str]) -> tuple[str, int, dict[str, Any]]:
        """The operation's name, the status and the body of an answer, and all that it changes here."""
        with self.lock:
            self.send_due()
            parts = urlsplit(path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            sid = parts.path.removeprefix(BASE).removesuffix(".json").lstrip("/")
            what = {("POST", True): "cancel", ("GET", True): "fetch", ("POST", False): "create", ("GET", False): "list"}
            operation = what[method, bool(sid)]
            fault = self.faults[operation].pop(0) if self.faults[operation] else ""
            self.log.append(operation)
            if fault == "broken":
                return fault, 0, {}
            if isinstance(fault, int):
                status, code = (400, fault) if fault > 999 else (fault, 20000 + fault)
                return "", status, {"code": code, "message": "no", "status": status}
            status, body = getattr(self, f"_{operation}")(sid, form, query)
            return str(fault), status, body

    def _create(self, _sid: str, form: dict[str, str], _query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        send_at = datetime.fromisoformat(form["SendAt"])
        assert (form["ScheduleType"], form["MessagingServiceSid"]) == ("fixed", SERVICE)
        if not timedelta(seconds=300) <= send_at - self.now() <= timedelta(days=35):
            return 400, {"code": 35115, "message": "SendAt", "status": 400}
        now = self.now()
        message = Kept(f"SM{uuid4().hex}", form["To"], form["Body"], now, send_at, self.taken_as)
        message.listed_from = now + self.surfaces_after
        self.kept[message.sid] = message
        return 201, message.as_json()

    def _cancel(self, sid: str, form: dict[str, str], _query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        assert form == {"Status": "canceled"}
        if sid not in self.kept:
            return 404, {"code": 20404, "message": "not found", "status": 404}
        if self.kept[sid].status != "scheduled":
            return 400, {"code": 30409, "message": "This message cannot be canceled", "status": 400}
        self.kept[sid].status = "canceled"
        return 200, self.kept[sid].as_json()

    def _fetch(self, sid: str, _form: dict[str, str], _query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if sid not in self.kept:
            return 404, {"code": 20404, "message": "not found", "status": 404}
        return 200, self.kept[sid].as_json()

    def _list(self, _sid: str, _form: dict[str, str], query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        page, size = int(query.get("Page", 0)), int(query["PageSize"])
        found = [row for row in self.kept.values() if row.to == query["To"] and row.listed_from <= self.now()]
        found.sort(key=lambda row: row.created, reverse=True)
        after = f"{BASE}.json?To=%2B{query['To'][1:]}&PageSize={size}&Page={page + 1}"
        rows = found[page * size : (page + 1) * size]
        more = len(found) > (page + 1) * size
        return 200, {"messages": [row.as_json() for row in rows], "next_page_uri": after if more else None}


def _handler(carrier: KeepingCarrier) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            carrier.before(self.command)
            fault, status, answer = carrier.answer(self.command, self.path, form)
            if fault in ("broken", "lost"):
                reset = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                self.connection.close()
                return
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

        def finish(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().finish()

    return Handler
