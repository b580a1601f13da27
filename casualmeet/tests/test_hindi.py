"""The contacts' pages in Hindi: every sentence is translated, and what is compiled is what stands in the catalogue."""

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.conf import settings

CATALOGUE = settings.BASE_DIR / "locale" / "hi" / "LC_MESSAGES"
# Of the pages that contacts see, and of the code that words ages and distances on them.
MARKED = re.compile(
    r"""\{%\s*translate\s+"([^"]+)"|\{%\s*blocktranslate[^%]*%\}(.*?)\{%\s*endblocktranslate|gettext\("([^"]+)"\)""",
    re.DOTALL,
)
PLACE = re.compile(r"%\(\w+\)[.\d]*[sdf]")


def written() -> dict[str, str]:
    """What the catalogue for people says."""
    entries: dict[str, str] = {}
    for block in (CATALOGUE / "django.po").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        source, translated = "\n".join(lines).removeprefix("msgid ").split("\nmsgstr ")
        entries[_joined(source)] = _joined(translated)
    return entries


def _joined(lines: str) -> str:
    return "".join(ast.literal_eval(line) for line in lines.splitlines())


def test_what_is_compiled_is_what_is_written() -> None:
    """After a change: `manage.py makemessages -l hi --no-location --no-wrap`, translate, `manage.py compilemessages`."""
    with (CATALOGUE / "django.mo").open("rb") as compiled:
        used = gettext.GNUTranslations(compiled)
    entries = written()
    assert len(entries) > 50
    for source, translated in entries.items():
        if source:
            assert used.gettext(source) == translated


@pytest.mark.parametrize(
    "path",
    [
        *("templates/casualmeet/skeleton.html", "templates/notifications/push_offer.html", "templates/sos/alert.html"),
        *("templates/safety/invitation.html", "sos/wording.py"),
    ],
)
def test_every_marked_sentence_is_translated_with_its_places(path: str) -> None:
    entries = written()
    found = [next(filter(None, groups)) for groups in MARKED.findall((Path(settings.BASE_DIR) / path).read_text())]
    assert found
    for sentence in found:
        source = re.sub(r"\{\{ (\w+) \}\}", r"%(\1)s", sentence)
        assert entries.get(source), source
        assert sorted(PLACE.findall(entries[source])) == sorted(PLACE.findall(source))
        assert re.search("[ऀ-ॿ]", entries[source])
