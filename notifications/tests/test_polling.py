"""Asking the carriers: for messages without a receipt, for lost answers, and for the wallet."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from django.db import connections

from casualmeet import clock
from notifications import polling, receipts
from notifications.carriers import fast2sms_status, routing, twilio_status
from notifications.carriers.receipt import Receipt
from notifications.carriers.transport import Transport
from notifications.models import CarrierHealth, DeliveryAttempt, Notification
from notifications.tests.deliveries import BRITISH, INDIAN, SID, accepted, attempt, delivery, seen
from notifications.tests.sending import alone
from safety.tests.factories import PersonFactory
from testing.database import in_hand

ACCOUNT = "AC" + "0123456789abcdef" * 2
CALL_SID = "CA" + "0123456789abcdef" * 2
AUTH = (ACCOUNT, "the-token")
KEY = {"authorization": "the-key"}
REQUEST_ID = "lwdtp7cjyqxvfe9"
MESSAGE = f"/2010-04-01/Accounts/{ACCOUNT}/Messages/{SID}.json"
MESSAGES = f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json"
CALL = f"/2010-04-01/Accounts/{ACCOUNT}/Calls/{CALL_SID}.json"
DLR = f"/dev/dlr/{REQUEST_ID}"
WALLET = "/dev/wallet"

MALFORMED: list[tuple[int, Any]] = [
    (200, b""),
    (200, b"<html>ok</html>"),
    (200, b'{"status": "deliv'),
    (200, b"\xff\xfe"),
    (200, b"[]"),
    (200, b"null"),
    (200, b"[" * 5000),
    (200, {}),
    (302, {"status": "delivered", "sid": SID}),
    (404, {"code": 20404, "message": "not found", "status": 404}),
    (429, {"code": 20429}),
    (500, b"Internal Server Error"),
    (502, b"<html>Bad gateway</html>"),
]


class Carrier:
    """A local carrier that answers what it is told to, after `seconds`; `asked` holds the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.seconds = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.rfile.read(int(headers.get("content-length", 0)))
                outer.asked.append((self.command, self.path, headers))
                time.sleep(outer.seconds)
                status, body = outer.answers.get(urlsplit(self.path).path, (404, {"code": 20404}))
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]


@pytest.fixture
def carrier(settings: Any) -> Iterator[Carrier]:
    """Both carriers are configured, at one local server."""
    server = Carrier()
    settings.TWILIO_ACCOUNT_SID, settings.TWILIO_AUTH_TOKEN = AUTH
    settings.TWILIO_FROM = "+15005550006"
    settings.FAST2SMS_API_KEY = KEY["authorization"]
    settings.TWILIO_API_BASE_URL = settings.FAST2SMS_API_BASE_URL = server.url
    routing.reset()
    yield server
    server.close()
    routing.reset()


def call(server: Carrier, function: Any, *args: Any, **more: Any) -> Any:
    """What an asking function returns for this carrier."""

    async def run() -> Any:
        transport = Transport(server.url)
        try:
            return await function(transport, *args, **more)
        finally:
            await transport.close()

    return asyncio.run(run())


def dlr(status: Any, *, ok: str = "success", mobile: Any = 9988700001, **more: Any) -> dict[str, Any]:
    """A delivery report of Fast2SMS, as public clients show it."""
    entry = {"mobile": mobile, "status": status, "status_description": "as told", "sms_count": 1, **more}
    return {ok: True, "data": [{"request_id": REQUEST_ID, "delivery_status": [entry]}]}


def listed(**changes: Any) -> dict[str, Any]:
    """A message in Twilio's list."""
    created = format_datetime(datetime(2026, 5, 4, 12, 0, 1, tzinfo=UTC))
    return {
        "sid": SID,
        "to": BRITISH,
        "body": "SOS K7Q: Asha Rao …",
        "date_created": created,
        "date_sent": None,
        "direction": "outbound-api",
        "status": "queued",
        **changes,
    }


