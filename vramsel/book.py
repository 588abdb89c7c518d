"""What a table knows beside its numbers: the names behind the core's indices, and where its numbers come from."""

from __future__ import annotations

import time
from typing import NamedTuple

from .fit import FitPolicy
from .locks import Locked
from .placement import Placement
from .units import MAX_BYTES

__all__ = ["Book", "Device", "Node", "Pool", "SampleToken"]


class Pool(NamedTuple):
    """What a placement's own allocator adds to its memory, and how much of it the placement may take."""

    idle: int = 0  # bytes that it holds and does not use
    cap: int = MAX_BYTES  # bytes that it may still give out, whatever is free
    limit: int = MAX_BYTES  # bytes that it may hold in all

    def seen(self, free: int, total: int) -> tuple[int, int]:
        """A memory's free and total bytes as this placement has them."""
        return min(free + self.idle, self.cap, MAX_BYTES), min(total, self.limit)


class Device(NamedTuple):
    """What a placement is called by its vendor."""

    name: str | None
    uuid: str | None


class Node:
    """What the table knows of a node beside its numbers."""

    __slots__ = ("device_name", "lost", "name", "order", "policy", "reason", "sampled_at", "source", "uuid")

    def __init__(self, name: str, policy: FitPolicy) -> None:
        self.name = name
        self.policy = policy
        self.source = "caller"
        self.sampled_at: float | None = None  # time.monotonic() when the last reading began
        self.order = 0  # of the last reading: what began before it is refused
        self.lost = False
        self.reason: str | None = None  # why there is no number
        self.device_name: str | None = None
        self.uuid: str | None = None


class SampleToken:
    """The beginning of a sample, as `MemoryTable.begin_sample` gives it."""

    __slots__ = ("began", "book", "generation", "order")

    def __init__(self, book: Book) -> None:
        self.book = book
        self.generation = book.generation
        self.order = book.order
        self.began = time.monotonic()


class Book(Locked):
    """The names behind the core's indices.

    `lock` is held by whoever changes the table, from the first check to the last step, and by
    whoever reads several of its parts that must belong together. A decision takes no lock.
    """

    __slots__ = (
        "closed",
        "devices",
        "discarded",
        "generation",
        "index",
        "nodes",
        "notes",
        "order",
        "placements",
        "policy",
        "pools",
        "refused",
    )

    def __init__(self, policy: FitPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.nodes: list[Node] = []
        self.index: dict[str, int] = {}
        self.placements: dict[Placement, int] = {}  # in the order in which they were listed
        self.pools: dict[Placement, Pool] = {}
        self.devices: dict[Placement, Device] = {}  # of those that share a node which is not theirs
        self.closed: set[int] = set()  # backend codes
        self.notes: dict[int, str] = {}  # backend code -> why devices of it are not listed
        self.order = 0  # one more at every beginning of a sample, update and mark
        self.generation = 0  # one more in a forked child, where what its parent began means nothing
        self.refused = 0  # readings that came too late
        self.discarded = 0  # readings that cannot be true

    def renew(self) -> None:
        """Start anew in a forked child."""
        super().renew()
        self.generation += 1
