"""Declarations of jobs: wrong ones fail at start and say where; slots by the clock on the wall."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ImproperlyConfigured

from ops import jobs
from ops.jobs import Job, Run

DAY = timedelta(days=1)


def nothing(run: Run) -> str:
    return ""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(cron: str, zone: str, start: str, end: str) -> list[str]:
    """All slots between, found as the scheduler finds them: one after the other, looking each quarter of an hour."""
    job, now, seen = Job("j", cron, nothing, ZoneInfo(zone)), at(start), []
    last = now
    while now < at(end):
        now += timedelta(minutes=15)
        slot = job.latest_slot(after=last, now=now)
        if slot is not None:
            last = slot
            seen.append(f"{slot:%m-%d %H:%M}")
    return seen


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_jobs", {})


@pytest.mark.parametrize(
    ("cron", "trouble"),
    [
        ("61 * * * *", "the cron expression '61 * * * *' is wrong: '61' is no minute"),
        ("0 7 * * FUNDAY", "the cron expression '0 7 * * FUNDAY' is wrong: 'FUNDAY' is no day-of-week"),
        ("*/0 0 7 * * *", "the cron expression '*/0 0 7 * * *' is wrong: '*/0' is no second"),
        ("0 7 * *", "the cron expression '0 7 * *' has 4 fields, not 5 (minute hour day month weekday) or 6"),
        ("", "has 0 fields"),
        ("0 0 31 2 *", "the cron expression '0 0 31 2 *' is wrong: '31' is no day-of-month"),
        ("0 0 */31 * TUE#2", "names a time that never comes"),
    ],
)
def test_a_wrong_cron_expression_fails_with_file_line_job_and_what_is_wrong(cron: str, trouble: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:

        @jobs.job("digest", cron)
        def digest(run: Run) -> str:
            return ""

    text = str(refused.value)
    # The line of the decorator, where the expression stands.
    assert text.startswith("ops/tests/test_jobs.py:")
    line = int(text.split(":")[1])
    with open(__file__) as source:  # noqa: PTH123
        assert '@jobs.job("digest", cron)' in source.readlines()[line - 1]
    assert "job 'digest': " in text
    assert trouble in text


def test_other_wrong_declarations_fail_too() -> None:
    for wrong, trouble in [
        ({"time_zone": "Asia/Atlantis"}, "there is no time zone 'Asia/Atlantis'"),
        ({"time_zone": "../etc/passwd"}, "there is no time zone"),
        ({"limit": timedelta(0)}, "the limit must be more than nothing"),
        ({"retry_after": (timedelta(seconds=-1),)}, "no pause less"),
    ]:
        with pytest.raises(ImproperlyConfigured, match=trouble):
            jobs.job("digest", "0 7 * * *", **wrong)(nothing)  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="small letters"):
        jobs.job("Daily Digest", "0 7 * * *")(nothing)
    assert jobs._jobs == {}


def test_two_jobs_of_one_name_fail_and_the_same_one_declared_again_does_not() -> None:
    jobs.job("digest", "0 7 * * *")(nothing)
    jobs.job("digest", "0 7 * * *")(nothing)
    with pytest.raises(ImproperlyConfigured, match=r"job 'digest': the name is taken by ops/tests/test_jobs.py:\d+"):
        jobs.job("digest", "0 8 * * *")(lambda _run: "")


def test_slots_are_those_of_the_job_s_time_zone() -> None:
    job = Job("j", "0 7 * * *", nothing, ZoneInfo("Asia/Kolkata"))
    assert job.coming(2, now=at("2026-03-14T01:30")) == [at("2026-03-15T01:30"), at("2026-03-16T01:30")]


@pytest.mark.parametrize(
    ("cron", "start", "end", "expected"),
    [
        # London, 29 March 2026: 01:00 becomes 02:00 local time; 01:30 never comes, and runs at 02:00.
        ("30 1 * * *", "2026-03-28T12:00", "2026-03-30T12:00", ["03-29 01:00", "03-30 00:30"]),
        # Two times that never come are one.
        ("10,30 1 * * *", "2026-03-28T12:00", "2026-03-29T12:00", ["03-29 01:00"]),
        # London, 25 October 2026: 01:30 local time comes twice, at 00:30 and 01:30 UTC.
        ("30 1 * * *", "2026-10-24T12:00", "2026-10-26T12:00", ["10-25 00:30", "10-26 01:30"]),
        # Started between the two: it has run, and does not again.
        ("30 1 * * *", "2026-10-25T00:45", "2026-10-26T12:00", ["10-26 01:30"]),
        # Each hour goes by the hours that pass.
        ("30 * * * *", "2026-10-25T00:00", "2026-10-25T03:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
    ],
)
def test_a_local_time_that_comes_twice_or_never_runs_once(cron: str, start: str, end: str, expected: list[str]) -> None:
    assert slots(cron, "Europe/London", start, end) == expected


def test_after_an_outage_only_the_latest_slot_is_due_however_long_it_was() -> None:
    every_30_s = Job("j", "*/30 * * * * *", nothing)
    monthly = Job("j", "0 3 1 * *", nothing)
    now = at("2026-03-14T21:00:17")
    assert every_30_s.latest_slot(after=now - 400 * DAY, now=now) == at("2026-03-14T21:00")
    assert monthly.latest_slot(after=now - 400 * DAY, now=now) == at("2026-03-01T03:00")
    assert monthly.latest_slot(after=now - 13 * DAY, now=now) is None
    # A slot is due at its very moment, and not before.
    assert monthly.latest_slot(after=now, now=at("2026-04-01T03:00")) == at("2026-04-01T03:00")
    assert monthly.latest_slot(after=now, now=at("2026-04-01T02:59:59")) is None
    assert list(islice(every_30_s.slots_after(now), 1)) == [at("2026-03-14T21:00:30")]