class TestTwilio:
    def fetch(self, server: Carrier, sid: str = SID) -> Receipt | None:
        found: Receipt | None = call(server, twilio_status.fetch_status, AUTH, sid)
        return found

    def test_a_message_is_asked_for_by_its_sid_with_our_credentials(self, carrier: Carrier) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "undelivered", "error_code": 30005}
        assert self.fetch(carrier) == Receipt("undelivered", code="30005")
        ((method, path, headers),) = carrier.asked
        assert (method, path) == ("GET", MESSAGE)
        assert headers["authorization"] == "Basic " + base64.b64encode(":".join(AUTH).encode()).decode()

    @pytest.mark.parametrize(
        ("answered_by", "status"), [(None, "completed"), ("human", "completed"), ("machine_start", "voicemail")]
    )
    def test_a_call_is_asked_for_too(self, carrier: Carrier, answered_by: str | None, status: str) -> None:
        carrier.answers[CALL] = 200, {"sid": CALL_SID, "status": "completed", "answered_by": answered_by}
        assert self.fetch(carrier, CALL_SID) == Receipt(status)

    @pytest.mark.parametrize(("status", "body"), MALFORMED)
    def test_a_malformed_answer_says_nothing(self, carrier: Carrier, status: int, body: Any) -> None:
        carrier.answers[MESSAGE] = status, body
        assert self.fetch(carrier) is None

    @pytest.mark.parametrize("more", [{"sid": "SM" + "f" * 32}, {"sid": None}, {"status": None}, {"status": 7}])
    def test_an_answer_about_something_else_says_nothing(self, carrier: Carrier, more: dict[str, Any]) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "delivered", **more}
        assert self.fetch(carrier) is None

    @pytest.mark.parametrize("sid", ["", "SIM123", "../../Accounts", SID + "\n", SID + "/x"])
    def test_what_is_no_sid_is_not_asked_for(self, carrier: Carrier, sid: str) -> None:
        assert self.fetch(carrier, sid) is None
        assert carrier.asked == []

    def test_a_carrier_that_is_away_says_nothing(self, carrier: Carrier) -> None:
        carrier.close()
        assert self.fetch(carrier) is None


class TestFindMessage:
    SINCE = datetime(2026, 5, 4, 12, 0, 0, 900_000, tzinfo=UTC)

    def find(self, server: Carrier, *messages: Any, reference: str = "K7Q") -> str | None:
        server.answers[MESSAGES] = 200, {"messages": list(messages)}
        found: str | None = call(
            server, twilio_status.find_message, AUTH, to=BRITISH, since=self.SINCE, reference=reference
        )
        return found

    def test_the_message_with_our_reference_is_found_among_others(self, carrier: Carrier) -> None:
        others = [listed(sid="SM" + "1" * 32, body="All clear, M2P"), "garbage", None, {}]
        assert self.find(carrier, *others, listed()) == SID
        ((_, path, _),) = carrier.asked
        assert parse_qs(urlsplit(path).query)["To"] == [BRITISH]

    @pytest.mark.parametrize(
        "change",
        [
            {"to": INDIAN},
            {"body": "another text"},
            {"body": None},
            {"direction": "inbound"},
            {"status": "failed"},
            {"status": "undelivered"},
            {"sid": "XX"},
            {"sid": None},
            {"date_created": None},
            {"date_created": "yesterday"},
            {"date_created": format_datetime(SINCE - timedelta(minutes=1))},
        ],
    )
    def test_any_other_message_is_not_taken_for_it(self, carrier: Carrier, change: dict[str, Any]) -> None:
        assert self.find(carrier, listed(**change)) is None

    def test_twilios_whole_seconds_and_either_way_to_write_a_time_are_fine(self, carrier: Carrier) -> None:
        for created in ("Mon, 04 May 2026 12:00:00 +0000", "2026-05-04T12:00:00Z"):
            assert self.find(carrier, listed(date_created=created)) == SID

    def test_without_a_reference_nothing_is_found(self, carrier: Carrier) -> None:
        assert self.find(carrier, listed(), reference="") is None

    @pytest.mark.parametrize(("status", "body"), [*MALFORMED, (200, {"messages": {}}), (200, {"messages": None})])
    def test_a_malformed_answer_finds_nothing(self, carrier: Carrier, status: int, body: Any) -> None:
        carrier.answers[MESSAGES] = status, body
        found = call(carrier, twilio_status.find_message, AUTH, to=BRITISH, since=self.SINCE, reference="K7Q")
        assert found is None


