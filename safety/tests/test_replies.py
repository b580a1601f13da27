"""Texts that come in: understood forgivingly, signed, counted once, answered seldom, and never kept or logged."""

import logging
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.hashers import make_password
from django.db import connections
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from casualmeet import clock
from notifications import inbound, optouts
from notifications.models import Delivery, InboundText, Notification, OptOut, Priority
from notifications.texts import MAX_SEGMENTS, Kind, segments
from safety import panic, pins, replies, stops, timers
from safety.models import MeetingTimer, TimerStatus, User
from safety.tests.factories import PASSWORD, ContactFactory, PersonFactory, TimerFactory
from safety.tests.people import Clock
from safety.texted import START_WORDS, STOP_WORDS, Texted, Verb, normalised, parse
from sos import incidents
from sos.models import AlertedContact, SosEvent
from testing import twilio_hooks

MINE = "+919812345678"
RAVI = "+919988776655"
PIN = "4711"

# The parser


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ("SAFE 1234", Texted(Verb.SAFE, pin="1234")),
        ("Safe  1234.", Texted(Verb.SAFE, pin="1234")),
        ("safe1234", Texted(Verb.SAFE, pin="1234")),
        ("  «safe», (1 2 3 4)!\n", Texted(Verb.SAFE, pin="1234")),
        ("SAFE <1234>", Texted(Verb.SAFE, pin="1234")),
        ("ＳＡＦＥ　１２３４", Texted(Verb.SAFE, pin="1234")),
        ("safe १२३४", Texted(Verb.SAFE, pin="1234")),
        ("सुरक्षित १२३४", Texted(Verb.SAFE, pin="1234")),
        ("I'm safe, my pin is 1234", Texted(Verb.SAFE, pin="1234")),
        ("I’m safe now", Texted(Verb.SAFE)),
        ("I am safe 12-34", Texted(Verb.SAFE, pin="1234")),
        ("safe", Texted(Verb.SAFE)),
        ("SA\u200bFE 1\u200d234", Texted(Verb.SAFE, pin="1234")),
        ("MORE", Texted(Verb.MORE, minutes=15)),
        ("MORE30", Texted(Verb.MORE, minutes=30)),
        ("more 30 min", Texted(Verb.MORE, minutes=30)),
        ("More: 30 minutes, please!", Texted(Verb.MORE, minutes=30)),
        ("more 30m", Texted(Verb.MORE, minutes=30)),
        ("30 more", Texted(Verb.MORE, minutes=30)),
        ("10 min more", Texted(Verb.MORE, minutes=10)),
        ("और ३० मिनट", Texted(Verb.MORE, minutes=30)),
        ("more time", Texted(Verb.MORE, minutes=15)),
        ("more 999999999", Texted(Verb.MORE, minutes=999999999)),
        ("HELP", Texted(Verb.HELP)),
        ("help!!!", Texted(Verb.HELP)),
        ("Help me he has a knife", Texted(Verb.HELP)),
        ("sos", Texted(Verb.HELP)),
        ("मदद", Texted(Verb.HELP)),
        ("please help", Texted(Verb.HELP)),
        ("1", Texted(Verb.HELPING)),
        (" 1. ", Texted(Verb.HELPING)),
        ("(１)", Texted(Verb.HELPING)),
        ("१", Texted(Verb.HELPING)),
        ("2", Texted(Verb.REACHED)),
        ("3!", Texted(Verb.CANT_HELP)),
        ("1 K7Q", Texted(Verb.HELPING, reference="K7Q")),
        ("1k7q", Texted(Verb.HELPING, reference="K7Q")),
        ("k7q: 2", Texted(Verb.REACHED, reference="K7Q")),
        ("3, K 7 Q", Texted(Verb.CANT_HELP, reference="K7Q")),
        ("STOP", Texted(Verb.STOP, word="STOP")),
        (" stop. ", Texted(Verb.STOP, word="STOP")),
        ("Stop all", Texted(Verb.STOP, word="STOP ALL")),
        ("cancel", Texted(Verb.STOP, word="CANCEL")),
        ("बंद", Texted(Verb.STOP, word="बंद")),
        ("रोको!", Texted(Verb.STOP, word="रोको")),
        ("yes", Texted(Verb.START, word="YES")),
        ("Unstop", Texted(Verb.START, word="UNSTOP")),
        # What only looks like it.
        ("not safe", Texted(Verb.NOT_UNDERSTOOD)),
        ("SAFE? no", Texted(Verb.NOT_UNDERSTOOD)),
        ("is she safe?", Texted(Verb.NOT_UNDERSTOOD)),
        ("2 min away", Texted(Verb.NOT_UNDERSTOOD)),
        ("3 of us are going", Texted(Verb.NOT_UNDERSTOOD)),
        ("1234", Texted(Verb.NOT_UNDERSTOOD)),
        ("4", Texted(Verb.NOT_UNDERSTOOD)),
        ("12", Texted(Verb.NOT_UNDERSTOOD)),
        ("stop calling her", Texted(Verb.NOT_UNDERSTOOD)),
        ("don't stop", Texted(Verb.NOT_UNDERSTOOD)),
        ("more or less", Texted(Verb.NOT_UNDERSTOOD)),
        ("helping", Texted(Verb.NOT_UNDERSTOOD)),
        ("", Texted(Verb.NOT_UNDERSTOOD)),
        ("👍", Texted(Verb.NOT_UNDERSTOOD)),
        ("\x00\ud800", Texted(Verb.NOT_UNDERSTOOD)),
    ],
)
def test_a_text_is_understood(body: str, meant: Texted) -> None:
    assert parse(body) == meant


