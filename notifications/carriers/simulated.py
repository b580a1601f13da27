"""The carrier of an installation that has none: it takes everything and sends nothing."""

from notifications.carriers.base import Answer, Outcome, OutgoingMessage


class SimulatedCarrier:
    """Accepts every message. The id it gives is derived from the attempt, so it is unique."""

    name = "simulated"
    simulated = True
    templated = False

    async def send(self, message: OutgoingMessage) -> Answer:
        return Answer(Outcome.ACCEPTED, carrier_message_id=f"SIM{message.attempt_id.hex}")

    async def close(self) -> None:
        """Nothing is open."""
