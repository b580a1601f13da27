"""The simulator over HTTP, for other processes: the journal, the rules, the clock.

GET /journal?phone=… and DELETE /journal; GET, POST and DELETE /rules; POST /clock. A rule is written as
{"to": "+44…", "carrier": "twilio", "operation": "create", "steps": [{"accepted": false, "status": 503, "times": 2}]},
with the fields of `rules.Step`; all but "steps" may be left out.
"""

import json
from typing import Any

from aiohttp import web

from simulator.clock import VirtualClock
from simulator.journal import Journal
from simulator.rules import Rules, Step


class Control:
    """Handlers for programs."""

    def __init__(self, clock: VirtualClock, journal: Journal, rules: Rules) -> None:
        self._clock = clock
        self._journal = journal
        self._rules = rules

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/journal", self.show_journal),
            web.delete("/journal", self.clear_journal),
            web.get("/rules", self.show_rules),
            web.post("/rules", self.add_rules),
            web.delete("/rules", self.clear_rules),
            web.post("/clock", self.advance),
        ]

    async def show_journal(self, request: web.Request) -> web.Response:
        """Everything that was taken and asked for."""
        await self._clock.settle()
        return web.json_response(self._journal.as_json(request.query.get("phone")))

    async def clear_journal(self, _request: web.Request) -> web.Response:
        """Forget it."""
        self._journal.clear()
        return web.Response(status=204)

    async def show_rules(self, _request: web.Request) -> web.Response:
        """The steps that were not used yet."""
        return web.json_response({"rules": self._rules.left()})

    async def add_rules(self, request: web.Request) -> web.Response:
        """Add steps."""
        try:
            wanted = json.loads(await request.read())
            steps = [Step.from_fields(fields) for fields in wanted["steps"]]
            script = self._rules.on(
                wanted.get("to"), carrier=wanted.get("carrier"), operation=wanted.get("operation", "create")
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _bad(error)
        script.then(*steps)
        return web.Response(status=204)

    async def clear_rules(self, _request: web.Request) -> web.Response:
        """Forget them."""
        self._rules.clear()
        return web.Response(status=204)

    async def advance(self, request: web.Request) -> web.Response:
        """Jump: {"advance": seconds}."""
        try:
            seconds = float(json.loads(await request.read())["advance"])
        except (ValueError, TypeError, KeyError) as error:
            return _bad(error)
        await self._clock.advance(seconds)
        return web.json_response({"now": self._clock.now()})


def _bad(error: Exception) -> web.Response:
    said: dict[str, Any] = {"message": f"{type(error).__name__}: {error}"}
    return web.json_response(said, status=400)
