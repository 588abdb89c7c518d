"""What a sample does to a table: which node it is for, whose it is, and what becomes of those it leaves out."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from .book import Device, Node, Pool, SampleToken
from .errors import described, one_line
from .fit import FitPolicy
from .placement import Placement, backend_code
from .sources.base import PoolReading, Reading, Sample, Source
from .table import MemoryTable, as_reading, node_name, own_placement
from .units import MAX_BYTES, as_bytes, format_bytes

__all__ = ["Outcome", "Publisher", "emit"]

log = logging.getLogger("vramsel.monitor")


def emit(logger: logging.Logger, lines: Iterable[tuple[int, str]]) -> None:
    """Log lines. What a handler raises is shown as logging itself shows it, and stops nobody."""
    for level, line in lines:
        try:
            logger.log(level, "%s", line)
        except Exception:
            if logging.raiseExceptions:
                traceback.print_exc()


class Outcome(NamedTuple):
    """What came of a sample."""

    note: str | None  # one line that says what there is to complain of
    failed: bool  # whether that is a fault, and not merely something that is not there
    useful: bool  # whether there was any number in it


class Publisher:
    """Publishes the samples of several sources into one table.

    A node belongs to the source that reported it first. Every method takes the lock of the table's
    book, so that several threads may publish, and a fork finds nothing half done.

    Parameters
    ----------
    table : MemoryTable
    policies : mapping
        Policies of nodes by name; the others have the table's.
    max_age : float
        Seconds after which a number is unknown.
    """

    def __init__(self, table: MemoryTable, policies: Mapping[str, FitPolicy], max_age: float) -> None:
        self.table = table
        self.max_age = max_age
        self._policies = policies
        self._owner: dict[str, Source] = {}  # node name -> the source that reports it
        self._backends: dict[str, frozenset[int]] = {}  # node name -> those of the placements it came with
        self._gone: set[str] = set()  # nodes that a complete enumeration did not list any more
        self._awaited: set[str] = set()  # nodes that are there and nobody has reported yet
        self._shares: dict[str, tuple[Source, str]] = {}  # what is read under this name is in that node
        self._shared_at: dict[str, int] = {}  # the same name -> order of the last sample that said so
        self._listed: dict[str, list[Placement]] = {}  # the same name -> its placements and pools there
        self._caps: dict[str, dict[str, int]] = {}  # node name -> totals of the devices that share it
        self._pooled: dict[str, set[Placement]] = {}  # node name -> placements whose pools were read with it
        self._stopped = False
        self._to_log: list[tuple[int, str]] = []  # not under the lock: a handler may do as it likes

    # -- samples ------------------------------------------------------------------------------

    def publish(self, source: Source, sample: object, token: SampleToken, *, ages: bool) -> Outcome:
        """Publish what a source said.

        A fault of one reading is its node's. If the sample as a whole is none, the source has failed:
        see `fail`.
        """
        try:
            if not isinstance(sample, Sample):
                sample = Sample(tuple(sample))  # type: ignore[arg-type]  # whatever is not iterable raises
            readings = tuple(sample.readings)
            enumerated = {backend_code(backend): backend for backend in sample.enumerated}
            note = None if sample.note is None else one_line(sample.note)
        except Exception as error:  # whatever a source gets wrong is its own affair, and is kept
            return self.fail(source, error, token, ages=ages)
        try:
            return self._publish_all(source, readings, enumerated, note, token)
        finally:
            lines, self._to_log = self._to_log, []
            emit(log, lines)

    def _publish_all(
        self,
        source: Source,
        readings: tuple[Reading, ...],
        enumerated: Mapping[int, str],
        note: str | None,
        token: SampleToken,
    ) -> Outcome:
        seen: set[str] = set()
        useful = failed = False
        for reading in readings:
            try:
                useful |= self._publish(source, reading, token, seen)
            except Exception as error:  # a reading's fault is its node's
                note, failed = note or described(error), True
        with self.table._book.lock:
            if self._stopped:
                return Outcome(note, failed, useful)
            for node in self._names_of(source):
                if node not in seen:
                    why = note or f"source {source.name!r} no longer reports it"
                    self._miss(node, enumerated.keys(), why, token)
            for backend in enumerated.values():
                self.table.close_backend(backend)
        return Outcome(note, failed, useful)

    def fail(self, source: Source, error: BaseException, token: SampleToken, *, ages: bool) -> Outcome:
        """Take note that a source has failed to sample.

        Where numbers age, the last ones stay until they are too old: for a fault that passes, they are
        nearer the truth than nothing. Else all of the source's nodes become unknown.
        """
        fault = described(error)
        book = self.table._book
        with book.lock:
            *_, known, _ = self.table._columns()
            for name in [] if self._stopped else self._names_of(source):
                if not ages:
                    self._forget(name, fault, token)
                elif name in self._owner and known[book.index[name]]:
                    book.nodes[book.index[name]].reason = fault
        return Outcome(fault, failed=True, useful=False)

    def abandon(self, source: Source, reason: str) -> None:
        """Take note that what a source read is gone, as another says who lists it."""
        with self.table._book.lock:
            for name in self._names_of(source):
                self._lose(name, reason, None)

    def _names_of(self, source: Source) -> list[str]:
        own = [node for node, owner in self._owner.items() if owner is source]
        return own + [name for name, (sharer, _) in self._shares.items() if sharer is source]

    def _publish(self, source: Source, reading: Reading, token: SampleToken, seen: set[str]) -> bool:
        """Publish one reading; returns whether it has a number, its own or another's."""
        if not isinstance(reading, Reading):
            raise TypeError(f"source {source.name!r} must report Readings, not {type(reading).__name__}")
        name = node_name(reading.node)
        book = self.table._book
        with book.lock:
            if self._stopped:
                return False
            owner = self._owner.get(name) or self._shares.get(name, (source, ""))[0]
            if _whole(owner) is _whole(source):
                owner = source  # a device may become a part, or stop being one
                if name in self._owner:
                    self._owner[name] = source
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
                pools = {Placement(pool.placement): _as_pool(pool, reading.free) for pool in reading.pools}
                headroom = as_bytes(reading.headroom, f"headroom of node {name!r}")
                began = token.began if reading.began is None else _within(token.began, reading.began)
                shares = None if reading.shares is None else node_name(reading.shares)
                book.discarded += reading.discarded
                reading = _in_time(reading, began, self.max_age)
            except Exception as error:  # the node is there, whatever is wrong with its numbers
                fault, pools, headroom, began, shares = error, {}, 0, token.began, None
                reading = replace(reading, free=None, total=None, lost=False, reason=described(error))
            if shares is not None and not reading.lost:
                self._share(source, name, shares, reading, pools, headroom, token)
            else:
                self._read(source, name, reading, pools, headroom, began, token, back)
        if fault is not None:
            raise fault
        return shares is not None or reading.free is not None

    def _read(
        self,
        source: Source,
        name: str,
        reading: Reading,
        pools: dict[Placement, Pool],
        headroom: int,
        began: float,
        token: SampleToken,
        back: bool,
    ) -> None:
        """Publish the numbers of a node that is this reading's own."""
        table, book = self.table, self.table._book
        cap = self._cap_of(name)
        if reading.free is not None and reading.total is not None and cap < reading.total:
            reading = replace(reading, free=min(reading.free, cap), total=cap)
        free, total, known = as_reading(name, reading.free, reading.total)
        whence = source.name if reading.source is None else one_line(reading.source)
        reason = None if reading.reason is None else one_line(reading.reason)
        lives = [] if name in self._owner else self._adopt(source, name, reading, pools, headroom)
        index = table._node_index(name)
        for placement in pools:
            if placement not in book.placements:
                table.map(placement, name)
        # A pool that is not read any more holds nothing that could be counted on; its limit stays.
        was = self._pooled.get(name, set())
        pools = {**{place: book.pools.get(place, Pool())._replace(idle=0) for place in was}, **pools}
        self._pooled[name] = set(pools)
        mine = {placement: pool for placement, pool in pools.items() if book.placements.get(placement) == index}
        was_lost = self._lost(index)
        if reading.lost:
            if table._publish_lost(index, token=token, source=whence, at=began, reason=reason) and not was_lost:
                self._to_log.append((logging.WARNING, f"{name} is lost: {reason or 'no reason given'}"))
        elif known or back or not was_lost:  # lost is lost: only a number brings a device back
            table._publish(index, free, total, known, token=token, pools=mine, source=whence, at=began, reason=reason)
            if was_lost and known:
                self._to_log.append((logging.WARNING, f"{name} is back"))
        # Decisions take no lock: a placement must not be listed before its memory has its numbers.
        for placement in lives:
            table.map(placement, name)
        book.nodes[index].device_name = None if reading.device_name is None else one_line(reading.device_name)
        book.nodes[index].uuid = None if reading.uuid is None else one_line(reading.uuid)

    def _adopt(
        self, source: Source, name: str, reading: Reading, pools: Collection[Placement], headroom: int
    ) -> list[Placement]:
        """Take a node that this source reports for the first time; returns the placements to list on it."""
        table, book = self.table, self.table._book
        given = reading.placements
        lives = own_placement(name) if given is None else [Placement(p) for p in given]
        if name in self._shares:  # it has memory of its own after all, or is lost: back from where it was
            del self._caps[self._shares.pop(name)[1]][name]
            lives = list(dict.fromkeys((*lives, *self._listed.pop(name), *pools)))
        else:
            for placement in lives:
                owner = book.placements.get(placement)
                if owner is not None and book.nodes[owner].name != name:
                    raise ValueError(f"placement {str(placement)!r} is on node {book.nodes[owner].name!r} already")
        if name in self._awaited:
            self._awaited.discard(name)
            book.nodes[book.index[name]].order = 0  # it was never read
        elif name in book.index and name not in self._backends:
            raise ValueError(f"node {name!r} is in the table already; the caller gives its numbers")
        elif name not in book.index:
            table._add(Node(name, self._policy(name, headroom)), (0, 0, False), [])
        self._owner[name] = source
        self._backends[name] = frozenset(placement.backend for placement in lives)
        return lives

    def _policy(self, name: str, headroom: int) -> FitPolicy:
        policy = self.table._book.policy
        if headroom > policy.headroom:
            policy = replace(policy, headroom=headroom)
        return self._policies.get(name, policy)

    def _share(
        self,
        source: Source,
        name: str,
        host: str,
        reading: Reading,
        pools: dict[Placement, Pool],
        headroom: int,
        token: SampleToken,
    ) -> None:
        """List a device without memory of its own on the node that has it."""
        table, book = self.table, self.table._book
        if host == name:
            raise ValueError(f"node {name!r} cannot share its own memory")
        if token.order < self._shared_at.get(name, 0):
            return  # something newer is known
        self._shared_at[name] = token.order
        if host not in book.index:
            node = Node(host, self._policy(host, 0))
            node.reason = one_line(f"the memory of {name} is here, and no source reports it")
            table._add(node, (0, 0, False), own_placement(host))
            self._awaited.add(host)
        index = book.index[host]
        given = reading.placements
        lives = own_placement(name) if given is None else [Placement(p) for p in given]
        allowed = {host, name}
        for placement in (*lives, *pools):
            at = book.placements.get(placement)
            if at is not None and (book.nodes[at].name not in allowed or (at != index and name not in self._backends)):
                raise ValueError(f"placement {str(placement)!r} is on node {book.nodes[at].name!r} already")
        if name not in self._shares:
            policy = book.nodes[index].policy
            if host not in self._policies and policy.headroom < headroom:
                table.set_policy(host, replace(policy, headroom=headroom))
            self._shares[name] = source, host
            line = f"{name} shares the memory of {host}, of which {format_bytes(headroom)} stay free"
            self._to_log.append((logging.INFO, line))
        if name in self._owner or name in self._awaited:  # it was taken for a device with memory of its own
            self._owner.pop(name, None)
            self._awaited.discard(name)
            table._publish(book.index[name], 0, 0, False, source=source.name, reason=f"its memory is that of {host}")
        self._caps.setdefault(host, {})[name] = reading.total or MAX_BYTES
        self._cap(host)
        self._listed[name] = list(dict.fromkeys((*self._listed.get(name, []), *lives, *pools)))
        # Idle bytes were not read together with that node's free, and could be in both.
        for placement in (*lives, *pools):
            if book.placements.get(placement) != index:
                table.map(placement, host)
            if placement in pools:
                table._put_pool(placement, pools[placement]._replace(idle=0))
        for placement in lives:
            named = None if reading.device_name is None else one_line(reading.device_name)
            book.devices[placement] = Device(named, None if reading.uuid is None else one_line(reading.uuid))
        self._backends[name] = frozenset(placement.backend for placement in lives)

    def _cap_of(self, host: str) -> int:
        return min(self._caps.get(host, {}).values(), default=MAX_BYTES)

    def _cap(self, host: str) -> None:
        """Apply the totals of the devices that share a node to the number that it has already."""
        index = self.table._book.index[host]
        free, total, _, known, _ = (column[index].item() for column in self.table._columns())
        if known and total > self._cap_of(host):
            self.table._update(index, min(free, self._cap_of(host)), self._cap_of(host), True, [])

    # -- what is not read ---------------------------------------------------------------------

    def age(self, now: float, source: Source | None = None) -> float:
        """Make unknown what is older than `max_age`, of one source or all.

        Returns when the next number will be too old; inf is never.
        """
        book, soonest = self.table._book, inf
        if self.max_age == inf:
            return inf
        with book.lock:
            *_, known, _ = self.table._columns()
            for name in self._owner if source is None else self._names_of(source):
                if name not in self._owner:
                    continue
                index = book.index[name]
                began = book.nodes[index].sampled_at
                if not known[index] or began is None:
                    continue
                if now - began > self.max_age:
                    why = _too_old(now - began, self.max_age)
                    self._forget(name, f"{why} ({book.nodes[index].reason})" if book.nodes[index].reason else why)
                else:
                    soonest = min(soonest, began + self.max_age)
        return soonest

    def forget_all(self, reason: str, *, stop: bool) -> None:
        """Make every node unknown, lost ones too: nobody keeps their numbers true any more.

        With `stop` nothing is published from now on.
        """
        with self.table._book.lock:
            self._stopped = self._stopped or stop
            for name in self._owner:
                self._forget(name, reason, even_lost=True)

    def _miss(self, name: str, enumerated: Collection[int], reason: str, token: SampleToken) -> None:
        """Take note that a sample does not list a node: gone if the sample was complete, else unknown."""
        backends = self._backends.get(name)
        if not backends or not backends.issubset(enumerated):
            self._forget(name, reason, token)
        else:
            self._lose(name, reason, token)

    def _lose(self, name: str, reason: str, token: SampleToken | None) -> None:
        table, book = self.table, self.table._book
        if name in self._shares:
            self._retire(name)
        self._gone.add(name)
        index = table._node_index(name)
        table._publish_lost(index, token=token, source=book.nodes[index].source, reason=reason)

    def _retire(self, name: str) -> None:
        """Move a device that is gone off the node that it shared, to one of its own."""
        table, book = self.table, self.table._book
        source, host = self._shares.pop(name)
        del self._caps[host][name]
        if name not in book.index:
            table._add(Node(name, self._policy(name, 0)), (0, 0, False), [], lost=True)
            book.nodes[book.index[name]].source = source.name
        self._owner[name] = source
        for placement in self._listed.pop(name):
            table.map(placement, name)

    def _forget(self, name: str, reason: str, token: SampleToken | None = None, *, even_lost: bool = False) -> None:
        if name not in self._owner:
            return  # it shares a node, and that one has another source
        table = self.table
        index = table._node_index(name)
        if even_lost or not self._lost(index):
            source, at = table._book.nodes[index].source, table._book.nodes[index].sampled_at
            table._publish(index, 0, 0, False, token=token, source=source, at=at, reason=reason)

    def _lost(self, index: int) -> bool:
        return self.table._book.nodes[index].lost


def _as_pool(reading: PoolReading, free: int | None) -> Pool:
    """What the core takes."""
    reading = reading.checked()
    # Either free and idle bytes serve a request together, or one block does alone.
    idle = reading.idle if free is None else max(reading.idle, reading.largest - free)
    if reading.limit is None:
        return Pool(idle)
    # For the core, a total of 0 is an unknown one.
    return Pool(idle, max(reading.limit - reading.used, 0), max(reading.limit, 1))


def _whole(source: Source) -> Source:
    return source if source.whole is None else source.whole


def _within(sample: float, reading: float) -> float:
    """When a reading began, which the source says: after its sample did, and not in the future."""
    if not sample <= reading <= time.monotonic():
        raise ValueError("began of a reading must be time.monotonic() from within the sample")
    return float(reading)


def _in_time(reading: Reading, began: float, max_age: float) -> Reading:
    age = time.monotonic() - began
    if reading.lost or reading.free is None or age <= max_age:
        return reading
    return replace(reading, free=None, total=None, reason=f"it took too long: {_too_old(age, max_age)}")


def _too_old(age: float, max_age: float) -> str:
    return f"last read {age:.1f} s ago, which is older than {max_age:g} s"
