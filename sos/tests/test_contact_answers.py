"""What contacts answer counts once, and never after the end of the incident."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from django.db import connections

from safety import panic
from safety.tests.people import people
from sos import contact_answers, incidents
from sos.models import AlertedContact, SosEvent


def test_an_acknowledgement_counts_once_and_never_after_the_end(db: None) -> None:
    asha = people(1, contacts=2)[0]
    incident, _ = panic.press(asha)
    ravi, leela = AlertedContact.objects.order_by("name")
    assert contact_answers.acknowledge(ravi)
    assert not contact_answers.acknowledge(ravi)
    panic.confirm_safe(asha, incident)
    assert not contact_answers.acknowledge(leela)
    incident.refresh_from_db()
    assert incident.status == "resolved"
    assert Counter(incident.timeline.values_list("kind", flat=True)) == {"opened": 1, "acknowledged": 1, "resolved": 1}


def test_acknowledge_raced_with_resolve_never_reopens(transactional_db: None) -> None:
    persons = people(8)
    opened = [panic.press(person)[0] for person in persons]
    contacts = {contact.incident_id: contact for contact in AlertedContact.objects.all()}
    barrier = threading.Barrier(16)

    def run(number: int) -> None:
        incident = opened[number // 2]
        try:
            barrier.wait()
            if number % 2:
                contact_answers.acknowledge(contacts[incident.pk])
            else:
                assert incidents.resolve(incident, with_pin=False)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(16)))
    assert set(SosEvent.objects.values_list("status", "open_key")) == {("resolved", None)}
