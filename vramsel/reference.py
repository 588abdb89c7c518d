"""The oracle: the core's answers computed again, in NumPy, straight from the rule.

Slow and obvious. It shares the core's storage of numbers and names, but neither what is derived
from them (room, keep, the lookup) nor the selection. Tests hold the core to it, and benchmarks
compare with it.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from .fit import FitStatus
from .records import AlternativeSet, as_candidates, as_u64
from .table import MemoryTable
from .units import MAX_BYTES, as_bytes

__all__ = ["ReferenceTable", "classify"]

_U64 = np.uint64


def _add_sat(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    total = a + b
    return np.where(total < a, _U64(MAX_BYTES), total)


def _sub_sat(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return np.where(a > b, a - b, _U64(0))


def classify(
    size: npt.ArrayLike,
    free: npt.ArrayLike,
    total: npt.ArrayLike,
    *,
    known: npt.ArrayLike = True,
    gone: npt.ArrayLike = False,
    idle: npt.ArrayLike = 0,
    reserved: npt.ArrayLike = 0,
    headroom: npt.ArrayLike = 0,
    fraction: npt.ArrayLike = 0.85,
    margin: npt.ArrayLike = MAX_BYTES,
) -> npt.NDArray[np.uint8]:
    """The rule of `vramsel.fit`, elementwise over arrays that broadcast together.

    Parameters
    ----------
    size, free, total, idle, reserved, headroom : array_like of uint64
        Bytes; a total of 0 is unknown.
    known, gone : array_like of bool
        Whether free is known; whether the device is lost or absent.
    fraction : array_like of float64
        The tight fraction.
    margin : array_like of uint64
        The tight margin in bytes; 2^64-1 for none.

    Returns
    -------
    numpy.ndarray
        dtype uint8, values of `FitStatus`.
    """
    size, free, total, idle, reserved, headroom, margin = (
        np.asarray(x, dtype=_U64) for x in (size, free, total, idle, reserved, headroom, margin)
    )
    silent = ~np.asarray(known, dtype=np.bool_) | ((free == 0) & (total == 0))
    a = _sub_sat(_sub_sat(_add_sat(free, idle), reserved), headroom)
    left = _sub_sat(a, size)
    post_used = _sub_sat(total, left)
    used_fraction = post_used.astype(np.float64) / np.where(total == 0, _U64(1), total).astype(np.float64)
    # A margin of 2^64-1 is "none": were it a real one, `left` could equal it.
    tight = (used_fraction > np.asarray(fraction, dtype=np.float64)) & ((left < margin) | (margin == _U64(MAX_BYTES)))
    # The first that holds decides.
    cases = [
        (np.asarray(gone, dtype=np.bool_), FitStatus.WONT_FIT),
        (silent, FitStatus.UNKNOWN),
        (size > a, FitStatus.WONT_FIT),
        (total == 0, FitStatus.UNKNOWN),
        (tight, FitStatus.TIGHT),
    ]
    statuses = np.select([when for when, _ in cases], [np.array(int(s)) for _, s in cases], FitStatus.COMFORTABLE)
    return statuses.astype(np.uint8)


class ReferenceTable(MemoryTable):
    """A `MemoryTable` that decides in NumPy. Same arguments, same answers, same errors."""

    __slots__ = ()

    def _lookup(self, backend: npt.NDArray[Any], device: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The columns that `classify` takes, one row per candidate."""
        book = self._book
        listed = sorted(book.placements)
        keys = np.array([b << 16 | d for b, d in listed], dtype=np.int64)
        wanted = backend.astype(np.int64) << 16 | device.astype(np.int64)
        at = np.searchsorted(keys, wanted)
        at[at == len(keys)] = 0
        present = keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)
        at[~present] = len(listed)  # one row more, for what is not listed

        def column(values: list[Any], dtype: type, missing: Any) -> npt.NDArray[Any]:
            return np.array([*values, missing], dtype=dtype)[at]

        node = [book.placements[p] for p in listed]
        policies = [book.nodes[n].policy for n in node]
        closed = np.isin(backend, np.array(sorted(book.closed), dtype=np.int64))
        margins = [MAX_BYTES if p.tight_margin is None else p.tight_margin for p in policies]
        return {
            "free": column([self.free[n] for n in node], np.uint64, 0),
            "total": column([self.total[n] for n in node], np.uint64, 0),
            "known": column([self.known[n] for n in node], np.bool_, False),
            "gone": column([self._lost[n] for n in node], np.bool_, False) | (~present & closed),
            "idle": column([book.idle.get(p, 0) for p in listed], np.uint64, 0),
            "headroom": column([p.headroom for p in policies], np.uint64, 0),
            "fraction": column([p.tight_fraction for p in policies], np.float64, 1.0),
            "margin": column(margins, np.uint64, 0),
        }

    def _decide(self, candidates: Any, sizes: Any = None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Status and rank of each row; the smallest rank of a set is its pick, ties to the first."""
        rows = candidates.array if isinstance(candidates, AlternativeSet) else as_candidates(candidates)
        size = rows["bytes_moved"] if sizes is None else as_u64(sizes, len(rows), "sizes")
        columns = self._lookup(rows["backend"], rows["device"])
        status = classify(size, **columns)
        rank = np.array([0, 1, 2, 0])[status]
        return status, np.where(columns["gone"], 3, rank)

    def _judge(self, backend: int, device: int, size: int) -> int:
        columns = self._lookup(np.array([backend]), np.array([device]))
        return int(classify(np.array([size], dtype=np.uint64), **columns)[0])

    def select(self, candidates: Any, /) -> int | None:
        """As `MemoryTable.select`."""
        _, rank = self._decide(candidates)
        return int(np.argmin(rank)) if len(rank) else None

    def select_sized(self, candidates: Any, nbytes: int, /) -> int | None:
        """As `MemoryTable.select_sized`."""
        rows = candidates.array if isinstance(candidates, AlternativeSet) else as_candidates(candidates)
        _, rank = self._decide(rows, np.full(len(rows), as_bytes(nbytes, "nbytes"), dtype=np.uint64))
        return int(np.argmin(rank)) if len(rank) else None

    def select_fit(self, candidates: Any, /) -> int | None:
        """As `MemoryTable.select_fit`."""
        _, rank = self._decide(candidates)
        return int(np.argmin(rank)) if len(rank) and rank.min() < 2 else None

    def classify(self, candidates: Any, sizes: Any = None, *, out: Any = None) -> npt.NDArray[np.uint8]:
        """As `MemoryTable.classify`."""
        status, _ = self._decide(candidates, sizes)
        return _put(out, status, "out")

    def select_many(
        self,
        candidates: Any,
        offsets: Any = None,
        sizes: Any = None,
        *,
        set_size: int | None = None,
        out: Any = None,
        status_out: Any = None,
    ) -> npt.NDArray[np.int32]:
        """As `MemoryTable.select_many`."""
        if (offsets is None) == (set_size is None):
            raise TypeError("select_many takes either offsets or set_size")
        status, rank = self._decide(candidates, sizes)
        count = len(status)
        if set_size is not None:
            each = operator.index(set_size)
            if each < 1 or count % each:
                raise ValueError(f"set_size {each} does not divide {count} candidates")
            bounds = np.arange(0, count + 1, each)
        else:
            bounds = np.asarray(offsets)
            if bounds.ndim != 1 or not bounds.size:
                raise ValueError("offsets must be 1-d with at least one entry")
            if bounds.dtype.kind not in "iu":
                raise TypeError(f"offsets must be integers, not {bounds.dtype}")
            if bounds.min() < 0 or bounds.max() > count or (bounds[1:] < bounds[:-1]).any():
                raise ValueError(f"offsets must lie within 0..{count} and never decrease")
            bounds = bounds.astype(np.int64)
        low, high = bounds[:-1], bounds[1:]
        picks = np.full(len(low), -1, dtype=np.int32)
        states = np.full(len(low), 255, dtype=np.uint8)
        filled = high > low
        if filled.any():
            # The smallest (rank, row) of each set. reduceat takes no empty segments; between two
            # filled sets there is nothing but empty ones, so leaving those out changes nothing.
            last = int(high[filled][-1])
            key = rank[:last] * (count + 1) + np.arange(last)
            best = np.minimum.reduceat(key, low[filled]) % (count + 1)
            picks[filled] = best - low[filled]
            states[filled] = status[best]
        if status_out is not None:
            _put(status_out, states, "status_out")
        return _put(out, picks, "out")


def _put(out: Any, values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    if out is None:
        return values
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{what} must be a numpy array, not {type(out).__name__}")
    if out.dtype != values.dtype:
        raise TypeError(f"{what} must have dtype {values.dtype}, not {out.dtype}")
    if out.shape != values.shape:
        raise ValueError(f"{what} must have shape {values.shape}, not {out.shape}")
    if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
        raise ValueError(f"{what} must be writable, aligned and contiguous")
    out[...] = values
    return out
