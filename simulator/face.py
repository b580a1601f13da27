"""What the faces of all carriers have in common."""

from collections.abc import Mapping

from aiohttp import web

from simulator.clock import VirtualClock
from simulator.journal import Journal, Request
from simulator.rules import Rules, Step


class Face:
    """One carrier's side towards the site. Everything in it belongs to the simulator's event loop."""

    name: str

    def __init__(self, clock: VirtualClock, journal: Journal, rules: Rules) -> None:
        self.clock = clock
        self.journal = journal
        self.rules = rules

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def asked(
        self,
        operation: str,
        to: str,
        request: web.Request,
        fields: Mapping[str, str] | None = None,
        *,
        accepted: bool = True,
    ) -> None:
        """Write the request down."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        given = dict(request.query if fields is None else fields)
        self.journal.asked(Request(self.name, operation, to, self.clock.now(), accepted, given, headers))

    def step(
        self, operation: str, to: str, request: web.Request, fields: Mapping[str, str] | None = None
    ) -> Step | None:
        """The scripted step for a request that asks or changes something (not for one that creates), written down."""
        step = self.rules.take(operation, self.name, to)
        self.asked(operation, to, request, fields, accepted=step is None or step.accepted)
        return step