@pytest.mark.parametrize("word", sorted(STOP_WORDS | START_WORDS))
def test_every_word_of_the_carrier_is_known_in_any_case(word: str) -> None:
    verb = Verb.STOP if word in STOP_WORDS else Verb.START
    assert parse(f" {word.lower()}!").verb == parse(word.title()).verb == verb


def test_the_pin_is_not_in_the_repr() -> None:
    assert PIN not in repr(parse(f"SAFE {PIN}"))


SPACE = st.text(" \t\n.,;:!-()<>\"'*_/", max_size=4)
DIGITS = st.sampled_from(["0123456789", "०१२३४५६७८९", "０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩"])


@given(before=SPACE, between=SPACE, after=SPACE, digits=DIGITS, pin=st.from_regex(r"[0-9]{4,8}", fullmatch=True))
def test_punctuation_spaces_and_digits_of_any_script_do_not_matter(
    before: str, between: str, after: str, digits: str, pin: str
) -> None:
    written = "".join(digits[int(digit)] for digit in pin)
    assert parse(f"{before}Safe{between}{written}{after}") == Texted(Verb.SAFE, pin=pin)


@given(st.text(st.characters(exclude_categories=()), max_size=2000))
def test_no_text_breaks_the_parser(body: str) -> None:
    assert parse(body).verb in Verb
    assert normalised(normalised(body)) == normalised(body)


# Over the wire


@pytest.fixture
def site(db: None, settings: Any) -> None:
    twilio_hooks.configure(settings)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock(clock.now())
    monkeypatch.setattr(clock, "now", standing)
    return standing


@pytest.fixture
def person(site: None) -> User:
    """Priya, with Ravi as her contact and a PIN."""
    person = PersonFactory.create(full_name="Priya Sharma", phone=MINE, safe_pin=make_password(PIN))
    ContactFactory.create(person=person, name="Ravi", phone=RAVI)
    return person


@pytest.fixture
def timer(person: User) -> MeetingTimer:
    return TimerFactory.create(person=person)


@pytest.fixture
def incident(person: User) -> SosEvent:
    return panic.press(person)[0]


def new_id() -> str:
    return f"SM{uuid4().hex}"


def text(body: str, *, sender: str = MINE, sid: str = "", token: str = twilio_hooks.TOKEN, **more: str) -> int:
    """Twilio passes on a text; the status of our answer."""
    fields = {"MessageSid": sid or new_id(), "From": sender, "To": "+15005550006", "Body": body, **more}
    response = twilio_hooks.post(Client(), "/hooks/twilio/sms", fields, token=token)
    assert response.content == b""
    status: int = response.status_code
    return status


def said(*, to: str = MINE) -> str:
    """The newest automatic reply to a number; empty when there is none."""
    reply = Delivery.objects.filter(kind=Kind.REPLY, address=to).order_by("-created_at").first()
    return reply.facts["said"] if reply else ""


def contact_of(incident: SosEvent, phone: str = RAVI) -> AlertedContact:
    return AlertedContact.objects.get(incident=incident, phone=phone)


