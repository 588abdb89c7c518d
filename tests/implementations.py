"""The implementations of the decision, brought to one form: (table, set) -> statuses and pick."""

from __future__ import annotations

from collections.abc import Callable

import vramsel as vs
from vramsel.book import Pool
from vramsel.fit import FitStatus
from vramsel.reference import ReferenceTable

TABLES = [vs.MemoryTable, ReferenceTable]

Answer = tuple[list[str], int | None]
Implementation = Callable[[vs.MemoryTable, vs.AlternativeSet], Answer]


def as_type(table: vs.MemoryTable, cls: type[vs.MemoryTable]) -> vs.MemoryTable:
    """The same content in another implementation."""
    restore, (_, state), *_ = table.__reduce__()
    return restore(cls, state)


def core(table: vs.MemoryTable, alternatives: vs.AlternativeSet) -> Answer:
    return names(table.classify(alternatives)), table.select(alternatives)


def reference(table: vs.MemoryTable, alternatives: vs.AlternativeSet) -> Answer:
    return core(as_type(table, ReferenceTable), alternatives)


class Runtime(vs.BackendRuntime):
    """One placement of a table, as the callback selector asks about it."""

    def __init__(self, table: vs.MemoryTable, placement: vs.Placement) -> None:
        index = table._book.placements[placement]
        self.policy = table._book.nodes[index].policy
        free, total, reserved, known, self.lost = (column[index].item() for column in table._columns())
        free, total = table._book.pools.get(placement, Pool()).seen(free, total)
        self.free = free if known else None
        self.total = total or None
        self.reserved = reserved

    def available_bytes(self) -> int | None:
        return None if self.free is None else max(self.free - self.reserved, 0)

    def total_bytes(self) -> int | None:
        return self.total

    def would_fit(self, size: int) -> FitStatus:
        return FitStatus.WONT_FIT if self.lost else super().would_fit(size)


def callback(table: vs.MemoryTable, alternatives: vs.AlternativeSet) -> Answer:
    """The callback selector. It knows nothing of lost and absent beside their WONT_FIT."""

    def lookup(backend: int, device: int) -> Runtime | None:
        placement = vs.Placement(backend, device)
        return Runtime(table, placement) if placement in table._book.placements else None

    pick = vs.VramPressureSelector(lookup).select(alternatives)
    statuses = []
    for candidate in alternatives:
        runtime = lookup(candidate.backend, candidate.device)
        statuses.append("UNKNOWN" if runtime is None else runtime.would_fit(candidate.bytes_moved).name)
    found = [i for i, candidate in enumerate(alternatives) if candidate is pick]
    return statuses, found[0] if found else None


def names(statuses: object) -> list[str]:
    return [FitStatus(status).name for status in statuses]  # type: ignore[attr-defined]


IMPLEMENTATIONS = [core, reference, callback]
