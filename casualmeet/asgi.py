"""The ASGI application: HTTP by Django, live sockets by Channels."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "casualmeet.settings")
django.setup(set_prefix=False)

# These need the apps, which the line above loads.
from channels.routing import ProtocolTypeRouter  # noqa: E402

from casualmeet import shutdown  # noqa: E402
from casualmeet.handler import Handler  # noqa: E402
from casualmeet.sockets import sockets  # noqa: E402

counted = shutdown.Counted(Handler())
shutdown.install(counted)
application = ProtocolTypeRouter({"http": counted, "websocket": sockets})
