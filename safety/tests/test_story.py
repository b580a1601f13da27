"""The main job as people see it, in a real browser on real processes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from playwright.sync_api import Browser, Locator, Page, expect

from testing import database
from testing.site import Installation, chromium, phone

PASSWORD = "a demo password 42"
SECOND = 1000
# Puts the deadline of the one live timer a few seconds from now, as if the rest of its time had gone by.
NEAR_DEADLINE = """
from datetime import timedelta
from casualmeet import clock
from safety.models import MeetingTimer
at = clock.now() + timedelta(seconds={seconds})
print("moved", MeetingTimer.objects.live().update(expires_at=at, escalates_at=at))
"""

EVERYTHING_ALLOWED = """
from safety.models import User
User.objects.filter(username="moderator").update(is_superuser=True)
"""

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def installation(django_db_setup: None, django_db_blocker: Any) -> Iterator[Installation]:
    with django_db_blocker.unblock():
        site = Installation(database.address(), DEMO_PASSWORD=PASSWORD)
    site.manage("seed_demo")
    if connection.vendor == "mongodb":
        # The MongoDB test server mixes up the columns of a join, and so finds no permission of anybody's.
        site.manage("shell", "-v0", "-c", EVERYTHING_ALLOWED)
    with site.running():
        yield site
    with django_db_blocker.unblock():
        database.empty()


@pytest.fixture(scope="module")
def browser(installation: Installation) -> Iterator[Browser]:
    with chromium() as started:
        yield started


def signed_in(context_page: Page, site: Installation, path: str, username: str) -> Page:
    context_page.set_default_timeout(20 * SECOND)
    context_page.on(
        "console", lambda message: pytest.fail(message.text) if "Content Security" in message.text else None
    )
    context_page.goto(site.url + path)
    context_page.fill("[name=username]", username)
    context_page.fill("[name=password]", PASSWORD)
    context_page.click("[type=submit]")
    return context_page


def arm(page: Page, place: str) -> None:
    page.fill("[name=location_name]", place)
    page.fill("[name=meet_with]", "Rahul K")
    page.fill("[name=duration_minutes]", "30")
    page.get_by_role("button", name="Start the timer").click()
    expect(page.get_by_role("heading", name="Timer running")).to_be_visible()


def test_a_timer_left_alone_becomes_an_incident_on_every_screen(installation: Installation, browser: Browser):
    asha = signed_in(phone(browser).new_page(), installation, "/login/", "asha")
    moderator = signed_in(browser.new_page(), installation, "/admin/", "moderator")
    expect(moderator.get_by_role("heading", name="Live board")).to_be_visible()
    expect(moderator.get_by_text("Asha Rao")).to_have_count(0)

    # The first timer: counts down, is extended, ends safe.
    expect(asha.get_by_text("Meera Nair")).to_be_visible()
    arm(asha, "Cafe Blue")
    digits = asha.locator("[data-digits]")
    expect(digits).to_have_text(re.compile(r"^(30:00|29:5\d)$"))
    before = digits.inner_text()
    expect(digits).not_to_have_text(before)
    asha.get_by_role("button", name="15 minutes more").click()
    expect(digits).to_have_text(re.compile(r"^4[45]:\d\d$"))
    asha.get_by_role("button", name="I'm Safe").click()
    expect(asha.get_by_role("heading", name="New timer")).to_be_visible()

    # The second one is left alone.
    arm(asha, "Lodi Garden")
    asha.evaluate("window.notReloaded = true")
    moderator.evaluate("window.notReloaded = true")
    assert "moved 1" in installation.manage("shell", "-v0", "-c", NEAR_DEADLINE.format(seconds=4))
    expect(asha.get_by_role("heading", name="Your alarm is on")).to_be_visible(timeout=20 * SECOND)
    row = moderator.get_by_text("Asha Rao").first
    expect(row).to_be_visible(timeout=5 * SECOND)
    assert asha.evaluate("window.notReloaded")
    assert moderator.evaluate("window.notReloaded")

    # The contact's text, on the simulated phone, with its link.
    contact = phone(browser).new_page()
    contact.goto(f"{installation.url}/phone/")
    text = contact.get_by_text("SAFETY ALERT (CasualMeet): Asha Rao missed a").first
    expect(text).to_be_visible(timeout=10 * SECOND)
    text.locator("a[href*='/i/']").click()
    expect(contact.get_by_text("Lodi Garden").first).to_be_visible()
    # Looking is noticed, by the page's script.
    expect(moderator.get_by_text("opened the alert").first).to_be_visible(timeout=15 * SECOND)
    contact.get_by_role("button", name="I'm helping").click()
    expect(moderator.get_by_text("Meera Nair").first).to_be_visible(timeout=15 * SECOND)

    # Safe after all: everybody learns it without a reload.
    asha.get_by_role("button", name="I'm Safe").click()
    expect(asha.get_by_role("heading", name="Alarm closed")).to_be_visible()
    expect(moderator.get_by_text("No active incident").first).to_be_visible(timeout=15 * SECOND)
    contact.goto(f"{installation.url}/phone/")
    expect(contact.get_by_text("ALL CLEAR (CasualMeet): Asha Rao").first).to_be_visible(timeout=15 * SECOND)


def test_sos_is_held_counted_down_and_cancelled_or_sent(installation: Installation, browser: Browser):
    asha = signed_in(phone(browser).new_page(), installation, "/login/", "asha")
    hold = asha.get_by_role("button", name=re.compile("SOS.*hold", re.DOTALL))
    hold.scroll_into_view_if_needed()
    # A short touch does nothing.
    hold.click()
    expect(asha.get_by_role("heading", name="Your alarm is on")).to_have_count(0)
    hold_down(asha, hold)
    asha.get_by_role("button", name=re.compile("Cancel")).click()
    expect(asha.get_by_role("heading", name="Your alarm is on")).to_have_count(0)
    hold_down(asha, hold)
    expect(asha.get_by_role("heading", name="Your alarm is on")).to_be_visible(timeout=15 * SECOND)


def hold_down(page: Page, button: Locator) -> None:
    """Until the five seconds in which it can be cancelled begin."""
    box = button.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    expect(page.get_by_role("button", name=re.compile("Cancel"))).to_be_visible(timeout=5 * SECOND)
    page.mouse.up()
