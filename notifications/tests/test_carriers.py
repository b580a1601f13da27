"""The carriers against a real HTTP server: every answer, and every way to get none."""

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from notifications.carriers import fast2sms_status, routing, transport, twilio_status
from notifications.carriers.base import Answer, Carrier, Outcome, OutgoingMessage
from notifications.carriers.errors import FAST2SMS_ERRORS, TWILIO_ERRORS, http_error
from notifications.carriers.fast2sms import Fast2SMSCarrier
from notifications.carriers.loop import CarrierLoop
from notifications.carriers.receipt import Receipt
from notifications.carriers.simulated import SimulatedCarrier
from notifications.carriers.twilio import VALIDITY_PERIOD, TwilioCarrier
from testing.carrier import ACCOUNT_SID, API_KEY, AUTH_TOKEN, FOREVER, LocalCarrier, Reply

INDIA = "+919812345678"
BRITAIN = "+447700900123"
SENDER = "+15005550006"
SID = "SM" + "a1" * 16

BOTH = pytest.mark.parametrize("name", ["twilio", "fast2sms"])


@pytest.fixture(scope="module")
def loop() -> Iterator[CarrierLoop]:
    loop = CarrierLoop()
    yield loop
    loop.close()


@pytest.fixture(autouse=True)
def _this_loop(loop: CarrierLoop) -> Iterator[None]:
    global LOOP
    LOOP = loop
    yield
    for carrier in BUILT:
        loop.run(carrier.close())
    BUILT.clear()


LOOP: CarrierLoop
BUILT: list[Carrier] = []


def send(carrier: Carrier, message: OutgoingMessage) -> Answer:
    """One call, in the loop that all of them share."""
    BUILT.append(carrier)
    return LOOP.run(carrier.send(message))


def send_all(carrier: Carrier, messages: list[OutgoingMessage], *, at_once: int) -> list[Answer]:
    """All of them, so many at the same time."""
    slots = asyncio.Semaphore(at_once)
    BUILT.append(carrier)

    async def one(message: OutgoingMessage) -> Answer:
        async with slots:
            return await carrier.send(message)

    async def every() -> list[Answer]:
        return await asyncio.gather(*map(one, messages))

    return LOOP.run(every())


@pytest.fixture
def local() -> Iterator[LocalCarrier]:
    with LocalCarrier() as carrier:
        yield carrier


def message(to: str = INDIA, text: str = "SOS (CasualMeet): Priya", **more: Any) -> OutgoingMessage:
    values: dict[str, Any] = {
        "kind": "sos",
        "variables": ("Priya Sharma", "21:20 IST"),
        "language": "en",
        "attempt_id": uuid.uuid4(),
    }
    return OutgoingMessage(to=to, text=text, **(values | more))


def twilio(url: str, **more: Any) -> TwilioCarrier:
    return TwilioCarrier(ACCOUNT_SID, AUTH_TOKEN, **({"sender": SENDER, "base_url": url} | more))


def fast2sms(url: str, **more: Any) -> Fast2SMSCarrier:
    return Fast2SMSCarrier(API_KEY, **({"base_url": url} | more))


def build(name: str, url: str, **more: Any) -> Carrier:
    return twilio(url, **more) if name == "twilio" else fast2sms(url, **more)


def answer_to(local: LocalCarrier, name: str, reply: Reply, **more: Any) -> Answer:
    local.script(INDIA, reply)
    return send(build(name, local.url, **more), message())


# What goes over the wire


def test_twilio_request(local: LocalCarrier) -> None:
    answer = send(twilio(local.url), message(BRITAIN))
    [entry] = local.journal()
    assert entry.fields == {
        "To": BRITAIN,
        "From": SENDER,
        "Body": "SOS (CasualMeet): Priya",
        "ValidityPeriod": str(VALIDITY_PERIOD),
    }
    credentials = base64.b64encode(f"{ACCOUNT_SID}:{AUTH_TOKEN}".encode()).decode()
    assert entry.headers["authorization"] == f"Basic {credentials}"
    assert entry.headers["content-type"] == "application/x-www-form-urlencoded"
    assert answer.outcome is Outcome.ACCEPTED
    assert answer.carrier_message_id == entry.message_id
    assert answer.http_status == 201
    assert answer.error_class == answer.error_code == ""
    assert json.loads(answer.raw)["status"] == "queued"


