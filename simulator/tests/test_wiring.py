"""How the site is pointed at the simulator, and that real credentials win."""

import asyncio
import runpy
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import requests

from notifications.carriers import routing
from notifications.carriers.base import Outcome, OutgoingMessage
from simulator import Simulator, credentials, ports
from testing.processes import BASE_DIR, ManagedProcess, free_port

URL = "http://localhost:8001"


def settings_with(monkeypatch: pytest.MonkeyPatch, **env: str) -> dict[str, Any]:
    """The settings as a process with this environment reads them."""
    for name, value in {"DEBUG": "on", "CARRIER_SIMULATOR_URL": URL, **env}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(BASE_DIR / "casualmeet" / "settings.py"))


class TestSettings:
    def test_the_simulators_address_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = settings_with(monkeypatch)
        assert found["CARRIER_SIMULATOR_URL"] == URL
        assert found["TWILIO_API_BASE_URL"] == found["FAST2SMS_API_BASE_URL"] == URL
        assert found["TWILIO_AUTH_TOKEN"] == credentials.AUTH_TOKEN
        assert found["FAST2SMS_API_KEY"] == credentials.FAST2SMS_API_KEY

    def test_only_while_debug_is_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = settings_with(monkeypatch, DEBUG="off")
        assert found["CARRIER_SIMULATOR_URL"] == found["TWILIO_ACCOUNT_SID"] == found["FAST2SMS_API_KEY"] == ""

    @pytest.mark.parametrize(
        "env", [{"TWILIO_ACCOUNT_SID": "AC1"}, {"TWILIO_FROM": "+15550001111"}, {"FAST2SMS_API_KEY": "real"}]
    )
    def test_real_credentials_win_even_half_a_set(self, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
        found = settings_with(monkeypatch, **env)
        assert found["CARRIER_SIMULATOR_URL"] == ""
        assert "localhost" not in found["TWILIO_API_BASE_URL"] + found["FAST2SMS_API_BASE_URL"]
        assert found["TWILIO_AUTH_TOKEN"] == ""

    def test_a_process_may_be_given_the_whole_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        env = Simulator(port=8001).environment(simulated=True)
        found = settings_with(monkeypatch, **env)
        assert {name: found[name] for name in env if name in found}.items() <= env.items()


@pytest.fixture
def pointed(sim: Simulator, settings: Any) -> Iterator[Any]:
    """The settings, with the simulator as the only carrier."""
    for name, value in sim.environment(simulated=True).items():
        setattr(settings, name, value)
    yield settings
    asyncio.run(routing.close())


@pytest.mark.parametrize(("to", "carrier"), [("+919988712345", "fast2sms"), ("+447700900123", "twilio")])
def test_carriers_send_to_it_and_are_marked(sim: Simulator, pointed: Any, to: str, carrier: str) -> None:
    message = OutgoingMessage(to=to, text="Hello", kind="sos", variables=(), language="en", attempt_id=uuid4())

    async def send() -> Outcome:
        chosen = routing.get(routing.route(to)[0])
        assert chosen is not None
        assert (chosen.name, chosen.simulated) == (carrier, True)
        answer = await chosen.send(message)
        await routing.close()
        return answer.outcome

    assert asyncio.run(send()) is Outcome.ACCEPTED
    assert not routing.real_carrier_configured()
    sim.assert_exactly(to, ["Hello"])
    sim.assert_nothing_unexpected()


def test_without_the_mark_it_counts_as_real(sim: Simulator, settings: Any) -> None:
    for name, value in sim.environment().items():
        setattr(settings, name, value)
    assert routing.real_carrier_configured()


def test_a_free_port_is_found(sim: Simulator) -> None:
    assert ports.first_free(sim.port) > sim.port


@pytest.mark.processes
class TestCommand:
    def test_it_serves_until_it_is_stopped(self) -> None:
        port = free_port()
        with ManagedProcess(["run_carrier_simulator", "--port", str(port)], {"DEBUG": "on"}) as process:
            process.wait_for_line(f"Simulated phones: http://localhost:{port}/", timeout=60)
            assert "Simulated phones" in requests.get(f"http://127.0.0.1:{port}/", timeout=10).text
            assert process.terminate() == 0

    def test_without_debug_it_only_waits(self) -> None:
        with ManagedProcess(["run_carrier_simulator"], {"DEBUG": "off"}) as process:
            process.wait_for_line("there are none", timeout=60)
            assert process.terminate() == 0
