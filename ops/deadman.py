"""The dead man's switch: a service outside that raises the alarm when we stop saying that all is well."""

import logging

import requests
from django.conf import settings

from ops.threads import in_thread

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 5.0


def ping() -> bool:
    """Say that all is well, where DEADMAN_URL is set; True when it was heard. Never raises; takes 5 s at most."""
    if not settings.DEADMAN_URL:
        return False
    try:
        status = in_thread(_get).result(LIMIT_SECONDS)
    except Exception as error:  # noqa: BLE001 - whoever waits for the word will ask
        # The address is a secret: who has it can say that all is well.
        logger.warning("The dead man's switch was not reached: %s", type(error).__name__)
        return False
    if not 200 <= status < 300:
        logger.warning("The dead man's switch answered with status %d", status)
    return 200 <= status < 300


def _get() -> int:
    # A redirect would hand the address on. The body says nothing.
    with requests.get(settings.DEADMAN_URL, timeout=LIMIT_SECONDS, allow_redirects=False, stream=True) as response:
        return response.status_code
