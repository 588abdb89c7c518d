"""The exceptions of the library, each also the built-in a caller would expect, and how values look in them."""

from __future__ import annotations

__all__ = [
    "UnknownBackendError",
    "UnknownNodeError",
    "UnknownPlacementError",
    "VramselError",
    "described",
    "one_line",
    "shown",
]


class VramselError(Exception):
    """Base of every exception that only this library raises."""


class UnknownBackendError(VramselError, ValueError):
    """A backend name or code that nobody registered."""


class UnknownNodeError(VramselError, LookupError):
    """A memory node that the table does not have."""


class UnknownPlacementError(VramselError, LookupError):
    """A placement that the table does not list."""


def shown(value: object, most: int = 60) -> str:
    """Show a value that a caller gave in an error: its repr, on one line, and not a long one."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print the largest
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: object) -> str:
    """Bring a text of unknown origin to one printable line. Never raises."""
    try:
        line = " ".join(str(text).split())
    except (Exception, SystemExit, GeneratorExit):  # a __str__ of somebody else's; all that is wanted is a text
        return f"a {type(text).__name__} that cannot be printed"
    return "".join(c if c.isprintable() else "?" for c in line)


def described(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