def test_twilio_messaging_service_wins_over_the_number(local: LocalCarrier) -> None:
    service = "MG" + "0" * 32
    answer = send(twilio(local.url, messaging_service_sid=service), message())
    [entry] = local.journal()
    assert entry.fields["MessagingServiceSid"] == service
    assert "From" not in entry.fields
    assert answer.outcome is Outcome.ACCEPTED
    assert json.loads(answer.raw)["status"] == "accepted"


def test_twilio_base_url_may_have_a_path(local: LocalCarrier) -> None:
    answer = send(twilio(f"{local.url}/proxy/"), message())
    assert (answer.outcome, answer.http_status) == (Outcome.PERMANENT, 404)
    assert local.journal() == []


def test_twilio_region_of_the_environment_does_not_redirect(
    local: LocalCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWILIO_REGION", "ie1")
    monkeypatch.setenv("TWILIO_EDGE", "dublin")
    assert send(twilio(local.url), message()).outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(("text", "language"), [("SOS at 28.61390,77.20900", "english"), ("मदद चाहिए", "unicode")])
def test_fast2sms_quick_request(local: LocalCarrier, text: str, language: str) -> None:
    answer = send(fast2sms(local.url), message(text=text))
    [entry] = local.journal()
    assert entry.fields == {
        "route": "q",
        "numbers": "9812345678",
        "flash": "0",
        "message": text,
        "language": language,
    }
    assert entry.to == INDIA
    assert entry.headers["authorization"] == API_KEY
    assert answer.outcome is Outcome.ACCEPTED
    assert answer.carrier_message_id == entry.message_id
    assert json.loads(answer.raw)["return"] is True


@pytest.mark.parametrize(("language", "template"), [("en", "1001"), ("hi", "1002")])
def test_fast2sms_template_request(local: LocalCarrier, language: str, template: str) -> None:
    carrier = fast2sms(
        local.url,
        route="dlt",
        sender_id="CSMEET",
        templates={"sos": "1001", "sos:hi": "1002"},
    )
    variables = ("Priya | Sharma", "21:20 IST")
    answer = send(carrier, message(language=language, variables=variables))
    [entry] = local.journal()
    assert entry.fields == {
        "route": "dlt",
        "numbers": "9812345678",
        "flash": "0",
        "sender_id": "CSMEET",
        "message": template,
        "variables_values": "Priya   Sharma|21:20 IST",
    }
    assert answer.outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    ("options", "to", "error_class"),
    [
        ({"route": "dlt", "sender_id": "CSMEET"}, INDIA, "config"),
        ({"route": "dlt", "templates": {"sos": "1001"}}, INDIA, "config"),
        ({"route": "otp"}, INDIA, "config"),
        ({}, BRITAIN, "bad_recipient"),
        ({}, "+911123456789", "bad_recipient"),
        ({}, "+9198123456789", "bad_recipient"),
        ({}, "9812345678", "bad_recipient"),
        ({}, INDIA + "\n", "bad_recipient"),
    ],
)
def test_fast2sms_refuses_without_a_call(
    local: LocalCarrier, options: dict[str, Any], to: str, error_class: str
) -> None:
    answer = send(fast2sms(local.url, **options), message(to))
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, error_class)
    assert answer.detail
    assert local.connections == 0


@BOTH
def test_half_a_surrogate_pair_does_not_stop_the_message(local: LocalCarrier, name: str) -> None:
    assert send(build(name, local.url), message(text="SOS \ud83d")).outcome is Outcome.ACCEPTED
    assert local.accepted()[0].body == "SOS ?"


