"""The moderators' console: the Django admin with the live board as its start page."""

from django.contrib.admin import AdminSite


class ConsoleSite(AdminSite):
    """The admin site of this project."""

    site_header = "CasualMeet Safety"
    site_title = "CasualMeet Safety"
    index_title = "Live board"
