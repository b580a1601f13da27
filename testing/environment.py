"""The environment of a test run, set before the settings are read. pytest loads this as a plugin (pytest.ini).

What is set here wins over a developer's `.env`: no test may reach a real carrier or a real database through it.
DATABASE_URL and REDIS_URL may be given in the environment, as `testing.run_suite` does.
"""

import os
import sys

from testing.processes import BASE_DIR
from testing.servers import Mongo, Redis

FIXED = {
    "SECRET_KEY": "for-tests-only-" + "x" * 50,
    "DEBUG": "False",
    "PUBLIC_BASE_URL": "http://localhost:8000",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
    "TRUST_X_FORWARDED_PROTO": "False",
    "MAP_TILE_URL": "",
    "TWILIO_ACCOUNT_SID": "",
    "TWILIO_AUTH_TOKEN": "",
    "TWILIO_AUTH_TOKEN_PREVIOUS": "",
    "TWILIO_FROM": "",
    "TWILIO_VOICE_FROM": "",
    "TWILIO_MESSAGING_SERVICE_SID": "",
    "FAST2SMS_API_KEY": "",
    "FAST2SMS_WEBHOOK_SECRET": "",
    "FCM_SERVICE_ACCOUNT": "",
    "VAPID_PRIVATE_KEY": "",
    "CARRIER_SIMULATOR_URL": "",
    "ESCALATION_CALL_SECONDS": "60",
    "ESCALATION_CALL_AGAIN_SECONDS": "180",
    "ESCALATION_REALERT_SECONDS": "300,600",
    "FAIL_SAFE": "off",
    "JOB_LEASE_SECONDS": "30",
    "SENTRY_DSN": "",
    "PAGERDUTY_ROUTING_KEY": "",
    "SECRET_KEY_FALLBACKS": "",
    "METRICS_TOKEN": "",
    "ALIVE_FILE": "",
    "DEADMAN_URL": "",
    "AUDIT_OVERDUE_SECONDS": "60",
    "AUDIT_UNACCEPTED_SECONDS": "60",
    "AUDIT_OUTBOX_SECONDS": "30",
    "AUDIT_WORKER_SECONDS": "30",
    "AUDIT_SKEW_SECONDS": "30",
    "PURGE_POSITIONS_HOURS": "24",
    "PURGE_TIMERS_DAYS": "90",
    "PURGE_INCIDENT_DETAILS_DAYS": "30",
    "PURGE_INCIDENTS_DAYS": "90",
    "PURGE_RECEIPTS_DAYS": "365",
    "RECONFIRM_DAYS": "182",
    "DIGEST_CRON": "0 7 * * *",
    "DIGEST_TIME_ZONE": "UTC",
    "SELFTEST_PHONE": "",
    "SELFTEST_CRON": "0 6 * * *",
    "METRICS_PORT": "0",
    "LOG_FORMAT": "text",
}

os.environ.update(FIXED)
os.environ.setdefault("DATABASE_URL", f"sqlite:///{BASE_DIR / 'var' / 'unused.sqlite3'}")
os.environ.setdefault("REDIS_URL", "")

# pytest rewrites the assertions of every test, in each of its processes: a tenth of the time that all of them take. It keeps that
# with the byte code, here also where the environment wants none.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_in_parallel = "PYTEST_XDIST_WORKER" in os.environ
# Parallel workers use the same group names: on one Redis each would hear the others' events.
_own_redis = Redis() if _in_parallel and os.environ["REDIS_URL"] else None
if _own_redis is not None:
    os.environ["REDIS_URL"] = _own_redis.start().url()
# The MongoDB test server uses one processor, whatever the number of its clients.
_own_mongo = Mongo() if _in_parallel and "MONGO_PER_WORKER" in os.environ else None
if _own_mongo is not None:
    os.environ["DATABASE_URL"] = _own_mongo.start().url()


def pytest_unconfigure() -> None:
    """Stop this worker's servers."""
    for server in (_own_redis, _own_mongo):
        if server is not None:
            server.stop()
