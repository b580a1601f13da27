"""Every setting, from the environment, with defaults that are safe in production. `.env.example` explains each."""

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from casualmeet import sentry
from casualmeet.databases import database_settings, is_mongodb, process_role

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"
VAR_DIR.mkdir(exist_ok=True)

env = environ.Env()
env.smart_cast = False
environ.Env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY is not set: put it in the environment, or let `make run` write a .env.")
# Keys that still count while the one above is new: sessions and links signed with them stay good.
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])

PORT = env.int("PORT", default=8000)
PUBLIC_BASE_URL = env.str("PUBLIC_BASE_URL", default=f"http://localhost:{PORT}").rstrip("/")
_public = urlsplit(PUBLIC_BASE_URL)
if _public.scheme not in {"http", "https"} or not _public.hostname:
    raise ImproperlyConfigured("PUBLIC_BASE_URL must be like https://safety.example.org.")
_https = _public.scheme == "https"

ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"] if DEBUG else [])
if _public.hostname not in ALLOWED_HOSTS:
    ALLOWED_HOSTS = [*ALLOWED_HOSTS, _public.hostname]

# Products and apps

DATABASE_URL = env.str("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'casualmeet.sqlite3'}")
REDIS_URL = env.str("REDIS_URL", default="")
_mongodb = is_mongodb(DATABASE_URL)

INSTALLED_APPS = [
    # For `runserver`. Its server would cost each worker time at the start and megabytes for ever.
    *(["daphne"] if process_role() == "web" else []),
    "casualmeet.contrib.MongoConsoleConfig" if _mongodb else "casualmeet.contrib.ConsoleConfig",
    "casualmeet.contrib.MongoAuthConfig" if _mongodb else "django.contrib.auth",
    "casualmeet.contrib.MongoContentTypesConfig" if _mongodb else "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "ninja",
    "js_lib_leaflet",
    "safety",
    "sos",
    "notifications",
    "ops",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "ops.middleware.MonitoringMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "casualmeet.errors.PlainErrorsMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "safety.middleware.PersonTimeZoneMiddleware",
]

ROOT_URLCONF = "casualmeet.urls"
ASGI_APPLICATION = "casualmeet.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "notifications.context.unread",
            ],
        },
    },
]

# Data

DATABASES = {
    "default": database_settings(
        DATABASE_URL,
        role=process_role(),
        pool_size=env.int("DATABASE_POOL_SIZE", default=10),
        var=VAR_DIR,
    ),
}
AUTH_USER_MODEL = "safety.User"
if _mongodb:
    DEFAULT_AUTO_FIELD = "django_mongodb_backend.fields.ObjectIdAutoField"
    MIGRATION_MODULES = {
        "admin": "casualmeet.mongodb_migrations.admin",
        "auth": "casualmeet.mongodb_migrations.auth",
        "contenttypes": "casualmeet.mongodb_migrations.contenttypes",
    }
    # "MongoDB does not support check constraints": there the verbs alone keep these rules.
    SILENCED_SYSTEM_CHECKS = ["models.W027"]
else:
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [
                {
                    "address": REDIS_URL,
                    "socket_connect_timeout": 1,
                    "socket_keepalive": True,
                    "health_check_interval": 15,
                }
            ],
            "prefix": "cm-safety",
        },
    }
    if REDIS_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

# People and security

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "home"

CSRF_TRUSTED_ORIGINS = [f"{_public.scheme}://{_public.netloc}"]
CSRF_COOKIE_SECURE = SESSION_COOKIE_SECURE = _https
SESSION_COOKIE_AGE = 60 * 60 * 24 * 30
SECURE_SSL_REDIRECT = _https
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^health/", r"^metrics$"]
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000) if _https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _https
# Without a proxy of ours, a caller could write any X-Forwarded-For and so be a new address at each try.
NINJA_NUM_PROXIES = 0
if env.bool("TRUST_X_FORWARDED_PROTO", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    NINJA_NUM_PROXIES = 1
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = 262_144

MAP_TILE_URL = env.str("MAP_TILE_URL", default="")
_tiles = urlsplit(MAP_TILE_URL.replace("{s}.", "*."))
_socket = f"{'wss' if _https else 'ws'}://{_public.netloc}"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "font-src": [SELF],
        "img-src": [SELF, "data:", *([f"{_tiles.scheme}://{_tiles.netloc}"] if MAP_TILE_URL else [])],
        "connect-src": [SELF, _socket],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "manifest-src": [SELF],
        "worker-src": [SELF],
    }
}

