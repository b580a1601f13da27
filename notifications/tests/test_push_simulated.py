"""Both push carriers against the carrier simulator, which judges their requests as the vendors document it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from notifications.carriers import fcm, routing, webpush
from notifications.carriers.base import Answer, Outcome, OutgoingMessage, PushTarget
from notifications.tests.pushing import ATTEMPT, SUBJECT, TOKEN, VAPID_PRIVATE_KEY, VAPID_PUBLIC_KEY, message
from simulator.rules import refuse, reset
from simulator.server import Simulator
from simulator.webpush import Browser

TARGET = PushTarget("fcm", TOKEN)


@pytest.fixture
def sim(settings: Any) -> Iterator[Simulator]:
    """The simulator, which the settings name."""
    with Simulator() as running:
        settings.CARRIER_SIMULATOR_URL = running.url
        settings.VAPID_PRIVATE_KEY, settings.VAPID_SUBJECT = VAPID_PRIVATE_KEY, SUBJECT
        yield running


@pytest.fixture
async def apps(sim: Simulator) -> AsyncIterator[fcm.FCMCarrier]:
    """FCM as a demonstration has it."""
    made = fcm.configured()
    assert made is not None
    yield made
    await made.close()


@pytest.fixture
async def browsers(sim: Simulator) -> AsyncIterator[webpush.WebPushCarrier]:
    """Web Push as a demonstration has it."""
    made = webpush.configured()
    assert made is not None
    yield made
    await made.close()


def to(browser: Browser, **changes: Any) -> OutgoingMessage:
    """A push to this browser."""
    keys = browser.subscription()["keys"]
    return message(target=PushTarget("webpush", browser.endpoint, keys["p256dh"], keys["auth"]), **changes)


def meaning(answer: Answer) -> tuple[Outcome, str]:
    return answer.outcome, answer.error_class


def test_both_count_as_simulated(sim: Simulator) -> None:
    routing.reset()
    assert [carrier.simulated for name in ("fcm", "webpush") if (carrier := routing.get(name))] == [True, True]
    routing.reset()


class TestApps:
    """FCM."""

    async def test_it_takes_what_is_sent(self, sim: Simulator, apps: fcm.FCMCarrier) -> None:
        for kind in ("sos", "duress", "update", "all_clear", "check_prompt"):
            assert meaning(await apps.send(message(target=TARGET, kind=kind))) == (Outcome.ACCEPTED, "")
        assert {entry.text for entry in sim.journal.entries()} == {message().text}

    async def test_with_a_token_from_its_token_endpoint(self, sim: Simulator, settings: Any) -> None:
        settings.CARRIER_SIMULATOR_URL = ""
        settings.FCM_SERVICE_ACCOUNT, settings.FCM_API_BASE_URL = sim.service_account(), sim.url
        made = fcm.configured()
        assert made is not None
        assert meaning(await made.send(message(target=TARGET))) == (Outcome.ACCEPTED, "")
        await made.close()

    async def test_a_token_that_is_gone(self, sim: Simulator, apps: fcm.FCMCarrier) -> None:
        sim.fcm.gone.add(TOKEN)
        assert meaning(await apps.send(message(target=TARGET))) == (Outcome.PERMANENT, "gone")

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (400, (Outcome.PERMANENT, "content")),
            (403, (Outcome.PERMANENT, "bad_recipient")),
            (404, (Outcome.PERMANENT, "gone")),
            (429, (Outcome.TRANSIENT, "throttled")),
            (500, (Outcome.TRANSIENT, "transient")),
            (503, (Outcome.TRANSIENT, "transient")),
        ],
    )
    async def test_its_refusals(
        self, sim: Simulator, apps: fcm.FCMCarrier, status: int, expected: tuple[Outcome, str]
    ) -> None:
        sim.on(carrier="fcm").then(refuse(status))
        assert meaning(await apps.send(message(target=TARGET))) == expected

    async def test_a_lost_answer_is_unknown(self, sim: Simulator, apps: fcm.FCMCarrier) -> None:
        sim.on(carrier="fcm").then(reset(accepted=True))
        assert meaning(await apps.send(message(target=TARGET))) == (Outcome.UNKNOWN, "")


class TestBrowsers:
    """Web Push."""

    async def test_it_reads_what_is_sent(self, sim: Simulator, browsers: webpush.WebPushCarrier) -> None:
        browser = sim.subscribe(vapid_key=VAPID_PUBLIC_KEY)
        for kind in ("sos", "duress", "check_prompt"):
            assert meaning(await browsers.send(to(browser, kind=kind))) == (Outcome.ACCEPTED, "")
        for entry in sim.journal.entries():
            assert json.loads(entry.text)["receipt"] == str(ATTEMPT)

    async def test_a_browser_that_is_gone(self, sim: Simulator, browsers: webpush.WebPushCarrier) -> None:
        browser = sim.subscribe()
        browser.gone = True
        assert meaning(await browsers.send(to(browser))) == (Outcome.PERMANENT, "gone")

    async def test_one_that_subscribed_with_another_key(self, sim: Simulator, browsers: webpush.WebPushCarrier) -> None:
        browser = sim.subscribe(vapid_key="B" + VAPID_PUBLIC_KEY[:-1])
        assert meaning(await browsers.send(to(browser))) == (Outcome.PERMANENT, "auth")

    async def test_a_lost_answer_is_unknown(self, sim: Simulator, browsers: webpush.WebPushCarrier) -> None:
        sim.on(carrier="webpush").then(reset(accepted=True))
        assert meaning(await browsers.send(to(sim.subscribe()))) == (Outcome.UNKNOWN, "")