class TestFast2SMS:
    def fetch(self, server: Carrier, body: Any, status: int = 200, to: str = INDIAN) -> Receipt | None:
        server.answers[DLR] = status, body
        found: Receipt | None = call(server, fast2sms_status.fetch_status, KEY, REQUEST_ID, to=to)
        return found

    @pytest.mark.parametrize("ok", ["success", "return"])
    @pytest.mark.parametrize("mobile", [9988700001, "9988700001", "919988700001", "+919988700001"])
    def test_every_known_shape_of_a_report_is_read(self, carrier: Carrier, ok: str, mobile: Any) -> None:
        assert self.fetch(carrier, dlr("Delivered", ok=ok, mobile=mobile)) == Receipt("delivered")
        ((method, path, headers),) = carrier.asked
        assert (method, path, headers["authorization"]) == ("GET", DLR, KEY["authorization"])

    @pytest.mark.parametrize(
        ("said", "receipt"),
        [
            ("delivered", Receipt("delivered")),
            ("DELIVERED ", Receipt("delivered")),
            ("Failed", Receipt("failed", code="as told")),
            ("Rejected", Receipt("failed", code="as told")),
            ("Sent", Receipt("sent")),
            ("Pending", Receipt("sent")),
            ("A new word", None),
            ("", None),
            (None, None),
            (7, None),
        ],
    )
    def test_its_words_become_ours(self, carrier: Carrier, said: Any, receipt: Receipt | None) -> None:
        assert self.fetch(carrier, dlr(said)) == receipt

    def test_reports_without_their_lists_are_read(self, carrier: Carrier) -> None:
        body = {"success": True, "data": {"delivery_status": {"status": "Delivered"}}}
        assert self.fetch(carrier, body) == Receipt("delivered")

    def test_the_report_of_another_message_or_number_is_not_taken(self, carrier: Carrier) -> None:
        body = dlr("Delivered")
        assert self.fetch(carrier, dlr("Delivered", mobile=9000000000)) is None
        body["data"][0]["request_id"] = "another"
        assert self.fetch(carrier, body) is None

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            *MALFORMED,
            (200, {"return": False, "status_code": 412, "message": "Invalid Authentication"}),
            (200, {"success": True}),
            (200, {"success": True, "data": "soon"}),
            (200, {"success": True, "data": [None, 7, {"delivery_status": [None, "Delivered"]}]}),
            (200, {"success": "true", "data": [{"delivery_status": [{"status": "Delivered"}]}]}),
        ],
    )
    def test_a_malformed_answer_says_nothing(self, carrier: Carrier, status: int, body: Any) -> None:
        assert self.fetch(carrier, body, status) is None

    @pytest.mark.parametrize(
        ("body", "rupees"),
        [
            ({"return": True, "wallet": "75.0000", "sms_count": 300}, 75.0),
            ({"return": True, "wallet": "1,075.50"}, 1075.5),
            ({"return": True, "wallet": 12}, 12.0),
            ({"return": True, "wallet": "0"}, 0.0),
            ({"return": False, "status_code": 416, "message": "low"}, 0.0),
            ({"return": False, "status_code": "416"}, 0.0),
            ({"return": False, "status_code": 412}, None),
            ({"return": True}, None),
            ({"return": True, "wallet": True}, None),
            ({"return": True, "wallet": "NaN"}, None),
            ({"return": True, "wallet": "plenty"}, None),
            ({"wallet": "75"}, None),
            (b"<html>", None),
        ],
    )
    def test_the_wallet_is_read(self, carrier: Carrier, body: Any, rupees: float | None) -> None:
        carrier.answers[WALLET] = 200, body
        assert call(carrier, fast2sms_status.wallet, KEY) == rupees
        assert carrier.paths() == [WALLET]


