"""Addresses of the pages."""

from django.urls import path

urlpatterns: list[object] = []