# Language, time, files

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("hi", "हिन्दी")]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
# A style sheet that was not collected must not turn a page into an error.
WHITENOISE_MANIFEST_STRICT = False
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# Timers and deliveries

MIN_TIMER_MINUTES = 1 if DEBUG else 15
CHECK_PROMPT_MINUTES = [int(minutes) for minutes in env.list("CHECK_PROMPT_MINUTES", default=[15, 5, 1])]
CHECK_PROMPT_SMS_MINUTES = [int(minutes) for minutes in env.list("CHECK_PROMPT_SMS_MINUTES", default=[5])]
TIMER_POLL_SECONDS = env.float("TIMER_POLL_SECONDS", default=1.0)
DISPATCH_CONCURRENCY = env.int("DISPATCH_CONCURRENCY", default=25)
DISPATCH_POLL_SECONDS = env.float("DISPATCH_POLL_SECONDS", default=0.25)
LIVE_POLL_SECONDS = env.float("LIVE_POLL_SECONDS", default=10.0 if REDIS_URL else 0.5)

# The escalation ladder, in seconds from the opening of an incident

ESCALATION_CALL_SECONDS = env.int("ESCALATION_CALL_SECONDS", default=60)
ESCALATION_CALL_AGAIN_SECONDS = env.int("ESCALATION_CALL_AGAIN_SECONDS", default=180)
ESCALATION_REALERT_SECONDS = env.list("ESCALATION_REALERT_SECONDS", cast=int, default=[300, 600])
_rounds = [0, ESCALATION_CALL_SECONDS, ESCALATION_CALL_AGAIN_SECONDS, *ESCALATION_REALERT_SECONDS]
if any(later <= earlier for earlier, later in pairwise(_rounds)):
    raise ImproperlyConfigured("The ESCALATION_…_SECONDS must rise: call, call again, then each re-alert.")

# The auditor: seconds from which on something is wrong

AUDIT_OVERDUE_SECONDS = env.int("AUDIT_OVERDUE_SECONDS", default=60)
AUDIT_UNACCEPTED_SECONDS = env.int("AUDIT_UNACCEPTED_SECONDS", default=60)
AUDIT_OUTBOX_SECONDS = env.int("AUDIT_OUTBOX_SECONDS", default=30)
AUDIT_WORKER_SECONDS = env.int("AUDIT_WORKER_SECONDS", default=30)
AUDIT_SKEW_SECONDS = env.int("AUDIT_SKEW_SECONDS", default=30)

# How long things are kept

PURGE_POSITIONS_HOURS = env.int("PURGE_POSITIONS_HOURS", default=24)
PURGE_TIMERS_DAYS = env.int("PURGE_TIMERS_DAYS", default=90)
PURGE_INCIDENT_DETAILS_DAYS = env.int("PURGE_INCIDENT_DETAILS_DAYS", default=30)
PURGE_INCIDENTS_DAYS = env.int("PURGE_INCIDENTS_DAYS", default=90)
PURGE_RECEIPTS_DAYS = env.int("PURGE_RECEIPTS_DAYS", default=365)
if min(PURGE_POSITIONS_HOURS, PURGE_TIMERS_DAYS, PURGE_INCIDENT_DETAILS_DAYS, PURGE_RECEIPTS_DAYS) < 1:
    # Contacts may look at an alert for a day after its end: until then it must be whole.
    raise ImproperlyConfigured("The PURGE_… settings must be 1 or more.")
