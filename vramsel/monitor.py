"""watch(): a table of this machine's memory, filled from sources."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType

from .fit import FitPolicy
from .placement import backend_code
from .sources.base import Reading, Sample, Source
from .table import MemoryTable, as_reading, node_name

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


class Monitor:
    """Keeps a table in step with its sources, on demand. Made by `watch`.

    As a context manager it closes at the end: its nodes become unknown, since nobody keeps
    their numbers true any more.

    Attributes
    ----------
    table : MemoryTable
        The table that it fills; usable at once, and the same one for the monitor's life.
    """

    def __init__(self, sources: Iterable[Source], *, policy: Policies = None) -> None:
        self._sources = list(sources)
        for source in self._sources:
            if not isinstance(source, Source):
                raise TypeError(f"a source must derive from vramsel.sources.Source, not be a {type(source).__name__}")
        if policy is not None and not isinstance(policy, (FitPolicy, Mapping)):
            raise TypeError(f"policy must be a FitPolicy or a mapping of them, not {type(policy).__name__}")
        self._policies = {}
        if isinstance(policy, Mapping):
            for node, own in policy.items():
                if not isinstance(own, FitPolicy):
                    raise TypeError(f"policy of node {node!r} must be a FitPolicy, not {type(own).__name__}")
                self._policies[node_name(node)] = own
        self._owner: dict[str, Source] = {}  # node name -> the source that reports it
        self._labels = _distinct([source.name for source in self._sources])
        self._errors: dict[str, str] = {}
        self._closed = False
        self.table = MemoryTable(policy=policy if isinstance(policy, FitPolicy) else None)
        self.refresh()

    @property
    def errors(self) -> Mapping[str, str]:
        """Source name to one line, for every source that had less to tell than it should."""
        return MappingProxyType(dict(self._errors))

    def refresh(self) -> None:
        """Sample every source once and publish what it says.

        A source that fails makes its own nodes unknown and no others; its error is in `errors`.

        Raises
        ------
        RuntimeError
            If the monitor is closed.
        """
        if self._closed:
            raise RuntimeError("this monitor is closed; vramsel.watch() starts another")
        for source, label in zip(self._sources, self._labels, strict=True):
            began = time.monotonic()
            try:
                sample = source.sample()
                if not isinstance(sample, Sample):
                    sample = Sample(tuple(sample))
                self._take(source, sample, began)
                note = sample.note
            except Exception as error:  # whatever a source gets wrong is its own affair, and is kept
                note = f"{type(error).__name__}: {error}".splitlines()[0]
                for node in self._nodes_of(source):
                    self._forget(node, note)
            if note is None:
                self._errors.pop(label, None)
            else:
                self._errors[label] = note

    def close(self) -> None:
        """Stop: the monitor's nodes become unknown. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        for node in self._owner:
            self._forget(node, "its monitor is closed")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self._sources)
        return f"Monitor({names}: {self.table!r}{', closed' if self._closed else ''})"

    def _nodes_of(self, source: Source) -> set[str]:
        return {node for node, owner in self._owner.items() if owner is source}

    def _take(self, source: Source, sample: Sample, began: float) -> None:
        silent = self._nodes_of(source)
        for reading in sample.readings:
            if not isinstance(reading, Reading):
                raise TypeError(f"source {source.name!r} must report Readings, not {type(reading).__name__}")
            self._publish(source, reading.checked(), began)
            silent.discard(reading.node)
        for node in silent:
            self._forget(node, sample.note or f"source {source.name!r} no longer reports it")
        for backend in sample.enumerated:
            self.table.close_backend(backend)
            self.table._book.closed[backend_code(backend)] = sample.note

    def _publish(self, source: Source, reading: Reading, began: float) -> None:
        table = self.table
        owner = self._owner.get(reading.node, source)
        if owner is not source:
            raise ValueError(f"node {reading.node!r} is reported by source {owner.name!r} already")
        free, total, known = as_reading(reading.node, reading.free, reading.total)
        if reading.node not in self._owner:
            policy = self._policies.get(reading.node)
            table.add_node(reading.node, policy=policy, placements=reading.placements)
            self._owner[reading.node] = source
        index = table._node_index(reading.node)
        node = table._book.nodes[index]
        node.device_name, node.uuid = reading.device_name, reading.uuid
        if reading.lost:
            table._publish_lost(index, source=source.name, at=began, reason=reading.reason)
        elif known:
            table._publish(index, free, total, True, source=source.name, at=began, reason=reading.reason)
        elif not self._lost(index):  # lost is lost: only a number brings a device back
            table._publish(index, 0, total, False, source=source.name, at=began, reason=reading.reason)

    def _lost(self, index: int) -> bool:
        return bool(self.table._columns()[3][index])

    def _forget(self, name: str, reason: str) -> None:
        index = self.table._node_index(name)
        if self._closed or not self._lost(index):
            source = self.table._book.nodes[index].source
            self.table._publish(index, 0, 0, False, source=source, reason=reason)


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number added to those that came before."""
    return [f"{name}#{names[:i].count(name) + 1}" if name in names[:i] else name for i, name in enumerate(names)]
