"""Makes the key pair with which push services know this site."""

import base64
from typing import Any

from django.core.management.base import BaseCommand
from py_vapid import Vapid

from notifications.carriers.webpush import encoded_public_key


class Command(BaseCommand):
    """manage.py make_vapid_keys"""

    help = "Print a new VAPID_PRIVATE_KEY for .env. Browsers that subscribed with another key must subscribe again."

    def handle(self, **_options: Any) -> None:
        """Run."""
        vapid = Vapid()
        vapid.generate_keys()
        number: int = vapid.private_key.private_numbers().private_value
        private = base64.urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()
        self.stdout.write(f"# Its public half: {encoded_public_key(vapid)}")
        self.stdout.write(f"VAPID_PRIVATE_KEY={private}")
