"""Pushes in a real browser: subscribed by a tap, shown by the service worker, told to the server."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connections
from playwright.sync_api import BrowserContext, Page, Worker, expect

from casualmeet import clock
from notifications import subscriptions
from notifications.models import AttemptOutcome, Channel, Delivery, DeliveryAttempt, DeliveryStatus
from notifications.tests.pushing import SUBJECT, VAPID_PRIVATE_KEY, Browser
from safety.tests.factories import ContactFactory
from testing.site import PHONE, Installation, chromium_profile

R = TypeVar("R")

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.timeout(240)]

ENDPOINT = "https://fcm.googleapis.com/fcm/send/this-browser"
# Only Google could make a subscription for a Chromium, and tests reach no Google. All else here is the browser's own.
SUBSCRIBED = """
window.made = null;
PushManager.prototype.getSubscription = async () => window.made;
PushManager.prototype.subscribe = async ({{ userVisibleOnly, applicationServerKey }}) => {{
  if (!userVisibleOnly || applicationServerKey.length !== 65) throw new Error("bad options");
  window.made = {{
    endpoint: "{endpoint}",
    options: {{ applicationServerKey }},
    toJSON: () => ({{ endpoint: "{endpoint}", keys: {keys} }}),
    unsubscribe: async () => {{ window.made = null; }},
  }};
  return window.made;
}};
"""
# Chromium's own record of what it displayed has no links, and getNotifications() can't be asked for them: called while
# a notification is being displayed, it drops that one from its list (measured; on a busy machine every second time).
LINKS = """() => {
  const show = self.registration.showNotification.bind(self.registration);
  self.links = [];
  self.registration.showNotification = (title, options) => {
    self.links.push(options.data.link);
    return show(title, options);
  };
}"""


@pytest.fixture
def site(database_url: str) -> Iterator[Installation]:
    made = Installation(database_url, VAPID_PRIVATE_KEY=VAPID_PRIVATE_KEY, VAPID_SUBJECT=SUBJECT)
    with made.running():
        yield made


@pytest.fixture
def phone(site: Installation, tmp_path: Path) -> Iterator[BrowserContext]:
    """A browser that allows notifications."""
    with chromium_profile(tmp_path / "profile", viewport=PHONE) as context:
        context.grant_permissions(["notifications"], origin=site.url)
        yield context


def in_database(work: Callable[[], R]) -> R:
    """Done in another thread: in this one the browser's event loop runs, where Django refuses to wait."""

    def done() -> R:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(done).result()


class Pushes:
    """Delivers pushes through the browser's own debugging protocol, as a push service would."""

    def __init__(self, context: BrowserContext, page: Page, origin: str) -> None:
        self._origin = origin
        self._registered: list[dict[str, Any]] = []
        self._worker: Worker | None = None
        self.displayed: list[dict[str, str]] = []
        self._protocol = context.new_cdp_session(page)
        self._protocol.on(
            "ServiceWorker.workerRegistrationUpdated", lambda event: self._registered.extend(event["registrations"])
        )
        self._protocol.send("ServiceWorker.enable")
        self._protocol.on("BackgroundService.backgroundServiceEventReceived", self._recorded)
        self._protocol.send("BackgroundService.startObserving", {"service": "notifications"})
        self._protocol.send("BackgroundService.setRecording", {"service": "notifications", "shouldRecord": True})

    def _recorded(self, message: dict[str, Any]) -> None:
        event = message["backgroundServiceEvent"]
        if event["eventName"] == "Notification displayed":
            said = {item["key"].lower(): item["value"] for item in event["eventMetadata"]}
            self.displayed.append({**said, "tag": event["instanceId"]})

    def follow_links(self, worker: Worker) -> None:
        """From now on `links()` are where taps on this service worker's notifications lead."""
        worker.evaluate(LINKS)
        self._worker = worker

    def links(self) -> list[str]:
        """Where a tap on each notification leads, in their order."""
        assert self._worker is not None
        links: list[str] = self._worker.evaluate("self.links")
        return links

    def deliver(self, data: str) -> None:
        """Hand `data` to the service worker."""
        self._protocol.send(
            "ServiceWorker.deliverPushMessage",
            {"origin": self._origin, "registrationId": self._registered[0]["registrationId"], "data": data},
        )


