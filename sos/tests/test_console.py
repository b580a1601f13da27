"""The moderators' console: who sees it, what it shows, and that nothing in it can be edited."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from casualmeet import clock
from notifications import auditing
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt, DeliveryStatus, Notification
from ops import audit
from ops.audit import Finding
from ops.models import AuditFinding, WorkerBeat
from safety.models import MeetingTimer, TrustedContact, User
from sos import contact_answers, incidents
from sos.admin import distance_m
from sos.models import AlertedContact, SosEvent, Source
from sos.triggers import Fix, Recipient, Trigger, person_of
from sos.wording import in_words

pytestmark = pytest.mark.django_db
on_mongodb = connection.vendor == "mongodb"
MIXED_UP = "The MongoDB emulator mixes up the columns of joined tables: permissions come without their content type."

PASSWORD = "correct horse battery"
NAMES = ["Meera Nair", "Ravi Verma"]


class JoinlessBackend(ModelBackend):
    """Reads permissions without a join, for the same reason."""

    def get_all_permissions(self, user_obj, obj=None):
        if not user_obj.is_active:
            return set()
        if not hasattr(user_obj, "_joinless"):
            granted = user_obj.user_permissions.all()
            names = {f"{permission.content_type.app_label}.{permission.codename}" for permission in granted}
            user_obj._joinless = names
        return user_obj._joinless


@pytest.fixture(autouse=True)
def _joinless_permissions_on_mongodb(settings):
    if on_mongodb:
        settings.AUTHENTICATION_BACKENDS = [f"{__name__}.{JoinlessBackend.__name__}"]


def make_user(username, **fields):
    # Without a password: hashing one takes longer than the test.
    return User.objects.create_user(username=username, **{"full_name": username.capitalize(), **fields})


def allow(user, *codenames):
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def make_incident(person, source=Source.MANUAL, names=NAMES, **fields):
    trigger = Trigger(
        key=fields.pop("key", uuid4()),
        person=person_of(person),
        source=source,
        happened_at=clock.now(),
        recipients=tuple(Recipient(uuid4(), name, f"+9198123456{i:02}", "en") for i, name in enumerate(names)),
        **fields,
    )
    return incidents.raise_alarm(trigger)[0]


def bury(incident):
    """Make the incident's first delivery a dead letter with an attempt."""
    delivery = Delivery.objects.filter(incident_id=incident.pk).order_by("recipient_name")[0]
    now = clock.now()
    Delivery.objects.filter(pk=delivery.pk).update(status=DeliveryStatus.DEAD, finished_at=now)
    DeliveryAttempt.objects.create(
        delivery=delivery,
        number=1,
        carrier="twilio",
        text="SOS (CasualMeet): Asha",
        started_at=now - timedelta(seconds=1.5),
        finished_at=now,
        outcome=AttemptOutcome.PERMANENT,
        http_status=400,
        error_code="21211",
        error_class="bad_recipient",
        detail="Not a valid number.",
        raw='{"message": "<b>invalid</b>"}',
    )
    return delivery


def count_queries(client, address):
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    return len(captured)


def page_of(incident):
    return reverse("admin:sos_sosevent_change", args=[incident.pk])


def live_part_of(incident):
    return reverse("admin:sos_sosevent_live", args=[incident.pk])


def requeue_of(incident, delivery):
    return reverse("admin:sos_sosevent_requeue", args=[incident.pk, delivery.pk])


@pytest.fixture
def person():
    return make_user("asha", full_name="Asha Rao", phone="+919812345670", time_zone="Asia/Kolkata")


@pytest.fixture
def moderator():
    user = make_user("mod", is_staff=True)
    allow(user, "view_sosevent")
    return user


@pytest.fixture
def superuser():
    return make_user("root", is_staff=True, is_superuser=True)


@pytest.fixture
def client(moderator):
    return signed_in(moderator)


@pytest.fixture
def incident(person):
    return make_incident(person)


