"""DLT messages (India): a registered template and the variables that fill it."""

from datetime import datetime
from string import Formatter
from typing import Final

from notifications.texts import moments
from notifications.texts.compose import Scene, prepare
from notifications.texts.english import ENGLISH
from notifications.texts.facts import AlertFacts, Kind
from notifications.texts.fitting import Offer, fill, fits
from notifications.texts.gsm import segments, utf16_units
from notifications.texts.hindi import HINDI
from notifications.texts.typed import cut, cuts

MAX_VARIABLE: Final = 30
"""Most UTF-16 units in a variable, except in one that is a link."""
NOTHING: Final = "-"
"""What was not given, where there is no room for a word: a variable may not be empty."""


def dlt_template(kind: Kind, language: str) -> str:
    """The template to register for `kind` in `language` (`en`, `hi`), with `{#var#}` marks."""
    frame = (HINDI if language == "hi" else ENGLISH).dlt.frames[kind]
    return frame.format(**dict.fromkeys(_slots(frame), "{#var#}"))


def dlt_variables(facts: AlertFacts, *, language: str, link: str, now: datetime, repeat: int = 0) -> tuple[str, ...]:
    """What fills the `{#var#}` marks of `dlt_template`, in order; arguments as for `compose`.

    Each is non-empty, on one line, without `|` and at most 30 UTF-16 units; what is longer is
    shortened, but never a link or coordinates. Names and places give way further where that keeps
    the filled template within the limits of its kind; the wording of a template is fixed, so a
    long link may still take it over them. Raises ValueError as `compose` does.
    """
    scene = prepare(facts, language=language, link=link, now=now, repeat=repeat)
    frame = scene.words.dlt.frames[facts.kind]
    floor, offers = _parts(scene)
    # A registered wording can't shrink: where it is over the limit already, the parts it takes
    # anyway may as well be full.
    least = segments(frame.format(**floor))

    def fitting(text: str) -> bool:
        return fits(text, facts.kind, facts.point) or segments(text) <= least

    slots = fill(frame, floor, offers, fitting)
    return tuple(slots[name] for name in _slots(frame))


def _slots(frame: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(frame) if name]


def _short(*wordings: str) -> str:
    """The first wording short enough for a variable, else the last one cut."""
    for wording in wordings:
        if utf16_units(wording) <= MAX_VARIABLE:
            return wording
    return cut(wordings[-1], MAX_VARIABLE)


def _parts(scene: Scene) -> tuple[dict[str, str], list[Offer]]:
    """All slots any template has: the shortest filling of each, then offers in order of worth."""
    facts, words = scene.facts, scene.words
    names = cuts(scene.name, MAX_VARIABLE)
    mets = [m for m in cuts(scene.typed(facts.meet_with), MAX_VARIABLE) if m]
    places = [p for p in cuts(scene.typed(facts.place_name), MAX_VARIABLE) if p]
    position, references, events = _position(scene), _references(scene), _events(scene)
    floor = {
        "again": _again(scene),
        "name": names[-1],
        "event": events[-1],
        "position": position[-1],
        "point": facts.point or (places[-1] if places else words.dlt.nowhere),
        "phone": scene.phone or words.their_phone,
        "met": mets[-1] if mets else NOTHING,
        "place": places[-1] if places else NOTHING,
        "reference": references[-1],
        "minutes": scene.minutes,
        "link": scene.link,
        "said": _said(scene),
    }
    nobody = [words.dlt.nobody]
    offers: list[Offer] = [("event", events), ("name", names), ("position", position), ("met", mets or nobody)]
    offers += [("place", places or nobody), ("reference", references)]
    if not facts.point:
        # The planned place stands where the coordinates would; it is all there is to go by.
        offers.insert(0, ("point", places))
    return floor, offers


def _again(scene: Scene) -> str:
    words, kind, number = scene.words.dlt, scene.facts.kind, scene.repeat + 1
    if kind is Kind.INVITATION:
        return words.repeated_invitation(number) if scene.repeat else words.first_invitation
    if kind is Kind.RECONFIRM:
        return words.repeated_question(number) if scene.repeat else words.first_question
    return scene.again.lstrip(", ") if scene.repeat else words.first


def _said(scene: Scene) -> str:
    """The beginning of what is said, without the name that the template has."""
    again = scene.again_short
    said = scene.typed(scene.facts.said.removeprefix("CasualMeet: ")) or scene.words.dlt.nobody
    return cut(said, MAX_VARIABLE - utf16_units(again)) + again


def _events(scene: Scene) -> list[str]:
    """What happened when, fullest first; the last says how late it was, or the time alone."""
    happened, where = scene.facts.happened_at, scene.where
    time, date = moments.clock_zone(happened, where), moments.day(happened, where)
    if scene.facts.kind is Kind.ALL_CLEAR:
        return [_short(f"{time} {scene.how}")]
    if scene.facts.kind is Kind.CHECK_PROMPT:
        return [_short(moments.clock(happened, where) + scene.again)]
    late = ""
    if scene.facts.kind is Kind.MISSED_CHECK_IN and scene.late:
        late = scene.words.dlt.late.format(age=scene.late)
    fullest = _short(f"{time}, {date}{late}", f"{time}{late}", f"{time}, {date}")
    return [fullest, _short(f"{time}{late}", time)]


def _position(scene: Scene) -> list[str]:
    """The words before the coordinates, fullest first; all say how old and how rough a fix is."""
    facts, forms = scene.facts, scene.words.dlt
    update = facts.kind is Kind.UPDATE
    if not facts.point:
        return [_short(forms.no_position)]
    detail, brief = scene.detail(full=True), scene.detail(full=False)
    located = facts.located_at
    if located is None:
        texts = [forms.undated.format(detail=d) for d in (detail, brief)]
    elif scene.stale:
        clock = moments.clock(located, scene.where)
        zoned = moments.clock_zone(located, scene.where) if update else clock
        dated = zoned + scene.date_beside(located, scene.now if update else facts.happened_at)
        said = ((dated, detail), (dated, brief), (zoned, brief), (clock, brief))
        texts = [forms.seen.format(when=when, detail=d) for when, d in said]
    else:
        clock = (moments.clock_zone if update else moments.clock)(located, scene.where)
        form = forms.now if update else forms.located
        texts = [form.format(detail=d) for d in (scene.detail(full=True, clock=clock), brief)]
    return [_sentence(scene, text) for text in (_short(*texts), texts[-1])]


def _sentence(scene: Scene, text: str) -> str:
    """`text` with a capital where the template has it at the start of a sentence."""
    return text if scene.facts.kind is Kind.UPDATE else text[:1].upper() + text[1:]


def _references(scene: Scene) -> list[str]:
    """The incident, with and without when it opened, and the mark of a repeat."""
    reference = scene.reference or scene.words.dlt.no_reference
    opened = scene.words.opened.format(opened=scene.opened) if scene.opened else ""
    plain = reference + scene.again
    # An update says when it is itself from; when the incident opened would confuse.
    if scene.facts.kind is not Kind.ALL_CLEAR:
        return [plain]
    return [_short(reference + opened + scene.again, plain), plain]