def test_fast2sms_key_is_not_replaced_by_a_netrc_entry(
    local: LocalCarrier, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    send(fast2sms(local.url), message())
    assert local.journal()[0].headers["authorization"] == API_KEY


def test_the_local_carrier_asked_later_says_that_what_it_took_was_delivered(local: LocalCarrier) -> None:
    """Or benchmarks would measure a carrier that never knows of a message, about which each is asked for three times."""
    british, indian = twilio(local.url), fast2sms(local.url)
    abroad = send(british, message(BRITAIN)).carrier_message_id
    at_home = send(indian, message(INDIA)).carrier_message_id

    def asked(sid: str, request_id: str) -> list[Receipt | None]:
        return [
            LOOP.run(twilio_status.fetch_status(british.transport, british.auth, sid)),
            LOOP.run(fast2sms_status.fetch_status(indian.transport, indian.headers, request_id, to=INDIA)),
        ]

    assert asked(abroad, at_home) == [Receipt("delivered")] * 2
    assert asked("SM" + "0" * 32, "0" * 15) == [None, None]


def test_simulated_accepts_everything_and_names_the_attempt() -> None:
    carrier: Carrier = SimulatedCarrier()
    sent = message(BRITAIN)
    assert send(carrier, sent) == Answer(Outcome.ACCEPTED, carrier_message_id=f"SIM{sent.attempt_id.hex}")
    assert carrier.simulated


def test_number_and_words_are_not_in_the_repr() -> None:
    shown = repr(message())
    assert "98123" not in shown
    assert "Priya" not in shown


# Error codes


@pytest.mark.parametrize(("code", "error_class"), sorted(TWILIO_ERRORS.items()))
def test_twilio_error_codes(local: LocalCarrier, code: int, error_class: str) -> None:
    answer = answer_to(local, "twilio", Reply.refuse(400, code, message="No."))
    expected = Outcome.TRANSIENT if error_class in ("throttled", "transient") else Outcome.PERMANENT
    assert answer.outcome is expected
    assert answer.error_class == error_class
    assert answer.error_code == str(code)
    assert answer.http_status == 400
    assert answer.detail == "No."
    assert json.loads(answer.raw)["code"] == code


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (21211, "bad_recipient"),
        (21614, "bad_recipient"),
        (21610, "opt_out"),
        (21408, "geo"),
        (21606, "config"),
        (20003, "auth"),
        (21617, "content"),
        (20429, "throttled"),
        (30003, "transient"),
        (30036, "expired"),
    ],
)
def test_twilio_error_classes(code: int, error_class: str) -> None:
    assert TWILIO_ERRORS[code] == error_class


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(("code", "error_class"), sorted(FAST2SMS_ERRORS.items()))
def test_fast2sms_error_codes(local: LocalCarrier, code: int, error_class: str, status: int) -> None:
    answer = answer_to(local, "fast2sms", Reply.refuse(status, code, message="No."))
    assert answer.outcome is Outcome.PERMANENT
    assert answer.error_class == error_class
    assert answer.error_code == str(code)
    assert answer.http_status == status
    assert answer.detail == "No."


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (401, "config"),
        (411, "bad_recipient"),
        (412, "auth"),
        (416, "config"),
        (426, "content"),
        (500, "config"),
        (995, "throttled"),
        (999, "config"),
    ],
)
def test_fast2sms_error_classes(code: int, error_class: str) -> None:
    assert FAST2SMS_ERRORS[code] == error_class


@BOTH
@pytest.mark.parametrize(
    ("status", "outcome", "error_class"),
    [
        (400, Outcome.PERMANENT, ""),
        (401, Outcome.PERMANENT, "auth"),
        (403, Outcome.PERMANENT, "auth"),
        (404, Outcome.PERMANENT, ""),
        (408, Outcome.TRANSIENT, "transient"),
        (409, Outcome.PERMANENT, ""),
        (429, Outcome.TRANSIENT, "throttled"),
        (500, Outcome.TRANSIENT, "transient"),
        (502, Outcome.TRANSIENT, "transient"),
        (503, Outcome.TRANSIENT, "transient"),
        (599, Outcome.TRANSIENT, "transient"),
    ],
)
def test_unlisted_code_is_judged_by_the_http_status(
    local: LocalCarrier, name: str, status: int, outcome: Outcome, error_class: str
) -> None:
    answer = answer_to(local, name, Reply.refuse(status, 77777))
    assert (answer.outcome, answer.error_class) == (outcome, error_class)
    assert answer.error_code == "77777"
    assert "77777" in answer.raw


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.UNKNOWN),
        (302, Outcome.PERMANENT),
        (404, Outcome.PERMANENT),
        (429, Outcome.TRANSIENT),
        (500, Outcome.TRANSIENT),
        (502, Outcome.UNKNOWN),
        (503, Outcome.TRANSIENT),
        (504, Outcome.UNKNOWN),
        (524, Outcome.UNKNOWN),
    ],
)
def test_answer_not_in_the_carriers_form(status: int, outcome: Outcome) -> None:
    assert http_error(status, readable=False)[0] is outcome


