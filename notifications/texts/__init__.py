"""Every text that leaves the house: pure functions from facts to words.

`compose` writes it for carriers that take free text, `dlt_variables` for those with registered
templates. Rules and examples: the messages page of the design.
"""

from notifications.texts.answers import Topic, compose_answer
from notifications.texts.compose import LINKED, MAX_LINK, compose
from notifications.texts.digest import Figures, compose_digest
from notifications.texts.dlt import MAX_VARIABLE, dlt_template, dlt_variables
from notifications.texts.facts import ALERTS, AlertFacts, Kind, format_position
from notifications.texts.fitting import MAX_SEGMENTS
from notifications.texts.gsm import is_gsm7, segments
from notifications.texts.pushed import compose_push
from notifications.texts.spoken import Ending, compose_call, compose_ending

__all__ = [
    "ALERTS",
    "LINKED",
    "MAX_LINK",
    "MAX_SEGMENTS",
    "MAX_VARIABLE",
    "AlertFacts",
    "Ending",
    "Figures",
    "Kind",
    "Topic",
    "compose",
    "compose_answer",
    "compose_call",
    "compose_digest",
    "compose_ending",
    "compose_push",
    "dlt_template",
    "dlt_variables",
    "format_position",
    "is_gsm7",
    "segments",
]