if PURGE_INCIDENTS_DAYS < PURGE_INCIDENT_DETAILS_DAYS:
    raise ImproperlyConfigured("PURGE_INCIDENTS_DAYS must not be less than PURGE_INCIDENT_DETAILS_DAYS.")

# Scheduled jobs

RECONFIRM_DAYS = env.int("RECONFIRM_DAYS", default=182)
DIGEST_CRON = env.str("DIGEST_CRON", default="0 7 * * *")
DIGEST_TIME_ZONE = env.str("DIGEST_TIME_ZONE", default="UTC")
SELFTEST_PHONE = env.str("SELFTEST_PHONE", default="")
SELFTEST_CRON = env.str("SELFTEST_CRON", default="0 6 * * *")
if SELFTEST_PHONE and not re.fullmatch(r"\+[1-9][0-9]{6,14}", SELFTEST_PHONE):
    raise ImproperlyConfigured("SELFTEST_PHONE must be like +919812345678.")

# Carriers

TWILIO_ACCOUNT_SID = env.str("TWILIO_ACCOUNT_SID", default="")
TWILIO_AUTH_TOKEN = env.str("TWILIO_AUTH_TOKEN", default="")
# Receipts are signed with the auth token; while it is rotated, those under way still carry the one before.
TWILIO_AUTH_TOKEN_PREVIOUS = env.str("TWILIO_AUTH_TOKEN_PREVIOUS", default="")
TWILIO_FROM = env.str("TWILIO_FROM", default="")
TWILIO_VOICE_FROM = env.str("TWILIO_VOICE_FROM", default="")
TWILIO_MESSAGING_SERVICE_SID = env.str("TWILIO_MESSAGING_SERVICE_SID", default="")
TWILIO_API_BASE_URL = env.str("TWILIO_API_BASE_URL", default="https://api.twilio.com")
FAST2SMS_API_KEY = env.str("FAST2SMS_API_KEY", default="")
FAST2SMS_ROUTE = env.str("FAST2SMS_ROUTE", default="q")
FAST2SMS_SENDER_ID = env.str("FAST2SMS_SENDER_ID", default="")
FAST2SMS_API_BASE_URL = env.str("FAST2SMS_API_BASE_URL", default="https://www.fast2sms.com")
# Rupees in the wallet below which the moderators are told.
FAST2SMS_LOW_BALANCE = env.float("FAST2SMS_LOW_BALANCE", default=200.0)
FAST2SMS_WEBHOOK_SECRET = env.str("FAST2SMS_WEBHOOK_SECRET", default="")
FAST2SMS_TEMPLATES = env.dict("FAST2SMS_TEMPLATES", default={})

# Push

FCM_SERVICE_ACCOUNT = env.str("FCM_SERVICE_ACCOUNT", default="")
FCM_API_BASE_URL = env.str("FCM_API_BASE_URL", default="https://fcm.googleapis.com")
VAPID_PRIVATE_KEY = env.str("VAPID_PRIVATE_KEY", default="")
VAPID_SUBJECT = env.str("VAPID_SUBJECT", default="")
# The addresses of push services come from browsers, so only these hosts are ever called.
WEB_PUSH_HOSTS = env.list(
    "WEB_PUSH_HOSTS",
    default=["fcm.googleapis.com", "*.push.services.mozilla.com", "*.notify.windows.com", "web.push.apple.com"],
)