def test_fast2sms_message_may_be_a_list_and_the_code_a_string(local: LocalCarrier) -> None:
    body = '{"return": false, "status_code": "411", "message": ["Invalid Numbers", 7]}'
    answer = answer_to(local, "fast2sms", Reply(status=400, body=body))
    assert (answer.error_class, answer.detail) == ("bad_recipient", "Invalid Numbers")


def test_fast2sms_refusal_without_a_known_code_is_permanent_even_with_200(
    local: LocalCarrier,
) -> None:
    answer = answer_to(local, "fast2sms", Reply(status=200, body='{"return": false}'))
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "")


def test_fast2sms_success_counts_whatever_the_http_status(local: LocalCarrier) -> None:
    body = '{"return": true, "request_id": "lwdtp7cjyqxvfe9", "message": ["Sent"]}'
    answer = answer_to(local, "fast2sms", Reply(status=500, body=body))
    assert (answer.outcome, answer.carrier_message_id) == (Outcome.ACCEPTED, "lwdtp7cjyqxvfe9")


def test_twilio_message_that_failed_at_once_is_not_accepted(local: LocalCarrier) -> None:
    body = json.dumps({"sid": SID, "status": "failed", "error_code": 21610})
    answer = answer_to(local, "twilio", Reply(status=201, body=body))
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "opt_out")
    assert answer.carrier_message_id == SID


# Answers that are none

DEEP = "[" * 60000
HUGE = b'{"x": "' + b"y" * 3_000_000 + b'"}'
HTML = "<html><head><title>502 Bad Gateway</title></head></html>"
GARBAGE: list[str | bytes] = [
    "",
    " ",
    "null",
    "true",
    "[]",
    '[{"sid": "x"}]',
    '"sid"',
    "17",
    "1" * 5000,
    "NaN",
    HTML,
    '{"sid": "SM',
    '{"return": true, "request_id": "lw',
    "{}",
    '{"sid": null, "return": null}',
    '{"sid": 17, "return": 1, "request_id": "abc"}',
    '{"sid": ["SM"], "return": "true", "request_id": "abc"}',
    '{"sid": "hello", "return": true}',
    '{"sid": "", "return": true, "request_id": ""}',
    '{"sid": {}, "return": true, "request_id": " "}',
    '{"return": true, "request_id": ["abc"]}',
    '{"return": true, "request_id": null}',
    '{"code": 21211, "message": "invalid"}',
    '{"code": {}, "message": [], "status": "x", "date_created": 7}',
    '{"type": 1, "title": 2, "status": 3, "code": 4}',
    b"\xff\xfe\x00\x01",
    b'{"sid": "\xff\xff"}',
    b"\x00\x00\x00",
    DEEP,
    HUGE,
]


WITHOUT_A_READABLE_BODY = {
    200: Outcome.UNKNOWN,
    201: Outcome.UNKNOWN,
    302: Outcome.PERMANENT,
    400: Outcome.PERMANENT,
    429: Outcome.TRANSIENT,
    500: Outcome.TRANSIENT,
    503: Outcome.TRANSIENT,
}


