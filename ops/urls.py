"""Addresses for load balancers and monitoring. They are answered before hosts are checked (`ops.middleware`)."""

from django.urls import path

from ops import views

urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("health/worker", views.worker, name="health-worker"),
    path("metrics", views.metrics, name="metrics"),
]
