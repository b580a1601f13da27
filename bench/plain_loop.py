"""The way it is written first, for comparison: look up 50 due timers, and deal with each in a transaction of its own,
calling the carrier on the way. It keeps none of the promises; it is here for its speed.
"""

from datetime import datetime
from uuid import uuid4

from django.db import transaction

from casualmeet import clock
from notifications import inbox
from notifications.attempts import _compose
from notifications.carriers import routing
from notifications.carriers.base import Outcome
from notifications.models import Delivery, DeliveryAttempt, DeliveryStatus
from safety import contacts, positions
from safety.models import MeetingTimer, TimerStatus
from sos import alerts
from sos.models import AlertedContact, SosEvent, Source, TimelineEntry, TimelineKind
from sos.triggers import Fix, Recipient, person_of

LOOK_UP = 50