@BOTH
@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_classified_and_kept(local: LocalCarrier, name: str, body: str | bytes) -> None:
    carrier = build(name, local.url)
    for status, outcome in WITHOUT_A_READABLE_BODY.items():
        local.script(INDIA, Reply(status=status, body=body))
        answer = send(carrier, message())
        assert answer.outcome is not Outcome.ACCEPTED
        if "code" not in str(body):  # an error in the carrier's own form may say more
            assert answer.outcome is outcome
        assert answer.http_status == status
        assert len(answer.raw) <= 4000
        assert "\0" not in answer.raw
        answer.raw.encode()  # no lone surrogates
        if isinstance(body, str):
            assert answer.raw == body[:4000]


@BOTH
@pytest.mark.parametrize("fault", ["truncate", "reset", "hang"])
@pytest.mark.parametrize("accepted", [True, False], ids=["after accept", "before accept"])
def test_lost_answer_is_unknown(local: LocalCarrier, name: str, fault: Any, accepted: bool) -> None:
    answer = answer_to(local, name, Reply(accepted=accepted, fault=fault), read_timeout=0.3)
    assert answer.outcome is Outcome.UNKNOWN
    assert len(local.accepted()) == accepted


@BOTH
@pytest.mark.parametrize(("status", "outcome"), [(400, Outcome.PERMANENT), (503, Outcome.TRANSIENT)])
def test_status_is_enough_when_the_body_is_cut_off(
    local: LocalCarrier, name: str, status: int, outcome: Outcome
) -> None:
    answer = answer_to(local, name, Reply(status=status, fault="truncate"))
    assert (answer.outcome, answer.http_status) == (outcome, status)
    assert answer.raw


@BOTH
def test_answer_that_trickles_in_is_given_up(local: LocalCarrier, name: str) -> None:
    started = time.monotonic()
    answer = answer_to(
        local,
        name,
        Reply(accepted=True, body="x" * 500, fault="drip"),
        connect_timeout=0.2,
        read_timeout=0.3,
    )
    assert answer.outcome is Outcome.UNKNOWN
    assert answer.raw.startswith("xx")
    assert time.monotonic() - started < 5


@BOTH
def test_read_timeout_ends_the_wait(local: LocalCarrier, name: str) -> None:
    started = time.monotonic()
    answer = answer_to(local, name, Reply.accept(delay=30.0), read_timeout=0.3)
    assert answer.outcome is Outcome.UNKNOWN
    assert "Timeout" in answer.detail
    assert 0.3 <= time.monotonic() - started < 5


@BOTH
def test_strange_texts_in_an_answer_can_be_stored(local: LocalCarrier, name: str) -> None:
    body = r'{"code": 21211, "return": false, "status_code": 411, "message": "a\u0000b\ud800c"}'
    answer = answer_to(local, name, Reply(status=400, body=body))
    assert answer.error_class == "bad_recipient"
    assert answer.detail == "a?b?c"


# No connection