def another_incident(name: str = "Asha Rao") -> SosEvent:
    """Of somebody else who trusts Ravi too."""
    other = PersonFactory.create(full_name=name)
    ContactFactory.create(person=other, name="Ravi", phone=RAVI)
    return panic.press(other)[0]


# The person


def test_safe_with_the_pin_ends_the_timer(timer: MeetingTimer) -> None:
    assert text(f"Safe {PIN}.") == 204
    timer.refresh_from_db()
    assert timer.status == TimerStatus.SAFE
    assert said() == "CasualMeet: good. Your timer is ended, nobody is alerted."
    reply = Delivery.objects.get(kind=Kind.REPLY)
    assert (reply.priority, reply.channel, reply.incident_id) == (Priority.SAFETY, "sms", None)


def test_safe_closes_the_alarm_and_the_timer_that_runs_beside_it(timer: MeetingTimer, incident: SosEvent) -> None:
    text(f"SAFE {PIN}")
    incident.refresh_from_db()
    timer.refresh_from_db()
    assert (incident.status, incident.resolution, timer.status) == ("resolved", "pin", TimerStatus.SAFE)
    assert said().startswith(f"CasualMeet: good that you are safe. Alarm {incident.reference} is closed")


@pytest.mark.parametrize(
    ("body", "reply"),
    [("SAFE 9999", "that is not your PIN"), ("SAFE", "your PIN is needed"), ("SAFE 47110", "not your")],
)
def test_without_the_right_pin_nothing_changes(timer: MeetingTimer, incident: SosEvent, body: str, reply: str) -> None:
    assert text(body) == 204
    timer.refresh_from_db()
    incident.refresh_from_db()
    assert (timer.status, incident.status) == (TimerStatus.ACTIVE, "active")
    assert reply in said()
    assert said().endswith("Nothing was changed.")


def test_a_person_without_a_pin_sends_safe_alone(timer: MeetingTimer) -> None:
    User.objects.update(safe_pin="")
    text("safe")
    timer.refresh_from_db()
    assert timer.status == TimerStatus.SAFE


def test_guessing_by_text_locks_the_pin(timer: MeetingTimer) -> None:
    User.objects.update(pin_failures=pins.MAX_FAILURES - 1)
    text("SAFE 0000")
    text(f"SAFE {PIN}")
    timer.refresh_from_db()
    assert timer.status == TimerStatus.ACTIVE
    assert "too many wrong PINs" in said()


def test_the_pin_is_neither_kept_nor_logged_nor_sent_back(
    timer: MeetingTimer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for body in ("SAFE 86420", "SAFE 97531 and more words", "86420"):
        text(body)
    kept = [*InboundText.objects.values(), *Delivery.objects.values(), *Notification.objects.values()]
    for digits in ("86420", "97531"):
        assert digits not in str([str(row) for row in kept])
        assert digits not in caplog.text


def test_more_moves_the_deadline(timer: MeetingTimer) -> None:
    text("MORE30")
    moved = MeetingTimer.objects.get()
    assert moved.expires_at == timer.expires_at + timedelta(minutes=30)
    text("more")
    assert MeetingTimer.objects.get().expires_at == timer.expires_at + timedelta(minutes=45)
    assert said().startswith("CasualMeet: 15 min more. Your timer now ends ")
    assert said().endswith(" IST.")


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        ("MORE 0", "MORE takes 1 to 60 minutes"),
        ("MORE 61", "MORE takes 1 to 60"),
        ("MORE 999999999", "MORE takes 1 to 60"),
    ],
)
def test_more_than_may_be_is_refused(timer: MeetingTimer, body: str, reply: str) -> None:
    text(body)
    assert MeetingTimer.objects.get().expires_at == timer.expires_at
    assert reply in said()


def test_twelve_hours_are_the_most(timer: MeetingTimer) -> None:
    MeetingTimer.objects.update(started_at=timer.started_at - timedelta(hours=11))
    text("MORE 30")
    assert "at most 12 hours" in said()


def test_p1_more_that_comes_too_late_is_refused_and_safe_still_works(timer: MeetingTimer, wall: Clock) -> None:
    wall.now = timer.escalates_at + timedelta(minutes=30)
    text("MORE 30")
    assert "Your deadline has passed" in said()
    assert MeetingTimer.objects.get().status == TimerStatus.ACTIVE
    wall.move(seconds=1)
    text(f"SAFE {PIN}")
    assert MeetingTimer.objects.get().status == TimerStatus.SAFE


