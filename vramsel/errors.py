"""The exceptions of the library; each is also the built-in that a caller would expect."""

__all__ = ["UnknownBackendError", "UnknownNodeError", "UnknownPlacementError", "VramselError"]


class VramselError(Exception):
    """Base of every exception that only this library raises."""


class UnknownBackendError(VramselError, ValueError):
    """A backend name or code that nobody registered."""


class UnknownNodeError(VramselError, LookupError):
    """A memory node that the table does not have."""


class UnknownPlacementError(VramselError, LookupError):
    """A placement that the table does not list."""
