"""Numbers asked of callbacks, once per refresh and placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ..errors import described, shown
from ..placement import Placement, PlacementLike
from .base import Reading, Sample, Source

__all__ = ["CallbackSource"]


class _Runtime(Protocol):
    def available_bytes(self) -> int | None: ...

    def total_bytes(self) -> int | None: ...


class CallbackSource(Source):
    """Reads each placement through the lookup that a `VramPressureSelector` would ask.

    Parameters
    ----------
    lookup : callable
        ``lookup(backend_code, device) -> runtime | None``, where a runtime has
        ``available_bytes()`` and ``total_bytes()``. None, of any of them, is no signal.
    placements : iterable
        The placements to ask about; each is a memory node of its own.

    Notes
    -----
    A table holds numbers, so an overridden ``would_fit`` of a runtime is not consulted. An
    exception in a callback makes its placement unknown, with the exception as the reason; the
    other placements are read all the same.
    """

    name = "callback"

    def __init__(self, lookup: Callable[[int, int], _Runtime | None], placements: Iterable[PlacementLike]) -> None:
        if not callable(lookup):
            raise TypeError(f"lookup must be callable, not {type(lookup).__name__}")
        if isinstance(placements, str) or not isinstance(placements, Iterable):
            raise TypeError(f"placements must be several, as in ['cuda:0', 'cpu'], not {shown(placements)}")
        self._lookup = lookup
        self._placements = [Placement(p) for p in placements]

    def sample(self) -> Sample:
        """Ask about every placement once."""
        return Sample(tuple(self._read(placement) for placement in self._placements))

    def _read(self, placement: Placement) -> Reading:
        node = str(placement)
        try:
            runtime = self._lookup(*placement)
            if runtime is None:
                return Reading(node, reason="the lookup has no runtime for it")
            free, total = runtime.available_bytes(), runtime.total_bytes()
            reason = "its runtime cannot tell" if free is None else None
            return Reading(node, free, total, reason=reason).checked()
        except Exception as error:  # the callback is the caller's code: whatever it raises, it has no number
            return Reading(node, reason=described(error))
