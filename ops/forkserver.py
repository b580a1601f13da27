"""What Python's fork server imports, once, so that each child of it has Django and the jobs loaded already.

It opens no connection and starts no thread. Nothing else imports this.
"""

import gc
import signal

import django

django.setup()

from ops import children, jobs  # noqa: E402, F401 - they need Django

jobs.jobs()
gc.collect()
# Else the first search for garbage would copy all pages into each child.
gc.freeze()
# A supervisor, or Ctrl-C, signals all processes; what becomes of the children is for the scheduler to say.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
