"""The test servers come up, keep their port and data, survive SIGKILL and leave nothing behind."""

import signal
import sys
from pathlib import Path

import psycopg
import pymongo
import pytest
from pymongo.collection import Collection

from testing import servers
from testing.processes import BASE_DIR, ManagedProcess, wait_until
from testing.servers import Mongo, Postgres, Redis, Server, ServerError

pytestmark = pytest.mark.processes


def test_postgres_keeps_its_data_through_restart_and_sigkill() -> None:
    with Postgres() as server:
        server.create_database("diary")
        address = server.url("diary")
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE entry (number int)")
            connection.execute("INSERT INTO entry VALUES (1)")
        server.restart()
        with psycopg.connect(address) as connection:
            connection.execute("INSERT INTO entry VALUES (2)")
        server.kill()
        assert not server.answers()
        server.start()
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT number FROM entry ORDER BY number").fetchall() == [(1,), (2,)]


def test_mongo_keeps_its_data_through_restart_and_sigkill() -> None:
    with Mongo(durable=True) as server:
        client: pymongo.MongoClient[dict[str, int]]
        with pymongo.MongoClient(server.url("diary")) as client:
            entries: Collection[dict[str, int]] = client["diary"]["entry"]
            entries.insert_one({"number": 1})
            server.restart()
            entries.insert_one({"number": 2})
            server.kill()
            assert not server.answers()
            server.start()
            assert sorted(entry["number"] for entry in entries.find()) == [1, 2]


def test_redis_returns_on_its_port() -> None:
    with Redis() as server:
        address = server.url()
        server.restart()
        assert server.answers()
        server.kill()
        assert not server.answers()
        server.start()
        assert server.answers()
        assert server.url() == address


@pytest.mark.parametrize("make", [Postgres, Redis, Mongo])
def test_a_stopped_server_leaves_nothing(make: type[Server]) -> None:
    with make() as server:
        directory = server.directory
        assert directory.is_dir()
    assert not server.answers()
    assert not directory.exists()


def test_a_server_that_cannot_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "free_port", lambda: 99_999)
    server = Redis()
    with pytest.raises(ServerError, match='port "99999"'):
        server.start()
    assert not server.directory.exists()


def test_a_killed_parent_takes_its_server_and_the_directory_along() -> None:
    script = (
        "import signal; from testing.servers import Redis; "
        "redis = Redis().start(); print(redis.directory, redis.port, flush=True); signal.pause()"
    )
    with ManagedProcess(["-c", script], program=[sys.executable], env={"PYTHONPATH": str(BASE_DIR)}) as parent:
        line = parent.wait_for_line(r"^(\S+) (\d+)$")
        left = Redis()
        left.port = int(line[2])
        assert left.answers()
        parent.kill()
    wait_until(lambda: not left.answers(), message="the server ends")
    wait_until(lambda: not Path(line[1]).exists(), message="its directory is gone")


def test_by_hand_it_prints_the_url_and_ctrl_c_stops_it() -> None:
    command = ManagedProcess(["testing.servers", "redis"], program=[sys.executable, "-m"])
    with command:
        command.wait_for_line(r"^redis://127\.0\.0\.1:\d+/0$")
        assert command.terminate(with_signal=signal.SIGINT) == 0
