"""Free-text messages: which facts go in, in which order of worth."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

from notifications.texts import moments
from notifications.texts.english import ENGLISH
from notifications.texts.facts import ALERTS, SAID, AlertFacts, Kind
from notifications.texts.fitting import Offer, fill, fits, full
from notifications.texts.hindi import HINDI
from notifications.texts.typed import clean, cuts
from notifications.texts.wording import PositionWording, Wording

MAX_LINK: Final = 80
LINKED: Final = ALERTS | {Kind.UPDATE, Kind.INVITATION, Kind.RECONFIRM}
"""The kinds whose text carries the link."""

FRESH_FOR: Final = timedelta(minutes=10)
ROUGH_ABOVE_M: Final = 500
LATE_FROM_S: Final = 120

LONGEST_TYPED = 40
_LONGEST_WORD = 16
_MOST_REPEATS = 98
_LINK = re.compile(rf"[A-Za-z0-9:/?=.,_-]{{1,{MAX_LINK}}}")


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts of one text ready to be worded: cleaned names, local times."""

    facts: AlertFacts
    words: Wording
    link: str
    now: datetime
    repeat: int
    where: tzinfo

    @property
    def name(self) -> str:
        """The person's name, never empty."""
        return self.typed(self.facts.person_name) or self.words.unnamed

    def typed(self, text: str) -> str:
        """`text` cleaned for this language."""
        return clean(text, gsm=self.words.gsm)

    @property
    def phone(self) -> str:
        """The person's phone in digits with an optional plus, or "" if it isn't one."""
        phone = re.sub(r"[\s().-]", "", self.facts.person_phone)
        return phone if re.fullmatch(r"\+?[0-9]{3,15}", phone) else ""

    @property
    def reference(self) -> str:
        """The incident's reference, at most eight letters and digits."""
        return re.sub(r"[^A-Za-z0-9]", "", self.facts.reference)[:8]

    @property
    def again(self) -> str:
        """The mark of a repeat, or ""."""
        return self.words.repeated(self.repeat + 1, self.facts.kind) if self.repeat else ""

    @property
    def again_short(self) -> str:
        """The shortest mark of a repeat, or ""."""
        return self.words.repeated_short(self.repeat + 1, self.facts.kind) if self.repeat else ""

    @property
    def late(self) -> str:
        """How late the alert is ("3 h"), or "" below two minutes."""
        seconds = self.facts.late_seconds
        if seconds < LATE_FROM_S:
            return ""
        minutes, hours, days = self.words.late_ages
        if seconds < 2 * 3600:
            return minutes.format(seconds // 60)
        if seconds < 48 * 3600:
            return hours.format(seconds // 3600)
        return days.format(min(seconds // 86400, 999))

    @property
    def how(self) -> str:
        """How safety was confirmed."""
        return self.words.with_pin if self.facts.confirmed_with_pin else self.words.in_app

    @property
    def opened(self) -> str:
        """When the incident opened, with its date if that differs, or ""."""
        opened = self.facts.opened_at
        return self.clock_on(opened, self.facts.happened_at) if opened else ""

    @property
    def minutes(self) -> str:
        """Minutes left before the deadline; counted from `now` where the facts don't say."""
        left = self.facts.minutes_left
        if left is None:
            left = -((self.now - self.facts.happened_at) // timedelta(minutes=1))
        return self.words.minutes.format(min(left, 9999)) if left > 0 else self.words.under_a_minute

    def clock_on(self, moment: datetime, beside: datetime) -> str:
        """`21:30`, with the date where it is not that of `beside`, the date the reader assumes."""
        return moments.clock(moment, self.where) + self.date_beside(moment, beside)

    def date_beside(self, moment: datetime, beside: datetime) -> str:
        """` 14 Mar` if `moment` is on another day than `beside`, else ""."""
        date = moments.day(moment, self.where)
        return "" if date == moments.day(beside, self.where) else f" {date}"

    @property
    def stale(self) -> bool:
        """Whether the fix is too old, or its age unknown, to say the person is there."""
        located = self.facts.located_at
        return located is None or self.now - located > FRESH_FOR

    def detail(self, *, full: bool, clock: str = "") -> str:
        """What stands beside coordinates: ` (approximate, 800 m, 21:20)`, or ""."""
        accuracy = self.facts.accuracy_m
        rough = accuracy is not None and accuracy > ROUGH_ABOVE_M
        said = [self.words.approximate] if rough else []
        if full and accuracy is not None:
            said.append(self._distance(accuracy))
        if full and clock:
            said.append(clock)
        return f" ({', '.join(said)})" if said else ""

    def _distance(self, metres: float) -> str:
        if metres < 1000:
            return self.words.metres.format(max(1, round(metres)))
        return self.words.kilometres.format(min(999, round(metres / 1000)))


def prepare(facts: AlertFacts, *, language: str, link: str, now: datetime, repeat: int = 0) -> Scene:
    """The scene of a text. Raises ValueError for a bad link or a `now` without a zone."""
    if facts.kind in LINKED and not _LINK.fullmatch(link):
        raise ValueError(f"not a link a text can carry whole: {link!r}")
    return scene_of(facts, language=language, link=link, now=now, repeat=repeat)


def scene_of(facts: AlertFacts, *, language: str, now: datetime, repeat: int = 0, link: str = "") -> Scene:
    """The same for what needs no link. Raises ValueError for a `now` without a zone."""
    if now.utcoffset() is None:
        raise ValueError("now without a zone")
    words = HINDI if re.split("[-_]", language.lower())[0] == "hi" else ENGLISH
    repeat = max(0, min(repeat, _MOST_REPEATS))
    return Scene(facts, words, link, now, repeat, moments.zone(facts.time_zone))


def compose(facts: AlertFacts, *, language: str, link: str, now: datetime, repeat: int = 0) -> str:
    """The text of a message for a carrier that takes free text.

    `language` is `en` or `hi` (a region such as `hi-IN` is fine; others read English). `link` is
    the one link, used by the kinds in LINKED. `now` (aware) decides whether the fix
    is fresh. `repeat` counts earlier texts about the same thing; from 1 on the text says so.
    Limits by kind are in fitting.MAX_SEGMENTS and hold whatever people typed.

    Raises ValueError for a link longer than 80 or with characters outside [A-Za-z0-9:/?=.,_-].
    Wording: the messages page of the design.
    """
    scene = prepare(facts, language=language, link=link, now=now, repeat=repeat)
    frame = scene.words.frames[facts.kind]
    if facts.kind in ALERTS:
        floor, offers = _alert(scene)
    elif facts.kind is Kind.UPDATE:
        floor, offers = _update(scene)
    elif facts.kind is Kind.ALL_CLEAR:
        floor, offers = _all_clear(scene)
    elif facts.kind is Kind.CHECK_PROMPT:
        floor, offers = _check_prompt(scene)
    elif facts.kind is Kind.FAIL_SAFE:
        floor, offers = _fail_safe(scene)
    elif facts.kind in SAID:
        floor, offers = {"said": facts.said}, []
    elif facts.kind is Kind.RECONFIRM:
        floor, offers = _reconfirm(scene)
    else:
        floor, offers = _invitation(scene)
    # The repeat mark is offered like any part, but its floor already says it.
    floor["again"] = scene.again_short
    offers.insert(0, ("again", (scene.again,)))
    point = facts.point
    whole = frame.format(**full(floor, offers))
    if fits(whole, facts.kind, point):  # often, and then nothing has to be weighed
        return whole
    return frame.format(**fill(frame, floor, offers, lambda text: fits(text, facts.kind, point)))


Draft = tuple[dict[str, str], list[Offer]]


def _alert(scene: Scene) -> Draft:
    words, kind = scene.words, scene.facts.kind
    names = cuts(scene.name, LONGEST_TYPED)
    happened = events(scene, late="")
    where = positions(scene, words.alert_position, zoned=False)
    caution = words.caution.get(kind, "")
    phone = scene.phone if kind is Kind.MISSED_CHECK_IN else ""
    calls = [form.format(phone=phone) for form in words.call] if phone else []
    met, met_at = meeting(scene)
    floor = dict.fromkeys(("brand", "call", "dial", "meeting", "word", "map"), "")
    floor |= {"name": names[-1], "event": happened[-1], "position": where[-1]}
    floor |= {"link": scene.link, "caution": caution if kind is Kind.DURESS else ""}
    return floor, [
        # How old and how rough a position is belongs to it: saying so comes before all else.
        ("position", where[1:]),
        ("dial", words.emergency[-1:]),
        ("event", happened[1:]),
        ("name", names),
        ("position", where),
        ("call", calls[-1:]),
        ("map", words.map[-1:]),
        ("event", happened),
        ("brand", (words.brand,)),
        ("call", calls),
        ("caution", (caution,)),
        ("event", events(scene, late=scene.late)[:1]),
        ("dial", words.emergency),
        ("map", words.map),
        ("meeting", met),
        ("meeting", met_at),
        ("word", _agreed_word(scene)),
    ]


def events(scene: Scene, *, late: str) -> list[str]:
    """What happened and when, fullest first."""
    happened, where = scene.facts.happened_at, scene.where
    said = {
        "time": moments.clock_zone(happened, where),
        "clock": moments.clock(happened, where),
        "date": moments.day(happened, where),
        "late": scene.words.late.format(age=late) if late else "",
        "how": scene.how,
    }
    return [form.format(**said) for form in scene.words.events[scene.facts.kind]]


def positions(scene: Scene, forms: PositionWording, *, zoned: bool) -> list[str]:
    """Where the person is or was, fullest first. `zoned` where no other time names the zone."""
    facts, point = scene.facts, scene.facts.point
    if not point:
        return _no_position(scene, forms)
    located = facts.located_at
    if located is None:
        details = scene.detail(full=True), scene.detail(full=False), ""
        undated = [forms.undated.format(point=point, detail=detail) for detail in details]
        return [*undated, f"{point}."]
    clock = (moments.clock_zone if zoned else moments.clock)(located, scene.where)
    if not scene.stale:
        details = scene.detail(full=True, clock=clock), scene.detail(full=False), ""
        return [forms.fresh.format(point=point, detail=detail) for detail in details]
    dated = clock + scene.date_beside(located, scene.now if zoned else facts.happened_at)
    return [
        forms.seen.format(point=point, when=dated, detail=scene.detail(full=True)),
        forms.seen.format(point=point, when=clock, detail=scene.detail(full=False)),
        forms.seen.format(point=point, when=clock, detail=""),
        forms.bare.format(point=point, clock=moments.clock(located, scene.where)),
    ]


def _no_position(scene: Scene, forms: PositionWording) -> list[str]:
    when = moments.clock_zone(scene.facts.happened_at, scene.where)
    place = scene.typed(scene.facts.place_name)
    none = forms.none.format(when=when)
    planned = [forms.planned.format(place=p, when=when) for p in cuts(place, LONGEST_TYPED) if p]
    return [*planned, none]


def meeting(scene: Scene) -> tuple[list[str], list[str]]:
    """Whom they met, and the same with the planned place, each fullest first."""
    words = scene.words
    met = scene.typed(scene.facts.meet_with)
    place = scene.typed(scene.facts.place_name) if scene.facts.point else ""
    mets = [m for m in cuts(met, LONGEST_TYPED) if m]
    places = [p for p in cuts(place, LONGEST_TYPED) if p]
    if not mets:
        return [], [words.place.format(place=p) for p in places]
    return (
        [words.met.format(met=m) for m in mets],
        # The place is worth less: it is never bought with a shorter name.
        [words.met_at.format(met=mets[0], place=p) for p in places],
    )


def _agreed_word(scene: Scene) -> list[str]:
    word = scene.typed(scene.facts.agreed_word)
    # Half a word would look like a wrong one.
    return [scene.words.agreed_word.format(word=word)] if 0 < len(word) <= _LONGEST_WORD else []


def _update(scene: Scene) -> Draft:
    words, reference = scene.words, scene.reference
    names = cuts(scene.name, LONGEST_TYPED)
    where = positions(scene, words.update_position, zoned=True)
    references = [form.format(reference=reference) for form in words.update_of]
    references = [form.rstrip() for form in references if reference or form.rstrip()]
    floor = dict.fromkeys(("reference", "calm", "map"), "")
    floor |= {"name": names[-1], "position": where[-1], "link": scene.link}
    return floor, [
        ("position", where[1:]),
        ("name", names),
        ("reference", references[-1:]),
        ("position", where),
        ("reference", references),
        ("calm", (words.no_new_alarm,)),
        ("map", words.map[-1:]),
    ]


def _all_clear(scene: Scene) -> Draft:
    words, reference, opened = scene.words, scene.reference, scene.opened
    names, happened = cuts(scene.name, LONGEST_TYPED), events(scene, late="")
    forms = words.closed if reference else (words.closed_unnamed,)
    opening = words.opened.format(opened=opened) if opened else ""
    closed = [form.format(reference=reference, opened=opening) for form in forms]
    floor = dict.fromkeys(("brand", "closed", "unsure"), "")
    floor |= {"name": names[-1], "event": happened[-1]}
    return floor, [
        ("name", names),
        ("event", happened[1:]),
        ("closed", closed[-1:]),
        ("brand", (words.brand,)),
        ("event", happened),
        ("closed", closed[1:]),
        ("unsure", (words.unsure,)),
        ("closed", closed),
    ]


def _check_prompt(scene: Scene) -> Draft:
    deadline = moments.clock(scene.facts.happened_at, scene.where)
    return {"minutes": scene.minutes, "event": deadline}, []


def _fail_safe(scene: Scene) -> Draft:
    words, names, happened = scene.words, cuts(scene.name, LONGEST_TYPED), events(scene, late="")
    calls = [form.format(phone=scene.phone) for form in words.call] if scene.phone else []
    floor = {
        "name": names[-1],
        "event": happened[-1],
        "call": calls[-1] if calls else words.call[-1].format(phone=words.their_phone),
        "dial": words.emergency[-1],
        # By this the carrier's copy of the text is found again: it is never left out.
        "reference": words.tracked.format(reference=scene.reference) if scene.reference else "",
    }
    return floor, [
        ("event", happened[1:]),
        ("name", names),
        ("event", happened),
        ("call", calls),
        ("dial", words.emergency),
    ]


def _invitation(scene: Scene) -> Draft:
    words = scene.words
    names = cuts(scene.name, LONGEST_TYPED)
    floor = {"name": names[-1], "ask": words.invitation_ask[-1], "end": "", "link": scene.link}
    return floor, [
        ("end", words.invitation_end[-1:]),
        ("name", names),
        ("ask", words.invitation_ask),
        ("end", words.invitation_end),
    ]


def _reconfirm(scene: Scene) -> Draft:
    words = scene.words
    names = cuts(scene.name, LONGEST_TYPED)
    floor = {"name": names[-1], "ask": words.reconfirm_ask[-1], "end": "", "link": scene.link}
    return floor, [
        ("end", (words.reconfirm_end,)),
        ("name", names),
        ("ask", words.reconfirm_ask),
    ]
