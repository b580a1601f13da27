"""Alert rules and dashboard: they name only metrics that there are, with labels that they have, and each alarm is explained."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

from testing.processes import BASE_DIR

DEPLOY = BASE_DIR / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
DASHBOARD_EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [rule["expr"] for rule in RULES] + DASHBOARD_EXPRESSIONS
# What Prometheus itself and the client library add.
FOREIGN = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
ADDED_LABELS = {"job", "instance", "le"}
# Only where a test says so is there a database at all.
pytestmark = pytest.mark.django_db

ENDINGS = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


@pytest.fixture(scope="module")
def told(django_db_setup: None, django_db_blocker: Any) -> dict[str, set[str]]:
    """The names of all our samples, with their labels."""
    with django_db_blocker.unblock():
        families: list[Metric] = [each for each in REGISTRY.collect() if each.name.startswith("casualmeet_")]
    instruments = {each._name: each for each in REGISTRY._collector_to_names if hasattr(each, "_name")}
    return {
        family.name + ending: {*getattr(family, "_labelnames", ()), *instruments_labels(instruments.get(family.name))}
        for family in families
        for ending in ENDINGS[family.type]
    }


def instruments_labels(instrument: Any) -> tuple[str, ...]:
    return instrument._labelnames if instrument is not None else ()


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels that it is chosen by."""
    for name, matchers in re.findall(r"\b((?:casualmeet|process)_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_names_metrics_and_labels_that_there_are(told: dict[str, set[str]], expression: str) -> None:
    named = list(selectors(expression))
    assert named
    labels = set(ADDED_LABELS)
    for name, chosen_by in named:
        assert name in told.keys() | FOREIGN
        assert chosen_by <= told.get(name, set()) | ADDED_LABELS, name
        labels |= told.get(name, set())
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_only_counters_are_summed_over_processes(expression: str) -> None:
    """What the database knows every process tells: added up it would be as many times as much."""
    for name in re.findall(r"\bsum(?: by \([^)]*\))? \((?:rate|increase)?\(?(casualmeet_\w+)", expression):
        assert name.endswith(("_total", "_bucket")) or name == "casualmeet_sockets_open"


def test_the_dashboard_shows_every_metric(told: dict[str, set[str]]) -> None:
    shown = {name for expression in DASHBOARD_EXPRESSIONS for name, _ in selectors(expression)}
    assert {name for name in told if not name.endswith(("_count", "_sum"))} <= shown


class TestRules:
    def test_there_are_rules_and_no_name_twice(self) -> None:
        names = [rule["alert"] for rule in RULES]
        assert len(names) == len(set(names)) >= 20

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
    def test_each_says_how_bad_what_and_what_to_do(self, rule: dict[str, Any]) -> None:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert re.fullmatch(r"\d+[sm]", rule.get("for", "0s"))
        assert rule["annotations"]["summary"].endswith(".")
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert re.search(rf"\bby \([^)]*\b{label}\b", rule["expr"]) or "by (" not in rule["expr"]
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert path == "docs/operators.md"
        assert anchor in anchors()

    def test_every_section_about_an_alarm_is_of_one(self) -> None:
        named = {rule["annotations"]["runbook"].partition("#")[2] for rule in RULES}
        assert {anchor for anchor in anchors() if anchor.startswith("alarm-")} == named


def anchors() -> set[str]:
    """As GitHub makes them of headings."""
    text = (BASE_DIR / "docs" / "operators.md").read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_example_loads_these_rules_and_holds_no_secret() -> None:
    example = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert example["rule_files"] == ["alerts.yml"]
    web, workers = example["scrape_configs"]
    assert set(web["authorization"]) == {"credentials_file"}
    assert web.get("metrics_path", "/metrics") == "/metrics"
    assert "authorization" not in workers


class TestDashboard:
    def test_its_data_source_is_chosen_where_it_is_imported(self) -> None:
        (variable,) = DASHBOARD["templating"]["list"]
        assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
        sources = [panel["datasource"] for panel in PANELS] + [t["datasource"] for p in PANELS for t in p["targets"]]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)

    def test_it_has_the_shape_that_grafana_reads(self) -> None:
        assert DASHBOARD["id"] is None
        assert DASHBOARD["schemaVersion"] >= 36
        assert {"title", "uid", "time", "panels", "templating"} <= DASHBOARD.keys()
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(ids) == len(set(ids))
        for panel in PANELS:
            assert panel["type"] in {"stat", "timeseries"}
            assert panel["title"]
            assert {"defaults", "overrides"} == panel["fieldConfig"].keys()
            references = [target["refId"] for target in panel["targets"]]
            assert len(references) == len(set(references)) > 0

    def test_its_panels_lie_side_by_side(self) -> None:
        places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
        for place in places:
            assert place["x"] + place["w"] <= 24
        for one, other in combinations(places, 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or below, (one, other)
