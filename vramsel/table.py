"""MemoryTable: the core's table with names, policies and enums around it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .book import Book, Node, Pool, SampleToken
from .errors import UnknownNodeError, UnknownPlacementError, shown
from .fit import FitPolicy, FitStatus
from .placement import Placement, PlacementLike, backend_code, backend_name, register_backend
from .records import as_u64, refuse_mask
from .units import MAX_BYTES, ByteCount, as_bytes, format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MemoryTable", "NodeLike", "Numbers", "as_pair", "as_policy", "as_reading", "node_name", "own_placement"]

NodeLike = str | Placement
"""What is accepted as a node: its name, or a placement of that name."""

Numbers = tuple[ByteCount | None, ByteCount | None] | None
"""Free and total bytes of a node; None is unknown."""


class MemoryTable(_core.Table):
    """Free and total bytes of every memory node, kept for deciding.

    Parameters
    ----------
    nodes : mapping, optional
        Node name to ``(free, total)`` in bytes; None, for one of them or for the pair, is
        unknown. A name that is a placement (``"cuda:0"``) lists that placement.
    policy : FitPolicy, optional
        For every node that is added without one.

    Raises
    ------
    TypeError, ValueError
        If a name or a number is none.

    Notes
    -----
    Byte counts are integers in 0..2^64-1, or strings such as ``"24GiB"``. A call that raises
    has changed nothing.

    A pickle or copy is a snapshot: numbers, states, policies, placements, closed backends; not
    where the numbers came from and when.

    Examples
    --------
    >>> table = MemoryTable({"cuda:0": ("1GiB", "24GiB"), "cpu": ("50GiB", "64GiB")})
    >>> table.would_fit("cuda:0", 2 << 30)
    <FitStatus.WONT_FIT: 2>
    """

    __slots__ = ()
    _book: Book  # None before __init__

    def __init__(self, nodes: Mapping[str, Numbers] | None = None, *, policy: FitPolicy | None = None) -> None:
        if self._book is not None:
            raise RuntimeError("this table is initialised already; make a new one")
        if nodes is not None and not isinstance(nodes, Mapping):
            raise TypeError(f"nodes must be a mapping of names to (free, total), not {type(nodes).__name__}")
        self._book = Book(as_policy(policy, FitPolicy()))
        for name, reading in (nodes or {}).items():
            free, total = as_pair(reading, f"node {shown(name)}")
            self.add_node(name, free, total)

    # -- nodes and placements -----------------------------------------------------------------

    def add_node(
        self,
        node: NodeLike,
        free: ByteCount | None = None,
        total: ByteCount | None = None,
        *,
        policy: FitPolicy | None = None,
        placements: Iterable[PlacementLike] | None = None,
    ) -> None:
        """Add a memory node.

        Parameters
        ----------
        node : str or Placement
            Its name, any string that the table does not have yet.
        free, total : int or None
            Bytes; None is unknown.
        policy : FitPolicy, optional
            By default the table's.
        placements : iterable, optional
            The placements that live in this memory. By default the node's own name where that
            is a placement, else none.

        Raises
        ------
        ValueError
            If the node or one of the placements is in the table already.
        UnknownBackendError, TypeError, ValueError
            If a name or a number is none.
        """
        name = node_name(node)
        if placements is None:
            lives = own_placement(name)
        elif isinstance(placements, str):
            raise TypeError(f"placements must be several, as in ({placements!r},)")
        else:
            lives = [Placement(p) for p in placements]
        reading = as_reading(name, free, total)
        record = Node(name, as_policy(policy, self._book.policy))
        record.sampled_at = time.monotonic()
        with self._book.lock:
            self._add(record, reading, lives)
            self._book.order += 1
            record.order = self._book.order

    def _add(
        self, node: Node, reading: tuple[int, int, bool], placements: list[Placement], *, lost: bool = False
    ) -> None:
        book = self._book
        if node.name in book.index:
            raise ValueError(f"node {node.name!r} is in the table already; update() gives it new numbers")
        for placement in placements:
            if placement in book.placements:
                owner = book.nodes[book.placements[placement]].name
                raise ValueError(f"placement {str(placement)!r} is on node {owner!r} already; map() moves it")
        # Decisions take no lock: a placement must not be listed before its memory has its numbers.
        index = self._add_node(*_core_policy(node.policy), *reading, lost)
        node.lost = lost
        book.nodes.append(node)
        book.index[node.name] = index
        for placement in placements:
            self._map(*placement, index)
            book.placements[placement] = index

    def map(self, placement: PlacementLike, node: NodeLike) -> None:
        """List a placement on a node, or move a listed one there; its idle bytes stay its own.

        Parameters
        ----------
        placement : str, Placement or pair
        node : str or Placement
            Name of the node.

        Raises
        ------
        UnknownNodeError
            If the table has no such node.
        UnknownBackendError, TypeError, ValueError
            If `placement` is none.
        """
        place = Placement(placement)
        with self._book.lock:
            index = self._node_index(node)
            self._map(*place, index)
            self._book.placements[place] = index

    def set_idle(self, placement: PlacementLike, nbytes: ByteCount) -> None:
        """Tell how many bytes the placement's own caching allocator holds and does not use.

        Only this placement may count them.

        Parameters
        ----------
        placement : str, Placement or pair
        nbytes : int
            Bytes.

        Raises
        ------
        UnknownPlacementError
            If the table does not list the placement.
        UnknownBackendError, TypeError, ValueError
            If `placement` is none, or `nbytes` is not a byte count.
        """
        place = Placement(placement)
        idle = as_bytes(nbytes, f"idle bytes of {str(place)!r}")
        with self._book.lock:
            if place not in self._book.placements:
                raise UnknownPlacementError(f"placement {str(place)!r} is not in the table; map() lists it on a node")
            self._put_pool(place, self._book.pools.get(place, Pool())._replace(idle=idle))

    def set_policy(self, node: NodeLike, policy: FitPolicy) -> None:
        """Change what is called tight on a node, and its headroom.

        Raises
        ------
        UnknownNodeError
            If the table has no such node.
        TypeError
            If `policy` is not a `FitPolicy`.
        """
        policy = as_policy(policy, None)
        with self._book.lock:
            index = self._node_index(node)
            self._set_policy(index, *_core_policy(policy))
            self._book.nodes[index].policy = policy

    def close_backend(self, backend: str) -> None:
        """Declare a backend complete: from now on its devices that are not listed are absent.

        A candidate on an absent device is never picked as long as another one exists; on one
        that is merely not listed it counts as unknown, which is no reason to leave it.

        Raises
        ------
        UnknownBackendError
            If no such backend is registered.
        """
        code = backend_code(backend)
        with self._book.lock:
            self._close(code)
            self._book.closed.add(code)

    # -- readings -----------------------------------------------------------------------------

    def update(self, node: NodeLike, free: ByteCount | None, total: ByteCount | None) -> None:
        """Publish a reading taken now. Revives a lost node.

        Parameters
        ----------
        node : str or Placement
            Name of the node.
        free, total : int or None
            Bytes; None is unknown, and so is the pair 0/0, which comes from a source that cannot tell.

        Raises
        ------
        UnknownNodeError
            If the table has no such node.
        TypeError, ValueError
            If a number is not a byte count.
        """
        reading = as_reading(node, free, total)
        with self._book.lock:
            self._publish(self._node_index(node), *reading)

    def begin_sample(self) -> SampleToken:
        """Take note that a reading begins now, to be handed to `publish` when it is there.

        A reading that takes its time is as old as its beginning: what happened since is not in it.

        Returns
        -------
        SampleToken
            For any number of nodes of this table, in this process.
        """
        with self._book.lock:
            self._book.order += 1
            return SampleToken(self._book)

    def publish(
        self,
        token: SampleToken,
        node: NodeLike,
        free: ByteCount | None,
        total: ByteCount | None,
        idle: Mapping[PlacementLike, ByteCount] | None = None,
    ) -> bool:
        """Publish a reading that began with `begin_sample`, unless something newer is known by now.

        Parameters
        ----------
        token : SampleToken
            What `begin_sample` gave before the reading was taken.
        node : str or Placement
            Name of the node.
        free, total : int or None
            Bytes, as in `update`.
        idle : mapping, optional
            Placement to idle bytes, as in `set_idle`, for placements of this node. They take
            effect together with `free`.

        Returns
        -------
        bool
            False if the node was published, updated or marked by something that began later, or if
            the token comes from before a fork: then nothing has changed.

        Raises
        ------
        UnknownNodeError, UnknownPlacementError
            If the table has no such node, or a placement is not on it.
        TypeError, ValueError
            If a number is not a byte count, or the token is none of this table's.
        """
        if not isinstance(token, SampleToken):
            raise TypeError(f"token must come from begin_sample(), not be a {type(token).__name__}")
        if token.book is not self._book:
            raise ValueError("the token comes from another table's begin_sample()")
        reading = as_reading(node, free, total)
        if idle is not None and not isinstance(idle, Mapping):
            raise TypeError(f"idle must be a mapping of placements to bytes, not {type(idle).__name__}")
        given = {}
        for placement, nbytes in ({} if idle is None else idle).items():
            place = Placement(placement)
            given[place] = as_bytes(nbytes, f"idle bytes of {str(place)!r}")
        with self._book.lock:
            index = self._node_index(node)
            pools = {}
            for place, nbytes in given.items():
                if self._book.placements.get(place) != index:
                    raise UnknownPlacementError(
                        f"placement {str(place)!r} is not on node {str(node)!r}; map() lists it"
                    )
                pools[place] = self._book.pools.get(place, Pool())._replace(idle=nbytes)
            return self._publish(index, *reading, token=token, pools=pools)

    def update_all(self, free: npt.ArrayLike, total: npt.ArrayLike, known: npt.ArrayLike | None = None) -> None:
        """Publish a reading of every node, in node order.

        Parameters
        ----------
        free, total : array_like of int
            Shape (nodes,), bytes. A total of 0 is unknown.
        known : array_like of bool, optional
            Shape (nodes,). Where False there is no signal, whatever the numbers say.

        Raises
        ------
        TypeError, ValueError
            If a shape, a type or a number is wrong; no node is changed then.
        """
        with self._book.lock:
            count = len(self._book.nodes)
            free_bytes = as_u64(free, count, "free")
            total_bytes = as_u64(total, count, "total")
            mask = _as_mask(known, count)
            self._update_all(free_bytes, total_bytes, mask & ((free_bytes != 0) | (total_bytes != 0)))
            now = time.monotonic()
            for index in range(count):
                self._note(index, "caller", now, None)

    def mark_unknown(self, node: NodeLike) -> None:
        """Forget the numbers of a node: its candidates are UNKNOWN until the next reading.

        Raises
        ------
        UnknownNodeError
            If the table has no such node.
        """
        with self._book.lock:
            self._publish(self._node_index(node), 0, 0, False)

    def mark_lost(self, node: NodeLike) -> None:
        """Exclude a node: its candidates are WONT_FIT, and never the fallback while others exist.

        Raises
        ------
        UnknownNodeError
            If the table has no such node.
        """
        with self._book.lock:
            self._publish_lost(self._node_index(node))

    # -- reading back -------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes; `free`, `total`, `reserved` and `known` are in this order."""
        return tuple(node.name for node in self._book.nodes)

    @property
    def free(self) -> npt.NDArray[np.uint64]:
        """Free bytes per node: a new uint64 array in node order; 0 where not known."""
        return self._columns()[0]

    @property
    def total(self) -> npt.NDArray[np.uint64]:
        """Total bytes per node: a new uint64 array in node order; 0 where unknown."""
        return self._columns()[1]

    @property
    def reserved(self) -> npt.NDArray[np.uint64]:
        """Bytes promised and not yet visible in `free`, per node: a new uint64 array in node order."""
        return self._columns()[2]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Whether the free bytes of a node are known: a new bool array in node order."""
        return self._columns()[3]

    def would_fit(self, placement: PlacementLike, nbytes: ByteCount) -> FitStatus:
        """How well `nbytes` bytes fit the memory of a placement.

        Parameters
        ----------
        placement : str, Placement or pair
        nbytes : int
            Bytes.

        Returns
        -------
        FitStatus

        Raises
        ------
        UnknownBackendError, TypeError, ValueError
            If the placement is none, or `nbytes` is not a byte count.
        """
        return FitStatus(self._judge(*Placement(placement), as_bytes(nbytes, "nbytes")))

    def __len__(self) -> int:
        return len(self._book.nodes)

    def __repr__(self) -> str:
        if self._book is None:
            return f"<{type(self).__name__}, not initialised>"
        with self._book.lock:
            rows = list(zip(self._book.nodes, *(column.tolist() for column in self._columns()), strict=True))
        parts = []
        for node, free, total, _, known, lost in rows:
            state = f"{format_bytes(free)} free" if known else "lost" if lost else "unknown"
            parts.append(f"{node.name} {state} of {format_bytes(total or None)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), _snapshot(self)), object.__getstate__(self)  # the attributes of a subclass

    # -- for this package ---------------------------------------------------------------------

    def _node_index(self, node: NodeLike) -> int:
        index = self._book.index
        found = index.get(node) if isinstance(node, str) else None
        if found is None:
            found = index.get(node_name(node))
        if found is None:
            known = ", ".join(list(index)[:8]) + (", ..." if len(index) > 8 else "")
            raise UnknownNodeError(f"no node {shown(str(node))} in the table; it has {known or 'none'}")
        return found

    # The caller holds the lock of the book.

    def _publish(
        self,
        index: int,
        free: int,
        total: int,
        known: bool,
        *,
        token: SampleToken | None = None,
        pools: Mapping[Placement, Pool] | None = None,
        source: str = "caller",
        at: float | None = None,
        reason: str | None = None,
    ) -> bool:
        """Publish a reading and the pools read with it; False if it is refused (see `publish`)."""
        if not self._accepts(index, token):
            return False
        pools = pools or {}
        self._update(index, free, total, known, [(*place, *pool) for place, pool in pools.items()])
        self._book.pools.update(pools)
        self._note(index, source, at, reason, token)
        return True

    def _publish_lost(
        self,
        index: int,
        *,
        token: SampleToken | None = None,
        source: str = "caller",
        at: float | None = None,
        reason: str | None = None,
    ) -> bool:
        if not self._accepts(index, token):
            return False
        self._mark_lost(index)
        self._note(index, source, at, reason, token, lost=True)
        return True

    def _accepts(self, index: int, token: SampleToken | None) -> bool:
        book = self._book
        if token is None or (token.generation == book.generation and token.order >= book.nodes[index].order):
            return True
        book.refused += 1
        return False

    def _note(
        self,
        index: int,
        source: str,
        at: float | None,
        reason: str | None,
        token: SampleToken | None = None,
        *,
        lost: bool = False,
    ) -> None:
        book, node = self._book, self._book.nodes[index]
        if token is None:  # an update or a mark: all that has begun by now is older
            book.order += 1
            node.order = book.order
            began = time.monotonic()
        else:
            node.order = token.order
            began = token.began
        node.lost = lost
        node.source = source
        node.sampled_at = began if at is None else at
        node.reason = reason

    def _put_pool(self, placement: Placement, pool: Pool) -> None:
        self._set_pool(*placement, *pool)
        self._book.pools[placement] = pool


_core.bind_table(MemoryTable)


def _core_policy(policy: FitPolicy) -> tuple[float, int, int]:
    return policy.tight_fraction, MAX_BYTES if policy.tight_margin is None else policy.tight_margin, policy.headroom


def node_name(node: NodeLike) -> str:
    """The name under which a node is kept: a placement's canonical name (``"cpu:0"`` is ``"cpu"``)."""
    if isinstance(node, Placement):
        return str(node)
    if not isinstance(node, str):
        raise TypeError(f"a node's name must be a string, not {type(node).__name__}")
    if not node:
        raise ValueError("a node's name must not be empty")
    try:
        return str(Placement(node))
    except ValueError:
        return node


