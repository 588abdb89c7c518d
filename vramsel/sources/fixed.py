"""Numbers that the caller knows and that do not change by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import shown
from ..placement import Placement, backend_code
from ..table import Numbers, as_pair
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

    def __init__(self, nodes: Mapping[str, Numbers], *, enumerated: Iterable[str] = ()) -> None:
        if not isinstance(nodes, Mapping):
            raise TypeError(f"nodes must be a mapping of names to (free, total), not {type(nodes).__name__}")
        if isinstance(enumerated, str):
            raise TypeError(f"enumerated must be several backends, as in [{enumerated!r}]")
        readings = []
        for node, numbers in nodes.items():
            what = f"node {shown(node)}"
            free, total = (
                None if number is None else as_bytes(number, f"{which} of {what}")
                for which, number in zip(("free", "total"), as_pair(numbers, what), strict=True)
            )
            readings.append(Reading(str(Placement(node)), free, total).checked())
        backends = frozenset(enumerated)
        for backend in backends:
            backend_code(backend)  # an unknown one is an error here, not at the first sample
        self._sample = Sample(tuple(readings), backends)

    def sample(self) -> Sample:
        """The numbers given."""
        return self._sample
