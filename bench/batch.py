"""Batches, against reading the same bytes; and how their cost grows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from measure import Bench, Case, report, timed

import vramsel as vs
from vramsel.reference import ReferenceTable

GIB = 1 << 30


def random_batch(rows: int, nodes: int, seed: int = 1) -> tuple[vs.MemoryTable, np.ndarray]:
    """A table of so many devices, and candidates whose outcome cannot be foreseen."""
    rng = np.random.default_rng(seed)
    total = rng.integers(8, 80, nodes, dtype=np.uint64) * np.uint64(GIB)
    free = (total * rng.random(nodes)).astype(np.uint64)
    table = vs.MemoryTable({f"cuda:{i}": None for i in range(nodes)})
    table.update_all(free, total)
    candidates = np.zeros(rows, dtype=vs.CANDIDATE_DTYPE)
    candidates["backend"] = vs.backend_code("cuda")
    candidates["device"] = rng.integers(0, nodes, rows)
    candidates["bytes_moved"] = rng.integers(0, 40 * GIB, rows)
    return table, candidates


def as_oracle(table: vs.MemoryTable) -> ReferenceTable:
    """The same content in NumPy."""
    restore, (_, state), *_ = table.__reduce__()
    return restore(ReferenceTable, state)


def read(candidates: np.ndarray) -> Bench:
    words = candidates.view(np.uint64)
    return timed(lambda: np.add.reduce(words))


def mixed_offsets(rows: int) -> np.ndarray:
    lengths = np.random.default_rng(2).integers(1, 17, rows // 4)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets[offsets <= rows]


def cases(rows: int) -> Iterator[Case]:
    table, candidates = random_batch(rows, 16)
    oracle = as_oracle(table)
    fours, mixed = np.arange(0, rows + 1, 4), mixed_offsets(rows)
    sizes = candidates["bytes_moved"].copy()
    floor = read(candidates)

    def both(cut: tuple[object, ...], **more: object) -> Callable[[], object]:
        return lambda: table.select_many(candidates, *cut, **more)

    yield Case("classify / read", timed(lambda: table.classify(candidates)), floor, 1, 1.3, 1.8)
    yield Case("select_many, set_size=4 / read", timed(both((), set_size=4)), floor, 1, 1.5, 2.0)
    yield Case("select_many, offsets, sets of 4 / read", timed(both((fours,))), floor, 1, 1.8, 2.4)
    yield Case("select_many, offsets, sets of 1-16 / read", timed(both((mixed,))), floor, 1, 1.8, 2.4)
    plain, status = both((), set_size=4), np.empty(rows // 4, dtype=np.uint8)
    yield Case(
        "select_many with sizes= / without", timed(both((), set_size=4, sizes=sizes)), timed(plain), 1, None, 1.5
    )
    yield Case(
        "classify with sizes= / without",
        timed(lambda: table.classify(candidates, sizes)),
        timed(lambda: table.classify(candidates)),
        1,
        None,
        1.5,
    )
    yield Case("select_many with status_out= / without", timed(both((), set_size=4, status_out=status)), timed(plain))
    for name, call in {
        "classify": lambda t: t.classify(candidates),
        "select_many, set_size=4": lambda t: t.select_many(candidates, set_size=4),
        "select_many, offsets, sets of 1-16": lambda t: t.select_many(candidates, mixed),
    }.items():
        assert np.array_equal(call(table), call(oracle))
        bench, slow = (timed(lambda call=call, one=one: call(one)) for one in (table, oracle))
        yield Case(f"oracle / {name}", bench, slow, 1, 15, 8, at_least=True)


def threads_report(rows: int, rounds: int) -> bool:
    """Speed-up of two threads over one, against that of reading in two halves."""
    table, candidates = random_batch(rows, 16)
    words = candidates.view(np.uint64)
    halves = np.array_split(words, 2)
    ratios, spent = [], []
    with ThreadPoolExecutor(1) as other:

        def read_halves() -> None:
            second = other.submit(np.add.reduce, halves[1])
            np.add.reduce(halves[0])
            second.result()

        calls = [
            lambda: table.select_many(candidates, set_size=4),
            lambda: table.select_many(candidates, set_size=4, threads=2),
            lambda: np.add.reduce(words),
            read_halves,
        ]
        for _ in range(rounds + 1):
            one, two, floor_one, floor_two = (timed(call)(3) for call in calls)
            ratios.append((one / two) / (floor_one / floor_two))
            spent.append(two / 3 * 1e9)
    case = Case("speed-up of threads=2 / that of reading", calls[1], calls[3], 1, 1.0, 0.8, at_least=True)
    return report(case, ratios[1:], spent[1:])


def growth_report(name: str, limit: float, batches: list[tuple[vs.MemoryTable, np.ndarray]], rounds: int) -> bool:
    """The dearest candidate over the cheapest, of batches that are measured in turn."""
    costs: list[list[float]] = []
    for _ in range(rounds + 1):
        row = []
        for table, candidates in batches:
            repeat = max(1, 1_000_000 // len(candidates))
            call = timed(lambda table=table, candidates=candidates: table.select_many(candidates, set_size=4))
            # The quickest of three: this compares batch with batch, and the machine is not idle.
            row.append(min(call(repeat) for _ in range(3)) / repeat / len(candidates) * 1e9)
        costs.append(row)
    kept = costs[1:]
    print(f"    {', '.join(f'{statistics.median(column):.2f}' for column in zip(*kept, strict=True))} ns a candidate")
    case = Case(name, lambda _: 0, lambda _: 0, 1, None, limit)
    return report(case, [max(row) / min(row) for row in kept], [max(row) for row in kept])


def growth(rounds: int, largest: int) -> bool:
    nodes = [random_batch(1_000_000, count) for count in (1, 4, 16, 64, 256, 1024)]
    good = growth_report("dearest / cheapest, 1 to 1024 nodes", 1.3, nodes, rounds)
    del nodes
    sizes = [10**power for power in range(4, 9) if 10**power <= largest]
    table, candidates = random_batch(sizes[-1], 16)
    rows = [(table, candidates[:size]) for size in sizes]
    return good & growth_report(f"dearest / cheapest, 10^4 to {sizes[-1]:.0e} candidates", 1.5, rows, rounds)
