"""Whether this container does its work: exit code 0 or 1. Run inside it, by Docker or as a Kubernetes exec probe.

A worker has ALIVE_FILE, which it touches at each turn of its loop; the web process is asked for /healthz. Nothing of
Django is imported, so that a probe costs a tenth of a second and not two.
"""

import os
import sys
import time
import urllib.request
from pathlib import Path

# A turn may wait for the database (10 s for each statement) or for a carrier (11 s).
OLDEST_SECONDS = 60.0


def main() -> str | None:
    """What is wrong, or None."""
    if alive_file := os.environ.get("ALIVE_FILE"):
        try:
            age = time.time() - Path(alive_file).stat().st_mtime
        except OSError as error:
            return f"{alive_file}: {error.strerror}"
        return f"The loop has not turned for {age:.0f} s" if age > OLDEST_SECONDS else None
    address = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/healthz"
    try:
        with urllib.request.urlopen(address, timeout=4):
            return None
    except OSError as error:  # URLError is one
        return f"/healthz: {error}"


if __name__ == "__main__":
    sys.exit(main())
