"""Decisions one at a time, against calling a method that does nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import numpy as np
from measure import Case

import vramsel as vs

GIB = 1 << 30


def bench_floor(floor: object, argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        floor.call(argument)
    return time.perf_counter() - start


def bench_floor_two(floor: object, argument: object, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        floor.call_two(argument, GIB)
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


def bench_cimport(native: ModuleType, table: vs.MemoryTable, records: np.ndarray, loops: int) -> float:
    start = time.perf_counter()
    native.pick_loop(table, records, loops)
    return time.perf_counter() - start


def tables() -> tuple[vs.MemoryTable, vs.MemoryTable]:
    """One where only the host has room for 2 GiB, and one where everything has."""
    total = {f"cuda:{i}": 24 * GIB for i in range(16)} | {"cpu": 64 * GIB}
    full = vs.MemoryTable({name: (60 * GIB if name == "cpu" else GIB, size) for name, size in total.items()})
    return full, vs.MemoryTable({name: (size, size) for name, size in total.items()})


def alternatives(count: int) -> vs.AlternativeSet:
    """So many candidates of 2 GiB, the last one on the host."""
    devices = [vs.Candidate(f"cuda:{i}", 2 * GIB) for i in range(count - 1)]
    return vs.AlternativeSet([*devices, vs.Candidate("cpu", 2 * GIB)])


def cases(native: ModuleType) -> Iterator[Case]:
    full, roomy = tables()
    four, sixteen = alternatives(4), alternatives(16)
    array = four.array.copy()
    floor = native.Floor()

    def case(
        name: str, bench: object, argument: object, aim: float, limit: float, floor_of: object = bench_floor
    ) -> Case:
        return Case(name, bench, partial(floor_of, floor, argument), 200_000, aim, limit)

    yield case("select, 4, the first fits", partial(bench_select, roomy, four), four, 1.2, 1.35)
    yield case("select, 4, the last fits", partial(bench_select, full, four), four, 1.35, 1.55)
    yield case("select, 16, the last fits", partial(bench_select, full, sixteen), sixteen, 1.8, 2.4)
    yield case("select, exact array of 4", partial(bench_select, roomy, array), array, 1.35, 1.6)
    yield case(
        "select_sized, 4 / two arguments", partial(bench_select_sized, roomy, four), four, 1.2, 1.35, bench_floor_two
    )
    selector = vs.CachedPressureSelector(roomy)
    yield case("CachedPressureSelector, 4", partial(bench_selector, selector, four), four, 1.8, 3)
    yield case("cimport, 4, the first fits", partial(bench_cimport, native, roomy, array), array, 0.16, 0.25)
    yield case("cimport, 4, the last fits", partial(bench_cimport, native, full, array), array, 0.32, 0.45)
