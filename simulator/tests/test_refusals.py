"""What Twilio does not take, and what it lets go only later: rejects, STOP lists, throttles, schedules."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from twilio.base.exceptions import TwilioRestException
from twilio.rest import Client

from simulator import Simulator, refuse
from simulator.credentials import ACCOUNT_SID, AUTH_TOKEN, FROM_NUMBER, MESSAGING_SERVICE_SID
from simulator.inbound import STOP_WORDS
from simulator.messages import EXPIRED, QUEUE_OVERFLOW
from simulator.tests.conftest import Site

TESS = "+447700900123"
OTHER_NUMBER = "+15005550009"


@pytest.fixture
def sim(site: Site) -> Iterator[Simulator]:
    with Simulator(site=site.url, frozen=True) as sim:
        yield sim


def send(client: Client, to: str = TESS, text: str = "Hello", **more: Any) -> Any:
    sender = {} if "messaging_service_sid" in more or "from_" in more else {"from_": FROM_NUMBER}
    return client.messages.create(to=to, body=text, **sender, **more)


def by_service(client: Client, **more: Any) -> Any:
    return send(client, messaging_service_sid=MESSAGING_SERVICE_SID, **more)


def refused(client: Client, **more: Any) -> tuple[int, int]:
    with pytest.raises(TwilioRestException) as caught:
        send(client, **more)
    return caught.value.status, caught.value.code


class TestRejects:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"to": "07700900123"}, 21211),
            ({"to": "+44"}, 21211),
            ({"text": ""}, 21602),
            ({"text": "x" * 1601}, 21617),
            ({"from_": OTHER_NUMBER}, 21606),
        ],
    )
    def test_what_is_wrong_with_it(self, client: Client, changes: dict[str, Any], code: int) -> None:
        assert refused(client, **changes) == (400, code)

    def test_sixteen_hundred_characters_are_taken(self, client: Client) -> None:
        assert send(client, text="x" * 1600).num_segments == "11"

    def test_what_the_account_does_not_allow(self, client: Client, sim: Simulator) -> None:
        sim.account.disabled_regions.add("+44")
        assert refused(client) == (400, 21408)
        sim.account.disabled_regions.clear()
        sim.account.landlines.add(TESS)
        assert refused(client) == (400, 21614)
        sim.account.landlines.clear()
        sim.account.verified = {"+447700900124"}
        assert refused(client) == (400, 21608)
        sim.account.pool.clear()
        assert refused(client, messaging_service_sid=MESSAGING_SERVICE_SID) == (400, 21703)

    @pytest.mark.parametrize(
        ("status", "code"), [(401, 20003), (404, 20404), (429, 20429), (500, 20500), (503, 20503), (400, 21610)]
    )
    def test_scripted_ones_have_twilios_form(self, client: Client, sim: Simulator, status: int, code: int) -> None:
        sim.on(to=TESS).then(refuse(status, code if status == 400 else None))
        url = f"{sim.url}/2010-04-01/Accounts/{ACCOUNT_SID}/Messages.json"
        form = {"To": TESS, "From": FROM_NUMBER, "Body": "Hello"}
        answer = requests.post(url, data=form, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=10)
        assert answer.status_code == status
        assert set(answer.json()) == {"code", "message", "more_info", "status"}
        assert (answer.json()["code"], answer.json()["status"]) == (code, status)

    def test_wrong_credentials_and_other_accounts(self, sim: Simulator) -> None:
        path = f"{sim.url}/2010-04-01/Accounts/{ACCOUNT_SID}/Messages.json"
        assert requests.get(path, auth=(ACCOUNT_SID, "wrong"), timeout=10).json()["code"] == 20003
        other = path.replace(ACCOUNT_SID, "AC" + "0" * 32)
        assert requests.get(other, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=10).json()["code"] == 20404

    def test_an_unknown_sid_is_not_found(self, client: Client) -> None:
        with pytest.raises(TwilioRestException) as caught:
            client.messages("SM" + "0" * 32).fetch()
        assert (caught.value.status, caught.value.code) == (404, 20404)

    def test_too_many_at_the_same_time(self, client: Client, sim: Simulator) -> None:
        sim.account.create_limit = 0
        assert refused(client) == (429, 20429)
        sim.assert_exactly(TESS, [])


class TestStopLists:
    @pytest.mark.parametrize("word", sorted(STOP_WORDS))
    def test_stop_words(self, client: Client, sim: Simulator, site: Site, word: str) -> None:
        send(client)
        sim.text_from(TESS, f" {word.lower()} ")
        assert site.got[-1].form["Body"] == f" {word.lower()} "
        assert refused(client) == (400, 21610)

    def test_through_a_service_it_is_taken_and_fails_later(self, client: Client, sim: Simulator, site: Site) -> None:
        sim.text_from(TESS, "STOP")
        site.got.clear()
        taken = by_service(client, status_callback=f"{site.url}/hooks/twilio/status/7")
        sim.settle()
        assert taken.status == "accepted"
        assert [(got.status, got.form["ErrorCode"]) for got in site.got] == [("failed", "21610")]
        sim.assert_exactly(TESS, [])

    @pytest.mark.parametrize("word", ["START", "YES", "UNSTOP"])
    def test_start_words(self, client: Client, sim: Simulator, word: str) -> None:
        sim.text_from(TESS, "STOP")
        sim.text_from(TESS, word)
        send(client)
        by_service(client)
        sim.assert_exactly(TESS, ["Hello", "Hello"])

    def test_it_holds_for_one_sender(self, client: Client, sim: Simulator) -> None:
        sim.account.pool.append(OTHER_NUMBER)
        sim.text_from(TESS, "STOP", to=FROM_NUMBER)
        assert refused(client) == (400, 21610)
        assert send(client, from_=OTHER_NUMBER).status == "queued"

    def test_the_carriers_own_answers_are_not_ours(self, sim: Simulator) -> None:
        sim.text_from(TESS, "STOP")
        sim.text_from(TESS, "HELP")
        assert [entry.author for entry in sim.journal.entries(TESS)] == ["person", "carrier"] * 2
        sim.assert_nothing_unexpected()

    def test_an_advanced_service_tells_what_it_understood(self, sim: Simulator, site: Site) -> None:
        sim.text_from(TESS, "STOP")
        sim.account.advanced_opt_out = True
        sim.text_from(TESS, "STOP")
        assert [got.form.get("OptOutType") for got in site.got] == [None, "STOP"]

    def test_a_scheduled_text_is_not_taken_back_by_stop(self, client: Client, sim: Simulator) -> None:
        soon = datetime.fromtimestamp(sim.clock.now(), UTC) + timedelta(hours=1)
        by_service(client, schedule_type="fixed", send_at=soon)
        sim.text_from(TESS, "STOP")
        sim.advance(3600)
        sim.assert_exactly(TESS, ["Hello"])


class TestPeople:
    def test_a_text_of_a_person_reaches_the_site(self, client: Client, sim: Simulator, site: Site) -> None:
        by_service(client)
        sim.text_from(TESS, "1")
        got = site.got[-1]
        assert got.path == "/hooks/twilio/sms"
        assert got.form["MessageSid"] == got.form["SmsSid"] == got.form["SmsMessageSid"]
        expected = {
            "AccountSid": ACCOUNT_SID,
            "Body": "1",
            "From": TESS,
            "MessagingServiceSid": MESSAGING_SERVICE_SID,
            "SmsStatus": "received",
            "To": FROM_NUMBER,
        }
        assert got.form.items() >= expected.items()

    def test_the_sites_answer_is_sent(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (200, "<Response><Message>Thank you &amp; goodbye</Message></Response>")
        sim.text_from(TESS, "1")
        sim.assert_exactly(TESS, ["Thank you & goodbye"])

    def test_no_more_than_thirty_answers_in_thirty_seconds(self, sim: Simulator, site: Site) -> None:
        site.answer = lambda _got: (200, "<Response><Message>Again</Message></Response>")
        for _ in range(31):
            sim.text_from(TESS, "1")
        assert len(sim.texts(TESS)) == 30
        assert sim.callbacks.alerts == [14107]
        sim.advance(31)
        sim.text_from(TESS, "1")
        assert len(sim.texts(TESS)) == 31


class TestPool:
    def test_each_person_hears_from_one_number(self, client: Client, sim: Simulator) -> None:
        sim.account.pool.append(OTHER_NUMBER)
        people = [f"+44770090012{number}" for number in range(4)]
        for _ in range(2):
            for person in people:
                by_service(client, to=person)
        sim.settle()
        senders = {person: {entry.sender for entry in sim.journal.entries(person)} for person in people}
        assert all(len(numbers) == 1 for numbers in senders.values())
        assert set().union(*senders.values()) == {FROM_NUMBER, OTHER_NUMBER}


class TestThrottles:
    def test_a_sender_lets_go_one_at_a_time(self, client: Client, sim: Simulator) -> None:
        sim.account.mps = 1
        for number in range(3):
            send(client, text=str(number))
        assert sim.texts(TESS) == ["0"]
        sim.advance(1)
        assert sim.texts(TESS) == ["0", "1"]
        sim.advance(1)
        sim.assert_exactly(TESS, ["0", "1", "2"])

    def test_long_texts_take_the_time_of_their_segments(self, client: Client, sim: Simulator) -> None:
        sim.account.mps = 1
        for _ in range(2):
            send(client, text="x" * 161)
        sim.advance(1.9)
        assert len(sim.texts(TESS)) == 1
        sim.advance(0.2)
        assert len(sim.texts(TESS)) == 2

    def test_what_waits_longer_than_it_is_valid_fails(self, client: Client, sim: Simulator) -> None:
        sim.account.mps = 0.01
        send(client)
        late = send(client, validity_period=60)
        sim.advance(59)
        assert client.messages(late.sid).fetch().status == "queued"
        sim.advance(2)
        found = client.messages(late.sid).fetch()
        assert (found.status, found.error_code) == ("failed", EXPIRED)

    def test_the_queue_holds_ten_hours(self, client: Client, sim: Simulator) -> None:
        sim.account.mps = 1 / 36_001
        send(client)
        late = send(client)
        sim.advance(36_000)
        found = client.messages(late.sid).fetch()
        assert (found.status, found.error_code) == ("failed", QUEUE_OVERFLOW)


class TestSchedules:
    def at(self, sim: Simulator, seconds: float) -> datetime:
        return datetime.fromtimestamp(int(sim.clock.now()) + seconds, UTC)

    def test_it_is_sent_at_its_time(self, client: Client, sim: Simulator, site: Site) -> None:
        callback = f"{site.url}/hooks/twilio/status/7"
        made = by_service(client, schedule_type="fixed", send_at=self.at(sim, 3600), status_callback=callback)
        assert (made.status, made.num_segments) == ("scheduled", "0")
        sim.advance(3590)
        assert sim.texts(TESS) == []
        assert site.got == []
        sim.advance(10)
        assert site.statuses() == ["sending", "sent", "delivered"]
        sim.assert_exactly(TESS, ["Hello"])

    def test_it_can_be_canceled_until_then(self, client: Client, sim: Simulator, site: Site) -> None:
        callback = f"{site.url}/hooks/twilio/status/7"
        made = by_service(client, schedule_type="fixed", send_at=self.at(sim, 3600), status_callback=callback)
        assert client.messages(made.sid).update(status="canceled").status == "canceled"
        sim.advance(7200)
        assert site.statuses() == ["canceled"]
        sim.assert_exactly(TESS, [])
        with pytest.raises(TwilioRestException) as caught:
            client.messages(made.sid).update(status="canceled")
        assert caught.value.code == 30409

    def test_canceling_may_fail(self, client: Client, sim: Simulator) -> None:
        made = by_service(client, schedule_type="fixed", send_at=self.at(sim, 3600))
        sim.on(to=TESS, operation="cancel").then(refuse(503))
        with pytest.raises(TwilioRestException):
            client.messages(made.sid).update(status="canceled")
        assert client.messages(made.sid).fetch().status == "scheduled"

    @pytest.mark.parametrize("seconds", [0, 890, 35 * 86400 + 10])
    def test_only_from_fifteen_minutes_to_thirty_five_days(
        self, client: Client, sim: Simulator, seconds: float
    ) -> None:
        with pytest.raises(TwilioRestException) as caught:
            by_service(client, schedule_type="fixed", send_at=self.at(sim, seconds))
        assert caught.value.code == 35114

    def test_without_a_service_it_goes_out_at_once(self, client: Client, sim: Simulator) -> None:
        assert send(client, schedule_type="fixed", send_at=self.at(sim, 3600)).status == "queued"
        sim.assert_exactly(TESS, ["Hello"])


class TestSegments:
    @pytest.mark.parametrize(
        ("text", "segments"),
        [
            ("x" * 160, 1),
            ("x" * 161, 2),
            ("x" * 306, 2),
            ("x" * 307, 3),
            ("€" * 80, 1),
            ("€" * 81, 2),
            ("é" * 160, 1),
            ("ध" * 70, 1),
            ("ध" * 71, 2),
            ("ध" * 134, 2),
            ("ध" * 135, 3),
            ("🆘" * 35, 1),
            ("🆘" * 36, 2),
        ],
    )
    def test_counted_and_priced(self, client: Client, sim: Simulator, text: str, segments: int) -> None:
        made = send(client, text=text)
        sim.settle()
        assert made.num_segments == str(segments)
        assert client.messages(made.sid).fetch().price == f"-{segments * 0.0083:.5f}"
        assert sim.journal.received(TESS)[0].segments == segments

    @pytest.mark.parametrize(("length", "too_long"), [(1530, False), (1531, True)])
    def test_more_than_ten_are_marked(self, client: Client, sim: Simulator, length: int, too_long: bool) -> None:
        made = send(client, text="x" * length)
        assert sim.twilio.messages[made.sid].too_long is too_long


class TestLookups:
    def test_a_number_is_looked_up(self, client: Client, sim: Simulator) -> None:
        sim.account.landlines.add("+442079460123")
        mobile = client.lookups.v2.phone_numbers(TESS).fetch(fields="line_type_intelligence")
        assert (mobile.country_code, mobile.calling_country_code) == ("GB", "44")
        landline = client.lookups.v2.phone_numbers("+442079460123").fetch(fields="line_type_intelligence")
        assert landline.line_type_intelligence["type"] == "landline"
        assert client.lookups.v2.phone_numbers("+4412").fetch().valid is False

    def test_it_may_fail(self, client: Client, sim: Simulator) -> None:
        sim.on(operation="lookup").then(refuse(503))
        with pytest.raises(TwilioRestException):
            client.lookups.v2.phone_numbers(TESS).fetch()
