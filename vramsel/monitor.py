"""watch(): a table of this machine's memory, kept fresh by threads that ask the sources."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from math import inf, isfinite
from types import MappingProxyType, TracebackType

from .book import SampleToken
from .errors import described, shown
from .fit import FitPolicy
from .locks import Locked
from .placement import backend_code
from .publisher import Outcome, Publisher, emit
from .sources.base import Sample, Source
from .table import MemoryTable, node_name

__all__ = ["Monitor", "Policies", "watch"]

Policies = FitPolicy | Mapping[str, FitPolicy] | None

log = logging.getLogger("vramsel.monitor")
log.addHandler(logging.NullHandler())  # who wants to see it says so

_LONGEST_PAUSE = 5.0  # seconds between two samples of a source that fails
_FIRST_ANSWER = 5.0  # seconds that refresh() waits for a source's first answer: drivers start slowly
_IN_ORDER = 0.25  # seconds that a source's first numbers wait for those of the sources before it
_LEAST = 0.25  # seconds that refresh() waits for a source that hangs
_FIRST_PARTS = 2.0  # seconds that a source's first sample waits for those of its parts
_LONGEST_NAP = 3600.0  # seconds that the keeper sleeps
_SILENT = "does not answer"
_GOODBYE = 1.0  # seconds that close() waits for samples that are under way


def watch(
    sources: Iterable[Source] | None = None,
    interval: float = 0.1,
    max_age: float = 2.0,
    policy: Policies = None,
    init_cuda: bool = True,
) -> Monitor:
    """Keep a table of this machine's memory.

    Parameters
    ----------
    sources : iterable of Source, optional
        By default the host's memory and the CUDA driver, with the frameworks that allocate there.
    interval : float, default 0.1
        Seconds between the beginnings of two samples of one source, while the monitor runs.
    max_age : float, default 2.0
        Seconds after which a number counts as unknown; above `interval`. ``inf``: never.
    policy : FitPolicy or mapping, optional
        For every node, or by node name; nodes that are not named get the default policy.
    init_cuda : bool, default True
        Whether the default CUDA source may call ``cuInit``. A process that has done so cannot
        use CUDA in children that it forks; with False the source works only in a process that
        has initialised CUDA itself.

    Returns
    -------
    Monitor
        Already sampled once. As a context manager it samples in the background; without that,
        only `Monitor.refresh` does, and nothing grows old by itself.

    Raises
    ------
    TypeError, ValueError
        If an argument is none.

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
    return Monitor(sources, interval=interval, max_age=max_age, policy=policy)


class _Feed:
    """A source and the thread that asks it. Guarded by the monitor's lock.

    A sample that has been asked for is taken as number `asked`; while that is above `taken`, it is
    still to come. A sample under way when another is asked for does not count for that one.
    """

    def __init__(self, source: Source, label: str, whole: _Feed | None = None) -> None:
        self.source = source
        self.label = label
        self.whole = whole  # of a part, the feed whose survey lists it
        self.backends = tuple(backend_code(backend) for backend in source.backends)
        self.note: str | None = None
        self.due = 0.0
        self.failures = 0  # in a row
        self.answered = False
        self.raised: BaseException | None = None
        self.gone = False  # a part that is not listed any more
        self.idle()

    def idle(self) -> None:
        """No thread, nothing asked for."""
        self.thread: threading.Thread | None = None
        self.asked = self.taken = 0
        self.lent = 0  # threads of its parts
        self.began: float | None = None  # of the sample under way
        self.holds = False  # whether it may hold something that close() gives back

    def pause(self, interval: float) -> float:
        """Seconds from the beginning of a sample to the next one's."""
        return min(interval * 2.0 ** min(self.failures, 30), max(_LONGEST_PAUSE, interval))


