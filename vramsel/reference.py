"""The oracle: the core's answers computed again, in NumPy, straight from the rule.

Slow and obvious. It shares the core's storage of numbers and names, but neither what is derived
from them (room, keep, the lookup) nor the selection. Tests hold the core to it, and benchmarks
compare with it.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .book import Pool
from .fit import FitStatus
from .records import AlternativeSet, as_candidates, as_output, as_sets, as_u64
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
        Whether free is known (of a reading of 0/0 it is not); whether the device is lost or absent.
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
    a = _sub_sat(_sub_sat(_add_sat(free, idle), reserved), headroom)
    left = _sub_sat(a, size)
    post_used = _sub_sat(total, left)
    used_fraction = post_used.astype(np.float64) / np.where(total == 0, _U64(1), total).astype(np.float64)
    # `left` reaches a margin of 2^64-1, which stands for none, only where nothing is in use.
    tight = (used_fraction > np.asarray(fraction, dtype=np.float64)) & (left < margin)
    # The first that holds decides.
    cases = [
        (np.asarray(gone, dtype=np.bool_), FitStatus.WONT_FIT),
        (~np.asarray(known, dtype=np.bool_), FitStatus.UNKNOWN),
        (size > a, FitStatus.WONT_FIT),
        (total == 0, FitStatus.UNKNOWN),
        (tight, FitStatus.TIGHT),
    ]
    statuses = np.select([when for when, _ in cases], [np.array(int(s)) for _, s in cases], FitStatus.COMFORTABLE)
    return statuses.astype(np.uint8)


def _rows(candidates: Any) -> npt.NDArray[np.void]:
    return candidates.array if isinstance(candidates, AlternativeSet) else as_candidates(candidates)


class ReferenceTable(MemoryTable):
    """A `MemoryTable` that decides in NumPy. Same arguments, same answers, same types of error."""

    __slots__ = ()

    def _lookup(self, backend: npt.NDArray[Any], device: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The columns that `classify` takes, one row per candidate."""
        book = self._book
        with book.lock:
            listed = sorted(book.placements)
            free, total, reserved, known, lost = self._columns()
            node = np.array([book.placements[p] for p in listed], dtype=np.int64)
            pools = np.array([book.pools.get(p, Pool()) for p in listed], dtype=np.uint64).reshape(-1, 3)
            policies = [book.nodes[n].policy for n in node]
            closed = np.isin(backend, np.array(sorted(book.closed), dtype=np.int64))
        keys = np.array([b << 16 | d for b, d in listed], dtype=np.int64)
        wanted = backend.astype(np.int64) << 16 | device.astype(np.int64)
        at = np.searchsorted(keys, wanted)
        at[at == len(keys)] = 0
        present = keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)
        at[~present] = len(listed)  # one row more, for what is not listed

        margins = [MAX_BYTES if p.tight_margin is None else p.tight_margin for p in policies]

        def column(values: Any, dtype: type, missing: Any) -> npt.NDArray[Any]:
            return np.append(np.array(values, dtype=dtype), np.array(missing, dtype=dtype))[at]

        return {
            "free": column(np.minimum(_add_sat(free[node], pools[:, 0]), pools[:, 1]), np.uint64, 0),
            "total": column(np.minimum(total[node], pools[:, 2]), np.uint64, 0),
            "known": column(known[node], np.bool_, False),
            "gone": column(lost[node], np.bool_, False) | (~present & closed),
            "reserved": column(reserved[node], np.uint64, 0),
            "headroom": column([p.headroom for p in policies], np.uint64, 0),
            "fraction": column([p.tight_fraction for p in policies], np.float64, 1.0),
            "margin": column(margins, np.uint64, 0),
        }

    def _decide(self, candidates: Any, sizes: Any = None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Status and rank of each row; the smallest rank of a set is its pick, ties to the first."""
        rows = _rows(candidates)
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
        size = as_bytes(nbytes, "nbytes")
        rows = _rows(candidates)
        _, rank = self._decide(rows, np.full(len(rows), size, dtype=np.uint64))
        return int(np.argmin(rank)) if len(rank) else None

    def select_fit(self, candidates: Any, /) -> int | None:
        """As `MemoryTable.select_fit`."""
        _, rank = self._decide(candidates)
        return int(np.argmin(rank)) if len(rank) and rank.min() < 2 else None

    def classify(self, candidates: Any, sizes: Any = None, *, out: Any = None) -> npt.NDArray[np.uint8]:
        """As `MemoryTable.classify`."""
        rows = _rows(candidates)
        own = None if sizes is None else as_u64(sizes, len(rows), "sizes")
        result = as_output(out, len(rows), np.dtype(np.uint8), "out", (candidates, sizes, own))
        result[...], _ = self._decide(rows, own)
        return result

    def select_many(
        self,
        candidates: Any,
        offsets: Any = None,
        sizes: Any = None,
        *,
        set_size: SupportsIndex | None = None,
        out: Any = None,
        status_out: Any = None,
        threads: SupportsIndex = 1,
    ) -> npt.NDArray[np.int32]:
        """As `MemoryTable.select_many`; one thread does it all."""
        rows = _rows(candidates)
        given = (candidates, sizes, offsets)
        if sizes is not None:
            sizes = as_u64(sizes, len(rows), "sizes")
        offsets, each, sets, _ = as_sets(len(rows), offsets, set_size, threads)
        result = as_output(out, sets, np.dtype(np.int32), "out", (*given, sizes, offsets))
        if status_out is not None:
            inputs = (*given, sizes, offsets, result)
            status_out = as_output(status_out, sets, np.dtype(np.uint8), "status_out", inputs)
        status, rank = self._decide(rows, sizes)
        count = len(status)
        bounds = np.arange(0, count + 1, each) if offsets is None else offsets
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
            status_out[...] = states
        result[...] = picks
        return result