@BOTH
def test_refused_connection_is_transient(name: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # held, but nobody listens
        answer = send(build(name, f"http://127.0.0.1:{held.getsockname()[1]}"), message())
    assert (answer.outcome, answer.error_class) == (Outcome.TRANSIENT, "transient")
    assert answer.http_status is None


@BOTH
def test_unresolvable_name_is_transient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    answer = send(build(name, "http://carrier.invalid"), message())
    assert answer.outcome is Outcome.TRANSIENT
    assert "DNS" in answer.detail


@BOTH
def test_connect_timeout_is_transient(name: str) -> None:
    with full_listener() as url:
        answer = send(build(name, url, connect_timeout=0.3), message())
    assert answer.outcome is Outcome.TRANSIENT
    assert "Timeout" in answer.detail


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """A port whose queue of waiting connections is full, so that further ones hang."""
    with contextlib.ExitStack() as held, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@BOTH
@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_failed_tls_handshake_is_transient(name: str, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        answering = threads.submit(send, build(name, url), message())
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(greeting)
        answer = answering.result()
    assert (answer.outcome, answer.error_class) == (Outcome.TRANSIENT, "transient")


@BOTH
def test_tls_handshake_that_hangs_is_transient(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        answer = send(build(name, url, connect_timeout=0.3), message())
    assert answer.outcome is Outcome.TRANSIENT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    public, private = folder / "certificate.pem", folder / "key.pem"
    public.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return public, private


def tls_url(local: LocalCarrier, certificate: tuple[Path, Path]) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return local.also_serve_tls(context)


@BOTH
def test_tls_connection_is_verified_and_reused(
    local: LocalCarrier, name: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    carrier = build(name, tls_url(local, certificate))
    assert [send(carrier, message()).outcome for _ in range(3)] == [Outcome.ACCEPTED] * 3
    assert local.connections == 1


@BOTH
def test_certificate_nobody_vouches_for_is_refused_before_anything_is_sent(
    local: LocalCarrier, name: str, certificate: tuple[Path, Path]
) -> None:
    answer = send(build(name, tls_url(local, certificate)), message())
    assert (answer.outcome, answer.error_class) == (Outcome.TRANSIENT, "transient")
    assert "CERTIFICATE_VERIFY_FAILED" in answer.detail
    assert local.journal() == []


@BOTH
@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1", "http://[", "http://*"])
def test_unusable_base_url_is_a_config_error(name: str, url: str) -> None:
    answer = send(build(name, url), message())
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "config")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("twilio", "schlüssel-\u0939"),
        ("fast2sms", "schlüssel-\u0939"),
        ("fast2sms", "key\nX-Injected: 1"),
    ],
)
def test_unusable_credential_is_a_config_error_that_does_not_show_it(
    local: LocalCarrier, name: str, secret: str
) -> None:
    carrier: Carrier = (
        TwilioCarrier(ACCOUNT_SID, secret, sender=SENDER, base_url=local.url)
        if name == "twilio"
        else Fast2SMSCarrier(secret, base_url=local.url)
    )
    answer = send(carrier, message())
    assert (answer.outcome, answer.error_class) == (Outcome.PERMANENT, "config")
    assert secret[:3] not in answer.detail
    assert local.journal() == []


# Retry-After


@BOTH
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "17"}, 17.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "99999999999999"}, 86400.0),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Mon, 99 Foo 2026 99:99:99 GMT"}, None),
        ({"Retry-After": formatdate(1e9 + 90, usegmt=True), "Date": formatdate(1e9)}, 90.0),
        ({"Retry-After": formatdate(1e9 - 90, usegmt=True), "Date": formatdate(1e9)}, 0.0),
        ({"Retry-After": formatdate(1e9, usegmt=True), "Date": "today"}, 0.0),
    ],
    ids=str,
)
def test_retry_after(local: LocalCarrier, name: str, headers: dict[str, str], seconds: float | None) -> None:
    answer = answer_to(local, name, Reply.refuse(429, 20429, headers=headers))
    assert answer.outcome is Outcome.TRANSIENT
    assert answer.retry_after == seconds


def test_retry_after_date_without_a_date_header_uses_the_local_clock(local: LocalCarrier) -> None:
    later = formatdate(time.time() + 60, usegmt=True)
    answer = answer_to(local, "twilio", Reply.refuse(503, headers={"Retry-After": later}))
    assert answer.retry_after == pytest.approx(60, abs=5)


# Connections


@BOTH
def test_connections_are_reused(local: LocalCarrier, name: str) -> None:
    local.latency = 0.02
    carrier = build(name, local.url)
    answers = send_all(carrier, [message() for _ in range(400)], at_once=40)
    assert {answer.outcome for answer in answers} == {Outcome.ACCEPTED}
    assert len({answer.carrier_message_id for answer in answers}) == 400
    assert local.connections <= 40


@BOTH
def test_answers_do_not_get_mixed_up(local: LocalCarrier, name: str) -> None:
    numbers = [f"+9198000{n:05}" for n in range(60)]
    for number in numbers[::3]:
        local.script(number, Reply.refuse(429))
    for number in numbers[1::3]:
        local.script(number, Reply.reset(accepted=True))
    carrier = build(name, local.url)
    answers = send_all(carrier, [message(number) for number in numbers], at_once=25)
    expected = [Outcome.TRANSIENT, Outcome.UNKNOWN, Outcome.ACCEPTED] * 20
    assert [answer.outcome for answer in answers] == expected
    ids = {entry.to: entry.message_id for entry in local.accepted()}
    for number, answer in zip(numbers[2::3], answers[2::3], strict=True):
        assert answer.carrier_message_id == ids[number]