def test_more_during_an_alarm_asks_for_safe(incident: SosEvent) -> None:
    text("MORE 30")
    assert "reply SAFE <pin> now" in said()


def test_help_is_an_sos_with_or_without_a_timer(person: User) -> None:
    text("Help! he follows me")
    incident = SosEvent.objects.get()
    assert (incident.person_id, incident.source) == (person.pk, "manual")
    assert Delivery.objects.filter(kind="sos", address=RAVI).count() == 1
    assert said() == f"CasualMeet: SOS {incident.reference} is on. In danger dial 112. Safe? Reply SAFE <pin>."


def test_p4_help_again_joins(incident: SosEvent) -> None:
    text("HELP")
    text("SOS")
    assert SosEvent.objects.count() == 1
    assert incident.timeline.filter(kind="joined").count() == 2


@pytest.mark.parametrize("body", [f"SAFE {PIN}", "MORE 30"])
def test_where_nothing_runs_it_says_so(person: User, body: str) -> None:
    text(body)
    assert said() == "CasualMeet: nothing was changed. You have no timer running and no alarm."


def test_what_is_not_understood_is_explained_while_a_timer_runs(timer: MeetingTimer) -> None:
    text("what now?")
    assert said() == "CasualMeet: not understood. Reply SAFE <pin>, MORE 30, or HELP for an SOS."


def test_chatter_from_a_person_without_a_timer_gets_no_answer(person: User) -> None:
    assert text("hello") == 204
    assert not Delivery.objects.exists()


def test_replies_are_in_the_persons_language(timer: MeetingTimer) -> None:
    User.objects.update(language="hi")
    text("SAFE 9999")
    assert said() == "CasualMeet: PIN ग़लत है। कुछ नहीं बदला।"


def test_an_account_that_was_closed_is_nobody(timer: MeetingTimer) -> None:
    User.objects.update(is_active=False)
    text(f"SAFE {PIN}")
    timer.refresh_from_db()
    assert timer.status == TimerStatus.ACTIVE
    assert said() == ""


def test_several_with_one_number_are_each_told_what_became_of_theirs(timer: MeetingTimer) -> None:
    """A number is not proved: an account made by somebody else must not hide what happened to one's own."""
    other = PersonFactory.create(full_name="Mallory", phone=MINE)
    theirs = TimerFactory.create(person=other)
    PersonFactory.create(full_name="Idle", phone=MINE)
    text("SAFE 9999")
    timer.refresh_from_db()
    theirs.refresh_from_db()
    assert (timer.status, theirs.status) == (TimerStatus.ACTIVE, TimerStatus.SAFE)
    replied = set(Delivery.objects.filter(kind=Kind.REPLY).values_list("recipient_name", flat=True))
    assert replied == {"Priya Sharma", "Mallory"}
    told = {reply.recipient_name: reply.facts["said"] for reply in Delivery.objects.filter(kind=Kind.REPLY)}
    assert told["Priya Sharma"].startswith("CasualMeet, Priya Sharma: that is not your PIN.")
    assert told["Mallory"].startswith("CasualMeet, Mallory: good. Your timer is ended")


# The contact


@pytest.mark.parametrize(
    ("body", "field", "kind", "reply"),
    [
        ("1", "acknowledged_at", "acknowledged", "Thank you. You are helping Priya Sharma"),
        ("2", "reached_person_at", "reached", "Thank you. You reached Priya Sharma"),
        ("3", "declined_at", "declined", "Noted: you can't help Priya Sharma"),
    ],
)
def test_a_contact_answers_by_digit(incident: SosEvent, body: str, field: str, kind: str, reply: str) -> None:
    assert text(body, sender=RAVI) == 204
    assert getattr(contact_of(incident), field)
    assert incident.timeline.filter(kind=kind).count() == 1
    assert said(to=RAVI).startswith(reply)
    incident.refresh_from_db()
    assert incident.status == "active"


def test_a_contacts_last_word_counts(incident: SosEvent) -> None:
    for body in ("3", "1", "1", "3", "2"):
        text(body, sender=RAVI)
    ravi = contact_of(incident)
    assert ravi.acknowledged_at
    assert ravi.reached_person_at
    assert ravi.declined_at is None
    kinds = list(incident.timeline.exclude(kind="opened").order_by("at", "id").values_list("kind", flat=True))
    assert sorted(kinds) == ["acknowledged", "declined", "declined", "reached"]


