"""A whole installation as it is run: web process and expiry worker, on a database and a port of its own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from testing.processes import PYTHON_MODULE, ManagedProcess, free_port

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 360, "height": 740}


class Installation:
    """The processes of `make run`, without honcho."""

    def __init__(self, database_url: str, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {"DATABASE_URL": database_url, "DEBUG": "on", "PUBLIC_BASE_URL": self.url, **env}
        arguments = ["daphne", "-b", "127.0.0.1", "-p", str(self.port), "casualmeet.asgi:application"]
        self.web = ManagedProcess(arguments, self.env, program=PYTHON_MODULE)
        self.worker = ManagedProcess(["run_timer_worker"], self.env)

    def manage(self, *args: str) -> str:
        """Run a management command to its end; returns what it printed."""
        with ManagedProcess(list(args), self.env) as command:
            code = command.wait(timeout=60)
            if code:
                raise AssertionError(f"manage.py {' '.join(args)} ended with {code}:\n{command.output}")
            return command.output

    @contextmanager
    def running(self) -> Iterator["Installation"]:
        """Serve until the end of the block."""
        with self.web, self.worker:
            self.web.wait_for_line("Listening on TCP address", timeout=60)
            self.worker.wait_for_line("Expiring timers", timeout=60)
            yield self


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; fails where none is installed."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program(), args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def chromium_profile(directory: Path, **options: Any) -> Iterator[BrowserContext]:
    """The same with a profile of its own: without one Chromium is incognito, where it takes no pushes."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            directory, executable_path=_program(), args=CHROMIUM_FLAGS, **options
        )
        try:
            yield context
        finally:
            context.close()


def _program() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise AssertionError("No Chromium on this machine: install Debian's package chromium, as .ci/run does.")
    return path


def phone(browser: Browser) -> BrowserContext:
    """A phone-sized window with its own cookies."""
    return browser.new_context(viewport=PHONE, has_touch=True)  # type: ignore[arg-type]


def save(picture: bytes, path: Path) -> None:
    """Keep a screenshot for people to look at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
