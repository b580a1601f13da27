"""Text messages to Indian numbers through Fast2SMS.

Fast2SMS docs, "Bulk V2" (quick and DLT routes) and "Error Codes". Written without a live
account; the raw answer is kept on every attempt so that surprises can be read there.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from casualmeet.db import storable
from notifications.carriers.base import Answer, ErrorClass, Outcome, OutgoingMessage
from notifications.carriers.errors import fast2sms_error, http_error
from notifications.carriers.transport import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Reply,
    Transport,
    TransportError,
)

BASE_URL: Final = "https://www.fast2sms.com"
PATH: Final = "/dev/bulkV2"

_INDIAN_MOBILE: Final = re.compile(r"\+91([6-9][0-9]{9})")


class Fast2SMSCarrier:
    """Sends free text on the quick route "q", or a registered template on the route "dlt".

    `templates` maps a message kind, or "kind:language" where the languages differ, to the id
    that Fast2SMS gave the template.
    """

    name = "fast2sms"
    simulated = False

    def __init__(
        self,
        api_key: str,
        *,
        route: str = "q",
        sender_id: str = "",
        templates: Mapping[str, str] | None = None,
        base_url: str = BASE_URL,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        # The bare key: no scheme, and not in the URL, which is logged.
        self.headers = {"authorization": api_key}
        self._route = route or "q"
        self.templated = self._route == "dlt"
        self._sender_id = sender_id
        self._templates = dict(templates or {})
        self.transport = Transport(base_url or BASE_URL, connect_timeout=connect_timeout, read_timeout=read_timeout)

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def send(self, message: OutgoingMessage) -> Answer:
        """Post the message. What can't succeed is refused here, without a call."""
        number = _INDIAN_MOBILE.fullmatch(message.to)
        if number is None:
            return _refusal("bad_recipient", "not an Indian mobile number")
        content = self._content(message)
        if isinstance(content, Answer):
            return content
        # One number per request: the request id is then the id of this one message.
        form = {"route": self._route, "numbers": number[1], "flash": "0", **content}
        try:
            return _classify(await self.transport.request("POST", PATH, data=form, headers=self.headers))
        except TransportError as failure:
            return failure.answer()

    def _content(self, message: OutgoingMessage) -> dict[str, str] | Answer:
        """The form fields that say what to send, or the refusal to send it."""
        if self._route == "q":
            text = storable(message.text)
            return {"message": text, "language": "english" if text.isascii() else "unicode"}
        if self._route != "dlt":
            return _refusal("config", f"FAST2SMS_ROUTE must be q or dlt, not {self._route}")
        template = self._templates.get(f"{message.kind}:{message.language}")
        template = template or self._templates.get(message.kind)
        if not template:
            return _refusal("config", f"no template id for {message.kind}:{message.language}")
        if not self._sender_id:
            return _refusal("config", "route dlt needs FAST2SMS_SENDER_ID")
        values = "|".join(storable(value).replace("|", " ") for value in message.variables)
        return {"sender_id": self._sender_id, "message": template, "variables_values": values}


def _refusal(error_class: ErrorClass, detail: str) -> Answer:
    return Answer(Outcome.PERMANENT, error_class=error_class, detail=detail)


def _classify(reply: Reply) -> Answer:
    fields = reply.fields()
    outcome, error_class, request_id, code = _verdict(reply.status, fields)
    return Answer(
        outcome,
        carrier_message_id=request_id,
        http_status=reply.status,
        error_code="" if code is None else str(code),
        error_class=error_class,
        detail="" if fields is None else _detail(fields.get("message")),
        raw=reply.text,
        retry_after=reply.retry_after,
    )


def _verdict(status: int, fields: dict[str, Any] | None) -> tuple[Outcome, ErrorClass, str, int | None]:
    """Outcome, error class, request id and body code of an answer.

    The body decides, not the HTTP status: rejections have been seen with status 200.
    """
    if fields is None:
        return *http_error(status, readable=False), "", None
    verdict = fields.get("return")
    request_id = fields.get("request_id")
    if verdict is True and isinstance(request_id, str) and request_id.strip():
        return Outcome.ACCEPTED, "", request_id.strip(), None
    if verdict is not False:
        return *http_error(status, readable=False), "", None
    code = _code(fields.get("status_code"))
    known = None if code is None else fast2sms_error(code)
    if known is None and status < 400:
        known = Outcome.PERMANENT, ""  # a clear "no" with a reason that is not listed
    return *(known or http_error(status, readable=True)), "", code


def _code(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:6])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _detail(message: object) -> str:
    """The message, which comes as a string or as a list of strings."""
    parts = message if isinstance(message, list) else [message]
    return " ".join(part for part in parts if isinstance(part, str))
