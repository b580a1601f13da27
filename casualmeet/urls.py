"""Every address of the site."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from casualmeet.api import api

handler404 = "casualmeet.errors.not_found"
handler500 = "casualmeet.errors.server_error"

urlpatterns = [
    path("", include("ops.urls")),
    # Browsers ask for it on pages that name no icon, such as the admin's.
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}favicon.svg")),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
    path("", include("notifications.urls")),
    path("", include("sos.urls")),
    path("", include("safety.urls")),
]
