"""A local carrier for tests and benchmarks: Twilio's and Fast2SMS's way to take a text message.

In a test:

    with LocalCarrier() as carrier:
        carrier.script("+447700900123", Reply.refuse(503), Reply.reset(accepted=True))
        ...  # point TWILIO_API_BASE_URL and FAST2SMS_API_BASE_URL at carrier.url
        assert [entry.body for entry in carrier.accepted()] == [...]

As a process: `python -m testing.carrier --port 9100 --latency 0.1 --journal var/carrier.jsonl`.
Other processes then use `GET /journal`, `DELETE /journal` and `POST /script`
(`{"to": ..., "carrier": ..., "replies": [{"status": 503, "times": 3}, ...]}`).

It sends no receipts; asked as one asks either of them, it says that what it took was delivered.
"""

import argparse
import asyncio
import gc
import json
import re
import secrets
import signal
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qsl

Fault = Literal["", "reset", "hang", "truncate", "drip"]

ACCOUNT_SID: Final = "AC" + "0123456789abcdef" * 2
AUTH_TOKEN: Final = "local-carrier-token"
API_KEY: Final = "local-carrier-key"
FOREVER: Final = -1
DRIP_SECONDS: Final = 0.05

_TWILIO_MESSAGE: Final = re.compile(r"/2010-04-01/Accounts/\w+/(?:Messages|Calls)/(\w+)\.json")
_FAST2SMS_MESSAGE: Final = re.compile(r"/dev/dlr/(\w+)")
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Reply:
    """What to do with a request: whether the message goes out, and what the sender gets to see.

    Without a status the sender sees the carrier's own answer to an accepted message. `code` and
    `message` fill the carrier's own error form; `body` replaces it. `delay` is in seconds, in
    place of the carrier's latency. `times` is how often
    the reply is used, FOREVER for no end.
    """

    accepted: bool = False
    status: int | None = None
    code: int | None = None
    message: str = ""
    body: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float | None = None
    fault: Fault = ""
    times: int = 1

    @classmethod
    def accept(cls, **more: Any) -> Self:
        """The message goes out, and the sender is told so."""
        return cls(accepted=True, **more)

    @classmethod
    def refuse(cls, status: int, code: int | None = None, **more: Any) -> Self:
        """The message does not go out, and the sender is told so in the carrier's own form."""
        return cls(status=status, code=code, **more)

    @classmethod
    def reset(cls, *, accepted: bool, **more: Any) -> Self:
        """The connection is reset, after or before the message was accepted."""
        return cls(accepted=accepted, fault="reset", **more)

    @classmethod
    def hang(cls, *, accepted: bool, **more: Any) -> Self:
        """No answer ever comes."""
        return cls(accepted=accepted, fault="hang", **more)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as the carrier received it. `to` is E.164 for both; `at` is time.time()."""

    carrier: str
    to: str
    body: str
    at: float
    accepted: bool
    message_id: str
    fields: Mapping[str, str]
    headers: Mapping[str, str]
    connection: int


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    fault: Fault = ""


class LocalCarrier:
    """The server, in a thread of its own. All methods may be called from any thread."""

    def __init__(self, *, latency: float = 0.0, port: int = 0, journal: Path | None = None) -> None:
        self.latency = latency
        self.port = port
        self._journal_path = journal
        self._journal_file: Any = None
        self._changed = threading.Condition()
        self._entries: list[Entry] = []
        self._sent: dict[str, str] = {}
        self._count = 0
        self._scripts: dict[tuple[str | None, str | None], deque[Reply]] = {}
        self._connections = 0
        self._open: set[_Connection] = set()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen on 127.0.0.1, on a free port unless one was given."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self.port = listener.getsockname()[1]
        if self._journal_path is not None:
            self._journal_file = self._journal_path.open("a", buffering=1, encoding="utf-8")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carrier", daemon=True)
        self._thread.start()
        self._servers = [self._serve(listener, None)]

    def also_serve_tls(self, context: ssl.SSLContext) -> str:
        """Listen on a second free port, with TLS, and return its URL."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._servers.append(self._serve(listener, context))
        return f"https://127.0.0.1:{listener.getsockname()[1]}"

    def _serve(self, listener: socket.socket, context: ssl.SSLContext | None) -> asyncio.Server:
        serve = self._loop.create_server(lambda: _Connection(self), sock=listener, backlog=1024, ssl=context)
        return asyncio.run_coroutine_threadsafe(serve, self._loop).result(10)

    def stop(self) -> None:
        """Refuse further connections and drop those that are open."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        if self._journal_file is not None:
            self._journal_file.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in tuple(self._open):
            connection.drop()
        await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections were opened so far."""
        return self._connections

    def environment(self, *, twilio: bool = True, fast2sms: bool = True) -> dict[str, str]:
        """Settings, or environment variables, that make this the only carrier."""
        return {
            "TWILIO_API_BASE_URL": self.url,
            "TWILIO_ACCOUNT_SID": ACCOUNT_SID if twilio else "",
            "TWILIO_AUTH_TOKEN": AUTH_TOKEN if twilio else "",
            "TWILIO_FROM": "+15005550006" if twilio else "",
            "TWILIO_MESSAGING_SERVICE_SID": "",
            "FAST2SMS_API_BASE_URL": self.url,
            "FAST2SMS_API_KEY": API_KEY if fast2sms else "",
            "FAST2SMS_ROUTE": "q",
            "FAST2SMS_SENDER_ID": "",
        }

    def script(self, to: str | None = None, *replies: Reply, carrier: str | None = None) -> None:
        """Use `replies` in turn before answering as usual.

        They are for messages to `to` (E.164), for those of one carrier, or for all; the most
        specific script with replies left comes first.
        """
        with self._changed:
            self._scripts.setdefault((carrier, to), deque()).extend(replies)

    def journal(self, to: str | None = None) -> list[Entry]:
        """Every message received, accepted or not, in order."""
        with self._changed:
            return [entry for entry in self._entries if to in (None, entry.to)]

    def accepted(self, to: str | None = None) -> list[Entry]:
        """The messages that go out, in order."""
        return [entry for entry in self.journal(to) if entry.accepted]

    def wait_for(self, count: int, *, timeout: float = 10.0) -> list[Entry]:
        """The accepted messages, once there are at least `count`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout):
                raise TimeoutError(f"{self._count} of {count} messages after {timeout} s")
        return self.accepted()

    def clear(self) -> None:
        """Forget the journal and the scripts."""
        with self._changed:
            self._entries.clear()
            self._count = 0
            self._scripts.clear()

    def answer(self, request: _Request) -> _Answer:
        """What to answer to `request`; the message in it, if any, goes into the journal."""
        path = request.path.partition("?")[0]
        if request.method == "POST" and path == "/dev/bulkV2":
            return self._take(_FAST2SMS, request)
        if request.method == "POST" and _is_twilio(path):
            return self._take(_TWILIO, request)
        if request.method == "GET" and (said := self._what_became_of(path)) is not None:
            return _Answer(200, _json(said), delay=self.latency)
        if path == "/journal" and request.method in ("GET", "DELETE"):
            return self._show_journal(clear=request.method == "DELETE")
        if path == "/script" and request.method == "POST":
            return self._read_script(request.body)
        return _Answer(404, _json({"code": 20404, "message": "not found", "status": 404}))

    def _take(self, face: "_Face", request: _Request) -> _Answer:
        fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
        to = face.recipient(fields)
        message_id = face.new_id()
        with self._changed:
            reply = self._next_reply(face.name, to) or face.check(fields, request.headers)
            entry = Entry(
                carrier=face.name,
                to=to,
                body=face.text(fields),
                at=time.time(),
                accepted=reply.accepted,
                message_id=message_id if reply.accepted else "",
                fields=fields,
                headers=request.headers,
                connection=request.connection,
            )
            self._entries.append(entry)
            self._sent[entry.message_id] = to
            self._count += entry.accepted
            self._changed.notify_all()
        if self._journal_file is not None:
            self._journal_file.write(json.dumps(asdict(entry)) + "\n")
        delay = self.latency if reply.delay is None else reply.delay
        if reply.status is None and reply.body is None:
            status, body = face.accepted(fields, message_id)
        else:
            status, body = reply.status or 200, face.error(reply)
        return _Answer(status, body, reply.headers, delay, reply.fault)

    def _what_became_of(self, path: str) -> dict[str, Any] | None:
        """What its carrier says about the message in `path`; None if that names none which was taken."""
        if (sms := _TWILIO_MESSAGE.fullmatch(path)) and sms[1] in self._sent:
            return {"sid": sms[1], "status": "delivered", "error_code": None}
        if (sms := _FAST2SMS_MESSAGE.fullmatch(path)) and (to := self._sent.get(sms[1])):
            report = {"mobile": to.removeprefix("+91"), "status": "Delivered", "status_description": "", "sms_count": 1}
            return {"success": True, "data": [{"request_id": sms[1], "delivery_status": [report]}]}
        return None

    def _next_reply(self, carrier: str, to: str) -> Reply | None:
        for key in ((carrier, to), (None, to), (carrier, None), (None, None)):
            script = self._scripts.get(key)
            if script:
                reply = script.popleft()
                if reply.times == FOREVER:
                    script.appendleft(reply)
                elif reply.times > 1:
                    script.appendleft(replace(reply, times=reply.times - 1))
                return reply
        return None

    def _show_journal(self, *, clear: bool) -> _Answer:
        messages = [asdict(entry) for entry in self.journal()]
        if clear:
            self.clear()
        return _Answer(200, _json({"messages": messages, "connections": self._connections}))

    def _read_script(self, body: bytes) -> _Answer:
        try:
            wanted = json.loads(body)
            replies = [Reply(**reply) for reply in wanted["replies"]]
            self.script(wanted.get("to"), *replies, carrier=wanted.get("carrier"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _Answer(400, _json({"message": f"{type(error).__name__}: {error}"}))
        return _Answer(200, b"{}")

    def opened(self, connection: "_Connection") -> int:
        """Count a new connection and give it its number."""
        self._open.add(connection)
        self._connections += 1
        return self._connections

    def closed(self, connection: "_Connection") -> None:
        self._open.discard(connection)


class _Face:
    """How one carrier looks from outside."""

    name: str

    def recipient(self, fields: Mapping[str, str]) -> str:
        raise NotImplementedError

    def text(self, fields: Mapping[str, str]) -> str:
        raise NotImplementedError

    def new_id(self) -> str:
        raise NotImplementedError

    def check(self, fields: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        """The reply to a request nothing was scripted for."""
        raise NotImplementedError

    def accepted(self, fields: Mapping[str, str], message_id: str) -> tuple[int, bytes]:
        raise NotImplementedError

    def error(self, reply: Reply) -> bytes:
        raise NotImplementedError


class _Twilio(_Face):
    name = "twilio"

    def recipient(self, fields: Mapping[str, str]) -> str:
        return fields.get("To", "")

    def text(self, fields: Mapping[str, str]) -> str:
        return fields.get("Body", "")

    def new_id(self) -> str:
        return "SM" + secrets.token_hex(16)

    def check(self, fields: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        to, body = fields.get("To", ""), fields.get("Body", "")
        if not headers.get("authorization", "").startswith("Basic "):
            return Reply.refuse(401, 20003, message="Authenticate")
        if not (to.startswith("+") and to[1:].isdigit() and 8 <= len(to) <= 16):
            message = f"The 'To' number {to} is not a valid phone number."
            return Reply.refuse(400, 21211, message=message)
        if not (fields.get("From") or fields.get("MessagingServiceSid")):
            return Reply.refuse(400, 21603, message="A 'From' phone number is required.")
        if not body:
            return Reply.refuse(400, 21602, message="Message body is required.")
        if len(body) > 1600:
            return Reply.refuse(400, 21617, message="The concatenated message body exceeds 1600.")
        return Reply.accept()

    def accepted(self, fields: Mapping[str, str], message_id: str) -> tuple[int, bytes]:
        service = fields.get("MessagingServiceSid")
        now = formatdate(usegmt=False)
        return 201, _json(
            {
                "account_sid": ACCOUNT_SID,
                "api_version": "2010-04-01",
                "body": fields.get("Body", ""),
                "date_created": now,
                "date_sent": None,
                "date_updated": now,
                "direction": "outbound-api",
                "error_code": None,
                "error_message": None,
                "from": fields.get("From"),
                "messaging_service_sid": service,
                "num_media": "0",
                "num_segments": "0" if service else "1",
                "price": None,
                "price_unit": "USD",
                "sid": message_id,
                "status": "accepted" if service else "queued",
                "subresource_uris": {"media": f"/2010-04-01/Accounts/{ACCOUNT_SID}/Messages/{message_id}/Media.json"},
                "to": fields.get("To", ""),
                "uri": f"/2010-04-01/Accounts/{ACCOUNT_SID}/Messages/{message_id}.json",
            }
        )

    def error(self, reply: Reply) -> bytes:
        if reply.body is not None:
            return _bytes(reply.body)
        status = reply.status or 200
        code = reply.code or {401: 20003, 404: 20404, 429: 20429, 500: 20500}.get(status, status)
        return _json(
            {
                "code": code,
                "message": reply.message or _phrase(status),
                "more_info": f"https://www.twilio.com/docs/errors/{code}",
                "status": status,
            }
        )


class _Fast2SMS(_Face):
    name = "fast2sms"

    def recipient(self, fields: Mapping[str, str]) -> str:
        return "+91" + fields.get("numbers", "")

    def text(self, fields: Mapping[str, str]) -> str:
        if fields.get("route") == "dlt":
            return f"{fields.get('message', '')}|{fields.get('variables_values', '')}"
        return fields.get("message", "")

    def new_id(self) -> str:
        return secrets.token_hex(8)[:15]

    def check(self, fields: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        number = fields.get("numbers", "")
        if not headers.get("authorization"):
            message = "Invalid Authentication, Check Authorization Key"
            return Reply.refuse(401, 412, message=message)
        if fields.get("route") not in ("q", "dlt"):
            return Reply.refuse(400, 408, message="Invalid Route")
        if not fields.get("message"):
            return Reply.refuse(400, 402, message="Message Field is Empty")
        if not (len(number) == 10 and number.isdigit() and number[0] in "6789"):
            return Reply.refuse(400, 411, message="Invalid Numbers")
        return Reply.accept()

    def accepted(self, fields: Mapping[str, str], message_id: str) -> tuple[int, bytes]:
        message = ["SMS sent successfully."]
        return 200, _json({"return": True, "request_id": message_id, "message": message})

    def error(self, reply: Reply) -> bytes:
        if reply.body is not None:
            return _bytes(reply.body)
        status = reply.status or 200
        message = reply.message or _phrase(status)
        return _json({"return": False, "status_code": reply.code or status, "message": message})


_TWILIO: Final = _Twilio()
_FAST2SMS: Final = _Fast2SMS()


class _Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; bodies need a Content-Length.

    Written by hand because the server shares two processors with what it measures: an HTTP
    framework would spend more time on a request than the worker does.
    """

    def __init__(self, carrier: LocalCarrier) -> None:
        self._carrier = carrier
        self._buffer = b""
        self._busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._carrier.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier.closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next()

    def drop(self) -> None:
        self._transport.abort()

    def _next(self) -> None:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._busy = True
        self._buffer = rest[length:]
        method, path, _ = lines[0].split(" ", 2)
        answer = self._carrier.answer(_Request(method, path, headers, rest[:length], self._number))
        if answer.delay > 0:
            asyncio.get_running_loop().call_later(answer.delay, self._write, answer)
        else:
            self._write(answer)

    def _write(self, answer: _Answer) -> None:
        if self._transport.is_closing() or answer.fault == "hang":
            return
        if answer.fault == "reset":
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
            return
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        head = (
            f"HTTP/1.1 {answer.status} {_phrase(answer.status)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n{extra}\r\n"
        ).encode("latin-1")
        if answer.fault == "truncate":
            self._transport.write(head + answer.body[: len(answer.body) // 2])
            self._transport.close()
        elif answer.fault == "drip":
            self._transport.write(head)
            self._drip(answer.body)
        else:
            self._transport.write(head + answer.body)
            self._done()

    def _drip(self, body: bytes) -> None:
        if not body:
            self._done()
        elif not self._transport.is_closing():
            self._transport.write(body[:1])
            asyncio.get_running_loop().call_later(DRIP_SECONDS, self._drip, body[1:])

    def _done(self) -> None:
        self._busy = False
        if self._buffer:
            self._next()


def _is_twilio(path: str) -> bool:
    return path.startswith("/2010-04-01/Accounts/") and path.endswith(("/Messages.json", "/Calls.json"))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A local carrier for tests and benchmarks.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--journal", type=Path, help="append each message to this file as JSON")
    options = parser.parse_args(argv)
    # Blocked before the server's thread starts, so that it inherits the mask.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # What it keeps is no garbage, and looking for some would show as lateness of the senders.
    gc.disable()
    with LocalCarrier(latency=options.latency, port=options.port, journal=options.journal) as carrier:
        print(carrier.url, flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
