import time
from datetime import timedelta
import pytest
from casualmeet import clock
from safety import expiry, timers
from safety.models import MeetingTimer
from safety.tests.people import people, timers_for
from django.db import connection

@pytest.mark.django_db
def test_prof():
    t=time.time()
    def lap(what):
        nonlocal t
        print(f"{what}: {time.time()-t:.3f}"); t=time.time()
    for n in (1,200,1000):
        print("N", n)
        p=people(n); lap("people")
        tm=timers_for(p, escalates_at=clock.now()); lap("timers")
        x=tm[0]
        MeetingTimer.objects.filter(pk=x.pk, status=x.status, escalates_at=x.escalates_at).update(note="a"); lap("swap")
        MeetingTimer.objects.get(pk=x.pk); lap("get")
        MeetingTimer.objects.select_related("person").get(pk=x.pk); lap("get sel")
        list(MeetingTimer.objects.half_done()); lap("half_done")
        list(MeetingTimer.objects.half_done().select_related("person")[:500]); lap("half_done rel")
        list(MeetingTimer.objects.half_done().select_related("person").order_by()[:500]); lap("half_done rel unordered")
        ids=expiry.due_ids(2000, now=clock.now()); lap("due_ids")
        expiry.next_deadline(); lap("next")
        from sos.models import SosEvent
        list(SosEvent.objects.half_open().select_related("person")[:500]); lap("half_open")
