"""Texts from people to our Twilio numbers: STOP words obeyed, the site told, its TwiML answer sent.

Twilio docs: "Receive and reply to messages", "Support for opt-out keywords", "Advanced opt-out", "Error 14107".
"""

from typing import Final
from xml.etree import ElementTree as ET

from simulator.callbacks import MAX_TWIML, Sent, SiteCaller
from simulator.credentials import ACCOUNT_SID, FROM_NUMBER, MESSAGING_SERVICE_SID
from simulator.messages import API_VERSION, new_sid
from simulator.rules import accept
from simulator.twilio import Twilio

STOP_WORDS: Final = frozenset({"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "OPTOUT", "REVOKE"})
START_WORDS: Final = frozenset({"START", "YES", "UNSTOP"})
MAX_REPLIES: Final = 30
REPLY_WINDOW_SECONDS: Final = 30
TOO_MANY_REPLIES: Final = 14107


HELP_WORDS: Final = frozenset({"HELP", "INFO"})

_NOTES: Final = {
    "STOP": "You have successfully been unsubscribed. You will not receive any more messages from this number. "
    "Reply START to resubscribe.",
    "START": "You have successfully been re-subscribed to messages from this number. Reply HELP for help. "
    "Reply STOP to unsubscribe. Msg&Data Rates May Apply.",
    "HELP": "Reply STOP to unsubscribe. Msg&Data Rates May Apply.",
}


class Inbound:
    """`url` is where the site takes texts."""

    def __init__(self, twilio: Twilio, caller: SiteCaller) -> None:
        self._twilio = twilio
        self._caller = caller
        self._replies: dict[tuple[str, str], list[float]] = {}
        self.url = ""

    async def text(self, phone: str, text: str, *, to: str = "", **more: str) -> Sent:
        """A person texts one of our numbers: tell the site, and pass on what its answer says."""
        sender = to or self._last_sender(phone)
        in_pool = sender in self._twilio.account.pool
        word = text.strip().upper()
        fields = {
            "AccountSid": ACCOUNT_SID,
            "ApiVersion": API_VERSION,
            "Body": text,
            "From": phone,
            "MessageSid": new_sid(),
            "NumMedia": "0",
            "NumSegments": "1",
            "SmsStatus": "received",
            "To": sender,
        }
        fields["SmsSid"] = fields["SmsMessageSid"] = fields["MessageSid"]
        if in_pool:
            fields["MessagingServiceSid"] = MESSAGING_SERVICE_SID
        if self._twilio.account.advanced_opt_out and (kind := _keyword(word)):
            fields["OptOutType"] = kind
        self._twilio.journal.add(
            carrier="twilio",
            channel="sms",
            phone=phone,
            text=text,
            at=self._twilio.clock.now(),
            message_id=fields["MessageSid"],
            sender=sender,
            author="person",
            status="received",
            on_phone=True,
        )
        self._obey(word, phone, sender, in_pool=in_pool)
        sent = await self._caller.send(self.url, {**fields, **more})
        for reply in _replies(sent.body) if sent.ok else ():
            self._reply(phone, sender, reply, in_pool=in_pool)
        return sent

    def _last_sender(self, phone: str) -> str:
        mine = [m.sender for m in self._twilio.messages.values() if m.to == phone and m.sender]
        return mine[-1] if mine else FROM_NUMBER

    def _obey(self, word: str, phone: str, sender: str, *, in_pool: bool) -> None:
        """Do what Twilio does by itself with STOP, START and HELP words, before the site hears of them."""
        kind = _keyword(word)
        if not kind:
            return
        keys = {(sender, phone), *({(MESSAGING_SERVICE_SID, phone)} if in_pool else ())}
        if kind == "STOP":
            self._twilio.account.stopped |= keys
        elif kind == "START":
            self._twilio.account.stopped -= keys
        self._twilio.journal.add(
            carrier="twilio",
            channel="sms",
            phone=phone,
            text=_NOTES[kind],
            at=self._twilio.clock.now(),
            message_id=new_sid(),
            sender=sender,
            author="carrier",
            status="delivered",
            on_phone=True,
        )

    def _reply(self, phone: str, sender: str, text: str, *, in_pool: bool) -> None:
        """Send what the answer to an inbound text asked for; beyond thirty in thirty seconds nothing is sent."""
        now = self._twilio.clock.now()
        recent = [at for at in self._replies.get((sender, phone), []) if at > now - REPLY_WINDOW_SECONDS]
        if len(recent) >= MAX_REPLIES:
            self._caller.alerts.append(TOO_MANY_REPLIES)
            return
        self._replies[sender, phone] = [*recent, now]
        message = self._twilio.take({"To": phone, "From": sender, "Body": text})
        message.opted_out = (sender, phone) in self._twilio.account.stopped
        message.direction = "outbound-reply"
        if in_pool:
            message.service = MESSAGING_SERVICE_SID
        self._twilio.clock.spawn(self._twilio.courier.carry(message, accept))


def _keyword(word: str) -> str:
    """STOP, START or HELP, or nothing."""
    kinds = {"STOP": STOP_WORDS, "START": START_WORDS, "HELP": HELP_WORDS}
    return next((kind for kind, words in kinds.items() if word in words), "")


def _replies(body: str) -> list[str]:
    """The texts of the Message verbs in a TwiML answer."""
    if not body.strip() or len(body) > MAX_TWIML:
        return []
    try:
        root = ET.fromstring(body)
    except ET.ParseError:
        return []
    return ["".join(node.itertext()).strip() for node in root.iter("Message")]
