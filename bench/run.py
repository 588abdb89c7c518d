"""Measures the decision against a floor in the same run, and prints ratios.

    python bench/run.py [--quick] [CASE ...]

Each round measures every case and its floor one after the other, and the ratio is taken within
the round, so that a machine whose speed drifts still gives a usable number. The table shows the
median ratio and the spread of the middle half.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from build_floor import load_floor

import vramsel as vs
from vramsel.reference import ReferenceTable

GIB = 1 << 30
Bench = Callable[[int], float]  # loops -> seconds


@dataclass(frozen=True)
class Case:
    name: str
    bench: Bench
    floor: Bench
    loops: int
    budget: float | None = None  # the ratio to the floor that is not acceptable above
    at_least: bool = False  # the budget is a lower bound of floor / case instead


def repeat(call: Callable[[object], object], argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call(argument)
    return time.perf_counter() - start


def bench_floor(floor: object, argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        floor.call(argument)
    return time.perf_counter() - start


def bench_select(table: vs.MemoryTable, argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        table.select(argument)
    return time.perf_counter() - start


def bench_select_sized(table: vs.MemoryTable, argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        table.select_sized(argument, GIB)
    return time.perf_counter() - start


def bench_selector(selector: vs.RuntimeSelector, argument: vs.AlternativeSet, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        selector.select(argument)
    return time.perf_counter() - start


class TableRuntime(vs.BackendRuntime):
    """Answers the callback selector from plain attributes: the cheapest runtime there can be."""

    def __init__(self, free: int, total: int) -> None:
        self.free, self.total = free, total

    def available_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return self.total


def single_cases() -> list[Case]:
    numbers = {f"cuda:{i}": (8 * GIB, 24 * GIB) for i in range(16)} | {"cpu": (60 * GIB, 64 * GIB)}
    table = vs.MemoryTable({name: (free if name == "cpu" else GIB, total) for name, (free, total) in numbers.items()})
    roomy = vs.MemoryTable({name: (total, total) for name, (_, total) in numbers.items()})
    floor = load_floor()

    def alternatives(count: int) -> vs.AlternativeSet:
        devices = [vs.Candidate(f"cuda:{i}", 2 * GIB) for i in range(count - 1)]
        return vs.AlternativeSet([*devices, vs.Candidate("cpu", 2 * GIB)])

    four, sixteen = alternatives(4), alternatives(16)
    array = four.array.copy()
    runtimes = {
        tuple(vs.Placement(name)): TableRuntime(int(free), int(total))
        for name, free, total in zip(table.nodes, table.free, table.total, strict=True)
    }
    callback = vs.VramPressureSelector(lambda backend, device: runtimes.get((backend, device)))

    def case(name: str, bench: Bench, argument: object, budget: float | None, loops: int = 200_000) -> Case:
        return Case(name, bench, partial(bench_floor, floor, argument), loops, budget)

    return [
        case("select, 4, the first fits", partial(bench_select, roomy, four), four, 1.5),
        case("select, 4, the last fits", partial(bench_select, table, four), four, None),
        case("select, 16, the last fits", partial(bench_select, table, sixteen), sixteen, None),
        case("select, exact array of 4", partial(bench_select, roomy, array), array, 1.8),
        case("select_sized, 4, the first fits", partial(bench_select_sized, roomy, four), four, None),
        case("CachedPressureSelector, 4", partial(bench_selector, vs.CachedPressureSelector(roomy), four), four, None),
        case("VramPressureSelector, 4", partial(bench_selector, callback, four), four, None, 2_000),
    ]


def random_batch(rows: int, nodes: int, seed: int = 1) -> tuple[vs.MemoryTable, ReferenceTable, np.ndarray]:
    rng = np.random.default_rng(seed)
    total = rng.integers(8, 80, nodes, dtype=np.uint64) * np.uint64(GIB)
    free = (total * rng.random(nodes)).astype(np.uint64)
    tables = []
    for cls in (vs.MemoryTable, ReferenceTable):
        table = cls({f"cuda:{i}": None for i in range(nodes)})
        table.update_all(free, total)
        tables.append(table)
    candidates = np.zeros(rows, dtype=vs.CANDIDATE_DTYPE)
    candidates["backend"] = vs.backend_code("cuda")
    candidates["device"] = rng.integers(0, nodes, rows)
    candidates["bytes_moved"] = rng.integers(0, 40 * GIB, rows)
    return (*tables, candidates)


def batch_cases(rows: int) -> list[Case]:
    table, oracle, candidates = random_batch(rows, 16)
    words = candidates.view(np.uint64)
    cuts = np.sort(np.random.default_rng(2).choice(rows, rows // 8, replace=False))
    offsets = np.concatenate([[0], cuts, [rows]])
    sizes = candidates["bytes_moved"].copy()

    def timed(call: Callable[[], object]) -> Bench:
        return partial(repeat, lambda _: call(), None)

    read = timed(lambda: np.add.reduce(words))

    def oracle_case(name: str, call: Callable[[vs.MemoryTable], object], budget: float | None) -> Case:
        return Case(name, timed(lambda: call(table)), timed(lambda: call(oracle)), 1, budget, at_least=True)

    return [
        Case("classify / read", timed(lambda: table.classify(candidates)), read, 1),
        Case("select_many, sets of 4 / read", timed(lambda: table.select_many(candidates, set_size=4)), read, 1),
        Case("select_many, ragged / read", timed(lambda: table.select_many(candidates, offsets)), read, 1),
        Case("classify, sizes= / read", timed(lambda: table.classify(candidates, sizes)), read, 1),
        oracle_case("oracle / classify", lambda t: t.classify(candidates), None),
        oracle_case("oracle / select_many, sets of 4", lambda t: t.select_many(candidates, set_size=4), 5.0),
        oracle_case("oracle / select_many, ragged", lambda t: t.select_many(candidates, offsets), 5.0),
    ]


def import_seconds(module: str, loops: int) -> float:
    """What ``python -X importtime`` says of one module, imported in a process of its own."""
    spent = 0.0
    for _ in range(loops):
        command = [sys.executable, "-P", "-X", "importtime", "-c", f"import {module}"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        (line,) = [line for line in report.splitlines() if line.split("|")[-1].strip() == module]
        spent += int(line.split("|")[1]) / 1e6
    return spent


def import_case() -> Case:
    bench, floor = partial(import_seconds, "vramsel"), partial(import_seconds, "numpy")
    return Case("import vramsel / import numpy", bench, floor, 1, 1.3)


def measure(cases: list[Case], rounds: int) -> bool:
    ratios: dict[str, list[float]] = {case.name: [] for case in cases}
    nanoseconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(rounds + 1):
        for case in cases:
            floor = case.floor(case.loops)
            spent = case.bench(case.loops)
            ratios[case.name].append(floor / spent if case.at_least else spent / floor)
            nanoseconds[case.name].append(spent / case.loops * 1e9)
    within = True
    for case in cases:
        kept = ratios[case.name][1:]  # the first round warms caches and the interpreter
        median = statistics.median(kept)
        low, _, high = statistics.quantiles(kept, n=4)
        verdict = ""
        if case.budget is not None:
            ok = median >= case.budget if case.at_least else median <= case.budget
            within &= ok
            verdict = f"{'at least' if case.at_least else 'at most'} {case.budget}: {'ok' if ok else 'MISSED'}"
        spent = statistics.median(nanoseconds[case.name][1:])
        print(f"{case.name:34} {median:8.2f} x  ({low:.2f}-{high:.2f}) {spent:14,.0f} ns  {verdict}")
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rows", type=int, default=1_000_000, help="candidates of a batch")
    parser.add_argument("cases", nargs="*", help="only cases whose name contains one of these")
    args = parser.parse_args()
    cases = [
        case
        for case in [*single_cases(), *batch_cases(args.rows), import_case()]
        if not args.cases or any(word in case.name for word in args.cases)
    ]
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}; median ratio, middle half, time of the case")
    return 0 if measure(cases, 5 if args.quick else 15) else 1


if __name__ == "__main__":
    sys.exit(main())