def own_placement(name: str) -> list[Placement]:
    """The placements that a node lists by its name alone: one or none."""
    try:
        return [Placement(name)]
    except ValueError:
        # "gpu" is a name like any other, "cuda:x" and "cuad:0" are mistakes.
        if ":" in name:
            raise
        return []


def as_policy(policy: FitPolicy | None, default: FitPolicy | None) -> FitPolicy:
    """The policy, or the default where there is none."""
    if policy is None and default is not None:
        return default
    if not isinstance(policy, FitPolicy):
        raise TypeError(f"policy must be a FitPolicy, not {type(policy).__name__}")
    return policy


def as_pair(reading: Any, what: str) -> tuple[ByteCount | None, ByteCount | None]:
    """Take apart what a node was given: ``(free, total)``, or None for both."""
    if reading is None:
        return None, None
    if not isinstance(reading, (tuple, list)) or len(reading) != 2:
        raise TypeError(f"{what} must have (free, total) or None, got {shown(reading)}")
    free, total = reading
    return free, total


def _as_mask(known: Any, count: int) -> npt.NDArray[np.bool_]:
    if known is None:
        return np.ones(count, dtype=np.bool_)
    refuse_mask(known, "known")
    mask = np.asarray(known)
    if mask.dtype != np.bool_ and mask.size:
        raise TypeError(f"known must be bool, not {mask.dtype}")
    if mask.shape != (count,):
        raise ValueError(f"known must have shape ({count},), not {mask.shape}")
    return mask.astype(np.bool_)