class TestWhoSeesIt:
    def test_moderators_see_the_board(self, client, incident):
        response = client.get("/admin/")
        assert response.templates[0].name == "console/board.html"
        assert incident.reference in response.text
        assert "Asha Rao" in response.text

    def test_other_staff_get_the_list_of_apps_only(self, incident):
        clerk = make_user("clerk", is_staff=True)
        allow(clerk, "view_user")
        response = signed_in(clerk).get("/admin/")
        assert response.status_code == 200
        assert "/admin/safety/user/" in response.text
        assert incident.reference not in response.text
        assert "board.js" not in response.text

    @pytest.mark.parametrize("staff", [False, None])
    def test_others_are_sent_to_the_log_in_page(self, incident, person, staff):
        client = Client() if staff is None else signed_in(person)
        for address in ["/admin/", page_of(incident)]:
            response = client.get(address)
            assert response.status_code == 302
            assert response["Location"].startswith("/admin/login/")

    def test_permission_without_staff_is_not_enough(self, incident, person):
        allow(person, "view_sosevent")
        assert signed_in(person).get("/admin/board/").status_code == 403

    @pytest.mark.parametrize("who", ["nobody", "person", "clerk", "former"])
    def test_fragments_are_forbidden_without_a_redirect(self, incident, person, who):
        clerk = make_user("clerk", is_staff=True)
        former = make_user("former", is_staff=True, is_active=False)
        allow(former, "view_sosevent")
        clients = {
            "nobody": Client(),
            "person": signed_in(person),
            "clerk": signed_in(clerk),
            "former": signed_in(former),
        }
        for address in ["/admin/board/", live_part_of(incident)]:
            response = clients[who].get(address)
            assert response.status_code == 403
            assert incident.reference not in response.text

    def test_staff_without_permission_see_no_incident(self, incident):
        clerk = signed_in(make_user("clerk", is_staff=True))
        assert clerk.get(page_of(incident)).status_code == 403
        assert clerk.get("/admin/sos/sosevent/").status_code == 403

    def test_fragments_are_never_cached_and_tell_the_time(self, client, incident):
        for address in ["/admin/board/", live_part_of(incident)]:
            response = client.get(address)
            assert response.status_code == 200
            assert "no-store" in response["Cache-Control"]
            assert abs(int(response["X-Server-Now"]) / 1000 - clock.now().timestamp()) < 5
            assert client.post(address).status_code == 405


