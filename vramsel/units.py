"""Byte counts: parse them, print them, and check that they are ones."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from .errors import shown

__all__ = ["MAX_BYTES", "ByteCount", "as_bytes", "format_bytes", "parse_bytes"]

MAX_BYTES = 2**64 - 1
"""The largest byte count: the largest uint64."""

ByteCount = SupportsIndex | str
"""What is accepted as a byte count: an integer, or a size such as ``"24GiB"``."""

_PREFIXES = "kmgtpe"
_FACTORS: dict[str, int] = {"": 1, "b": 1}
_FACTORS |= {f"{p}b": 1000**i for i, p in enumerate(_PREFIXES, 1)}
_FACTORS |= {f"{p}ib": 1024**i for i, p in enumerate(_PREFIXES, 1)}

_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*([a-z]*)", re.ASCII)
_LONGEST = 100  # characters; no size needs more, and arithmetic on very long numbers is slow


def parse_bytes(text: str) -> int:
    """Read a size such as ``"2GiB"`` or ``"1.5 GB"``.

    ``KiB`` to ``EiB`` are powers of 1024, ``kB`` to ``EB`` powers of 1000, ``B`` or nothing
    means bytes. Case and surrounding blanks do not matter; a fraction of a byte is rounded.
    A bare prefix (``2G``) is refused: it means 2^30 to some programs and 10^9 to others.

    Raises
    ------
    TypeError
        If `text` is not a string.
    ValueError
        If it is no size, is negative or is above 2^64-1.
    """
    if not isinstance(text, str):
        raise TypeError(f"a size to parse must be a string, not {type(text).__name__}")
    cleaned = text.strip().lower()
    # ASCII before lower(), which would turn other alphabets' letters into ours.
    match = _SIZE.fullmatch(cleaned) if text.isascii() and len(cleaned) <= _LONGEST else None
    if match is None:
        if cleaned.startswith("-") and _SIZE.fullmatch(cleaned[1:].lstrip()):
            raise ValueError(f"size {shown(text)} is negative")
        raise ValueError(f"{shown(text)} is not a size; write for example 2GiB (2^30) or 2GB (10^9)")
    whole, fraction, unit = match[1], match[2] or "", match[3]
    if unit not in _FACTORS:
        if unit.rstrip("i") in tuple(_PREFIXES):
            p = unit[0].upper()
            raise ValueError(
                f"size {shown(text)} is ambiguous; write {p}iB for powers of 1024, {p}B for powers of 1000"
            )
        raise ValueError(f"size {shown(text)}: unknown unit {unit!r}; use B, KiB to EiB or kB to EB")
    # In integers: every byte count must survive, and a decimal context is the caller's to change.
    scale: int = 10 ** len(fraction)
    count, rest = divmod(int(whole + fraction) * _FACTORS[unit], scale)
    count += 2 * rest >= scale
    if count > MAX_BYTES:
        raise ValueError(f"size {shown(text)} is above the largest, 2^64-1 bytes")
    return count


def as_bytes(value: SupportsIndex | str, what: str) -> int:
    """Check that `value` is a byte count in 0..2^64-1; a string is parsed.

    `what` names the value in the error: ``"free of node 'cpu'"``.

    Raises
    ------
    TypeError
        If it is neither an integer nor a string. A float is refused, since it cannot hold
        every byte count, and a bool, since it is none.
    ValueError
        If it is negative, above 2^64-1, or a string that is no size.
    """
    if type(value) is int and 0 <= value <= MAX_BYTES:
        return value
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
    # By name, so that NumPy's bool is meant as well; old releases of it pass for an integer.
    if type(value).__name__ in ("bool", "bool_"):
        raise TypeError(f"{what} must be an integer (bytes), not bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer (bytes), not {type(value).__name__}") from None
    if number < 0:
        raise ValueError(f"{what} must not be negative, got {shown(number)}")
    if number > MAX_BYTES:
        raise ValueError(f"{what} must be at most 2^64-1, got {shown(number)}")
    return number


def format_bytes(count: int | None) -> str:
    """Print a byte count for people: ``"512 B"``, ``"1.5 GiB"``; None gives ``"?"``."""
    if count is None:
        return "?"
    for prefix, power in zip("EPTGMK", range(6, 0, -1), strict=True):
        unit = 1024**power
        # From half of the last printed digit below it, so that "1024.0 KiB" is never printed.
        if count >= unit - unit // 20480:
            return f"{count / unit:.1f} {prefix}iB"
    return f"{count} B"