@BOTH
def test_connection_is_replaced_when_the_carrier_closed_it(name: str) -> None:
    with LocalCarrier() as first:
        carrier = build(name, first.url)
        assert send(carrier, message()).outcome is Outcome.ACCEPTED
    with LocalCarrier(port=first.port) as second:
        assert send(carrier, message()).outcome is Outcome.ACCEPTED
        assert second.connections == 1


@pytest.mark.parametrize(("method", "again"), [("GET", True), ("POST", False)])
def test_only_what_is_safe_is_asked_again_where_the_carrier_closed_the_connection_meanwhile(
    method: str, again: bool
) -> None:
    """It closes each connection when a second request comes on it: whether that one was read, nobody knows."""
    requests_: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests_.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        requests_.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        line = transport.Transport(f"http://127.0.0.1:{port}")
        assert (await line.request(method, "/a?b=c")).fields() == {}
        if again:
            assert (await line.request(method, "/a?b=c")).fields() == {}
        else:
            with pytest.raises(transport.TransportError) as failure:
                await line.request(method, "/a?b=c")
            assert failure.value.outcome is Outcome.UNKNOWN
        await line.close()
        server.close()

    asyncio.run(run())
    assert [request.split(b"\r\n")[0].decode() for request in requests_] == [f"{method} /a?b=c HTTP/1.1"] * (2 + again)
    # RFC 9110, 8.6: sent with a method that may have a body, also where it has none.
    assert all((b"Content-Length: 0" in request) == (method == "POST") for request in requests_)


@pytest.mark.slow
@BOTH
def test_connection_that_idled_too_long_is_replaced(
    local: LocalCarrier, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_IDLE", 2.0)
    carrier = build(name, local.url)
    send(carrier, message())
    send(carrier, message())
    assert local.connections == 1
    time.sleep(2.1)
    assert send(carrier, message()).outcome is Outcome.ACCEPTED
    assert local.connections == 2


@BOTH
def test_cookies_are_not_kept(local: LocalCarrier, name: str) -> None:
    cookie = {"Set-Cookie": "__cf_bm=abc; Path=/"}
    carrier = build(name, local.url)
    local.script(INDIA, Reply.accept(headers=cookie))
    send(carrier, message())
    send(carrier, message())
    assert all("cookie" not in entry.headers for entry in local.journal())


# Routing


@pytest.fixture
def unconfigured(settings: Any) -> Any:
    for name, value in LocalCarrier().environment(twilio=False, fast2sms=False).items():
        setattr(settings, name, value)
    return settings


@pytest.mark.parametrize(
    ("with_twilio", "with_fast2sms", "india", "britain"),
    [
        (True, True, ("fast2sms", "twilio"), ("twilio",)),
        (True, False, ("twilio",), ("twilio",)),
        (False, True, ("fast2sms",), ()),
        (False, False, ("simulated",), ("simulated",)),
    ],
)
def test_route(
    unconfigured: Any,
    with_twilio: bool,
    with_fast2sms: bool,
    india: tuple[str, ...],
    britain: tuple[str, ...],
) -> None:
    values = LocalCarrier().environment(twilio=with_twilio, fast2sms=with_fast2sms)
    for name, value in values.items():
        setattr(unconfigured, name, value)
    assert routing.route(INDIA) == india
    assert routing.route(BRITAIN) == britain
    assert routing.real_carrier_configured() is (with_twilio or with_fast2sms)
    calls = ("twilio-voice",) if with_twilio else ()
    assert set(routing.configured()) == {*india, *britain, *calls}
    assert routing.route(INDIA, channel="voice") == (calls or tuple(name for name in india if name == "simulated"))
    assert all(routing.get(name) is routing.configured()[name] for name in india)
    assert routing.get("pigeon") is None
    assert routing.problems() == ()


def test_carriers_are_built_once_and_again_after_a_reset(unconfigured: Any) -> None:
    carrier = routing.get("simulated")
    assert routing.get("simulated") is carrier
    routing.reset()
    assert routing.get("simulated") is not carrier


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("TWILIO_ACCOUNT_SID", 2),
        ("TWILIO_AUTH_TOKEN", 2),
        ("TWILIO_FROM", 2),
        ("TWILIO_MESSAGING_SERVICE_SID", 2),
        ("FAST2SMS_SENDER_ID", 1),
    ],
)
def test_half_a_set_of_credentials_is_not_simulated(unconfigured: Any, name: str, missing: int) -> None:
    setattr(unconfigured, name, "something")
    assert routing.route(INDIA) == routing.route(BRITAIN) == ()
    assert routing.configured() == {}
    assert not routing.real_carrier_configured()
    assert len(routing.problems()) == missing


