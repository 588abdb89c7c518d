"""Numbers that the caller knows and that do not change by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..placement import Placement
from ..units import as_bytes
from .base import Reading, Sample, Source

__all__ = ["FixedSource"]


class FixedSource(Source):
    """Reports the same numbers at every sample.

    Parameters
    ----------
    nodes : mapping
        Node name to ``(free, total)`` in bytes, or sizes such as ``"24GiB"``; None is unknown.
    enumerated : iterable of str, optional
        Backends whose devices are all in `nodes`.

    Raises
    ------
    TypeError, ValueError
        If a number is not a byte count, or a name is no placement.
    """

    name = "fixed"

    def __init__(self, nodes: Mapping[str, tuple[int | None, int | None]], *, enumerated: Iterable[str] = ()) -> None:
        readings = []
        for node, (free, total) in nodes.items():
            readings.append(
                Reading(
                    str(Placement(node)),
                    None if free is None else as_bytes(free, f"free of {node!r}"),
                    None if total is None else as_bytes(total, f"total of {node!r}"),
                )
            )
        self._sample = Sample(tuple(readings), frozenset(enumerated))

    def sample(self) -> Sample:
        """The numbers given."""
        return self._sample
