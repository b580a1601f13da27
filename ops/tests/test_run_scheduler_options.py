"""The command's options, and what it says when it can't do what it was asked."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from casualmeet import clock
from ops import children, jobs
from ops.leases import Leases
from ops.models import Lease
from ops.tests.fleet import Work, inline, minutely, rows

pytestmark = pytest.mark.django_db


def said(*options: str) -> str:
    out = StringIO()
    call_command("run_scheduler", *options, stdout=out)
    return out.getvalue()


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """One daily job, run in this process: a child would look for the database elsewhere."""

    def declare(work: Work) -> None:
        monkeypatch.setattr(jobs, "jobs", lambda: [minutely(work, cron="0 7 * * *", retry_after=())])
        monkeypatch.setattr(children, "prepare", lambda: None)
        monkeypatch.setattr(children, "launch", inline)

    return declare


def test_list_shows_the_next_slots_and_the_last_run(declared: Any) -> None:
    declared(Work())
    text = said("--list")
    assert text.startswith("count: 0 7 * * * (UTC)")
    assert text.count(" 07:00:00") == 3
    assert "last: never" in text


def test_run_runs_a_job_now_and_says_what_it_did(declared: Any) -> None:
    work = Work()
    declared(work)
    assert said("--run", "count") == "run 1\n"
    assert abs((work.slots[0] - clock.now()).total_seconds()) < 10
    work.trouble = "broken"
    with pytest.raises(CommandError, match=r"(?s)The job 'count' failed.*ValueError: broken"):
        said("--run", "count")
    assert [row.status for row in rows()] == ["done", "failed"]
    with pytest.raises(CommandError, match="There is no job 'digest'"):
        said("--run", "digest")
    held = Leases().take("job:count")
    assert held is not None
    with pytest.raises(CommandError, match="runs already"):
        said("--run", "count")


def test_once_runs_what_is_due(declared: Any) -> None:
    work = Work()
    declared(work)
    said("--once")
    assert work.slots == []
    Lease.objects.update(slot=clock.now().replace(year=2020))
    said("--once")
    assert [f"{slot:%H:%M}" for slot in work.slots] == ["07:00"]


def test_a_wrong_declaration_fails_at_start_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    package = tmp_path / "wrong_jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(
        'from ops.jobs import job\n\n\n@job("funny", "0 7 * * FUNDAY")\ndef digest(run):\n    return ""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "wrong_jobs"]
    with pytest.raises(CommandError) as refused:
        said()
    assert str(refused.value) == (
        f"{package / 'jobs.py'}:4: job 'funny': the cron expression '0 7 * * FUNDAY' is wrong: "
        "'FUNDAY' is no day-of-week"
    )