def test_configured_carriers_send_to_the_configured_places(unconfigured: Any, local: LocalCarrier) -> None:
    for name, value in local.environment().items():
        setattr(unconfigured, name, value)
    for name in routing.route(INDIA):
        carrier = routing.get(name)
        assert carrier is not None
        assert send(carrier, message()).outcome is Outcome.ACCEPTED
    assert [entry.carrier for entry in local.accepted()] == ["fast2sms", "twilio"]


# The local carrier itself


def test_scripts_are_used_up_most_specific_first(local: LocalCarrier) -> None:
    local.script(INDIA, Reply.refuse(503), carrier="twilio")
    local.script(INDIA, Reply.refuse(429, times=2))
    local.script(None, Reply.refuse(400, times=FOREVER), carrier="twilio")
    carrier = twilio(local.url)
    statuses = [send(carrier, message()).http_status for _ in range(5)]
    assert statuses == [503, 429, 429, 400, 400]
    assert send(fast2sms(local.url), message()).outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    ("sent", "code"),
    [(message("+44"), "21211"), (message(text=""), "21602"), (message(text="x" * 1601), "21617")],
)
def test_local_twilio_refuses_what_twilio_would(local: LocalCarrier, sent: OutgoingMessage, code: str) -> None:
    assert send(twilio(local.url), sent).error_code == code


def test_local_carriers_ask_for_credentials(local: LocalCarrier) -> None:
    form = {"route": "q", "numbers": "9812345678", "message": "hello"}
    answer = requests.post(f"{local.url}/dev/bulkV2", data=form, timeout=5)
    assert answer.status_code == 401
    path = f"/2010-04-01/Accounts/{ACCOUNT_SID}/Messages.json"
    assert requests.post(local.url + path, data={"To": INDIA}, timeout=5).json()["code"] == 20003


@pytest.mark.processes
def test_local_carrier_as_a_process(tmp_path: Any) -> None:
    journal = tmp_path / "journal.jsonl"
    command = [sys.executable, "-m", "testing.carrier", "--journal", str(journal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        script = {"to": INDIA, "replies": [{"status": 503}]}
        assert requests.post(f"{url}/script", json=script, timeout=5).status_code == 200
        assert requests.post(f"{url}/script", json={"to": 1}, timeout=5).status_code == 400
        carrier = twilio(url)
        assert send(carrier, message()).outcome is Outcome.TRANSIENT
        assert send(carrier, message()).outcome is Outcome.ACCEPTED
        shown = requests.get(f"{url}/journal", timeout=5).json()["messages"]
        assert [entry["accepted"] for entry in shown] == [False, True]
        assert requests.delete(f"{url}/journal", timeout=5).status_code == 200
        assert requests.get(f"{url}/journal", timeout=5).json()["messages"] == []
        process.terminate()
        assert process.wait(10) == 0
    assert [json.loads(line)["to"] for line in journal.read_text().splitlines()] == [INDIA, INDIA]


def test_local_carrier_waits_for_messages(local: LocalCarrier) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(send, twilio(local.url), message())
        assert len(local.wait_for(1)) == 1
    with pytest.raises(TimeoutError, match="1 of 2"):
        local.wait_for(2, timeout=0.01)
    local.clear()
    assert local.journal() == []
