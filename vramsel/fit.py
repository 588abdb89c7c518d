"""The decision rule in plain Python: does a size fit a memory, and how well.

This file is the specification. The compiled core, the NumPy oracle and the callback selector
give the same answers, and the tests hold them to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import inf

from .errors import shown
from .units import MAX_BYTES, as_bytes

__all__ = ["FitPolicy", "FitStatus", "Reason", "would_fit"]


class FitStatus(IntEnum):
    """How well a size fits a memory; uint8 in arrays."""

    COMFORTABLE = 0
    """It fits and leaves the memory below the tight fraction."""
    TIGHT = 1
    """It fits and leaves the memory above the tight fraction: a last resort."""
    WONT_FIT = 2
    """It does not fit, or the device is lost or absent."""
    UNKNOWN = 3
    """No signal. That is not pressure: it ranks with COMFORTABLE."""


class Reason(StrEnum):
    """Why a candidate has its status."""

    FITS = "fits"
    NO_SIGNAL = "no signal"
    OVER_FRACTION = "over the tight fraction"
    EXCEEDS_FREE = "exceeds free"
    EXCEEDS_TOTAL = "exceeds total, never fits"
    LOST = "device lost"
    NOT_PRESENT = "not present"


@dataclass(frozen=True, slots=True)
class FitPolicy:
    """When a fit is called tight, and how much is never given out.

    Parameters
    ----------
    tight_fraction : float, default 0.85
        A fit is TIGHT when it leaves more than this fraction of the total in use; 0 to 1.
    tight_margin : int, optional
        If set, a fit is TIGHT only if it also leaves fewer than this many bytes available. A
        fraction alone gives up 28 GB of a 192 GB card.
    headroom : int, default 0
        Bytes that are treated as not there.

    Both byte counts may also be strings, such as ``"2GiB"``.

    Raises
    ------
    TypeError, ValueError
        If the fraction is outside 0..1 or a byte count is none.
    """

    tight_fraction: float = 0.85
    tight_margin: int | None = None
    headroom: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.tight_fraction, (str, bytes)):
            raise TypeError(f"tight_fraction must be a number, not {shown(self.tight_fraction)}")
        try:
            fraction = float(self.tight_fraction)
        except (TypeError, ValueError):
            raise TypeError(f"tight_fraction must be a number, not {shown(self.tight_fraction)}") from None
        except OverflowError:
            fraction = inf
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"tight_fraction must be within 0..1, got {fraction}")
        object.__setattr__(self, "tight_fraction", fraction)
        if self.tight_margin is not None:
            object.__setattr__(self, "tight_margin", as_bytes(self.tight_margin, "tight_margin"))
        object.__setattr__(self, "headroom", as_bytes(self.headroom, "headroom"))


_DEFAULT = FitPolicy()


def available(free: int, idle: int, reserved: int, policy: FitPolicy) -> int:
    """Bytes that can be given out: free + idle - reserved - headroom, saturating at 0 and 2^64-1."""
    return max(min(free + idle, MAX_BYTES) - reserved - policy.headroom, 0)


def would_fit(
    size: int,
    free: int | None,
    total: int | None,
    *,
    idle: int = 0,
    reserved: int = 0,
    policy: FitPolicy = _DEFAULT,
) -> FitStatus:
    """Judge `size` bytes against one memory. Exact for every uint64.

    Parameters
    ----------
    size : int
        Bytes asked for.
    free, total : int or None
        The memory's free and total bytes; None is unknown. The pair 0/0 is no signal, 0 free
        of a known total is a full device.
    idle : int
        Bytes that the asker's own caching allocator holds and does not use.
    reserved : int
        Bytes promised to others and not yet visible in `free`.
    policy : FitPolicy

    Returns
    -------
    FitStatus

    Raises
    ------
    TypeError, ValueError
        If a byte count is not an integer in 0..2^64-1, or `policy` is no `FitPolicy`.
    """
    if not isinstance(policy, FitPolicy):
        raise TypeError(f"policy must be a FitPolicy, not {type(policy).__name__}")
    size = as_bytes(size, "size")
    idle = as_bytes(idle, "idle")
    reserved = as_bytes(reserved, "reserved")
    free = None if free is None else as_bytes(free, "free")
    total = None if total is None else as_bytes(total, "total")

    if free is None or (free == 0 and total == 0):
        return FitStatus.UNKNOWN
    a = available(free, idle, reserved, policy)
    if size > a:
        return FitStatus.WONT_FIT
    if not total:
        return FitStatus.UNKNOWN
    left = a - size
    post_used = max(total - left, 0)
    # Both conversions round to the nearest double, exactly as the compiled core's do: near a
    # threshold the answer is that of IEEE arithmetic, not of the real numbers.
    over = float(post_used) / float(total) > policy.tight_fraction
    if over and (policy.tight_margin is None or left < policy.tight_margin):
        return FitStatus.TIGHT
    return FitStatus.COMFORTABLE