def accepted_push() -> DeliveryAttempt:
    """One that the push service took."""
    now = clock.now()
    delivery = Delivery.objects.create(
        kind="sos",
        channel=Channel.PUSH,
        address="a subscription",
        facts={},
        created_at=now,
        next_attempt_at=now,
        status=DeliveryStatus.ACCEPTED,
    )
    return DeliveryAttempt.objects.create(
        delivery=delivery, number=1, carrier="webpush", text="SOS", started_at=now, outcome=AttemptOutcome.ACCEPTED
    )


def test_a_contacts_phone_is_subscribed_shows_every_push_and_says_so(
    site: Installation, phone: BrowserContext, wait_until: Any
) -> None:
    contact = in_database(lambda: ContactFactory.create(name="Ravi"))
    browser = Browser()
    keys = json.dumps({"p256dh": browser.p256dh, "auth": browser.auth})
    page = phone.new_page()
    page.on("console", lambda message: pytest.fail(message.text) if "Content Security" in message.text else None)
    page.add_init_script(SUBSCRIBED.format(endpoint=ENDPOINT, keys=keys))
    pushes = Pushes(phone, page, site.url)

    page.goto(f"{site.url}/c/{contact.token}")
    page.get_by_role("button", name="Alert this phone too").click()
    expect(page.get_by_text("On: this browser shows a notification too")).to_be_visible()
    (row,) = in_database(lambda: subscriptions.of([contact.pk]))[contact.pk]
    assert in_database(lambda: subscriptions.targets([str(row.pk)])) == {row.pk: browser.target(ENDPOINT)}

    # A later visit renews it without a tap.
    in_database(lambda: subscriptions.remove_gone([row.pk]))
    page.reload()
    expect(page.get_by_text("On: this browser shows a notification too")).to_be_visible()
    assert in_database(lambda: subscriptions.of([contact.pk]))

    # P13: shown, and only then delivered.
    (worker,) = phone.service_workers
    pushes.follow_links(worker)
    attempt = in_database(accepted_push)
    said = {"title": "SOS: Priya Sharma", "body": "Dial 112.", "tag": "inc-1"}
    pushes.deliver(json.dumps({**said, "link": f"{site.url}/i/abc", "receipt": str(attempt.pk)}))

    def delivered() -> bool:
        attempt.refresh_from_db()
        attempt.delivery.refresh_from_db()
        return attempt.receipt == "delivered" and attempt.delivery.status == DeliveryStatus.DELIVERED

    def told() -> bool:
        page.wait_for_timeout(50)  # the browser's messages are read only while this waits
        return in_database(delivered)

    wait_until(told, timeout=40, message="no receipt came")
    assert (pushes.displayed, pushes.links()) == ([said], [f"{site.url}/i/abc"])

    # Garbage, nothing, and a link that leads elsewhere: something is shown, and a tap stays on this site.
    foreign = json.dumps({"title": "Look", "link": "https://evil.example/"})
    for number, data in enumerate(["{garbage", "", "[]", '{"title": 7, "receipt": {}}', foreign], start=2):
        pushes.deliver(data)

        def displayed(count: int = number) -> bool:
            page.wait_for_timeout(50)
            return len(pushes.displayed) == count

        wait_until(displayed, timeout=40, message=f"not shown: {data!r}")
    assert [one["title"] for one in pushes.displayed[1:]] == ["CasualMeet Safety"] * 4 + ["Look"]
    assert pushes.links()[1:] == [f"{site.url}/"] * 5

    # Off again: the server forgets this browser, the browser its subscription, and no later visit brings it back.
    page.get_by_role("button", name="Turn notifications off here").click()
    expect(page.get_by_text("Off: this browser shows no notifications any more")).to_be_visible()
    assert page.evaluate("window.made") is None
    assert not in_database(lambda: subscriptions.of([contact.pk]))
    page.reload()
    expect(page.get_by_role("button", name="Alert this phone too")).to_be_visible()
    expect(page.get_by_role("button", name="Turn notifications off here")).to_be_hidden()
    page.wait_for_load_state("networkidle")
    assert not in_database(lambda: subscriptions.of([contact.pk]))
