"""What a person at a shell asks of a table: how each node is, and which devices have the most room."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .book import Book, Node
from .decision import Verdict, explain
from .fit import FitStatus, would_fit
from .placement import Placement, backend_code
from .records import AlternativeSet, Candidate
from .table import MemoryTable

__all__ = ["Choice", "NodeView", "Room", "choose", "node_views"]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A memory node as ``vramsel status`` shows it. None is unknown.

    Attributes
    ----------
    name : str
    placements : tuple of str
    device_name, uuid : str or None
        The node's own, with those of the devices that share its memory.
    state : str
        ``"ok"``, ``"unknown"`` or ``"lost"``.
    free, total : int or None
    reserved : int
    source : str
    age_s : float or None
    reason : str or None
    pressure : str
        ``"full"`` where not a byte is available, else what the rule says of no bytes at all:
        ``"comfortable"``, ``"tight"``, ``"unknown"``; or ``"lost"``.
    """

    name: str
    placements: tuple[str, ...]
    device_name: str | None
    uuid: str | None
    state: str
    free: int | None
    total: int | None
    reserved: int
    source: str
    age_s: float | None
    reason: str | None
    pressure: str

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "node": self.name,
            "placements": list(self.placements),
            "name": self.device_name,
            "uuid": self.uuid,
            "state": self.state,
            "free": self.free,
            "total": self.total,
            "reserved": self.reserved,
            "source": self.source,
            "age_s": self.age_s,
            "reason": self.reason,
        }


def node_views(table: MemoryTable) -> list[NodeView]:
    """All nodes of a table at one moment."""
    book = table._book
    with book.lock:
        now = time.monotonic()
        columns = [column.tolist() for column in table._columns()]
        placements: list[list[Placement]] = [[] for _ in book.nodes]
        for placement, index in book.placements.items():
            placements[index].append(placement)
        return [
            _view(book, node, lives, now, free if known else None, total or None, reserved, lost)
            for node, lives, free, total, reserved, known, lost in zip(book.nodes, placements, *columns, strict=True)
        ]


def _view(
    book: Book,
    node: Node,
    placements: list[Placement],
    now: float,
    free: int | None,
    total: int | None,
    reserved: int,
    lost: bool,
) -> NodeView:
    devices = [book.devices[placement] for placement in placements if placement in book.devices]
    names = [node.device_name, *(device.name for device in devices)]
    uuids = {node.uuid} if node.uuid else {device.uuid for device in devices if device.uuid}
    if lost:
        pressure = "lost"
    elif would_fit(1, free, total, reserved=reserved, policy=node.policy) is FitStatus.WONT_FIT:
        pressure = "full"
    else:
        pressure = would_fit(0, free, total, reserved=reserved, policy=node.policy).name.lower()
    return NodeView(
        node.name,
        tuple(map(str, placements)),
        ", ".join(name for name in dict.fromkeys(names) if name) or None,
        uuids.pop() if len(uuids) == 1 else None,
        "lost" if lost else "unknown" if free is None else "ok",
        free,
        total,
        reserved,
        node.source,
        None if node.sampled_at is None else max(now - node.sampled_at, 0.0),
        node.reason,
        pressure,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """A device, and how the bytes that it must have available fit there."""

    verdict: Verdict
    uuid: str | None

    @property
    def placement(self) -> Placement:
        """The device."""
        return self.verdict.placement

    @property
    def is_enough(self) -> bool:
        """Whether what is available is known, and is what was asked for or more."""
        return self.verdict.available is not None and self.verdict.status is not FitStatus.WONT_FIT

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "placement": str(self.placement),
            "uuid": self.uuid,
            "node": self.verdict.node,
            "available": self.verdict.available,
            "total": self.verdict.total,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The devices with the most room.

    Attributes
    ----------
    asked : int
        How many devices.
    devices : tuple of Room
        Those that qualify, as many as asked or fewer; most room first, then by ordinal.
    refused : tuple of Room
        Those that do not, by ordinal.
    note : str or None
        What the backend's source has to say, such as why it lists no device.
    """

    asked: int
    devices: tuple[Room, ...]
    refused: tuple[Room, ...]
    note: str | None

    @property
    def missing(self) -> int:
        """How many devices fewer than asked."""
        return self.asked - len(self.devices)

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "devices": [device.as_dict() for device in self.devices],
            "asked": self.asked,
            "missing": self.missing,
        }


def choose(table: MemoryTable, backend: str, count: int, least: int, *, by_uuid: bool = False) -> Choice:
    """Choose the `count` devices of a backend that have the most bytes available, and at least `least`.

    With `by_uuid`, only devices whose UUID is known.

    Raises
    ------
    UnknownBackendError
        If no such backend is registered.
    """
    code = backend_code(backend)
    book = table._book
    with book.lock:  # so that all of it speaks of one moment
        placements = sorted(placement for placement in book.placements if placement.backend == code)
        verdicts = explain(table, AlternativeSet([Candidate(placement, least) for placement in placements])).verdicts
        rooms = [Room(verdict, _uuid_of(book, verdict.placement)) for verdict in verdicts]
        note = book.notes.get(code)
    good = [room for room in rooms if room.is_enough and (room.uuid or not by_uuid)]
    good.sort(key=lambda room: (-(room.verdict.available or 0), room.placement))
    chosen = {room.placement for room in good}
    return Choice(count, tuple(good[:count]), tuple(room for room in rooms if room.placement not in chosen), note)


def _uuid_of(book: Book, placement: Placement) -> str | None:
    """The UUID of a placement's device, which is not its node's where it shares the memory of another."""
    node: Node = book.nodes[book.placements[placement]]
    device = book.devices.get(placement)
    if device is None or node.name == str(placement):
        return node.uuid or (device and device.uuid)
    return device.uuid
