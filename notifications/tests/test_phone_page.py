"""The simulated phone."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from casualmeet import clock
from notifications.models import AttemptOutcome, Delivery, DeliveryAttempt

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:No directory at")]


@pytest.fixture(autouse=True)
def developing(settings: Any) -> None:
    """DEBUG on, as `make run` has it."""
    settings.DEBUG = True


def received(text: str, *, address: str = "+919988712345", simulated: bool = True, outcome: str = "accepted") -> None:
    """A text that a carrier was given."""
    now = clock.now()
    delivery = Delivery.objects.create(
        kind="sos",
        address=address,
        recipient_name="Ravi",
        facts={},
        created_at=now,
        next_attempt_at=now,
        simulated=simulated,
    )
    DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="simulated", text=text, started_at=now, outcome=AttemptOutcome(outcome)
    )


def shown(client: Client) -> str:
    """The page as it was sent."""
    response = client.get(reverse("phone"))
    assert response.status_code == 200
    return str(response.content.decode())


def test_texts_are_grouped_by_number_with_the_newest_first(client: Client) -> None:
    received("first")
    received("to somebody else", address="+447700900123")
    received("second")
    page = shown(client)
    assert page.index("second") < page.index("first")
    assert page.count('class="card thread"') == 2


def test_links_can_be_followed_and_markup_is_text(client: Client) -> None:
    received("<b>Priya</b> <script>alert(1)</script> Map: http://localhost:8000/i/abc")
    page = shown(client)
    assert '<a href="http://localhost:8000/i/abc"' in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<b>Priya" not in page


def test_only_what_the_simulated_carrier_took_is_there(client: Client) -> None:
    received("of a real carrier", simulated=False)
    received("still open", outcome="open")
    page = shown(client)
    assert "of a real carrier" not in page
    assert "still open" not in page
    assert "No texts yet" in page


def test_the_footer_links_to_it(client: Client) -> None:
    assert reverse("phone") in client.get(reverse("login")).content.decode()


def test_it_is_gone_when_debug_is_off(client: Client, settings: Any) -> None:
    settings.DEBUG = False
    assert client.get(reverse("phone")).status_code == 404
    assert reverse("phone") not in client.get(reverse("login")).content.decode()


def test_it_is_gone_when_a_carrier_is_configured(client: Client, settings: Any) -> None:
    settings.FAST2SMS_API_KEY = "key"
    assert client.get(reverse("phone")).status_code == 404
    assert reverse("phone") not in client.get(reverse("login")).content.decode()


def test_it_leads_to_the_phones_of_the_simulator_where_that_runs(client: Client, settings: Any) -> None:
    received("with a reply box")
    assert "phone?number" not in shown(client)
    settings.CARRIER_SIMULATOR_URL = "http://localhost:8001"
    settings.FAST2SMS_API_KEY = "the simulator's"
    page = shown(client)
    assert 'href="http://localhost:8001/"' in page
    assert 'href="http://localhost:8001/phone?number=%2B919988712345"' in page


def test_it_takes_no_post(client: Client) -> None:
    assert client.post(reverse("phone")).status_code == 405