class TestBoard:
    def test_says_so_when_there_is_nothing(self, client):
        response = client.get("/admin/board/")
        assert "No active incidents" in response.text
        assert 'data-active="0"' in response.text

    def test_tells_what_happened_and_who_knows(self, client, person):
        fix = Fix(28.6139, 77.2090, 2400.0, clock.now())
        incident = make_incident(person, Source.TIMER_EXPIRED, late_by=3725, place_name="Café Blue", fix=fix)
        Delivery.objects.filter(incident_id=incident.pk, recipient_name=NAMES[0]).update(
            status=DeliveryStatus.ACCEPTED, finished_at=clock.now()
        )
        contact_answers.acknowledge(AlertedContact.objects.get(incident=incident, name=NAMES[1]))
        text = client.get("/admin/board/").text
        for words in ["Missed check-in", "1 h 02 min late", "Café Blue", "within 2.4 km", "1 of 2 notified", NAMES[1]]:
            assert words in text
        assert NAMES[0] not in text

    def test_a_minute_is_not_late_before_it_is_over(self, client, person):
        make_incident(person, Source.TIMER_EXPIRED, late_by=59)
        assert "late</strong>" not in client.get("/admin/board/").text

    def test_counts_dead_letters(self, client, incident):
        bury(incident)
        assert "1 message not sent" in client.get("/admin/board/").text

    def test_says_when_only_moderators_know(self, client, person):
        make_incident(person, names=[])
        assert "No contacts: only you know" in client.get("/admin/board/").text

    def test_warns_of_calling_in_duress(self, client, person):
        incident = make_incident(person, Source.DURESS)
        assert "Do not call or text their phone" in client.get("/admin/board/").text
        page = client.get(page_of(incident)).text
        assert "Do not call or text their phone" in page
        assert f'href="tel:{person.phone}"' not in page

    def test_incidents_without_a_helper_come_first_then_the_newest(self, client):
        made = [make_incident(make_user(f"p{i}")) for i in range(3)]
        for age, incident in enumerate(reversed(made)):
            SosEvent.objects.filter(pk=incident.pk).update(opened_at=clock.now() - timedelta(minutes=age))
        contact_answers.acknowledge(AlertedContact.objects.filter(incident=made[2])[0])
        text = client.get("/admin/board/").text
        places = [text.index(f'data-incident="{incident.pk}"') for incident in [made[1], made[0], made[2]]]
        assert places == sorted(places)

    def test_a_resolved_incident_moves_below_for_an_hour(self, client, incident):
        incidents.resolve(incident, with_pin=True)
        text = client.get("/admin/board/").text
        assert f'data-resolved="{incident.pk}"' in text
        assert f'data-incident="{incident.pk}"' not in text
        assert "with their PIN" in text
        earlier = clock.now() - timedelta(minutes=61)
        SosEvent.objects.filter(pk=incident.pk).update(resolved_at=earlier, all_clear_at=earlier)
        assert incident.reference not in client.get("/admin/board/").text

    def test_markup_is_shown_as_text(self, client, superuser):
        evil = "<script>alert(1)</script>"
        person = make_user("evil", full_name=evil)
        incident = make_incident(person, names=[evil], place_name=evil, meet_with=evil)
        bury(incident)
        contact_answers.acknowledge(AlertedContact.objects.get(incident=incident))
        for address in ["/admin/", "/admin/board/", page_of(incident), live_part_of(incident)]:
            text = client.get(address).text
            assert evil not in text
            assert escape(evil) in text
        for model in ["sos/sosevent", "safety/user", "notifications/delivery"]:
            text = signed_in(superuser).get(f"/admin/{model}/").text
            assert evil not in text
            assert escape(evil) in text

    def test_no_inline_script_or_style(self, client, incident):
        for address in ["/admin/", page_of(incident)]:
            text = client.get(address).text
            assert "style=" not in text
            assert "<script>" not in text
            assert "onclick" not in text

    def test_needs_as_many_queries_for_many_incidents_as_for_one(self, client):
        make_incident(make_user("first"))
        one = count_queries(client, "/admin/board/")
        for i in range(5):
            bury(make_incident(make_user(f"p{i}")))
        assert count_queries(client, "/admin/board/") == one

    def test_says_when_messages_reach_nobody(self, client, settings):
        assert "messages are simulated, and no contact is reached" in client.get("/admin/board/").text
        settings.TWILIO_ACCOUNT_SID = "AC" + "0" * 32
        text = client.get("/admin/board/").text
        assert "no message is sent" in text
        assert "TWILIO_AUTH_TOKEN is not set" in text
        settings.FAST2SMS_API_KEY = "key"
        text = client.get("/admin/board/").text
        assert "No carrier" not in text
        assert "TWILIO_AUTH_TOKEN is not set" in text

    def test_says_how_many_did_not_fit(self, client, monkeypatch):
        monkeypatch.setattr("sos.console.MOST", 1)
        for i in range(3):
            make_incident(make_user(f"p{i}"))
        text = client.get("/admin/board/").text
        assert 'data-active="3"' in text
        assert "2 more active incidents" in text


class TestFindings:
    @pytest.fixture(autouse=True)
    def _one_check(self, monkeypatch):
        self.found = [Finding("k", "No dispatcher is running", "Start one.")]
        monkeypatch.setattr(audit, "checks", lambda: {"workers": lambda _now: self.found})

    def board(self, client):
        return client.get("/admin/board/").text

    def test_an_alarm_until_it_is_read_then_a_line_as_long_as_it_is_so(self, client, moderator):
        auditing.run()
        assert self.board(client).count("No dispatcher is running</strong>") == 1
        assert "Wrong just now" not in self.board(client)
        client.post(reverse("admin:alarm-read", args=[Notification.objects.get().pk]))
        board = self.board(client)
        assert "Wrong just now" in board
        assert '<li class="critical">' in board
        assert board.count("No dispatcher is running") == 1
        self.found.clear()
        auditing.run()
        assert "No dispatcher is running" not in self.board(client)
        assert "Wrong just now" not in self.board(client)

    def test_what_was_put_right_before_anybody_read_the_alarm_leaves_nothing(self, client):
        auditing.run()
        self.found.clear()
        auditing.run()
        assert "No dispatcher is running" not in self.board(client)

    def test_when_nobody_audits_the_board_says_so(self, client):
        auditing.run()
        assert "The auditor has not looked" not in self.board(client)
        WorkerBeat.objects.update(cycle_at=clock.now() - timedelta(minutes=12))
        AuditFinding.objects.update(last_seen_at=clock.now() - timedelta(minutes=12))
        Notification.objects.all().delete()
        board = self.board(client)
        assert "The auditor has not looked for 12 min" in board
        assert "No dispatcher is running" not in board, "nobody knows whether it is still so"


