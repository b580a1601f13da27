"""Every address of the site."""

from django.contrib import admin
from django.urls import include, path

from casualmeet.api import api

handler404 = "casualmeet.errors.not_found"
handler500 = "casualmeet.errors.server_error"

urlpatterns = [
    path("", include("ops.urls")),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
    path("", include("notifications.urls")),
    path("", include("sos.urls")),
    path("", include("safety.urls")),
]
