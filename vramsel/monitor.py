"""watch(): a table of this machine's memory, filled from sources."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType

from .errors import described, one_line, shown
from .fit import FitPolicy
from .locks import Locked
from .placement import Placement, backend_code
from .sources.base import Reading, Sample, Source
from .table import MemoryTable, Node, as_reading, node_name, own_placement

__all__ = ["Monitor", "Policies", "watch"]

Policies = FitPolicy | Mapping[str, FitPolicy] | None


def watch(sources: Iterable[Source] | None = None, *, policy: Policies = None, init_cuda: bool = True) -> Monitor:
    """Sample this machine's memory into a table.

    Parameters
    ----------
    sources : iterable of Source, optional
        By default the host's memory and the CUDA driver.
    policy : FitPolicy or mapping, optional
        For every node, or by node name; nodes that are not named get the default policy.
    init_cuda : bool, default True
        Whether the default CUDA source may call ``cuInit``. A process that has done so cannot
        use CUDA in children that it forks; with False the source works only in a process that
        has initialised CUDA itself.

    Returns
    -------
    Monitor
        Already sampled once; `Monitor.refresh` samples again. Nothing runs in the background.

    Examples
    --------
    >>> import vramsel as vs
    >>> with vs.watch() as monitor:
    ...     monitor.table.would_fit("cpu", 1)
    <FitStatus.COMFORTABLE: 0>
    """
    if sources is None:
        from .sources.cuda_driver import CudaDriverSource
        from .sources.host import HostSource

        sources = [HostSource(), CudaDriverSource(init=init_cuda)]
    return Monitor(sources, policy=policy)


class Monitor(Locked):
    """Keeps a table in step with its sources, on demand. Made by `watch`.

    As a context manager it closes at the end: its nodes become unknown, since nobody keeps
    their numbers true any more.

    Attributes
    ----------
    table : MemoryTable
        The table that it fills; usable at once, and the same one for the monitor's life.
    """

    held_at_fork = False  # a source may take its time

    def __init__(self, sources: Iterable[Source], *, policy: Policies = None) -> None:
        if isinstance(sources, Source) or not isinstance(sources, Iterable):
            raise TypeError(f"sources must be several Sources, as in [HostSource()], not a {type(sources).__name__}")
        self._sources = list(sources)
        for source in self._sources:
            if not isinstance(source, Source):
                raise TypeError(f"a source must derive from vramsel.sources.Source, not be a {type(source).__name__}")
            if not isinstance(source.name, str):
                raise TypeError(f"the name of a {type(source).__name__} must be a string, not {shown(source.name)}")
        if policy is not None and not isinstance(policy, (FitPolicy, Mapping)):
            raise TypeError(f"policy must be a FitPolicy or a mapping of them, not {type(policy).__name__}")
        self._policies = {}
        if isinstance(policy, Mapping):
            for node, own in policy.items():
                if not isinstance(own, FitPolicy):
                    raise TypeError(f"policy of node {shown(node)} must be a FitPolicy, not {type(own).__name__}")
                self._policies[node_name(node)] = own
        self._covers = [tuple(backend_code(backend) for backend in source.backends) for source in self._sources]
        super().__init__()  # a refresh holds the lock, so that an older one never overwrites a newer
        self._busy = False
        self._closed = False
        self._owner: dict[str, Source] = {}  # node name -> the source that reports it
        self._backends: dict[str, frozenset[int]] = {}  # node name -> those of the placements it came with
        self._gone: set[str] = set()  # nodes that a complete enumeration did not list any more
        self._labels = _distinct([source.name for source in self._sources])
        self._errors: dict[str, str] = {}
        self.table = MemoryTable(policy=policy if isinstance(policy, FitPolicy) else None)
        self.refresh()

    def renew(self) -> None:
        """Start anew in a forked child: a refresh that another thread was in does not go on there."""
        super().renew()
        self._busy = False

    @property
    def errors(self) -> Mapping[str, str]:
        """Source name to one line, for every source that had less to tell than it should."""
        return MappingProxyType(self._errors.copy())

    def refresh(self) -> None:
        """Sample every source once and publish what it says.

        A source that fails makes its own nodes unknown and no others, a bad reading only its
        own node; what went wrong is in `errors`. Several threads take turns.

        Raises
        ------
        RuntimeError
            If the monitor is closed, or if a source calls this.
        """
        with self._turn():
            if self._closed:
                raise RuntimeError("this monitor is closed; vramsel.watch() starts another")
            notes: dict[int, str] = {}
            for source, label, backends in zip(self._sources, self._labels, self._covers, strict=True):
                note = self._sample(source)
                if note is None:
                    self._errors.pop(label, None)
                else:
                    self._errors[label] = note
                    notes.update(dict.fromkeys(backends, note))
            self.table._book.notes = notes

    def close(self) -> None:
        """Stop: the monitor's nodes become unknown. Closing twice is harmless.

        Raises
        ------
        RuntimeError
            If a source calls this.
        """
        with self._turn():
            self._closed = True
            for node in self._owner:
                self._forget(node, "its monitor is closed")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self.lock:
            if self._busy:
                raise RuntimeError("a source must not refresh or close the monitor that samples it")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def __enter__(self) -> Monitor:
        if self._closed:
            raise RuntimeError("this monitor is closed; vramsel.watch() starts another")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self._sources)
        return f"Monitor({names}: {self.table!r}{', closed' if self._closed else ''})"

    def _sample(self, source: Source) -> str | None:
        """Sample one source and publish; returns what there is to complain of."""
        began = time.monotonic()
        mine = [node for node, owner in self._owner.items() if owner is source]
        try:
            sample = source.sample()
            if not isinstance(sample, Sample):
                sample = Sample(tuple(sample))
            readings = tuple(sample.readings)
            enumerated = {backend_code(backend): backend for backend in sample.enumerated}
            note = None if sample.note is None else one_line(sample.note)
        except Exception as error:  # whatever a source gets wrong is its own affair, and is kept
            fault = described(error)
            for node in mine:
                self._forget(node, fault)
            return fault
        seen: set[str] = set()
        for reading in readings:
            try:
                self._publish(source, reading, began, seen)
            except Exception as error:  # a reading's fault is its node's
                note = note or described(error)
        for node in mine:
            if node not in seen:
                self._miss(node, enumerated.keys(), note or f"source {source.name!r} no longer reports it")
        for backend in enumerated.values():
            self.table.close_backend(backend)
        return note

    def _publish(self, source: Source, reading: Reading, began: float, seen: set[str]) -> None:
        table = self.table
        if not isinstance(reading, Reading):
            raise TypeError(f"source {source.name!r} must report Readings, not {type(reading).__name__}")
        name = node_name(reading.node)
        owner = self._owner.get(name, source)
        if owner is not source:
            raise ValueError(f"node {name!r} is reported by source {owner.name!r} already")
        if name in seen:
            raise ValueError(f"node {name!r} is in one sample twice")
        seen.add(name)
        back = name in self._gone
        self._gone.discard(name)
        fault: Exception | None = None
        try:
            reading = reading.checked()
            free, total, known = as_reading(name, reading.free, reading.total)
            reason = None if reading.reason is None else one_line(reading.reason)
        except Exception as error:  # the node is there, whatever is wrong with its numbers
            fault, free, total, known, reason = error, 0, 0, False, described(error)
        with table._book.lock:
            if name not in self._owner:
                self._add(source, name, reading, (free, total, known), began, reason)
            else:
                index = table._node_index(name)
                if reading.lost and fault is None:
                    table._publish_lost(index, source=source.name, at=began, reason=reason)
                elif known or back or not self._lost(index):  # lost is lost: only a number brings a device back
                    table._publish(index, free, total, known, source=source.name, at=began, reason=reason)
            _describe(table, name, reading)
        if fault is not None:
            raise fault

    def _add(
        self,
        source: Source,
        name: str,
        reading: Reading,
        numbers: tuple[int, int, bool],
        began: float,
        reason: str | None,
    ) -> None:
        """Add a node with all that is known of it: its placements are picked from as soon as they are listed."""
        table = self.table
        given = reading.placements
        placements = own_placement(name) if given is None else [Placement(p) for p in given]
        node = Node(name, self._policies.get(name, table._book.policy))
        node.source, node.sampled_at, node.reason = source.name, began, reason
        table._add(node, numbers, placements, lost=reading.lost)
        self._owner[name] = source
        self._backends[name] = frozenset(placement.backend for placement in placements)

    def _miss(self, name: str, enumerated: Collection[int], reason: str) -> None:
        """Take note that a sample does not list a node: gone if the sample was complete, else unknown."""
        backends = self._backends[name]
        if not backends or not backends.issubset(enumerated):
            self._forget(name, reason)
            return
        table = self.table
        with table._book.lock:
            self._gone.add(name)
            index = table._node_index(name)
            table._publish_lost(index, source=table._book.nodes[index].source, reason=reason)

    def _forget(self, name: str, reason: str) -> None:
        table = self.table
        with table._book.lock:
            index = table._node_index(name)
            if self._closed or not self._lost(index):
                table._publish(index, 0, 0, False, source=table._book.nodes[index].source, reason=reason)

    def _lost(self, index: int) -> bool:
        *_, lost = self.table._columns()
        return bool(lost[index])


def _describe(table: MemoryTable, name: str, reading: Reading) -> None:
    node = table._book.nodes[table._node_index(name)]
    node.device_name = None if reading.device_name is None else one_line(reading.device_name)
    node.uuid = reading.uuid


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number added to those that are taken."""
    labels: list[str] = []
    for name in names:
        label, number = name, 1
        while label in labels:
            number += 1
            label = f"{name}#{number}"
        labels.append(label)
    return labels