def test_a_contact_is_answered_in_their_language(incident: SosEvent) -> None:
    AlertedContact.objects.update(language="hi")
    text("1", sender=RAVI)
    assert said(to=RAVI).startswith("धन्यवाद। आप Priya Sharma की मदद कर रहे हैं")


def test_two_incidents_and_no_reference_asks_back(incident: SosEvent) -> None:
    other = another_incident()
    text("1", sender=RAVI)
    assert not AlertedContact.objects.filter(acknowledged_at__isnull=False).exists()
    for alarm, name in ((incident, "Priya Sharma"), (other, "Asha Rao")):
        assert f"{alarm.reference} ({name})" in said(to=RAVI)
    text(f"1 {other.reference.lower()}", sender=RAVI)
    assert contact_of(other).acknowledged_at
    assert contact_of(incident).acknowledged_at is None


def test_a_resolved_incident_does_not_count_among_the_two(incident: SosEvent) -> None:
    other = another_incident()
    incidents.resolve(other, with_pin=False)
    text("1", sender=RAVI)
    assert contact_of(incident).acknowledged_at


def test_a_reference_that_does_not_fit_is_asked_about(incident: SosEvent) -> None:
    wrong = "A2B" if incident.reference != "A2B" else "C3D"
    text(f"1 {wrong}", sender=RAVI)
    assert contact_of(incident).acknowledged_at is None
    assert f"Which alert? {incident.reference} (Priya Sharma)." in said(to=RAVI)


def test_what_a_contact_writes_otherwise_is_explained(incident: SosEvent) -> None:
    text("ok, going there", sender=RAVI)
    assert contact_of(incident).acknowledged_at is None
    assert said(to=RAVI).startswith(f"Alert {incident.reference}, Priya Sharma: reply 1 if you help")


def test_after_the_end_a_contact_hears_that_the_person_is_safe(incident: SosEvent) -> None:
    incidents.resolve(incident, with_pin=True)
    text("1", sender=RAVI)
    assert contact_of(incident).acknowledged_at is None
    assert said(to=RAVI) == f"Priya Sharma is safe. Alert {incident.reference} is closed, no action needed."


def test_p11_a_day_after_the_end_a_contact_hears_nothing(incident: SosEvent) -> None:
    incidents.resolve(incident, with_pin=True)
    SosEvent.objects.update(resolved_at=clock.now() - incidents.PAGE_LIFE)
    text("1", sender=RAVI)
    assert said(to=RAVI) == ""


def test_p11_a_contact_hears_nothing_before_an_alarm(timer: MeetingTimer) -> None:
    for body in ("1", "SAFE 1234", "how is she?"):
        assert text(body, sender=RAVI) == 204
    assert not Delivery.objects.exists()
    timer.refresh_from_db()
    assert timer.status == TimerStatus.ACTIVE


def test_somebody_who_is_both_is_told_apart_by_the_words(timer: MeetingTimer) -> None:
    """Priya has a timer running and is a contact of Asha, who is in danger."""
    asha = PersonFactory.create(full_name="Asha Rao")
    ContactFactory.create(person=asha, name="Priya", phone=MINE)
    alarm = panic.press(asha)[0]
    text("1")
    assert contact_of(alarm, MINE).acknowledged_at
    text("MORE 30")
    assert MeetingTimer.objects.get().expires_at == timer.expires_at + timedelta(minutes=30)
    text(f"SAFE {PIN}")
    assert MeetingTimer.objects.get().status == TimerStatus.SAFE
    alarm.refresh_from_db()
    assert alarm.status == "active"


# Replays, forgeries, strangers, limits


def test_each_text_counts_once(timer: MeetingTimer) -> None:
    sid = new_id()
    assert text("MORE 30", sid=sid) == 204
    before = list(MeetingTimer.objects.values()), list(Delivery.objects.values()), list(InboundText.objects.values())
    assert text("MORE 30", sid=sid) == 403
    assert text("SAFE 0000", sid=sid) == 403
    after = list(MeetingTimer.objects.values()), list(Delivery.objects.values()), list(InboundText.objects.values())
    assert before == after