class TestAlarms:
    def alarm(self, recipient, title="Twilio refuses our credentials"):
        return Notification.objects.create(recipient=recipient, kind="alarm", title=title, created_at=clock.now())

    def test_are_shown_until_read(self, client, moderator):
        alarm = self.alarm(moderator)
        assert alarm.title in client.get("/admin/board/").text
        response = client.post(reverse("admin:alarm-read", args=[alarm.pk]))
        assert response.status_code == 302
        assert alarm.title not in client.get("/admin/board/").text

    def test_of_others_are_neither_shown_nor_read(self, client, superuser):
        alarm = self.alarm(superuser)
        assert alarm.title not in client.get("/admin/board/").text
        assert client.post(reverse("admin:alarm-read", args=[alarm.pk])).status_code == 404
        alarm.refresh_from_db()
        assert alarm.read_at is None

    def test_are_not_read_by_looking(self, client, moderator):
        alarm = self.alarm(moderator)
        assert client.get(reverse("admin:alarm-read", args=[alarm.pk])).status_code == 405
        alarm.refresh_from_db()
        assert alarm.read_at is None


class TestIncidentPage:
    def test_shows_the_facts(self, client, person):
        now = clock.now()
        timer = MeetingTimer.objects.create(
            person=person,
            location_name="Café Blue",
            note="White Swift",
            duration_minutes=90,
            grace_minutes=5,
            started_at=now,
            expires_at=now,
            escalates_at=now + timedelta(minutes=5),
            status="expired",
        )
        incident = make_incident(
            person,
            Source.TIMER_EXPIRED,
            key=timer.pk,
            timer_id=timer.pk,
            place_name="Café Blue",
            meet_with="Rahul K",
            planned_location={"type": "Point", "coordinates": [77.2090, 28.6139]},
            fix=Fix(28.6229, 77.2090, 25.0, now),
        )
        text = client.get(page_of(incident)).text
        for words in [
            "Asha Rao",
            "tel:+919812345670",
            "Rahul K",
            "White Swift",
            "1 h 30 min",
            "28.62290,77.20900",
            "within 25 m",
            "1.0 km from the planned place",
            "Missed check-in. Alerting 2 contacts.",
            *NAMES,
        ]:
            assert words in text

    def test_shows_each_attempt(self, client, incident):
        bury(incident)
        text = client.get(page_of(incident)).text
        for words in ["Refused for good", "twilio", "answered after 1.5 s", "400", "bad_recipient 21211"]:
            assert words in text
        assert "&lt;b&gt;invalid&lt;/b&gt;" in text

    def test_never_calls_accepted_delivered(self, client, incident):
        """P13."""
        Delivery.objects.filter(incident_id=incident.pk).update(status=DeliveryStatus.ACCEPTED, finished_at=clock.now())
        text = client.get(page_of(incident)).text
        assert "whether it arrived is not known" in text
        assert "Delivered" not in text

    def test_marks_simulated_messages(self, client, incident):
        Delivery.objects.filter(incident_id=incident.pk).update(status=DeliveryStatus.ACCEPTED, simulated=True)
        assert "Simulated: nothing was really sent" in client.get(page_of(incident)).text

    def test_needs_as_many_queries_for_many_messages_as_for_one(self, client):
        few = make_incident(make_user("few"), names=NAMES[:1])
        many = make_incident(make_user("many"), names=[f"Contact {i}" for i in range(10)])
        bury(many)
        assert count_queries(client, page_of(many)) == count_queries(client, page_of(few))

    def test_an_unknown_incident_is_not_found(self, client):
        assert client.get(reverse("admin:sos_sosevent_live", args=[uuid4()])).status_code == 404
        for unknown in [uuid4(), "rubbish"]:
            assert client.get(reverse("admin:sos_sosevent_change", args=[unknown])).status_code == 302

    def test_a_person_with_a_broken_time_zone_has_a_page(self, client, person):
        User.objects.filter(pk=person.pk).update(time_zone="Mars/Olympus")
        assert client.get(page_of(make_incident(person))).status_code == 200


