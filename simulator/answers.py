"""How an answer leaves: as it should, late, cut off, or not at all."""

import json
import math
import socket
import struct
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from simulator.clock import VirtualClock
from simulator.rules import Step, accept

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the sender should see."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, value: object, headers: Mapping[str, str] | None = None) -> "Answer":
        """A JSON answer."""
        return cls(status, json.dumps(value).encode(), headers or {})


def scripted(step: Step, usual: Answer) -> Answer:
    """`usual`, with the step's own body, and its headers."""
    if step.body is None:
        return Answer(usual.status, usual.body, {**usual.headers, **step.headers})
    return Answer(step.status or usual.status, step.body.encode(), step.headers)


async def write(
    request: web.Request, answer: Answer, clock: VirtualClock, step: Step | None = None
) -> web.StreamResponse:
    """Send the answer the way the step says. When this returns, it has left."""
    step = step or accept
    if step.delay:
        await clock.sleep(step.delay)
    if step.fault == "hang":
        await clock.until(math.inf)
    if step.fault == "reset":
        _reset(request)
        return web.Response()
    headers = {"Content-Type": "application/json", **answer.headers}
    response = web.StreamResponse(status=answer.status, headers=headers)
    if answer.status != 204:
        response.content_length = len(answer.body)
    try:
        await response.prepare(request)
        if step.fault == "truncate":
            await response.write(answer.body[: len(answer.body) // 2])
            if request.transport is not None:
                request.transport.close()
            return response
        await response.write_eof(answer.body)
    except ConnectionError:
        pass  # The sender did not wait for it.
    return response


async def write_and_do(
    request: web.Request, answer: Answer, clock: VirtualClock, step: Step, work: Coroutine[Any, Any, None]
) -> web.StreamResponse:
    """Send the answer, and start what follows from it: when it has left, or at once where it takes its time.

    With early callbacks everything happens before the answer leaves.
    """
    if step.callbacks.early:
        await work
    elif step.delay or step.fault == "hang":
        clock.spawn(work)
    else:
        try:
            return await write(request, answer, clock, step)
        finally:
            clock.spawn(work)
    return await write(request, answer, clock, step)


def _reset(request: web.Request) -> None:
    transport: Any = request.transport
    if transport is not None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
