"""The ASGI application: HTTP by Django, live sockets by Channels."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "casualmeet.settings")
http = get_asgi_application()

# These need the apps, which the line above loads.
from channels.routing import ProtocolTypeRouter  # noqa: E402

from casualmeet import shutdown  # noqa: E402
from casualmeet.sockets import sockets  # noqa: E402

counted = shutdown.Counted(http)
shutdown.install(counted)
application = ProtocolTypeRouter({"http": counted, "websocket": sockets})