class Monitor(Locked):
    """Keeps a table in step with its sources. Made by `watch`.

    As a context manager it runs: one daemon thread per source takes a sample every `interval`
    seconds, and one more, the keeper, says when, and makes unknown what is older than `max_age`;
    it calls no source, so that one which hangs holds up neither the others nor the ageing. A
    source that fails is asked less and less often, down to every 5 seconds, until it answers.
    At the end the monitor closes: its nodes become unknown, since nobody keeps their numbers true.

    In a forked child the monitor's nodes are unknown and nothing runs, until the child starts it.

    Attributes
    ----------
    table : MemoryTable
        The table that it fills; usable at once, and the same one for the monitor's life.
    """

    held_at_fork = False  # in the child there are no threads that it could have protected

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        interval: float = 0.1,
        max_age: float = 2.0,
        policy: Policies = None,
    ) -> None:
        if isinstance(sources, Source) or not isinstance(sources, Iterable):
            raise TypeError(f"sources must be several Sources, as in [HostSource()], not a {type(sources).__name__}")
        sources = list(sources)
        for source in sources:
            if not isinstance(source, Source):
                raise TypeError(f"a source must derive from vramsel.sources.Source, not be a {type(source).__name__}")
            if not isinstance(source.name, str):
                raise TypeError(f"the name of a {type(source).__name__} must be a string, not {shown(source.name)}")
        self._interval = _seconds(interval, "interval")
        if not isfinite(self._interval):
            raise ValueError("interval must be finite; a monitor that is not entered is sampled by refresh() alone")
        self._max_age = _seconds(max_age, "max_age")
        if self._max_age <= self._interval:
            raise ValueError(f"max_age ({max_age} s) must be above interval ({interval} s)")
        self.table = MemoryTable(policy=policy if isinstance(policy, FitPolicy) else None)
        self._publisher = Publisher(self.table, _by_name(policy), self._max_age)
        labels = _distinct([source.name for source in sources])
        self._feeds = [_Feed(source, label) for source, label in zip(sources, labels, strict=True)]
        self._errors: dict[str, str] = {}
        self._closed = self._forgotten = False
        super().__init__()
        self._begin()
        self.refresh()

    def _begin(self) -> None:
        """No thread runs; the lock is new."""
        self._running = False
        self._keeper: threading.Thread | None = None
        self._asked = threading.Condition(self.lock)  # a feed has something to do, or is to end
        self._taken = threading.Condition(self.lock)  # a feed has done something
        self._tick = threading.Condition(self.lock)  # the keeper has something to look at
        self._ended: list[threading.Thread] = []  # threads that have done, for refresh() to join
        self._to_log: list[tuple[int, str]] = []  # under the lock; logged outside of it

    def renew(self) -> None:
        """Start anew in a forked child: the threads are the parent's."""
        super().renew()
        for feed in self._feeds:
            feed.idle()
        self._begin()

    def forked(self) -> None:
        """In a forked child nobody keeps the numbers true."""
        if not self._closed:
            self._publisher.forget_all("the process was forked, and its monitor runs in the parent", stop=False)

    @property
    def errors(self) -> Mapping[str, str]:
        """Source name to one line, for every source that had less to tell than it should."""
        with self.lock:
            return MappingProxyType(self._errors.copy())

    # -- beginning and end --------------------------------------------------------------------

    def start(self) -> None:
        """Sample in the background from now on. Starting twice is harmless.

        Raises
        ------
        RuntimeError
            If the monitor is closed, or there is no thread to be had.
        """
        with self.lock:
            self._still_open()
            self._refuse_sources()
            if self._running:
                return
            self._running = True
            try:
                for feed in self._feeds:
                    self._lend_thread(feed)
                # What is due has been so for a while, and would be too old at once.
                now = time.monotonic()
                self._ask([feed for feed in self._feeds if feed.due <= now and feed.began is None], _LEAST)
                self._keeper = threading.Thread(target=self._keep, name="vramsel-keeper", daemon=True)
                self._keeper.start()
            except BaseException:  # those threads that there are end again
                self._running, self._keeper = False, None
                self._asked.notify_all()
                raise
            _running.add(self)
        self._log()

    def close(self) -> None:
        """Stop: threads end and the monitor's nodes become unknown. Closing twice is harmless.

        A sample under way gets a second to end; a thread that hangs in one longer ends when it
        comes back, and what it brings is not published.

        Raises
        ------
        RuntimeError
            If a source calls this.
        """
        self._stop()
        self._finish(time.monotonic() + _GOODBYE)

    def _stop(self) -> None:
        with self.lock:
            self._refuse_sources()
            self._closed, self._running = True, False
            _running.discard(self)
            self._asked.notify_all()
            self._taken.notify_all()
            self._tick.notify_all()
        if not self._forgotten:  # once: what the caller says of a node later stays
            self._publisher.forget_all("its monitor is closed", stop=True)
            self._forgotten = True

    def _finish(self, deadline: float) -> None:
        with self.lock:
            threads = [*self._ended, *(feed.thread for feed in self._feeds if feed.thread)]
            threads += [self._keeper] if self._keeper else []
            holding = any(feed.holds for feed in self._feeds)
        if holding:  # letting go of it may hang as well
            closer = threading.Thread(
                target=self._part_all, args=(threads, deadline), name="vramsel-close", daemon=True
            )
            try:
                closer.start()
                threads = [*threads, closer]
            except RuntimeError:  # no thread to be had, as at the end of the interpreter
                self._part_all(threads, deadline)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.01))
        self._log()

    def _part_all(self, threads: list[threading.Thread], deadline: float) -> None:
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        for feed in self._feeds:
            self._part(feed)

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(feed.label for feed in self._feeds)
        return f"Monitor({names}: {self.table!r}{', closed' if self._closed else ''})"

    def _still_open(self) -> None:
        if self._closed:
            raise RuntimeError("this monitor is closed; vramsel.watch() starts another")

    def _refuse_sources(self) -> None:
        if any(feed.thread is threading.current_thread() for feed in self._feeds):
            raise RuntimeError("a source must not refresh or close the monitor that samples it")

    # -- sampling -----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Sample every source once, now, and publish what it says.

        All sources are asked at the same time, each on a thread of its own. A fault of a source
        concerns its own nodes and no others, a bad reading only its own node; what went wrong is in
        `errors`. Nodes of a source that fails are unknown, but while the monitor runs, their last
        numbers stay until they are older than `max_age`. One that has not answered after `max_age`,
        at most 5 seconds, is not waited for.

        Raises
        ------
        RuntimeError
            If the monitor is closed, or if a source calls this.
        """
        with self.lock:
            self._still_open()
            self._refuse_sources()
            asked = [(feed, feed.thread) for feed in self._ask(self._feeds)]
            passing = [feed.raised for feed, _ in asked if feed.raised is not None]
            if not self._running:  # threads end with the sample
                answered = [feed for feed in self._feeds if feed.taken == feed.asked]
                self._taken.wait_for(lambda: self._running or not any(feed.thread for feed in answered), _LEAST)
            silent = [feed.source for feed in self._feeds if feed.note == _SILENT]
            ended = [] if self._running else self._ended
            self._ended = []
        for thread in ended:
            thread.join(_GOODBYE)
        now = time.monotonic()
        for source in silent:  # nobody else ages them where no keeper runs
            self._publisher.age(now, source)
        self._log()
        if passing:
            raise passing[0]

    def _ask(self, feeds: list[_Feed], most: float | None = None) -> list[_Feed]:
        """Ask for samples that begin from now on, and wait for them, though not for ever.

        `most` seconds, or as long as an answer of the source may take; then it is told that it does not.
        """
        wanted = []
        for feed in feeds:
            feed.raised = None
            feed.asked += 1
            self._lend_thread(feed)
            wanted.append((feed, feed.asked))
        self._asked.notify_all()
        now = time.monotonic()
        for feed, number in wanted:
            patience = _FIRST_ANSWER if not feed.answered else min(self._max_age, _FIRST_ANSWER)
            # One that hangs for long already has had its time; it may have come back, though.
            deadline = max((now if feed.began is None else feed.began) + patience, now + _LEAST)
            deadline = deadline if most is None else now + most
            while feed.taken < number and feed.thread is not None and not self._closed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    if most is None:
                        self._complain(feed, _SILENT)
                    break
                self._taken.wait(remaining)
        return feeds

    def _lend_thread(self, feed: _Feed) -> None:
        if feed.thread is not None:
            return
        thread = threading.Thread(target=self._serve, args=(feed,), name=f"vramsel-{feed.label}", daemon=True)
        feed.thread = thread
        if feed.whole is not None:
            feed.whole.lent += 1
        try:
            thread.start()  # it waits for our lock
        except BaseException:
            if not thread.is_alive():
                self._take_back(feed)
            raise

    def _take_back(self, feed: _Feed) -> None:
        """A feed's thread is no more."""
        feed.thread = feed.began = None
        if feed.whole is not None:
            feed.whole.lent -= 1
        self._taken.notify_all()

    def _serve(self, feed: _Feed) -> None:
        """Take the samples of one source: what its thread does."""
        me = threading.current_thread()
        try:
            while True:
                with self.lock:
                    mine = feed.thread is me
                    while mine and feed.asked == feed.taken and self._running and not feed.gone:
                        self._asked.wait()
                    if not mine or feed.asked == feed.taken or self._closed or feed.gone:
                        break
                    number = feed.asked
                    feed.began = began = time.monotonic()
                    feed.holds = True
                outcome = self._sample(feed)
                with self.lock:
                    feed.taken, feed.began, feed.answered = number, None, True
                    feed.failures = feed.failures + 1 if outcome.note is not None and not outcome.useful else 0
                    feed.due = began + feed.pause(self._interval)
                    self._complain(feed, outcome.note, logging.WARNING if outcome.failed else logging.INFO)
                    self._taken.notify_all()
                    self._tick.notify_all()
                self._log()
        finally:
            with self.lock:
                if feed.thread is me:
                    self._take_back(feed)
                    if not self._running:
                        self._ended.append(me)
        if self._closed:
            self._part(feed)
            if feed.whole is not None:
                self._part(feed.whole)

    def _sample(self, feed: _Feed) -> Outcome:
        token = self.table.begin_sample()
        try:
            sample = feed.source.survey()
            if isinstance(sample, Sample) and sample.parts is not None:
                self._list_parts(feed, sample.parts, token)
            if not feed.answered:
                self._wait_for_those_before(feed)
            return self._publisher.publish(feed.source, sample, token, ages=self._running)
        except Exception as error:  # whatever a source gets wrong is its own affair, and is kept
            fault: BaseException = error
        except BaseException as error:  # an interrupt is for whoever asked
            feed.raised = fault = error
        return self._publisher.fail(feed.source, fault, token, ages=self._running)

    def _wait_for_those_before(self, feed: _Feed) -> None:
        """So that nodes come in the order of the sources, and the first that reports one has it."""
        with self.lock:
            before = [other for other in self._feeds[: self._feeds.index(feed)] if other is not feed.whole]
            self._wait_for_first(before, _IN_ORDER)

    def _wait_for_first(self, feeds: list[_Feed], seconds: float) -> None:
        """Wait until each of these has answered once, if it has been asked; not for long."""
        deadline = time.monotonic() + seconds
        while any(not feed.answered and feed.asked > feed.taken for feed in feeds) and not self._closed:
            if not self._taken.wait(max(deadline - time.monotonic(), 0)):
                return

    def _list_parts(self, whole: _Feed, parts: Collection[Source], token: SampleToken) -> None:
        """Give each part that is new a feed, and take leave of those that are gone."""
        with self.lock:
            had = {feed.source: feed for feed in self._feeds if feed.whole is whole}
            new = [part for part in parts if part not in had]
            gone = [feed for part, feed in had.items() if part not in parts]
            if self._closed or not (new or gone):
                return
            kept = [feed for feed in self._feeds if feed not in gone]
            names = [feed.label for feed in kept] + [getattr(part, "label", part.name) for part in new]
            labels = _distinct(names)[len(kept) :]
            fresh = [_Feed(part, label, whole) for part, label in zip(new, labels, strict=True)]
            after = 1 + max(i for i, feed in enumerate(kept) if feed is whole or feed.whole is whole)
            self._feeds = kept[:after] + fresh + kept[after:]
            for feed in gone:
                feed.gone = True
                self._errors.pop(feed.label, None)
            self._asked.notify_all()
        for feed in gone:
            self._publisher.abandon(feed.source, f"source {whole.label!r} no longer lists it")
        with self.lock:
            for feed in fresh:
                feed.asked += 1
                try:
                    self._lend_thread(feed)
                except RuntimeError as error:  # no thread to be had; the keeper tries again
                    self._complain(feed, described(error))
            # What this sample says of them all, such as that there is no other, comes after their numbers.
            self._wait_for_first(fresh, _FIRST_PARTS)
            silent = [feed for feed in fresh if not feed.answered]
            for feed in silent:
                self._complain(feed, feed.note or _SILENT)
        for feed in silent:
            self._publisher.publish(feed.source, Sample(feed.source.expected), token, ages=False)

    def _part(self, feed: _Feed) -> None:
        """Let a source go of what it holds, once, and not while its thread, or one of a part, is in it."""
        with self.lock:
            if feed.thread is not None or feed.lent or not feed.holds:
                return
            feed.holds = False
        try:
            feed.source.close()
        except Exception as error:  # the source's own affair, and nobody is there to hear of it
            with self.lock:
                self._to_log.append((logging.WARNING, f"{feed.label}: close: {described(error)}"))
            self._log()

    def _complain(self, feed: _Feed, note: str | None, level: int = logging.WARNING) -> None:
        """Keep what there is to say of a source; have it logged where it is something new."""
        if note != feed.note:
            feed.note = note
            if note is None:
                self._errors.pop(feed.label, None)
                self._to_log.append((logging.INFO, f"{feed.label}: answers again"))
            else:
                self._errors[feed.label] = note
                self._to_log.append((level, f"{feed.label}: {note}"))
            notes = {backend: feed.note for feed in self._feeds for backend in feed.backends if feed.note}
            self.table._book.notes = notes

    def _log(self) -> None:
        """Log what there is, outside of our locks: a handler may take its time, or ask us something."""
        with self.lock:
            lines, self._to_log = self._to_log, []
        emit(log, lines)

    def _keep(self) -> None:
        """Say when sources are to be sampled, and age their numbers: what the keeper does."""
        while True:
            soonest = self._publisher.age(time.monotonic())
            with self.lock:
                if not self._running or self._keeper is not threading.current_thread():
                    return
                now = time.monotonic()
                for feed in self._feeds:
                    soonest = min(soonest, self._look_after(feed, now))
                if self._to_log:
                    # Not by this thread: a handler that takes its time would hold up the ageing.
                    with suppress(RuntimeError):  # no thread to be had: whoever logs next does it
                        threading.Thread(target=self._log, name="vramsel-log", daemon=True).start()
                self._tick.wait(min(max(soonest - time.monotonic(), 0.0) + 0.001, _LONGEST_NAP))

    def _look_after(self, feed: _Feed, now: float) -> float:
        """See to a source; returns when to do so again."""
        if feed.began is not None:
            if now - feed.began <= self._max_age:
                return feed.began + self._max_age
            self._complain(feed, _SILENT)
            return inf  # it is heard of when it answers
        if feed.asked == feed.taken:
            if feed.due > now:
                return feed.due
            feed.asked += 1
        try:
            self._lend_thread(feed)
        except RuntimeError as error:
            self._complain(feed, described(error))
            return now + _LONGEST_PAUSE
        self._asked.notify_all()
        return now + self._max_age


_running: weakref.WeakSet[Monitor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all threads before the interpreter does, which would end them wherever they are."""
    monitors = list(_running)
    for monitor in monitors:
        monitor._stop()
    deadline = time.monotonic() + _GOODBYE
    for monitor in monitors:
        monitor._finish(deadline)


def _seconds(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {shown(value)}")
    if not value > 0:
        raise ValueError(f"{what} must be above 0 seconds, got {value}")
    return float(value)


def _by_name(policy: Policies) -> dict[str, FitPolicy]:
    if policy is None or isinstance(policy, FitPolicy):
        return {}
    if not isinstance(policy, Mapping):
        raise TypeError(f"policy must be a FitPolicy or a mapping of them, not {type(policy).__name__}")
    for node, own in policy.items():
        if not isinstance(own, FitPolicy):
            raise TypeError(f"policy of node {shown(node)} must be a FitPolicy, not {type(own).__name__}")
    return {node_name(node): own for node, own in policy.items()}


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
