"""The auditor itself: what it writes down, what it makes of failing checks, and what it sees of the workers."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from casualmeet import clock
from ops import audit, audits, beats
from ops.audit import Finding
from ops.models import AuditFinding, Severity, WorkerBeat

NOW = datetime(2026, 3, 14, 21, tzinfo=UTC)
SLOT = timedelta(seconds=30)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, audit.Check]:
    """These are all the checks there are."""
    made: dict[str, audit.Check] = {}
    monkeypatch.setattr(audit, "checks", lambda: made)
    return made


def finds(*found: Finding) -> audit.Check:
    return lambda _now: found


def broken(_now: datetime) -> Iterator[Finding]:
    yield Finding("seen-before", "Seen before it failed")
    raise ZeroDivisionError


def rows() -> dict[str, AuditFinding]:
    return AuditFinding.objects.in_bulk()


@pytest.mark.django_db(transaction=True)
class TestFindings:
    def test_one_row_as_long_as_it_is_so(self, checks: dict[str, audit.Check]) -> None:
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still", "One.", Severity.WARNING))
        outcome = audit.run(NOW)
        assert outcome.changed
        row = rows()["ladder"]
        assert (row.check_name, row.title, row.body, row.severity) == (
            "ladders",
            "A ladder stands still",
            "One.",
            "warning",
        )
        assert row.first_seen_at == row.last_seen_at == NOW
        assert not audit.run(NOW + SLOT).changed
        row = rows()["ladder"]
        assert (row.first_seen_at, row.last_seen_at, row.gone_at) == (NOW, NOW + SLOT, None)
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still", "Two."))
        assert audit.run(NOW + 2 * SLOT).changed
        assert (rows()["ladder"].body, rows()["ladder"].severity) == ("Two.", "critical")

    def test_gone_when_it_is_so_no_more_and_new_when_it_comes_back(self, checks: dict[str, audit.Check]) -> None:
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still"))
        audit.run(NOW)
        checks["ladders"] = finds()
        assert audit.run(NOW + SLOT).changed
        assert rows()["ladder"].gone_at == NOW + SLOT
        assert not AuditFinding.objects.open(since=NOW).exists()
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still"))
        audit.run(NOW + 2 * SLOT)
        assert (rows()["ladder"].gone_at, rows()["ladder"].first_seen_at) == (None, NOW + 2 * SLOT)

    def test_one_that_nobody_sees_any_more_is_not_open_for_long(self, checks: dict[str, audit.Check]) -> None:
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still"))
        audit.run(NOW)
        assert AuditFinding.objects.open(since=NOW).exists()
        assert not AuditFinding.objects.open(since=NOW + audit.FRESH).exists()

    def test_p14_a_check_that_fails_stops_no_other_and_is_a_finding(self, checks: dict[str, audit.Check]) -> None:
        checks["ladders"] = finds(Finding("ladder", "A ladder stands still", severity=Severity.WARNING))
        audit.run(NOW)
        checks["first"], checks["ladders"], checks["last"] = finds(Finding("first", "One")), broken, finds()
        outcome = audit.run(NOW + SLOT)
        assert (outcome.failed, outcome.well) == (["ladders"], False)
        assert rows()["check-failed:ladders"].title == "The auditor could not look for ladders"
        assert "ZeroDivisionError" in rows()["check-failed:ladders"].body
        assert rows()["first"].gone_at is None
        assert rows()["ladder"].gone_at is None, "nobody looked, so nobody knows"
        checks["ladders"] = finds()
        audit.run(NOW + 2 * SLOT)
        assert rows()["check-failed:ladders"].gone_at == rows()["ladder"].gone_at == NOW + 2 * SLOT

    def test_what_a_version_before_looked_for_is_gone_with_its_check(self, checks: dict[str, audit.Check]) -> None:
        checks["old"] = finds(Finding("old", "Old"))
        audit.run(NOW)
        del checks["old"]
        audit.run(NOW + SLOT)
        assert rows()["old"].gone_at == NOW + SLOT

    def test_it_is_well_only_with_all_checks_made_and_nothing_critical(self, checks: dict[str, audit.Check]) -> None:
        assert audit.run(NOW).well
        checks["warning"] = finds(Finding("w", "W", severity=Severity.WARNING))
        assert audit.run(NOW).well
        checks["critical"] = finds(Finding("c", "C"))
        assert not audit.run(NOW).well

    def test_every_audit_leaves_a_beat(self, checks: dict[str, audit.Check]) -> None:
        audit.run(NOW)
        audit.run(NOW)
        row = WorkerBeat.objects.get(role=beats.AUDIT)
        assert clock.now() - row.cycle_at < timedelta(seconds=20)


def test_few_are_named_and_many_are_counted() -> None:
    found = [Finding(f"k{n}", f"T{n}", severity=Severity.WARNING) for n in range(8)]
    assert audit.several(found[:5], key="rest", title="{} more") == found[:5]
    *named, rest = audit.several(found, key="rest", title="{} more")
    assert named == found[:5]
    assert rest == Finding("rest", "3 more", severity=Severity.WARNING)
    assert audit.several([*found, Finding("c", "C")], key="rest", title="{}")[-1].severity == Severity.CRITICAL
    assert audit.at_most(1_000) == "1,000 or more"


def beat(role: str, *, seconds_ago: float = 1, started: float = 3_600, **fields: Any) -> WorkerBeat:
    given = {"node": "host:1", "cycle_at": NOW - timedelta(seconds=seconds_ago), **fields}
    return WorkerBeat.objects.create(id=uuid4(), role=role, started_at=NOW - timedelta(seconds=started), **given)


def keys(check: audit.Check) -> Sequence[str]:
    return [finding.key for finding in check(NOW)]


@pytest.mark.django_db
class TestWorkers:
    def test_none_of_a_role_is_critical(self) -> None:
        beat(beats.DISPATCH)
        (found,) = audits.workers(NOW)
        assert (found.key, found.severity) == ("no-worker:timer", Severity.CRITICAL)
        beat(beats.TIMER, seconds_ago=31)
        assert keys(audits.workers) == ["no-worker:timer"]
        beat(beats.TIMER, seconds_ago=29)
        assert "no-worker:timer" not in keys(audits.workers)

    def test_one_that_fell_silent_beside_others_is_a_warning_until_another_takes_its_place(self) -> None:
        beat(beats.DISPATCH)
        beat(beats.TIMER)
        silent = beat(beats.TIMER, seconds_ago=100, node="web-3:77")
        (found,) = audits.workers(NOW)
        assert (found.key, found.severity) == (f"worker-silent:{silent.pk}", Severity.WARNING)
        assert "web-3:77" in found.body
        beat(beats.TIMER, started=95)
        assert keys(audits.workers) == []
        other = beat(beats.TIMER, seconds_ago=101)
        assert keys(audits.workers) == [f"worker-silent:{silent.pk}"], "one takes one place"
        assert other.pk != silent.pk

    def test_after_an_hour_it_is_missed_no_more(self) -> None:
        for role in (beats.DISPATCH, beats.TIMER):
            beat(role)
        beat(beats.TIMER, seconds_ago=3_601)
        WorkerBeat.objects.create(
            id=beats.AUDIT_ID, role=beats.AUDIT, node="", started_at=NOW, cycle_at=NOW - timedelta(days=1)
        )
        assert keys(audits.workers) == []
        assert sorted(WorkerBeat.objects.values_list("role", flat=True)) == ["audit", "dispatch", "timer"]

    def test_a_clock_that_is_off_is_a_warning_once_for_each_machine(self) -> None:
        beat(beats.TIMER, skew_ms=-61_000.0, node="db-less:1")
        beat(beats.DISPATCH, skew_ms=-61_200.0, node="db-less:1")
        beat(beats.TIMER, skew_ms=29_000.0, node="fine:1")
        beat(beats.TIMER, skew_ms=90_000.0, node="gone:1", seconds_ago=60)
        (found,) = audits.clocks(NOW)
        assert (found.key, found.severity) == ("clock:db-less", Severity.WARNING)
        assert "61 s behind the database's" in found.title


@pytest.mark.django_db
class TestBlindness:
    def test_nobody_audits_though_workers_run(self) -> None:
        assert audit.blind_since(NOW) is None, "nothing runs, nothing is expected"
        beat(beats.TIMER, started=60)
        assert audit.blind_since(NOW) is None, "just started"
        beat(beats.DISPATCH, started=100)
        assert audit.blind_since(NOW) == NOW - timedelta(seconds=100)

    def test_the_last_audit_is_long_ago(self) -> None:
        last = WorkerBeat.objects.create(id=beats.AUDIT_ID, role=beats.AUDIT, node="", started_at=NOW, cycle_at=NOW)
        assert audit.blind_since(NOW + timedelta(seconds=89)) is None
        assert audit.blind_since(NOW + timedelta(seconds=91)) == last.cycle_at