@pytest.mark.django_db
class TestPollDue:
    def due(self, to: str = BRITISH, **changes: Any) -> DeliveryAttempt:
        """A message that was accepted 90 s ago."""
        now = clock.now()
        then = now - timedelta(seconds=90)
        one = accepted(to, poll_at=now, **changes)
        DeliveryAttempt.objects.filter(pk=one.pk).update(started_at=then, finished_at=then)
        return cast("DeliveryAttempt", seen(one))

    def test_what_the_carrier_says_is_recorded(self, carrier: Carrier) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "delivered", "error_code": None}
        one = self.due()
        assert polling.poll_due(clock.now(), 10, run=alone) == 1
        assert (seen(one).receipt, seen(one).poll_at) == ("delivered", None)
        assert seen(one.delivery).status == "delivered"

    def test_fast2sms_is_asked_by_its_request_id(self, carrier: Carrier) -> None:
        carrier.answers[DLR] = 200, dlr("Failed")
        one = self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID)
        polling.poll_due(clock.now(), 10, run=alone)
        row = seen(one.delivery)
        assert (seen(one).receipt, seen(one).receipt_code) == ("failed", "as told")
        assert (row.status, row.carrier) == ("queued", "twilio")

    def test_a_call_is_asked_for_with_the_same_account(self, carrier: Carrier) -> None:
        carrier.answers[CALL] = 200, {"sid": CALL_SID, "status": "no-answer"}
        row = delivery(status="accepted", channel="voice", carrier="twilio-voice", finished_at=clock.now())
        one = attempt(row, carrier="twilio-voice", carrier_message_id=CALL_SID, poll_at=clock.now())
        polling.poll_due(clock.now(), 10, run=alone)
        assert seen(one).receipt == "no-answer"

    def test_it_is_asked_for_at_90_s_at_5_and_at_15_minutes_and_then_no_more(self, carrier: Carrier) -> None:
        one = self.due()
        begun = one.finished_at
        ages = []
        while (at := seen(one).poll_at) is not None:
            assert polling.poll_due(at - timedelta(milliseconds=1), 10, run=alone) == 0
            assert polling.poll_due(at, 10, run=alone) == 1
            ages.append((at - begun).total_seconds())
        assert ages == [90, 300, 900]
        assert len(carrier.asked) == 3

    def test_a_webhook_has_it_asked_for_at_once_and_leaves_the_other_times(self, carrier: Carrier) -> None:
        one = self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID)
        carrier.answers[DLR] = 200, dlr("Delivered")
        now = one.started_at + timedelta(seconds=2)
        assert polling.ask_soon("fast2sms", [REQUEST_ID, "nobody"], now=now) == 1
        assert polling.poll_due(now, 10, run=alone) == 1
        assert seen(one.delivery).status == "delivered"

    def test_a_late_delivery_corrects_a_failure(self, carrier: Carrier) -> None:
        one = self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID)
        receipts.record(one.pk, "failed", code="", carrier="fast2sms", now=clock.now())
        carrier.answers[DLR] = 200, dlr("Delivered")
        polling.ask_soon("fast2sms", [REQUEST_ID], now=clock.now())
        polling.poll_due(clock.now(), 10, run=alone)
        assert seen(one.delivery).status == "delivered"

    def test_a_malformed_answer_leaves_everything_to_the_next_time(self, carrier: Carrier) -> None:
        one = self.due()
        for answer in MALFORMED:
            carrier.answers[MESSAGE] = answer
            DeliveryAttempt.objects.update(poll_at=clock.now())
            assert polling.poll_due(clock.now(), 10, run=alone) == 1
            assert (seen(one).receipt, seen(one.delivery).status) == ("", "accepted"), answer
            assert seen(one).poll_at > clock.now()

    def test_several_processes_ask_about_each_once(self, carrier: Carrier, transactional_db: None) -> None:
        due = {self.due().pk for _ in range(40)}
        now = clock.now()
        barrier = threading.Barrier(4)

        def ask(_: int) -> list[UUID]:
            try:
                barrier.wait()
                claimed: list[UUID] = []
                while some := polling._claim(5, now=now):
                    claimed += [one.pk for one in some]
                return claimed
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            claimed = [pk for some in pool.map(ask, range(4)) for pk in some]
        assert len(claimed) == 40
        assert set(claimed) == due
        assert not DeliveryAttempt.objects.filter(poll_at__lte=now).exists()

    @pytest.mark.slow
    def test_what_a_slow_carrier_leaves_no_time_for_is_asked_in_the_next_round(
        self, carrier: Carrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker that is to stop must not wait for a hundred answers that don't come."""
        monkeypatch.setattr(polling, "AT_ONCE", 1)
        monkeypatch.setattr(polling, "ROUND_SECONDS", 1.0)
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "delivered"}
        carrier.seconds = 1.1
        rows = [self.due() for _ in range(3)]
        now = clock.now()
        for left in (2, 1, 0):
            assert polling.poll_due(now, 10, run=alone) == 1
            assert DeliveryAttempt.objects.filter(poll_at__lte=now).count() == left
        assert len(carrier.asked) == 3
        assert {seen(one.delivery).status for one in rows} == {"delivered"}

    def test_what_another_process_has_in_hand_is_passed_over(self, carrier: Carrier, transactional_db: None) -> None:
        """Else all of them would take the same batch, and all but one would ask about nothing."""
        held, *others = [self.due() for _ in range(3)]
        with in_hand(DeliveryAttempt.objects.filter(pk=held.pk), keep=False, poll_at=None):
            assert {one.pk for one in polling._claim(2, now=clock.now())} == {one.pk for one in others}
        assert [one.pk for one in polling._claim(2, now=clock.now())] == [held.pk]

    def test_p6_a_failure_whose_consequence_a_crash_prevented_is_made_good(self, carrier: Carrier) -> None:
        one = self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID)
        DeliveryAttempt.objects.update(receipt="failed", receipt_rank=receipts.FINAL)
        polling.poll_due(clock.now(), 10, run=alone)
        assert (seen(one.delivery).status, seen(one.delivery).carrier) == ("queued", "twilio")

    def test_what_is_known_to_be_delivered_is_not_asked_for(self, carrier: Carrier) -> None:
        one = self.due()
        DeliveryAttempt.objects.update(receipt="delivered", receipt_rank=receipts.FINAL)
        assert polling.poll_due(clock.now(), 10, run=alone) == 0
        assert carrier.asked == []
        assert (seen(one).poll_at, seen(one.delivery).status) == (None, "delivered")

    def test_p14_one_that_can_not_be_stored_does_not_hold_up_the_others(
        self, carrier: Carrier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "delivered"}
        broken, other = self.due(), self.due()
        record = receipts.record_all

        def fails(attempt_ids: Sequence[UUID], *args: Any, **more: Any) -> int:
            if broken.pk in attempt_ids:
                raise ValueError("broken row")
            return record(attempt_ids, *args, **more)

        monkeypatch.setattr(receipts, "record_all", fails)
        polling.poll_due(clock.now(), 10, run=alone)
        assert seen(other.delivery).status == "delivered"
        assert seen(broken.delivery).status == "accepted"

    @pytest.mark.django_db(transaction=True)
    def test_p14_nor_one_from_which_nothing_can_follow(self, carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
        carrier.answers[DLR] = 200, dlr("Failed")
        rows = [self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID) for _ in range(3)]
        broken = rows[1]
        fail = receipts.fail_after_acceptance

        def fails(row: Any, *args: Any) -> bool:
            if row.pk == broken.delivery_id:
                raise ValueError("broken row")
            return fail(row, *args)

        monkeypatch.setattr(receipts, "fail_after_acceptance", fails)
        polling.poll_due(clock.now(), 10, run=alone)
        assert [seen(one.delivery).status for one in rows] == ["queued", "accepted", "queued"]

    @pytest.mark.django_db(transaction=True)  # as in a worker: in no transaction
    def test_many_are_asked_for_at_once_each_with_what_follows_for_it(self, carrier: Carrier) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "delivered"}
        carrier.answers[DLR] = 200, dlr("Failed")
        texts = [self.due() for _ in range(4)]
        failing = [self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID) for _ in range(2)]
        # Known already, but a crash came before what follows.
        DeliveryAttempt.objects.filter(pk=texts[3].pk).update(
            receipt="read", receipt_rank=receipts.MESSAGE_RANKS["read"]
        )
        young = self.due()
        later = clock.now() - timedelta(seconds=10)
        DeliveryAttempt.objects.filter(pk=young.pk).update(started_at=later, finished_at=later)
        now = clock.now()
        assert polling.poll_due(now, 10, run=alone) == 6
        assert [seen(one.delivery).status for one in texts] == ["delivered"] * 4
        assert [(seen(one).receipt, seen(one).poll_at) for one in texts] == [*[("delivered", None)] * 3, ("read", None)]
        assert [(row.status, row.carrier) for row in (seen(one.delivery) for one in failing)] == [
            ("queued", "twilio")
        ] * 2
        assert seen(young).receipt == "delivered"

    def test_those_that_say_nothing_yet_are_asked_for_again_each_at_its_age(self, carrier: Carrier) -> None:
        carrier.answers[MESSAGE] = 200, {"sid": SID, "status": "sent"}
        now = clock.now()
        expected = {}
        for seconds, then in ((10, 90), (100, 300), (400, 900), (1000, None)):
            one = self.due()
            at = now - timedelta(seconds=seconds)
            DeliveryAttempt.objects.filter(pk=one.pk).update(started_at=at, finished_at=at)
            expected[one.pk] = at + timedelta(seconds=then) if then else None
        assert polling.poll_due(now + timedelta(seconds=1), 10, run=alone) == 4
        assert {one.pk: one.poll_at for one in DeliveryAttempt.objects.all()} == expected
        assert set(DeliveryAttempt.objects.values_list("receipt", flat=True)) == {"sent"}

    def test_no_more_than_the_limit_are_taken_the_longest_waiting_first(self, carrier: Carrier) -> None:
        late = self.due()
        DeliveryAttempt.objects.update(poll_at=clock.now() - timedelta(minutes=1))
        self.due()
        assert polling.poll_due(clock.now(), 1, run=alone) == 1
        assert seen(late).poll_at > clock.now()

    def test_a_carrier_that_is_not_configured_any_more_is_not_asked(self, carrier: Carrier, settings: Any) -> None:
        settings.FAST2SMS_API_KEY = ""
        routing.reset()
        self.due(INDIAN, carrier="fast2sms", carrier_message_id=REQUEST_ID)
        polling.poll_due(clock.now(), 10, run=alone)
        assert carrier.asked == []

    def test_one_round_looks_at_messages_and_wallet(self, carrier: Carrier) -> None:
        carrier.answers[WALLET] = 200, {"return": True, "wallet": "500"}
        self.due()
        assert polling.run_once(clock.now(), run=alone) == 1
        assert polling.run_once(clock.now(), run=alone) == 0
        assert sorted(carrier.paths()) == sorted([MESSAGE, WALLET])

    def test_pushes_and_simulated_texts_are_never_asked_for(self) -> None:
        for name in ("webpush", "fcm", "simulated"):
            assert polling.first_poll(name, clock.now()) is None


