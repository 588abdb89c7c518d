"""What a source is: something that, asked once, says how much memory each node has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import shown
from ..units import as_bytes, format_bytes

__all__ = ["PoolReading", "Reading", "Sample", "Source"]


@dataclass(frozen=True, slots=True)
class PoolReading:
    """What an allocator that keeps memory for itself (PyTorch's, for example) says of one memory.

    Parameters
    ----------
    placement : str
        The placement that allocates through it, such as ``"torch:0"``.
    idle : int
        Bytes that it holds and does not use. Only this placement may count them.
    limit : int, optional
        Bytes that it may hold in all; None for no limit of its own.
    used : int
        Of the limit, the bytes that are in use.
    largest : int
        Bytes of the largest block that it can hand out from what it holds; 0 where that is not known.
        Of idle bytes in pieces, which cannot be given back to the device either, one request can have
        no more than this.
    """

    placement: str
    idle: int = 0
    limit: int | None = None
    used: int = 0
    largest: int = 0

    def checked(self) -> PoolReading:
        """The same with plain integers.

        Raises
        ------
        TypeError, ValueError
            If a number is not a byte count.
        """
        what = f"of the pool of {shown(self.placement)}"
        limit = None if self.limit is None else as_bytes(self.limit, f"limit {what}")
        idle, used, largest = (as_bytes(getattr(self, name), f"{name} bytes {what}") for name in _COUNTS)
        return replace(self, idle=idle, limit=limit, used=used, largest=largest)


_COUNTS = ("idle", "used", "largest")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one source says of one memory node.

    Parameters
    ----------
    node : str
        The node's name in the table, for example ``"cuda:0"``.
    free, total : int or None
        Bytes; None where there is no signal. Both come from one call: a free of one
        source beside a total of another describes no memory at all.
    placements : tuple of str, optional
        The placements that live in this memory; those of a node's first reading count. By
        default the node's own name.
    lost : bool
        The device is gone for this process; no number can be given and none will come.
    reason : str, optional
        One line that says why there is no number, or what was done to it.
    device_name, uuid : str, optional
        What the vendor calls the device, and its identity.
    source : str, optional
        Where this number comes from, where the source has several ways to it; else the source's name.
    began : float, optional
        ``time.monotonic()`` from just before this number was asked for, where that is later than the
        beginning of the sample; its age runs from then.
    shares : str, optional
        The node in which this device's memory is, where it has none of its own: its placements are
        listed on that node, `free` is not looked at, and `total` only caps that node's total.
    headroom : int
        Bytes of this memory that should stay free, unless the node was given a policy by its name.
    discarded : bool
        Whether there was a number and it cannot be true; `reason` says why. It is counted.
    pools : tuple of PoolReading
        Allocators that take from this memory; read before and after `free`, the smaller idle counts.
    """

    node: str
    free: int | None = None
    total: int | None = None
    placements: tuple[str, ...] | None = None
    lost: bool = False
    reason: str | None = None
    device_name: str | None = None
    uuid: str | None = None
    source: str | None = None
    began: float | None = None
    shares: str | None = None
    headroom: int = 0
    discarded: bool = False
    pools: tuple[PoolReading, ...] = ()

    def checked(self) -> Reading:
        """The reading, made fit to publish.

        A free a little above its total (up to 1/16 of it) is a rounding of the source and
        is clamped; more than that is the number of some other device, and is discarded. The
        pair 0/0 is what a source reports that cannot tell.

        Raises
        ------
        TypeError, ValueError
            If a number is not a byte count.
        """
        free = None if self.free is None else as_bytes(self.free, f"free of node {shown(self.node)}")
        total = None if self.total is None else as_bytes(self.total, f"total of node {shown(self.node)}")
        return replace(self, free=free, total=total)._judged()

    def _judged(self) -> Reading:
        if self.lost or self.free is None:
            return self
        if self.free == 0 and self.total == 0:
            return replace(self, free=None, total=None, reason=self.reason or "reports 0 of 0 bytes")
        if not self.total or self.free <= self.total:
            return self
        if self.free - self.total <= self.total // 16:
            return replace(self, free=self.total)
        reason = f"reading discarded: more is free than its total, {format_bytes(self.total)}"
        return replace(self, free=None, total=None, reason=reason, discarded=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """All that one source says at one moment.

    Parameters
    ----------
    readings : tuple of Reading
    enumerated : frozenset of str
        Names of the backends whose devices are *all* in `readings`. A candidate for a device
        that is not among them is absent, not unknown.
    note : str, optional
        One line that says why the source has less to tell than one would expect.
    parts : tuple of Source, optional
        Of `Source.survey`: what is to be sampled beside this source, each by a thread of its own.
        Their readings count as this sample's; a part that is not here any more is gone. None: those
        of the last survey, as far as is known.
    """

    readings: tuple[Reading, ...] = ()
    enumerated: frozenset[str] = frozenset()
    note: str | None = None
    parts: tuple[Source, ...] | None = None


class Source(ABC):
    """Base class of all sources. A source of one's own needs `name` and `sample`.

    A monitor calls `sample` from a thread that it keeps for this source, so that a source which
    takes its time, or never answers, holds up no other.
    """

    name: str = "source"
    backends: tuple[str, ...] = ()
    """Backends that it is there to read: what goes wrong explains why their devices are missing."""
    whole: Source | None = None
    """Of a part, the source whose survey lists it."""
    expected: tuple[Reading, ...] = ()
    """Of a part, what it will report, without numbers: what is known before it has answered."""

    @abstractmethod
    def sample(self) -> Sample | Iterable[Reading]:
        """Read every node once.

        May raise: an `Exception` is kept as the source's error, its nodes become unknown, and
        no other source is affected. What is no `Exception` (an interrupt) passes through.
        """

    def survey(self) -> Sample | Iterable[Reading]:
        """Sample, and leave to `Sample.parts` what may be slow for reasons of its own.

        This is what a monitor calls: a device that hangs then holds up no other device. The parts of
        two surveys are the same objects.
        """
        return self.sample()

    def close(self) -> None:  # noqa: B027  most sources hold nothing
        """Let go of what the source holds; a later `sample` gets it again.

        A monitor calls it when it stops, after the last `sample`, from that thread or the one that closes.
        """
