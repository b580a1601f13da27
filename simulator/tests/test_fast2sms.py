"""The face of Fast2SMS."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
import requests

from simulator import Callbacks, Simulator, accept, html, refuse, undelivered
from simulator.credentials import FAST2SMS_API_KEY, FAST2SMS_WEBHOOK_SECRET
from simulator.fast2sms import IST
from simulator.tests.conftest import Site

RAVI = "9988712345"
PHONE = "+91" + RAVI


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.headers["authorization"] = FAST2SMS_API_KEY
        yield session


def send(sim: Simulator, session: requests.Session, **changes: Any) -> requests.Response:
    form = {"route": "q", "message": "Hello", "language": "english", "numbers": RAVI, "flash": "0", **changes}
    return session.post(f"{sim.url}/dev/bulkV2", data=form, timeout=10)


def report(sim: Simulator, session: requests.Session, request_id: str) -> Any:
    answer = session.get(f"{sim.url}/dev/dlr/{request_id}", timeout=10).json()
    assert answer["success"] is True
    return answer["data"][0]["delivery_status"][0]


def code(answer: requests.Response) -> tuple[int, int]:
    assert answer.json()["return"] is False
    return answer.status_code, answer.json()["status_code"]


def test_a_text_is_taken_and_reported_on(sim: Simulator, session: requests.Session) -> None:
    answer = send(sim, session)
    said = answer.json()
    assert (answer.status_code, said["return"], said["message"]) == (200, True, ["SMS sent successfully."])
    assert len(said["request_id"]) == 15
    sim.assert_exactly(PHONE, ["Hello"])
    found = report(sim, session, said["request_id"])
    assert (found["mobile"], found["status"], found["sms_count"]) == (int(RAVI), "Delivered", 1)


def test_it_may_come_by_get_and_as_json(sim: Simulator, session: requests.Session) -> None:
    values = {"route": "q", "message": "Hello", "language": "english", "numbers": RAVI}
    query = {**values, "authorization": FAST2SMS_API_KEY}
    assert requests.get(f"{sim.url}/dev/bulkV2", params=query, timeout=10).json()["return"] is True
    assert session.post(f"{sim.url}/dev/bulkV2", json=values, timeout=10).json()["return"] is True
    sim.assert_exactly(PHONE, ["Hello", "Hello"])


def test_the_wallet_pays_for_each_segment(sim: Simulator, session: requests.Session) -> None:
    sim.fast2sms.balance = Decimal(100)
    send(sim, session, message="x" * 161)
    answer = session.post(f"{sim.url}/dev/wallet", timeout=10).json()
    assert answer == {"return": True, "wallet": "90.0000", "sms_count": 18}


def test_an_empty_wallet_is_416(sim: Simulator, session: requests.Session) -> None:
    sim.fast2sms.balance = Decimal(0)
    assert code(send(sim, session)) == (400, 416)
    sim.assert_exactly(PHONE, [])


def test_repeats_to_one_number_are_995_until_the_cooldown_is_over(sim: Simulator, session: requests.Session) -> None:
    sim.fast2sms.repeat_limit = 2
    assert [send(sim, session).ok for _ in range(2)] == [True, True]
    assert code(send(sim, session)) == (400, 995)
    assert send(sim, session, numbers="9988712346").ok
    sim.advance(sim.fast2sms.cooldown + 1)
    assert send(sim, session).ok


@pytest.mark.parametrize(("hour", "status"), [(8, "Failed"), (9, "Delivered"), (20, "Delivered"), (21, "Failed")])
def test_promotions_only_arrive_by_day(site: Site, session: requests.Session, hour: int, status: str) -> None:
    start = datetime(2026, 11, 29, hour, 30, tzinfo=IST).timestamp()
    with Simulator(site.url, start=start, frozen=True) as sim:
        sim.fast2sms.promotional.add("1001")
        promotion = {"route": "dlt", "sender_id": "CASUAL", "variables_values": "a|b"}
        sent = send(sim, session, message="1001", **promotion).json()["request_id"]
        service = send(sim, session, message="1002", **promotion).json()["request_id"]
        sim.settle()
        assert report(sim, session, sent)["status"] == status
        assert report(sim, session, service)["status"] == "Delivered"


def test_templates_are_filled_in(sim: Simulator, session: requests.Session) -> None:
    sim.fast2sms.templates = {"1001": "{#var#} needs help: {#var#}"}
    sim.fast2sms.whitelisted = ("https://safety.example",)
    given = {"route": "dlt", "sender_id": "CASUAL"}
    assert send(sim, session, message="1001", variables_values="Asha|https://safety.example/i/x", **given).ok
    assert code(send(sim, session, message="1001", variables_values="Asha|http://elsewhere", **given)) == (400, 426)
    assert code(send(sim, session, message="1002", variables_values="a|b", **given)) == (400, 424)
    sim.assert_exactly(PHONE, ["Asha needs help: https://safety.example/i/x"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"route": "x"}, (400, 408)),
        ({"numbers": ""}, (400, 405)),
        ({"numbers": "+919988712345"}, (400, 411)),
        ({"message": ""}, (400, 402)),
        ({"language": "hindi"}, (400, 417)),
        ({"language": ""}, (400, 404)),
        ({"route": "dlt", "sender_id": "12"}, (400, 406)),
        ({"route": "otp", "variables_values": "abc"}, (400, 997)),
    ],
)
def test_what_is_wrong_with_it(
    sim: Simulator, session: requests.Session, changes: dict[str, str], expected: tuple[int, int]
) -> None:
    assert code(send(sim, session, **changes)) == expected


def test_a_wrong_key_opens_nothing(sim: Simulator, session: requests.Session) -> None:
    session.headers["authorization"] = f"Bearer {FAST2SMS_API_KEY}"
    assert code(send(sim, session)) == (401, 412)
    assert code(session.post(f"{sim.url}/dev/wallet", timeout=10)) == (401, 412)


def test_scripts_can_refuse_in_any_way(sim: Simulator, session: requests.Session) -> None:
    sim.on(to=PHONE).then(refuse(200, 415), refuse(500), html(502), undelivered(1))
    sim.on(operation="wallet").then(refuse(503))
    sim.on(operation="dlr").then(refuse(500))
    assert code(send(sim, session)) == (200, 415)
    assert send(sim, session).status_code == 500
    assert send(sim, session).text.startswith("<html>")
    sent = send(sim, session).json()["request_id"]
    assert session.post(f"{sim.url}/dev/wallet", timeout=10).status_code == 503
    assert session.get(f"{sim.url}/dev/dlr/{sent}", timeout=10).status_code == 500
    assert report(sim, session, sent)["status"] == "Failed"
    sim.assert_exactly(PHONE, [])


@pytest.mark.parametrize("as_form", [True, False])
def test_the_site_is_told_without_a_signature(
    sim: Simulator, session: requests.Session, site: Site, as_form: bool
) -> None:
    sim.fast2sms.webhook_form = as_form
    sim.on(to=PHONE).then(accept.but(callbacks=Callbacks(copies=1)))
    sent = send(sim, session).json()["request_id"]
    sim.settle()
    assert [got.path for got in site.got] == [f"/hooks/fast2sms/{FAST2SMS_WEBHOOK_SECRET}"] * 2
    got = site.got[0]
    assert "x-twilio-signature" not in got.headers
    assert got.form["request_id"] == sent if as_form else f'"request_id": "{sent}"' in got.form[""]


def test_a_report_may_be_late_or_lost(sim: Simulator, session: requests.Session, site: Site) -> None:
    sim.on(to=PHONE).then(accept.but(callbacks=Callbacks(late=3600)), accept.but(callbacks=Callbacks(lost=True)))
    send(sim, session)
    send(sim, session)
    sim.settle()
    assert site.got == []
    sim.advance(3600)
    assert len(site.got) == 1


def test_an_unknown_request_id_is_not_found(sim: Simulator, session: requests.Session) -> None:
    assert session.get(f"{sim.url}/dev/dlr/nothing", timeout=10).json()["success"] is False