@pytest.mark.django_db
class TestWallet:
    def check(self, server: Carrier, rupees: str | None, *, minutes: float = 0) -> CarrierHealth | None:
        if rupees is not None:
            server.answers[WALLET] = 200, {"return": True, "wallet": rupees}
        polling.check_wallet(clock.now() + timedelta(minutes=minutes), run=alone)
        return CarrierHealth.objects.filter(name="fast2sms").first()

    def test_the_balance_is_kept_and_nothing_else_happens(self, carrier: Carrier) -> None:
        PersonFactory.create(is_staff=True)
        health = self.check(carrier, "200.0000")
        assert health is not None
        assert (health.balance, health.open_until) == (200.0, None)
        assert not Notification.objects.exists()

    def test_it_is_looked_at_every_five_minutes_whoever_asks(self, carrier: Carrier) -> None:
        self.check(carrier, "500")
        self.check(carrier, "500", minutes=4.9)
        assert len(carrier.asked) == 1
        self.check(carrier, "400", minutes=5)
        assert CarrierHealth.objects.get().balance == 400.0

    def test_a_low_balance_alarms_each_moderator_once_a_day(self, carrier: Carrier) -> None:
        moderator = PersonFactory.create(is_staff=True)
        PersonFactory.create()
        for minutes in (0, 6):
            self.check(carrier, "199.99", minutes=minutes)
        # The round after midnight may fall between: the same key counts for the whole day.
        days = {(clock.now() + timedelta(minutes=minutes)).date() for minutes in (0, 6)}
        assert Notification.objects.filter(recipient=moderator, kind="alarm").count() == len(days)
        assert "199.99" in Notification.objects.values_list("body", flat=True)[0]
        self.check(carrier, "150", minutes=60 * 24 + 7)
        assert Notification.objects.count() == len(days) + 1

    @pytest.mark.parametrize("answer", [{"return": True, "wallet": "0.0000"}, {"return": False, "status_code": 416}])
    def test_an_empty_wallet_opens_the_circuit(self, carrier: Carrier, answer: dict[str, Any]) -> None:
        carrier.answers[WALLET] = 200, answer
        now = clock.now()
        polling.check_wallet(now, run=alone)
        assert CarrierHealth.objects.get().open_until == now + timedelta(minutes=5)

    def test_a_circuit_that_is_open_for_longer_stays_so(self, carrier: Carrier) -> None:
        until = clock.now() + timedelta(hours=1)
        CarrierHealth.objects.create(name="fast2sms", open_until=until)
        self.check(carrier, "0")
        assert CarrierHealth.objects.get().open_until == until

    def test_no_answer_keeps_what_is_known(self, carrier: Carrier) -> None:
        CarrierHealth.objects.create(name="fast2sms", balance=120.0)
        PersonFactory.create(is_staff=True)
        carrier.answers[WALLET] = 502, b"<html>"
        health = self.check(carrier, None)
        assert health is not None
        assert (health.balance, health.open_until) == (120.0, None)
        assert not Notification.objects.exists()

    def test_without_fast2sms_there_is_no_wallet(self, carrier: Carrier, settings: Any) -> None:
        settings.FAST2SMS_API_KEY = ""
        routing.reset()
        assert self.check(carrier, "0") is None
        assert carrier.asked == []

    def test_the_limit_is_a_setting(self, carrier: Carrier, settings: Any) -> None:
        settings.FAST2SMS_LOW_BALANCE = 1000.0
        PersonFactory.create(is_staff=True)
        self.check(carrier, "999")
        assert Notification.objects.count() == 1


def test_the_settings_have_their_defaults(settings: Any) -> None:
    assert settings.FAST2SMS_LOW_BALANCE == 200.0
    assert settings.TWILIO_AUTH_TOKEN_PREVIOUS == settings.FAST2SMS_WEBHOOK_SECRET == ""
