"""Explains a decision: one verdict per candidate, with the numbers it rests on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .book import Pool
from .fit import FitStatus, Reason, available
from .placement import Placement
from .records import AlternativeSet
from .table import MemoryTable

__all__ = ["Decision", "Verdict", "explain"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why one candidate has its status.

    Attributes
    ----------
    placement : Placement
    node : str or None
        The memory node; None where the table lists no such placement.
    status : FitStatus
    reason : Reason
    bytes : int
        Asked for.
    available : int or None
        Bytes that can be given out; None is unknown.
    total : int or None
        Bytes of the node; None is unknown.
    short_by : int
        Bytes that are missing; 0 unless the size exceeds what is available.
    source : str or None
        Who gave the numbers.
    age_s : float or None
        Seconds since that reading began.
    detail : str or None
        The source's own words on why there is no number, or no device.
    """

    placement: Placement
    node: str | None
    status: FitStatus
    reason: Reason
    bytes: int
    available: int | None
    total: int | None
    short_by: int
    source: str | None
    age_s: float | None
    detail: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "placement": str(self.placement),
            "node": self.node,
            "status": self.status.name,
            "reason": self.reason.value,
            "bytes": self.bytes,
            "available": self.available,
            "total": self.total,
            "short_by": self.short_by,
            "source": self.source,
            "age_s": self.age_s,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """What `select` picks, and why.

    Attributes
    ----------
    index : int or None
        As `MemoryTable.select`.
    fallback : bool
        Whether nothing fits, so that `index` is only where the error was planned to appear.
    verdicts : tuple of Verdict
        One per candidate, in the set's order.
    """

    index: int | None
    fallback: bool
    verdicts: tuple[Verdict, ...]

    @property
    def placement(self) -> Placement | None:
        """Where the pick runs."""
        return None if self.index is None else self.verdicts[self.index].placement

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "index": self.index,
            "placement": None if self.placement is None else str(self.placement),
            "fallback": self.fallback,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
        }


def explain(table: MemoryTable, alternatives: AlternativeSet) -> Decision:
    """Explain what ``table.select(alternatives)`` picks.

    The index and the statuses are the core's own; this only adds the numbers behind them.
    """
    with table._book.lock:  # so that all of it speaks of one moment
        index = table.select(alternatives)
        statuses = [FitStatus(status) for status in table.classify(alternatives).tolist()]
        columns = table._columns()
        verdicts = tuple(
            _verdict(table, columns, candidate.placement, candidate.bytes_moved, status)
            for candidate, status in zip(alternatives, statuses, strict=True)
        )
    return Decision(index, index is not None and statuses[index] is FitStatus.WONT_FIT, verdicts)


def _verdict(
    table: MemoryTable, columns: tuple[Any, ...], placement: Placement, size: int, status: FitStatus
) -> Verdict:
    book = table._book
    index = book.placements.get(placement)
    if index is None:
        reason = Reason.NOT_PRESENT if status is FitStatus.WONT_FIT else Reason.NO_SIGNAL
        detail = book.notes.get(placement.backend)
        return Verdict(placement, None, status, reason, size, None, None, 0, None, None, detail)
    node = book.nodes[index]
    free, total, reserved, known, lost = (column[index].item() for column in columns)
    free, total = book.pools.get(placement, Pool()).seen(free, total)
    total = total or None
    room = available(free, 0, reserved, node.policy) if known else None
    if lost:
        reason = Reason.LOST
    elif status is FitStatus.UNKNOWN:
        reason = Reason.NO_SIGNAL
    elif status is FitStatus.TIGHT:
        reason = Reason.OVER_FRACTION
    elif status is FitStatus.COMFORTABLE:
        reason = Reason.FITS
    else:
        ceiling = total and available(total, 0, 0, node.policy)
        reason = Reason.EXCEEDS_FREE if ceiling is None or size <= ceiling else Reason.EXCEEDS_TOTAL
    short = size - room if room is not None and size > room else 0
    age = None if node.sampled_at is None else max(time.monotonic() - node.sampled_at, 0.0)
    detail = node.reason or ("its total is not known" if room is not None and total is None else None)
    return Verdict(placement, node.name, status, reason, size, room, total, short, node.source, age, detail)
