"""The same work, done by everybody who could: first the answers are compared, then the times."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from batch import as_oracle, random_batch
from measure import timed

import vramsel as vs


class Numbers(vs.BackendRuntime):
    """Answers the callback selector from plain attributes: the cheapest runtime there can be."""

    def __init__(self, free: int, total: int) -> None:
        self.free, self.total = free, total

    def available_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return self.total


def numba_peer(table: vs.MemoryTable, candidates: np.ndarray, each: int) -> Callable[[], object]:
    """The rule as one would write it in Numba, on the columns of the same table."""
    import numba

    @numba.njit(cache=False)
    def pick(device, size, free, total, fraction, each, out):
        for s in range(len(out)):
            best, rank = 0, 4
            for i in range(each):
                row = s * each + i
                f, t, n = free[device[row]], total[device[row]], size[row]
                if n > f:
                    own = 2
                else:
                    used = t - (f - n) if t > f - n else np.uint64(0)
                    own = 1 if np.float64(used) / np.float64(t) > fraction else 0
                if own < rank:
                    best, rank = i, own
            out[s] = best

    out = np.empty(len(candidates) // each, dtype=np.int32)
    columns = (candidates["device"], candidates["bytes_moved"], table.free, table.total)

    def call() -> np.ndarray:
        pick(*columns, 0.85, each, out)
        return out

    return call


def peers(table: vs.MemoryTable, candidates: np.ndarray) -> dict[str, Callable[[], object]]:
    """Each picks from all sets of 4; returns the indices, or the candidates."""
    sets = [vs.AlternativeSet.from_array(four) for four in candidates.reshape(-1, 4)]
    oracle = as_oracle(table)
    runtimes = {
        tuple(vs.Placement(name)): Numbers(int(free), int(total))
        for name, free, total in zip(table.nodes, table.free, table.total, strict=True)
    }
    callback = vs.VramPressureSelector(lambda backend, device: runtimes.get((backend, device)))
    cached = vs.CachedPressureSelector(table)
    for one in sets:
        one.alternatives  # noqa: B018  made here, not while the time runs

    found = {
        "vramsel, select_many": lambda: table.select_many(candidates, set_size=4),
        "vramsel, select": lambda: [table.select(one) for one in sets],
        "vramsel, CachedPressureSelector": lambda: [cached.select(one) for one in sets],
        "NumPy oracle, select_many": lambda: oracle.select_many(candidates, set_size=4),
        "callback selector": lambda: [callback.select(one) for one in sets],
    }
    if find_spec("numba"):
        found["Numba"] = numba_peer(table, candidates, 4)
    else:
        print("  (Numba is not installed)")
    return found


def peers_report(rounds: int, count: int = 20_000) -> bool:
    """Print nanoseconds per set of 4, and as multiples of reading it."""
    table, candidates = random_batch(4 * count, 16)
    found = peers(table, candidates)
    want = table.select_many(candidates, set_size=4).tolist()
    sizes = candidates["bytes_moved"].reshape(-1, 4)
    for name, call in found.items():
        got = list(call())
        if isinstance(got[0], vs.Candidate):  # by its size, which hardly another of its set has
            got = [own.tolist().index(pick.bytes_moved) for own, pick in zip(sizes, got, strict=True)]
        assert [int(index) for index in got] == want, name
    words = candidates.view(np.uint64)
    found = {"floor: read the bytes": lambda: np.add.reduce(words)} | found
    spent: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, call in found.items():
            spent[name].append(timed(call)(1))
    floor = statistics.median(spent["floor: read the bytes"])
    for name, times in spent.items():
        median = statistics.median(times)
        print(f"  {name:44} {median / floor:10.1f} x {median / count * 1e9:14,.1f} ns a set")
    return True
