"""The command, as real processes: killed, stopped, hanging, and wrong from the start."""

import gzip
import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from casualmeet import clock
from ops.models import JobRun, JobStatus
from ops.runs import run_id
from testing.processes import BASE_DIR, ManagedProcess, wait_until
from testing.servers import Redis

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

JOBS = """
import os, time
from datetime import timedelta
from pathlib import Path
from ops.jobs import job

HERE = Path(__file__).parent

def note(run):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{run.job} {run.slot.isoformat()} {os.getpid()} {os.getppid()}\\n")

@job("each-second", "* * * * * *")
def each_second(run):
    note(run)
    return f"child of {os.getppid()}"

@job("long", "0 0 1 1 *", limit=timedelta(minutes=5))
def long(run):
    note(run)
    while not (HERE / "go").exists():
        time.sleep(0.02)
    run.still_mine()
    return "went"

@job("hangs", "0 0 1 1 *", limit=timedelta(seconds=1), retry_after=())
def hangs(run):
    note(run)
    while True:
        time.sleep(60)

@job("raises", "0 0 1 1 *", retry_after=())
def raises(run):
    raise ValueError("text to +447700900123 failed")
"""


@pytest.fixture
def env(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The product with jobs of this test in place of its own."""
    package = tmp_path / "jobs_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(JOBS)
    (tmp_path / "settings_of_a_test.py").write_text(
        'from casualmeet.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, "jobs_of_a_test"]\n'
    )
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": "",
        "DJANGO_SETTINGS_MODULE": "settings_of_a_test",
        "PYTHONPATH": f"{tmp_path}:{BASE_DIR}",
        "JOB_LEASE_SECONDS": "2",
    }


def notes(env: dict[str, str], job: str) -> list[list[str]]:
    path = Path(env["PYTHONPATH"].split(":")[0]) / "jobs_of_a_test" / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split() for line in lines if line.startswith(f"{job} ")]


def asked_for(job: str) -> None:
    """Leave a run of the job as "run again" leaves it."""
    now = clock.now()
    JobRun.objects.create(
        id=run_id(job, now),
        job=job,
        slot=now,
        status=JobStatus.FAILED,
        fence=0,
        tries=0,
        started_at=now,
        next_try_at=now,
    )


def test_one_of_two_is_killed_and_the_other_takes_over_and_hands_back_when_it_is_stopped(
    env: dict[str, str], redis_server: Redis
) -> None:
    env |= {"REDIS_URL": redis_server.url()}
    with ManagedProcess(["run_scheduler"], env=env) as one, ManagedProcess(["run_scheduler"], env=env) as two:
        wait_until(lambda: JobRun.objects.filter(job="each-second", status=JobStatus.DONE).count() > 2, timeout=60)
        asked_for("long")
        wait_until(lambda: notes(env, "long"), timeout=30)
        [[_, _, child, _]] = notes(env, "long")
        row = JobRun.objects.get(job="long")
        node = row.node
        killed, left = (one, two) if node.endswith(f":{one.pid}") else (two, one)
        assert node.endswith(f":{killed.pid}")
        killed.kill()
        # The child ends with its scheduler, and another process runs the slot again.
        wait_until(lambda: not Path(f"/proc/{child}").exists(), timeout=10)
        wait_until(lambda: len(notes(env, "long")) == 2, timeout=30)
        row.refresh_from_db()
        assert row.node.endswith(f":{left.pid}")
        assert row.tries == 2
        # To the whole group, as supervisors and terminals send them: the child may end.
        for stop in (signal.SIGTERM, signal.SIGINT):
            os.kill(int(notes(env, "long")[1][2]), stop)
        (Path(env["PYTHONPATH"].split(":")[0]) / "jobs_of_a_test" / "go").touch()
        assert left.terminate(30) == 0, left.output
    row.refresh_from_db()
    assert (row.status, row.summary) == (JobStatus.DONE, "went")
    seconds = [slot for _, slot, _, _ in notes(env, "each-second")]
    assert len(seconds) == len({*seconds}) == JobRun.objects.filter(job="each-second").count()
    # Forked from the one that has everything loaded, not started afresh.
    assert len({parent for _, _, _, parent in notes(env, "each-second")}) <= 3


def test_a_run_that_hangs_is_killed_and_a_failure_reaches_whoever_is_on_call_and_sentry(env: dict[str, str]) -> None:
    events: list[dict[str, Any]] = []
    envelopes: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v2/enqueue":
                events.append(json.loads(body))
            else:
                envelopes.append(body)
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"127.0.0.1:{server.server_address[1]}"
        env |= {
            "PAGERDUTY_ROUTING_KEY": "r" * 32,
            "PAGERDUTY_EVENTS_URL": f"http://{there}/v2/enqueue",
            "SENTRY_DSN": f"http://key@{there}/1",
        }
        asked_for("hangs")
        asked_for("raises")
        with ManagedProcess(["run_scheduler", "--once"], env=env) as process:
            assert process.wait(60) == 0, process.output
        server.shutdown()
    assert {(event["event_action"], event["dedup_key"]) for event in events} == {
        ("trigger", "job:hangs"),
        ("trigger", "job:raises"),
    }
    assert "longer than its limit of 0:00:01" in JobRun.objects.get(job="hangs").error
    assert "ValueError" in JobRun.objects.get(job="raises").error
    assert set(JobRun.objects.values_list("status", flat=True)) == {JobStatus.FAILED}
    [[_, _, child, _]] = notes(env, "hangs")
    assert not Path(f"/proc/{child}").exists()
    assert "text to [phone]…23 failed" in json.dumps(events, ensure_ascii=False)
    assert "447700900123" not in json.dumps(events) + process.output
    assert envelopes
    sent = b"".join(gzip.decompress(body) for body in envelopes)
    assert b"The job raises failed and was given up" in sent
    assert b"447700900123" not in sent