# A stand-in for all carriers, for trying things out; only while DEBUG is on, and never in place of real credentials.
CARRIER_SIMULATOR_URL = env.str("CARRIER_SIMULATOR_URL", default="").rstrip("/") if DEBUG else ""
if CARRIER_SIMULATOR_URL:
    from simulator import credentials as simulated

    _twilio = (TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN, TWILIO_FROM, TWILIO_MESSAGING_SERVICE_SID)
    if not any((*_twilio, FAST2SMS_API_KEY, FAST2SMS_SENDER_ID, FCM_SERVICE_ACCOUNT)):
        TWILIO_API_BASE_URL = FAST2SMS_API_BASE_URL = CARRIER_SIMULATOR_URL
        TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN = simulated.ACCOUNT_SID, simulated.AUTH_TOKEN
        TWILIO_FROM, TWILIO_MESSAGING_SERVICE_SID = simulated.FROM_NUMBER, simulated.MESSAGING_SERVICE_SID
        FAST2SMS_API_KEY, FAST2SMS_ROUTE = simulated.FAST2SMS_API_KEY, "q"
        FAST2SMS_WEBHOOK_SECRET = simulated.FAST2SMS_WEBHOOK_SECRET
    elif simulated.ACCOUNT_SID != TWILIO_ACCOUNT_SID:
        CARRIER_SIMULATOR_URL = ""

# Backup alerts that Twilio keeps, should this site be gone at a deadline

FAIL_SAFE = env.bool("FAIL_SAFE", default=False)
FAIL_SAFE_MARGIN_SECONDS = env.int("FAIL_SAFE_MARGIN_SECONDS", default=600)

# Watched from outside, and logs

# Whoever shows it may read /metrics; without one there is no such address.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
METRICS_PORT = env.int("METRICS_PORT", default=0)
if not 0 <= METRICS_PORT <= 65535:
    raise ImproperlyConfigured("METRICS_PORT must be a port from 1 to 65535, or 0 for none.")
METRICS_BIND = env.str("METRICS_BIND", default="127.0.0.1")
LOG_FORMAT = env.str("LOG_FORMAT", default="text")
if LOG_FORMAT not in {"text", "json"}:
    raise ImproperlyConfigured("LOG_FORMAT must be text or json.")
# Asked for (GET) after each audit that found all well; whoever is behind it raises the alarm when that stops.
DEADMAN_URL = env.str("DEADMAN_URL", default="")
_deadman = urlsplit(DEADMAN_URL)
_plain_is_fine = DEBUG or _deadman.hostname in {"localhost", "127.0.0.1", "::1"}
if DEADMAN_URL and not (_deadman.hostname and _deadman.scheme in {"https", *(["http"] if _plain_is_fine else [])}):
    raise ImproperlyConfigured("DEADMAN_URL must start with https://.")
# How long the web process waits, when stopped, for requests that are under way.
SHUTDOWN_SECONDS = env.float("SHUTDOWN_SECONDS", default=10.0)
# Touched by a worker at each turn of its loop.
ALIVE_FILE = env.str("ALIVE_FILE", default="")

DEMO_PASSWORD = env.str("DEMO_PASSWORD", default="")

# Scheduled jobs

JOB_LEASE_SECONDS = env.float("JOB_LEASE_SECONDS", default=30.0)
if JOB_LEASE_SECONDS < 1:
    raise ImproperlyConfigured("JOB_LEASE_SECONDS must be 1 or more.")

# Reports to the operators

SENTRY_DSN = env.str("SENTRY_DSN", default="")
SENTRY_ENVIRONMENT = env.str("SENTRY_ENVIRONMENT", default="development" if DEBUG else "production")
if SENTRY_DSN:
    sentry.start(SENTRY_DSN, environment=SENTRY_ENVIRONMENT)
PAGERDUTY_ROUTING_KEY = env.str("PAGERDUTY_ROUTING_KEY", default="")
PAGERDUTY_EVENTS_URL = env.str("PAGERDUTY_EVENTS_URL", default="https://events.pagerduty.com/v2/enqueue")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"mask": {"()": "casualmeet.logs.MaskPersonalData"}},
    "formatters": {"text": {"()": "casualmeet.logs.Line"}, "json": {"()": "casualmeet.logs.Json"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT, "filters": ["mask"]}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # The client logs every request and its answer, with the numbers in them.
        "twilio": {"level": "WARNING"},
    },
}
