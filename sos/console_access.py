"""Who may see the moderators' console."""

from typing import Any


def may_moderate(user: Any) -> bool:
    """Staff with the permission to view incidents."""
    return bool(user.is_active and user.is_staff and user.has_perm("sos.view_sosevent"))
