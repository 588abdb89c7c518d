"""Selectors: the protocol that executors program against, and its three implementations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np

from . import _core
from .errors import shown
from .fit import FitPolicy, FitStatus, would_fit
from .records import AlternativeSet, Candidate
from .table import MemoryTable
from .units import MAX_BYTES, as_bytes

__all__ = [
    "BackendRuntime",
    "CachedPressureSelector",
    "RuntimeSelector",
    "VramPressureSelector",
    "WinnerSelector",
    "default_estimate_output_bytes",
]


def default_estimate_output_bytes(candidate: Candidate) -> int:
    """The bytes that a candidate would take, for want of better: its ``bytes_moved``.

    A deliberate overestimate: it counts reads, writes and intermediates, 3 to 10 times the
    output of a usual operation. Too high demotes an operation that would have fitted; too low
    lets one run out of memory.
    """
    return candidate.bytes_moved


@runtime_checkable
class RuntimeSelector(Protocol):
    """Picks one candidate of a set at dispatch."""

    def select(self, alternatives: AlternativeSet, /) -> Candidate | None:
        """The pick, or None for an empty set."""
        ...


class BackendRuntime:
    """What a lookup answers about one device. Override what your backend can tell.

    Attributes
    ----------
    policy : FitPolicy
        What the default `would_fit` calls tight.
    """

    policy = FitPolicy()

    def available_bytes(self) -> int | None:
        """Free bytes now, or None where the backend cannot tell."""
        return None

    def total_bytes(self) -> int | None:
        """Total bytes, or None where the backend cannot tell."""
        return None

    def would_fit(self, size: int) -> FitStatus:
        """How well `size` bytes fit: the rule, applied to the two numbers above."""
        return would_fit(size, self.available_bytes(), self.total_bytes(), policy=self.policy)


Lookup = Callable[[int, int], BackendRuntime | None]
Estimate = Callable[[Candidate], int]


class WinnerSelector:
    """Always takes the static winner, whatever the memory says."""

    __slots__ = ()

    def select(self, alternatives: AlternativeSet, /) -> Candidate | None:
        """The candidate of lowest cost, or None for an empty set."""
        return _checked(alternatives).winner

    def __repr__(self) -> str:
        return "WinnerSelector()"


class VramPressureSelector:
    """Asks callbacks about each candidate of each select.

    Parameters
    ----------
    lookup : callable
        ``lookup(backend_code, device) -> BackendRuntime | None``. None means no signal.
    estimate_output_bytes : callable
        ``estimate_output_bytes(candidate) -> int``: the bytes that it would take.

    Notes
    -----
    Every candidate of the set is asked about, also after one was found that fits: which
    callbacks run, and so which errors show, does not depend on how full a device is. An
    exception in a callback reaches the caller unchanged. `CachedPressureSelector` is the fast
    one.

    Holds no state but the two callables, so it may be shared between threads where they may.
    """

    __slots__ = ("_estimate", "_lookup")

    def __init__(self, lookup: Lookup, estimate_output_bytes: Estimate = default_estimate_output_bytes) -> None:
        for what, value in (("lookup", lookup), ("estimate_output_bytes", estimate_output_bytes)):
            if not callable(value):
                raise TypeError(f"{what} must be callable, not {type(value).__name__}")
        self._lookup = lookup
        self._estimate = estimate_output_bytes

    @classmethod
    def with_default_estimator(cls, lookup: Lookup) -> VramPressureSelector:
        """A selector that takes a candidate's ``bytes_moved`` for its size."""
        return cls(lookup)

    def select(self, alternatives: AlternativeSet, /) -> Candidate | None:
        """The first candidate that is COMFORTABLE or UNKNOWN, else the first TIGHT, else the winner.

        Raises
        ------
        TypeError
            If `alternatives` is not an `AlternativeSet`, or a callback answers with something
            that is no runtime, no size or no status.
        """
        statuses = [self._judge(candidate) for candidate in _checked(alternatives)]
        for wanted in ((FitStatus.COMFORTABLE, FitStatus.UNKNOWN), (FitStatus.TIGHT,)):
            for candidate, status in zip(alternatives, statuses, strict=True):
                if status in wanted:
                    return candidate
        return alternatives.winner

    def _judge(self, candidate: Candidate) -> FitStatus:
        size = _as_size(self._estimate(candidate), candidate)
        runtime = self._lookup(candidate.backend, candidate.device)
        if runtime is None:
            return FitStatus.UNKNOWN
        if not hasattr(runtime, "would_fit"):
            raise TypeError(f"lookup must return a BackendRuntime or None, not {type(runtime).__name__}")
        return _as_status(runtime.would_fit(size), runtime)

    def __reduce__(self) -> tuple[Any, ...]:
        return VramPressureSelector, (self._lookup, self._estimate)

    def __repr__(self) -> str:
        return f"VramPressureSelector(lookup={_name(self._lookup)}, estimate_output_bytes={_name(self._estimate)})"


class CachedPressureSelector(_core.CachedSelector):
    """Serves the selector protocol from a table: no callback asks a device.

    Parameters
    ----------
    table : MemoryTable
        Shared, not copied: what is published there is seen by the next select.
    estimate_output_bytes : callable, optional
        ``estimate_output_bytes(candidate) -> int``. Without it the set is read as it is, which
        is far faster; a size known only at dispatch is better given to
        ``MemoryTable.select_sized``.
    """

    __slots__ = ()

    def __init__(self, table: MemoryTable, estimate_output_bytes: Estimate | None = None) -> None:
        super().__init__(table, estimate_output_bytes)

    def _estimated(self, alternatives: AlternativeSet) -> AlternativeSet | np.ndarray[Any, Any]:
        """What the table is asked about instead of the set, where it is not simply the set."""
        estimate = self.estimate
        if estimate is None:
            return alternatives
        rows = alternatives.array.copy()
        rows["bytes_moved"] = [_as_size(estimate(c), c) for c in alternatives]
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.table, self.estimate), object.__getstate__(self)

    def __repr__(self) -> str:
        estimate = "" if self.estimate is None else f", estimate_output_bytes={_name(self.estimate)}"
        return f"CachedPressureSelector({self.table!r}{estimate})"


def _restore(
    cls: type[CachedPressureSelector], table: MemoryTable, estimate: Estimate | None
) -> CachedPressureSelector:
    selector = cls.__new__(cls)  # a subclass may want other arguments
    CachedPressureSelector.__init__(selector, table, estimate)
    return selector


def _as_size(size: Any, candidate: Candidate) -> int:
    # The usual case first: only an error needs the candidate's name spelled out.
    if type(size) is int and 0 <= size <= MAX_BYTES:
        return size
    return as_bytes(size, f"estimate for {candidate.placement}")


def _as_status(status: Any, runtime: object) -> FitStatus:
    if type(status) is FitStatus:
        return status
    # True is no status, though it equals TIGHT, and neither is 1.0.
    if type(status).__name__ not in ("bool", "bool_"):
        with suppress(TypeError, ValueError):
            return FitStatus(operator.index(status))
    raise TypeError(f"would_fit of a {type(runtime).__name__} must return a FitStatus, not {shown(status)}")


def _checked(alternatives: Any) -> AlternativeSet:
    if not isinstance(alternatives, AlternativeSet):
        raise TypeError(f"select takes an AlternativeSet, not {type(alternatives).__name__}")
    return alternatives


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