class TestTryAgain:
    def allowed(self, moderator):
        allow(moderator, "change_delivery")
        return signed_in(moderator)

    def test_queues_the_dead_letter(self, moderator, incident):
        delivery = bury(incident)
        client = self.allowed(moderator)
        assert requeue_of(incident, delivery) in client.get(page_of(incident)).text
        assert client.post(requeue_of(incident, delivery)).status_code == 302
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.QUEUED

    def test_only_by_post(self, moderator, incident):
        delivery = bury(incident)
        assert self.allowed(moderator).get(requeue_of(incident, delivery)).status_code == 405
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.DEAD

    def test_only_with_a_csrf_token(self, moderator, incident):
        delivery = bury(incident)
        self.allowed(moderator)
        client = Client(enforce_csrf_checks=True)
        client.force_login(moderator)
        assert client.post(requeue_of(incident, delivery)).status_code == 403

    def test_only_with_permission(self, client, incident):
        delivery = bury(incident)
        assert requeue_of(incident, delivery) not in client.get(page_of(incident)).text
        assert client.post(requeue_of(incident, delivery)).status_code == 403
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.DEAD

    def test_only_of_this_incident(self, moderator, incident):
        delivery = bury(make_incident(make_user("other")))
        assert self.allowed(moderator).post(requeue_of(incident, delivery)).status_code == 404

    def test_no_alarm_about_a_person_who_is_safe(self, moderator, incident):
        delivery = bury(incident)
        incidents.resolve(incident, with_pin=False)
        client = self.allowed(moderator)
        assert requeue_of(incident, delivery) not in client.get(page_of(incident)).text
        client.post(requeue_of(incident, delivery))
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.DEAD

    def test_resolved_in_the_middle(self, moderator, incident, monkeypatch):
        """The alarm is cancelled when the incident is resolved between the look and the update."""
        delivery = bury(incident)
        looks = iter([True, False])
        monkeypatch.setattr("sos.console_access._incident_active", lambda _delivery: next(looks))
        self.allowed(moderator).post(requeue_of(incident, delivery))
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.CANCELLED

    def test_many_from_the_list(self, moderator, incident):
        allow(moderator, "view_delivery")
        delivery = bury(incident)
        rows = [row.pk for row in Delivery.objects.filter(incident_id=incident.pk)]
        client = self.allowed(moderator)
        response = client.post(
            "/admin/notifications/delivery/", {"action": "try_again", "_selected_action": rows}, follow=True
        )
        assert "1 being sent again" in response.text
        assert "1 left alone" in response.text
        delivery.refresh_from_db()
        assert delivery.status == DeliveryStatus.QUEUED

    def test_not_offered_in_the_list_without_permission(self, moderator, incident):
        allow(moderator, "view_delivery")
        assert "try_again" not in signed_in(moderator).get("/admin/notifications/delivery/").text