def test_a_text_that_a_crash_cut_off_counts_when_it_comes_again(
    timer: MeetingTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sid = new_id()
    finish = inbound.finish

    def crash(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the process is gone")

    for _ in range(2):
        monkeypatch.setattr(inbound, "finish", crash)
        with pytest.raises(ConnectionResetError):
            text("HELP", sid=sid)
    monkeypatch.setattr(inbound, "finish", finish)
    assert text("HELP", sid=sid) == 204
    assert text("HELP", sid=sid) == 403
    incident = SosEvent.objects.get()
    assert list(incident.timeline.values_list("kind", flat=True)) == ["opened"]
    assert Delivery.objects.filter(kind=Kind.REPLY).count() == 1
    assert InboundText.objects.get().replied


def test_forged_texts_change_nothing(timer: MeetingTimer) -> None:
    assert text(f"SAFE {PIN}", token="f" * 32) == 403
    assert text(f"SAFE {PIN}", AccountSid="AC" + "9" * 32) == 403
    fields = {"MessageSid": new_id(), "From": MINE, "Body": f"SAFE {PIN}"}
    assert Client().post("/hooks/twilio/sms", fields).status_code == 403
    assert Client().get("/hooks/twilio/sms", fields).status_code == 405
    timer.refresh_from_db()
    assert timer.status == TimerStatus.ACTIVE
    assert not InboundText.objects.exists()
    assert not Delivery.objects.exists()


def test_an_unknown_number_gets_no_answer(person: User) -> None:
    for body in ("SAFE 1234", "MORE", "HELP", "1", "hello", "STOP", "START"):
        assert text(body, sender="+447700900123") == 204
    assert not Delivery.objects.exists()
    assert not SosEvent.objects.exists()
    assert InboundText.objects.filter(replied=False).count() == 7


@pytest.mark.parametrize("sender", ["", "12345", "whatsapp:+919812345678", "+0123456789", "+91981234567890123"])
def test_a_sender_that_nobody_could_answer_is_passed_over(timer: MeetingTimer, sender: str) -> None:
    assert text("HELP", sender=sender) == 204
    assert not InboundText.objects.exists()


def test_a_text_without_an_id_is_passed_over(timer: MeetingTimer) -> None:
    for sid in ("x", "SM123", "CA" + "0" * 32):
        assert text("HELP", sid=sid) == 204
    assert not SosEvent.objects.exists()


def test_five_replies_an_hour_are_the_most_but_what_is_asked_is_done(timer: MeetingTimer, wall: Clock) -> None:
    most, period = inbound.REPLIES
    for _ in range(most + 2):
        text("what?")
        wall.move(seconds=1)
    assert Delivery.objects.filter(kind=Kind.REPLY).count() == most == 5
    text(f"SAFE {PIN}")
    timer.refresh_from_db()
    assert timer.status == TimerStatus.SAFE
    assert Delivery.objects.filter(kind=Kind.REPLY).count() == most
    wall.move(seconds=period.total_seconds())
    text("SAFE")
    assert Delivery.objects.filter(kind=Kind.REPLY).count() == most + 1


def test_the_limit_is_each_numbers_own(timer: MeetingTimer, incident: SosEvent) -> None:
    for _ in range(6):
        text("what?")
    text("1", sender=RAVI)
    assert said(to=RAVI) != ""


def test_every_reply_fits(timer: MeetingTimer) -> None:
    User.objects.update(full_name="W" * 80)
    text("what?")
    assert segments(said()) <= MAX_SEGMENTS[Kind.REPLY][0]


# STOP and START


@pytest.mark.parametrize("word", ["STOP", "unsubscribe.", "End", "बंद"])
def test_stop_is_honoured_without_an_answer_and_the_person_is_told_at_once(person: User, word: str) -> None:
    assert text(word, sender=RAVI) == 204
    assert optouts.stopped([RAVI, MINE]) == {RAVI}
    assert OptOut.objects.get().source == "reply"
    notice = Notification.objects.get(recipient=person)
    assert notice.title == "Ravi stopped our texts"
    assert "send START" in notice.body
    assert not Delivery.objects.exists()


def test_stop_again_tells_nobody_twice_and_start_ends_it(person: User) -> None:
    text("STOP", sender=RAVI)
    text("STOPALL", sender=RAVI)
    assert Notification.objects.count() == 1
    assert text("START", sender=RAVI) == 204
    assert optouts.stopped([RAVI]) == set()
    assert Notification.objects.filter(title="Ravi gets our texts again").count() == 1
    text("YES", sender=RAVI)
    assert Notification.objects.count() == 2
    text("STOP", sender=RAVI)
    assert Notification.objects.filter(title="Ravi stopped our texts").count() == 2
    assert not Delivery.objects.exists()


def test_everybody_who_has_them_as_a_verified_contact_is_told(person: User) -> None:
    asha, devi = PersonFactory.create(), PersonFactory.create()
    ContactFactory.create(person=asha, name="Ravi bhai", phone=RAVI)
    ContactFactory.create(person=devi, name="R", phone=RAVI, status="pending")
    text("STOP", sender=RAVI)
    told = dict(Notification.objects.values_list("recipient_id", "title"))
    assert told == {person.pk: "Ravi stopped our texts", asha.pk: "Ravi bhai stopped our texts"}


def test_what_the_carrier_did_by_itself_counts(person: User) -> None:
    """Advanced Opt-Out knows words that we don't."""
    text("arrêt", sender=RAVI, OptOutType="STOP")
    assert optouts.stopped([RAVI]) == {RAVI}
    text("bonjour", sender=RAVI, OptOutType="START")
    assert optouts.stopped([RAVI]) == set()


def test_cancel_stops_our_texts_and_the_person_is_told_that_the_timer_runs_on(timer: MeetingTimer) -> None:
    text("CANCEL")
    timer.refresh_from_db()
    assert timer.status == TimerStatus.ACTIVE
    assert optouts.stopped([MINE]) == {MINE}
    notice = Notification.objects.get()
    assert notice.title == "CANCEL stopped our texts, not your timer"
    assert "still running" in notice.body
    assert said() == ""


def test_who_stopped_our_texts_gets_no_reply_but_what_they_ask_is_done(incident: SosEvent) -> None:
    text("STOP", sender=RAVI)
    text("1", sender=RAVI)
    assert contact_of(incident).acknowledged_at
    assert said(to=RAVI) == ""


def test_what_the_carrier_tells_of_a_stop_reaches_the_person_too(person: User) -> None:
    now = clock.now()
    optouts.stop(RAVI, "twilio", now)
    assert stops.next_at() == now
    assert [stops.tell_due(now), stops.tell_due(now)] == [1, 0]
    assert stops.next_at() is None
    assert Notification.objects.get().title == "Ravi stopped our texts"


def test_a_crash_before_it_was_noted_that_people_were_told_tells_them_once(person: User) -> None:
    text("STOP", sender=RAVI)
    OptOut.objects.update(told_at=None)
    assert stops.tell_due(clock.now()) == 1
    assert Notification.objects.count() == 1


def test_the_contacts_page_and_the_api_show_it(person: User, client: Client, settings: Any) -> None:
    settings.TWILIO_FROM = "+15005550006"
    client.force_login(person)
    url = reverse("contacts")
    assert "stopped our texts" not in client.get(url).content.decode()
    text("STOP", sender=RAVI)
    page = client.get(url).content.decode()
    assert "Ravi stopped our texts." in page
    assert "send START to +15005550006" in page
    token = client.post(
        "/api/tokens", {"username": person.username, "password": PASSWORD}, content_type="application/json"
    ).json()["token"]
    found = client.get("/api/contacts", headers={"Authorization": f"Bearer {token}"}).json()
    assert [(row["name"], row["sms_stopped"]) for row in found] == [("Ravi", True)]


def test_stop_twice_at_once_is_one_opt_out(transactional_db: None) -> None:
    barrier = threading.Barrier(4)
    news: list[bool] = []

    def stop() -> None:
        try:
            barrier.wait()
            news.append(optouts.stop(RAVI, "reply", clock.now()))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(news) == [False, False, False, True]


def test_safe_raced_with_the_expiry_ends_as_it_is_told(person: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, P2: the timer turns into an alarm between the look and the check-in: then the alarm is closed."""
    timer = TimerFactory.create(person=person)
    check_in = timers.check_in

    def late(stale: MeetingTimer, *, pin: str = "") -> MeetingTimer:
        monkeypatch.setattr(timers, "check_in", check_in)
        MeetingTimer.objects.filter(pk=timer.pk).update(status=TimerStatus.EXPIRED)
        panic.press(person)
        return check_in(stale, pin=pin)

    monkeypatch.setattr(timers, "check_in", late)
    assert replies.receive(new_id(), sender=MINE, body=f"SAFE {PIN}")
    assert SosEvent.objects.get().status == "resolved"
    assert "is closed" in said()