def as_reading(node: NodeLike, free: ByteCount | None, total: ByteCount | None) -> tuple[int, int, bool]:
    """Check a reading; gives what the core takes: free, total (0 for unknown), and whether free is known.

    The pair 0/0 comes from a source that cannot tell. Here that can still be seen: for the core an
    unknown total is 0, and a free of 0 with an unknown total is a full device.
    """
    free_bytes = None if free is None else as_bytes(free, f"free of node {shown(str(node))}")
    total_bytes = None if total is None else as_bytes(total, f"total of node {shown(str(node))}")
    known = free_bytes is not None and not (free_bytes == 0 and total_bytes == 0)
    return free_bytes or 0, total_bytes or 0, known


def _snapshot(table: MemoryTable) -> dict[str, Any]:
    book = table._book
    with book.lock:
        free, total, _, known, lost = (column.tolist() for column in table._columns())
        return {
            "policy": book.policy,
            "nodes": [
                (node.name, node.policy, *row) for node, *row in zip(book.nodes, free, total, known, lost, strict=True)
            ],
            "placements": list(book.placements.items()),
            "pools": list(book.pools.items()),
            "closed": [backend_name(code) for code in sorted(book.closed)],
        }


def _restore(cls: type[MemoryTable], state: dict[str, Any]) -> MemoryTable:
    table = cls.__new__(cls)  # a subclass may want other arguments
    MemoryTable.__init__(table, policy=state["policy"])
    for name, policy, free, total, known, lost in state["nodes"]:
        node = Node(name, policy)
        node.sampled_at = time.monotonic()
        # The name as it was: whether it is a placement may have changed since.
        table._add(node, (free, total, known), [], lost=lost)
    for placement, index in state["placements"]:
        table._map(placement.backend, placement.device, index)
        table._book.placements[placement] = index
    for placement, pool in state["pools"]:
        table._put_pool(placement, pool)
    for backend in state["closed"]:
        register_backend(backend)
        # Not a method that a subclass may have overridden: it is not initialised yet.
        MemoryTable.close_backend(table, backend)
    return table