class TestNothingIsEditable:
    @pytest.fixture
    def rows(self, person, incident):
        bury(incident)
        now = clock.now()
        MeetingTimer.objects.create(
            person=person, location_name="Café", duration_minutes=60, started_at=now, expires_at=now, escalates_at=now
        )
        TrustedContact.objects.create(
            person=person, slot=0, name="Meera", phone="+919812345671", token="secret-of-contact", invited_at=now
        )
        return {
            "safety/meetingtimer": MeetingTimer,
            "safety/trustedcontact": TrustedContact,
            "sos/sosevent": SosEvent,
            "notifications/delivery": Delivery,
            "notifications/deliveryattempt": DeliveryAttempt,
            "notifications/notification": Notification,
        }

    def test_not_even_by_a_superuser(self, superuser, rows):
        client = signed_in(superuser)
        for path, model in rows.items():
            row = model.objects.first()
            before = model.objects.filter(pk=row.pk).values().get()
            assert client.get(f"/admin/{path}/{row.pk}/change/").status_code == 200
            assert client.post(f"/admin/{path}/{row.pk}/change/", {"status": "safe", "title": "x"}).status_code == 403
            assert client.get(f"/admin/{path}/add/").status_code == 403
            assert client.post(f"/admin/{path}/{row.pk}/delete/", {"post": "yes"}).status_code == 403
            client.post(f"/admin/{path}/", {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
            assert model.objects.filter(pk=row.pk).values().get() == before

    def test_a_person_with_a_history_stays(self, superuser, person, incident):
        client = signed_in(superuser)
        client.post(f"/admin/safety/user/{person.pk}/delete/", {"post": "yes"})
        assert User.objects.filter(pk=person.pk).exists()
        assert SosEvent.objects.filter(pk=incident.pk).exists()

    def test_lists_search_filter_and_need_no_query_per_row(self, superuser, rows):
        client = signed_in(superuser)
        for path in [*rows, "safety/user"]:
            one = count_queries(client, f"/admin/{path}/?q=a")
            assert one < 12, path
        for i in range(4):
            bury(make_incident(make_user(f"p{i}")))
        for path in ["sos/sosevent", "notifications/delivery", "notifications/deliveryattempt", "safety/user"]:
            assert count_queries(client, f"/admin/{path}/?q=a") < 12, path
        assert client.get("/admin/safety/meetingtimer/?status__exact=active").status_code == 200

    @pytest.mark.xfail(on_mongodb, reason=MIXED_UP)
    def test_the_pin_is_not_shown(self, superuser, person):
        User.objects.filter(pk=person.pk).update(safe_pin="hash-of-the-pin")
        response = signed_in(superuser).get(f"/admin/safety/user/{person.pk}/change/")
        assert response.status_code == 200
        assert "hash-of-the-pin" not in response.text
        assert 'name="safe_pin"' not in response.text

    def test_secrets_are_not_shown(self, superuser, rows):
        client = signed_in(superuser)
        contact = TrustedContact.objects.get()
        delivery = Delivery.objects.exclude(link="")[0]
        for address, secret in [
            (f"/admin/safety/trustedcontact/{contact.pk}/change/", contact.token),
            (f"/admin/notifications/delivery/{delivery.pk}/change/", delivery.link),
        ]:
            response = client.get(address)
            assert response.status_code == 200
            assert secret not in response.text


class TestPeople:
    @pytest.mark.xfail(on_mongodb, reason=MIXED_UP)
    def test_can_be_added_and_changed(self, superuser):
        client = signed_in(superuser)
        fields = {"username": "new", "full_name": "New Person", "phone": "98123 45678", "email": "", "language": "en"}
        fields |= {"time_zone": "Asia/Kolkata", "grace_minutes": "0"}
        passwords = {"usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
        response = client.post("/admin/safety/user/add/", {**fields, **passwords})
        assert response.status_code == 302, response.context["adminform"].errors
        user = User.objects.get(username="new")
        assert user.phone == "+919812345678"
        assert user.check_password(PASSWORD)
        response = client.post(f"/admin/safety/user/{user.pk}/change/", {**fields, "phone": "112", "is_active": "on"})
        assert response.status_code == 200
        assert "Emergency services" in response.text


def test_board_and_incident_page_show_what_each_contact_said():
    moderator = signed_in(make_user("moderator", is_staff=True, is_superuser=True))
    names = ["Asha", "Bela", "Chitra", "Devi", "Esha"]
    incident = make_incident(make_user("person"), names=names)
    found = {contact.name: contact for contact in incident.alerted_contacts.all()}
    contact_answers.record_opened(found["Asha"])
    contact_answers.decline(found["Bela"])
    contact_answers.acknowledge(found["Chitra"])
    contact_answers.report_reached(found["Devi"])
    board = moderator.get(reverse("admin:board-fragment")).content.decode()
    assert "<bdi>Asha</bdi> opened the alert, <bdi>Bela</bdi> can&#x27;t help" in board.replace("can't", "can&#x27;t")
    assert "<bdi>Chitra</bdi>, <bdi>Devi</bdi> (reached them)" in board
    assert "Esha" not in board
    page = moderator.get(reverse("admin:sos_sosevent_change", args=[incident.pk])).content.decode()
    for said in ("opened the alert, ", "can't help, ", "helping, ", "reached them, ", "no answer</span>"):
        assert said in page


def test_durations_in_words():
    assert [in_words(seconds) for seconds in (0, 59, 60, 3599, 3660, 90_000)] == [
        "0 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h 01 min",
        "25 h 00 min",
    ]


def test_distance_over_the_ground():
    delhi, mumbai = (77.2090, 28.6139), (72.8777, 19.0760)
    assert distance_m(delhi, mumbai) == pytest.approx(1_148_000, rel=0.01)
    assert distance_m(delhi, delhi) == 0
