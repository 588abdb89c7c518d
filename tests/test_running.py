"""A monitor that runs: its threads, their independence, ageing, pauses, and the end."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from textwrap import dedent

import pytest

import vramsel as vs
from vramsel.sources import FixedSource, PoolReading, Reading, Sample, Source

GIB = 1 << 30
MINE = ("vramsel-",)


class Live(Source):
    """Answers as it is told; counts how often it is asked, and when."""

    def __init__(self, name: str = "live", node: str = "cpu") -> None:
        self.name = name
        self.node = node
        self.asked: list[float] = []
        self.free = 5
        self.error: BaseException | None = None
        self.block: threading.Event | None = None  # wait for this, if there is one
        self.closed = 0

    def sample(self) -> Iterable[Reading]:
        self.asked.append(time.monotonic())
        free, error = self.free, self.error
        if self.block is not None:
            self.block.wait(20)
        if error is not None:
            raise error
        return [Reading(self.node, free, 10)]

    def close(self) -> None:
        self.closed += 1


class Script(Source):
    """Plays back samples, one per refresh; an exception is raised."""

    def __init__(self, *steps: object, name: str = "script") -> None:
        self.name = name
        self.steps = list(steps)

    def sample(self) -> Iterable[Reading]:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, BaseException):
            raise step
        return step  # type: ignore[return-value]


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something that is to happen; how soon is not the question."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(MINE))


def status(monitor: vs.Monitor, placement: str, size: int = 1) -> str:
    return monitor.table.would_fit(placement, size).name


def reason(monitor: vs.Monitor, name: str) -> str | None:
    return monitor.table._book.nodes[monitor.table._node_index(name)].reason


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterable[None]:
    before = threads()
    yield
    until(lambda: threads() == before)


def test_threads_run_from_entry_to_exit() -> None:
    one, two = Live("one"), Live("two", "disk")
    monitor = vs.watch([one, two], 0.01, 1.0)
    assert threads() == []
    assert (len(one.asked), monitor.table.free.tolist()) == (1, [5, 5])
    with monitor as same:
        assert same is monitor
        assert threads() == ["vramsel-keeper", "vramsel-one", "vramsel-two"]
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith(MINE))
        one.free = 7
        until(lambda: monitor.table.free.tolist() == [7, 5])
        monitor.start()
        assert len(threads()) == 3, "starting twice starts nothing"
    assert threads() == []
    assert monitor.table.known.tolist() == [False, False]
    assert (one.closed, two.closed) == (1, 1)
    monitor.close()
    assert one.closed == 1
    for act in (monitor.start, monitor.refresh, monitor.__enter__):
        with pytest.raises(RuntimeError, match="closed"):
            act()


def test_a_monitor_that_is_closed_and_was_never_entered() -> None:
    source = Live()
    monitor = vs.watch([source])
    monitor.close()
    assert source.closed == 1
    assert status(monitor, "cpu") == "UNKNOWN"


def test_samples_keep_their_distance() -> None:
    source = Live()
    began = time.monotonic()
    with vs.watch([source], interval=0.05):
        time.sleep(0.5)
    elapsed = time.monotonic() - began
    assert 2 <= len(source.asked) <= elapsed / 0.05 + 1
    gaps = [b - a for a, b in itertools.pairwise(source.asked)]
    assert min(gaps) > 0.045


@pytest.mark.parametrize("hung", ["from the start", "later"])
def test_a_source_that_hangs_holds_up_nobody(hung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramsel.monitor._FIRST_ANSWER", 1.0)
    slow, good = Live("slow", "disk"), Live("good")
    event = threading.Event()
    if hung == "from the start":
        slow.block = event
    # The slow one comes first, and so is the first to be waited for.
    with vs.watch([slow, good], interval=0.02, max_age=0.3) as monitor:
        slow.block = event
        until(lambda: "slow" in monitor.errors and monitor.errors["slow"] == "does not answer")
        good.free = 9
        until(lambda: monitor.table.free[monitor.table.nodes.index("cpu")] == 9)
        if hung == "later":
            until(lambda: status(monitor, "disk") == "UNKNOWN")
            assert "last read" in reason(monitor, "disk")
        monitor.refresh()  # comes back
        assert status(monitor, "cpu") == "COMFORTABLE"
        slow.block = None
        event.set()
        until(lambda: "disk:0" in monitor.table.nodes and status(monitor, "disk") == "COMFORTABLE")
        until(lambda: "slow" not in monitor.errors)


def test_closing_does_not_wait_for_ever_and_late_numbers_are_not_published() -> None:
    source = Live()
    with vs.watch([source], interval=0.01) as monitor:
        source.block = threading.Event()
        asked = len(source.asked)
        until(lambda: len(source.asked) > asked)
        source.free = 8
    assert status(monitor, "cpu") == "UNKNOWN"
    assert threads() == ["vramsel-live"]
    assert source.closed == 0, "not while it is being asked"
    source.block.set()
    until(lambda: threads() == [])
    assert source.closed == 1
    assert status(monitor, "cpu") == "UNKNOWN"


def test_numbers_stay_until_they_are_too_old() -> None:
    source = Live()
    with vs.watch([source], interval=0.01, max_age=0.4) as monitor:
        source.error = OSError("no answer")
        failing = time.monotonic()
        until(lambda: monitor.errors)
        assert dict(monitor.errors) == {"live": "OSError: no answer"}
        if time.monotonic() < failing + 0.3:  # else this machine was too slow to look
            assert status(monitor, "cpu") == "COMFORTABLE"
            assert reason(monitor, "cpu") == "OSError: no answer"
        until(lambda: status(monitor, "cpu") == "UNKNOWN")
        assert time.monotonic() - source.asked[-1] < 20
        assert reason(monitor, "cpu").startswith("last read 0.")
        assert reason(monitor, "cpu").endswith("(OSError: no answer)")
        source.error, source.free = None, 6
        until(lambda: status(monitor, "cpu") == "COMFORTABLE")
        assert monitor.table.free.tolist() == [6]
        assert (dict(monitor.errors), reason(monitor, "cpu")) == ({}, None)


def test_without_a_keeper_a_failure_leaves_no_number() -> None:
    source = Live()
    monitor = vs.watch([source])
    source.error = OSError("no answer")
    monitor.refresh()
    assert status(monitor, "cpu") == "UNKNOWN"


def test_a_sample_that_took_too_long_is_none() -> None:
    class Slow(Live):
        def sample(self) -> Iterable[Reading]:
            time.sleep(0.3)
            return [Reading("cpu", 5, 10), Reading("disk", 5, 10, began=time.monotonic())]

    monitor = vs.watch([Slow()], interval=0.01, max_age=0.2)
    assert [status(monitor, name) for name in ("cpu", "disk")] == ["UNKNOWN", "COMFORTABLE"]
    assert "took too long" in reason(monitor, "cpu")


def test_began_lies_within_the_sample() -> None:
    early = time.monotonic()

    class Odd(Live):
        def sample(self) -> Iterable[Reading]:
            now = time.monotonic()
            return [
                Reading("cpu", 5, 10, began=early),
                Reading("disk", 5, 10, began=now + 9),
                Reading("cuda:0", 5, 10, began=now),
            ]

    monitor = vs.watch([Odd()])
    assert monitor.table.known.tolist() == [False, False, True]
    assert "began" in monitor.errors["live"]


def test_failing_sources_are_asked_less_and_less() -> None:
    source = Live()
    with vs.watch([source], interval=0.01) as monitor:
        source.error = OSError("x")
        asked = len(source.asked)
        until(lambda: len(source.asked) >= asked + 7)
        recent = source.asked[-6:]
        gaps = [b - a for a, b in itertools.pairwise(recent)]
        assert all(later > 1.5 * sooner for sooner, later in itertools.pairwise(gaps)) or gaps[-1] > 0.1
        (feed,) = monitor._feeds
        feed.failures = 10_000
        assert feed.pause(0.01) == 5.0
        assert feed.pause(60.0) == 60.0
        source.error = None
        monitor.refresh()
        assert (feed.failures, feed.pause(0.01)) == (0, 0.01)
        asked = len(source.asked)
        until(lambda: len(source.asked) >= asked + 5)


def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vramsel.monitor")
    source = Live()
    with vs.watch([source], interval=0.005) as monitor:
        for error in (OSError("one"), OSError("two"), None):
            source.error = error
            count = len(source.asked)
            monitor.refresh()
            until(lambda count=count: len(source.asked) > count + 3)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("WARNING", "live: OSError: one"),
        ("WARNING", "live: OSError: two"),
        ("INFO", "live: answers again"),
    ]


def test_a_lost_device_is_logged_when_it_goes_and_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    class Device(Live):
        def sample(self) -> Iterable[Reading]:
            return [Reading("cuda:0", lost=True, reason="off the bus") if self.error else Reading("cuda:0", 5, 10)]

    source = Device()
    monitor = vs.watch([source])
    for error in (OSError(), OSError(), None, None):
        source.error = error
        monitor.refresh()
    assert [record.getMessage() for record in caplog.records] == ["cuda:0 is lost: off the bus", "cuda:0 is back"]


def test_what_is_merely_absent_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing(Live):
        def sample(self) -> Sample:
            return Sample((), frozenset({"cuda"}), "no driver")

    source = Nothing()
    with vs.watch([source], interval=0.01) as monitor:
        assert dict(monitor.errors) == {"live": "no driver"}
        assert monitor._feeds[0].failures >= 1, "and it is asked less often"
        assert status(monitor, "cuda:0") == "WONT_FIT"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_refresh_is_a_sample_that_begins_later() -> None:
    source = Live()
    with vs.watch([source], interval=30.0, max_age=60.0) as monitor:
        for free in (1, 2, 3):
            source.free = free
            monitor.refresh()
            assert monitor.table.free.tolist() == [free]
        assert len(source.asked) == 4, "and not one sample more"
        source.block = threading.Event()
        first = threading.Thread(target=monitor.refresh)
        first.start()
        until(lambda: len(source.asked) == 5)  # it has read free = 3
        source.free = 4
        second = threading.Thread(target=monitor.refresh)
        second.start()
        until(lambda: monitor._feeds[0].asked > monitor._feeds[0].taken + 1)
        source.block.set()
        second.join(10)
        assert monitor.table.free.tolist() == [4]
        first.join(10)


def test_a_closed_monitor_lets_a_refresh_go() -> None:
    source = Live()
    monitor = vs.watch([source], max_age=30.0)
    source.block = threading.Event()
    waiting = threading.Thread(target=monitor.refresh)
    waiting.start()
    until(lambda: len(source.asked) == 2)
    monitor.close()
    waiting.join(10)
    assert not waiting.is_alive()
    source.block.set()


def test_interrupts_reach_whoever_asked() -> None:
    source = Live()
    with vs.watch([source], interval=30.0, max_age=60.0) as monitor:
        source.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            monitor.refresh()
        source.error = None
        monitor.refresh()
        assert status(monitor, "cpu") == "COMFORTABLE"


def test_a_source_that_cannot_close(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Live):
        def close(self) -> None:
            raise OSError("stuck")

    with vs.watch([Stuck(), FixedSource({"disk": (1, 2)})]):
        pass
    assert [record.getMessage() for record in caplog.records] == ["live: close: OSError: stuck"]


def test_several_monitors_beside_one_another() -> None:
    source = Live()
    with vs.watch([source], interval=0.01) as one, vs.watch([source], interval=0.01) as two:
        source.free = 3
        until(lambda: one.table.free[0] == two.table.free[0] == 3)
        one.close()
        source.free = 4
        until(lambda: two.table.free[0] == 4)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"interval": 0}, ValueError),
        ({"interval": -1.0}, ValueError),
        ({"interval": float("nan")}, ValueError),
        ({"interval": float("inf")}, ValueError),
        ({"interval": "1"}, TypeError),
        ({"interval": True}, TypeError),
        ({"max_age": 0.05}, ValueError),
        ({"max_age": None}, TypeError),
        ({"interval": 3.0}, ValueError),
    ],
)
def test_arguments(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"interval|max_age"):
        vs.watch([], **arguments)


def test_numbers_that_never_age() -> None:
    source = Live()
    with vs.watch([source], interval=0.01, max_age=float("inf")) as monitor:
        source.error = OSError("x")
        until(lambda: monitor.errors)
        assert status(monitor, "cpu") == "COMFORTABLE"


# ---- parts ------------------------------------------------------------------------------------


class Parts(Source):
    """Several devices, each a part."""

    name = "whole"

    def __init__(self, count: int) -> None:
        self.parts = [Live(f"part {i}", f"cuda:{i}") for i in range(count)]
        self.listed = list(self.parts)

    def sample(self) -> Sample:
        raise AssertionError("a monitor surveys")

    def survey(self) -> Sample:
        return Sample((), frozenset({"cuda"}), parts=tuple(self.listed))


def test_parts_are_sampled_beside_one_another() -> None:
    whole = Parts(3)
    monitor = vs.watch([whole, FixedSource({"cpu": (1, 2)})], interval=0.01, max_age=0.3)
    assert monitor.table.nodes == ("cuda:0", "cuda:1", "cuda:2", "cpu")
    assert monitor.table.known.all()
    assert (status(monitor, "cuda:3"), threads()) == ("WONT_FIT", [])
    with monitor:
        assert len(threads()) == 6
        whole.parts[1].block = threading.Event()
        until(lambda: status(monitor, "cuda:1") == "UNKNOWN")
        whole.parts[0].free, whole.parts[2].free = 6, 7
        until(lambda: monitor.table.free.tolist()[:3:2] == [6, 7])
        until(lambda: dict(monitor.errors) == {"part 1": "does not answer"})
        whole.parts[1].block.set()
        until(lambda: status(monitor, "cuda:1") == "COMFORTABLE")


def test_a_part_that_hangs_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramsel.monitor._FIRST_PARTS", 0.5)
    whole = Parts(2)
    whole.parts[0].block = threading.Event()
    with vs.watch([whole], interval=0.01, max_age=1.0) as monitor:
        assert monitor.table.nodes == ("cuda:1",)
        until(lambda: status(monitor, "cuda:1") == "COMFORTABLE")
        whole.parts[0].block.set()
        until(lambda: status(monitor, "cuda:0") == "COMFORTABLE")


def test_parts_come_and_go() -> None:
    whole = Parts(3)
    whole.listed = whole.parts[:1]
    with vs.watch([whole], interval=0.01) as monitor:
        assert (status(monitor, "cuda:0"), status(monitor, "cuda:1")) == ("COMFORTABLE", "WONT_FIT")
        whole.listed = whole.parts[1:]
        until(lambda: status(monitor, "cuda:2") == "COMFORTABLE")
        until(lambda: status(monitor, "cuda:0") == "WONT_FIT")
        assert "no longer lists" in reason(monitor, "cuda:0")
        until(lambda: len(threads()) == 4)
        whole.listed = whole.parts
        until(lambda: status(monitor, "cuda:0") == "COMFORTABLE")


# ---- the end of processes -----------------------------------------------------------------------


def run(script: str, *, code: int = 0) -> str:
    command = [sys.executable, "-P", "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("block", ["0", "30"])
def test_the_interpreter_ends_with_a_monitor_that_runs(block: str) -> None:
    out = run(f"""
        import time, vramsel as vs
        from vramsel.sources import Reading, Source
        class Slow(Source):
            name = "slow"
            times = 0
            def sample(self):
                self.times += 1
                if self.times > 1:
                    time.sleep({block})
                return [Reading("cpu", 5, 10)]
        monitor = vs.watch([Slow()], interval=0.01)
        monitor.start()
        time.sleep(0.1)
        print(monitor.table.would_fit("cpu", 1).name)
    """)
    assert out == "COMFORTABLE\n"


FORK = """
    import json, os, sys, threading, time
    import vramsel as vs
    from vramsel.sources import Reading, Source

    class Live(Source):
        name = "live"
        pids = []
        def sample(self):
            self.pids.append(os.getpid())
            return [Reading("cpu", 50, 100), Reading("cuda:0", lost=True)]

    def child(work):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(writer)
        answer = os.fdopen(reader).read()
        assert os.waitpid(pid, 0)[1] == 0
        return json.loads(answer)

    def look(monitor):
        return [monitor.table.would_fit(p, 1).name for p in ("cpu", "cuda:0", "disk")] + [threading.active_count()]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork() on this system")
def test_a_forked_child_is_quiet_and_may_start_its_own() -> None:
    out = run(
        FORK
        + """
    source = Live()
    with vs.watch([source], interval=0.01) as monitor:
        monitor.table.add_node("disk", 50, 100)
        token = monitor.table.begin_sample()

        def in_child():
            seen = [look(monitor), len(Live.pids)]
            time.sleep(0.1)
            seen += [look(monitor), len(Live.pids) - seen[1]]
            seen.append(monitor.table.publish(token, "cpu", 1, 2))
            reason = monitor.table._book.nodes[0].reason
            with vs.watch([Live()], interval=0.01) as own:
                seen.append(look(own)[0])
            monitor.refresh()
            seen.append(look(monitor)[:2])
            monitor.start()
            time.sleep(0.05)
            seen.append(look(monitor)[0])
            seen.append(child(lambda: look(monitor)))
            monitor.close()
            seen.append(threading.active_count())
            return [seen, reason]

        answers = [child(in_child) for _ in range(3)]
        parent = look(monitor)
    print(json.dumps([answers, parent]))
    """
    )
    answers, parent = json.loads(out)
    assert parent == ["COMFORTABLE", "WONT_FIT", "COMFORTABLE", 3]
    quiet = ["UNKNOWN", "UNKNOWN", "COMFORTABLE", 1]
    for (first, _, second, asked, published, own, refreshed, started, grandchild, threads_left), why in answers:
        assert first == second == grandchild == quiet
        assert (asked, published) == (0, False)
        assert (own, refreshed, started) == ("COMFORTABLE", ["COMFORTABLE", "WONT_FIT"], "COMFORTABLE")
        assert threads_left == 1
        assert "forked" in why


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork() on this system")
def test_a_fork_while_every_lock_is_held() -> None:
    out = run(
        FORK
        + """
    with vs.watch([Live()], interval=0.001) as monitor:
        held, leave = threading.Barrier(3), threading.Event()
        def hold(lock):
            with lock:
                held.wait()
                leave.wait()
        for lock in (monitor.lock, monitor.table._book.lock):
            threading.Thread(target=hold, args=(lock,), daemon=True).start()
        held.wait()
        answers = [child(lambda: look(monitor)) for _ in range(2)]
        leave.set()
    print(json.dumps(answers))
    """
    )
    assert json.loads(out) == 2 * [["UNKNOWN", "UNKNOWN", "UNKNOWN", 1]]


# ---- what hostile readers found -------------------------------------------------------------------


def logged(handler: logging.Handler) -> Iterable[None]:
    log = logging.getLogger("vramsel.monitor")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


with_handler = contextmanager(logged)


def test_a_slow_source_costs_the_others_no_number() -> None:
    slow, good = Live("slow", "disk"), Live("good")
    monitor = vs.watch([good, slow], interval=0.05, max_age=0.2)
    slow.block = threading.Event()
    monitor.refresh()  # waits for it longer than a number may be old
    assert status(monitor, "cpu") == "COMFORTABLE"
    assert status(monitor, "disk") == "UNKNOWN", "nobody has read it again"
    slow.block.set()


def test_what_is_old_when_a_monitor_is_entered_is_read_again_first() -> None:
    source = Live()
    monitor = vs.watch([source], interval=0.05, max_age=0.2)
    time.sleep(0.3)
    with monitor:
        assert status(monitor, "cpu") == "COMFORTABLE"


def test_entering_does_not_wait_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramsel.monitor._FIRST_PARTS", 0.3)
    whole, host = Parts(2), Live("host")
    whole.parts[1].block = threading.Event()
    with vs.watch([host, whole], interval=0.05, max_age=0.6) as monitor:
        assert [status(monitor, place) for place in ("cpu", "cuda:0")] == ["COMFORTABLE"] * 2
        whole.parts[1].block.set()


def test_a_part_that_has_not_answered_is_there_and_unknown() -> None:
    whole = Parts(2)
    for i, part in enumerate(whole.parts):
        part.expected = (Reading(f"cuda:{i}", reason="not yet"),)
    whole.parts[1].block = threading.Event()
    monitor = vs.watch([whole], max_age=5.0)
    assert [status(monitor, f"cuda:{i}") for i in range(3)] == ["COMFORTABLE", "UNKNOWN", "WONT_FIT"]
    assert (reason(monitor, "cuda:1"), monitor.errors["part 1"]) == ("not yet", "does not answer")
    whole.parts[1].block.set()
    monitor.refresh()
    assert status(monitor, "cuda:1") == "COMFORTABLE"
    assert dict(monitor.errors) == {}


def test_handlers_of_the_log_may_do_as_they_like() -> None:
    class Curious(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(0.02)
            dict(monitor.errors)

    source = Live()
    log = logging.getLogger("vramsel.monitor")
    with vs.watch([source], interval=0.005) as monitor, with_handler(Curious()):
        for i in range(15):
            source.error = OSError(str(i)) if i % 2 else None
            log.warning("any record through the same handler")
            time.sleep(0.01)
    assert monitor.table.known.tolist() == [False]


def test_a_handler_that_takes_its_time_holds_up_no_ageing() -> None:
    leave = threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            leave.wait(20)

    sick, hung = Live("sick", "disk"), Live("hung")
    with vs.watch([sick, hung], interval=0.02, max_age=0.2) as monitor, with_handler(Slow()):
        sick.error = OSError("x")
        hung.block = leave
        until(lambda: monitor.table.known.tolist() == [False, False])
        leave.set()


def test_a_handler_that_raises_stops_nobody(capsys: pytest.CaptureFixture) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("handler")

    source, hung = Live(), Live("hung", "disk")
    with vs.watch([source, hung], interval=0.02, max_age=0.2) as monitor:
        with with_handler(Broken()):
            hung.block = threading.Event()
            source.error = OSError("x")
            until(lambda: len(monitor.errors) == 2)
            hung.block.set()
            source.error = None
            until(lambda: not monitor.errors)
        until(lambda: monitor.table.known.all())
        source.block = threading.Event()
        until(lambda: status(monitor, "cpu") == "UNKNOWN")
        source.block.set()
    assert "handler" in capsys.readouterr().err


def test_an_error_that_cannot_be_shown_ends_no_thread() -> None:
    class Mean(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise SystemExit("boo")

    source = Live()
    with vs.watch([source], interval=0.01, max_age=0.2) as monitor:
        source.error = Mean()
        until(lambda: monitor.errors)
        source.error = None
        until(lambda: not monitor.errors)
        until(lambda: status(monitor, "cpu") == "COMFORTABLE")


def test_a_thread_that_cannot_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramsel.monitor._LONGEST_PAUSE", 0.05)
    start, none = threading.Thread.start, threading.Event()

    def poor(self: threading.Thread) -> None:
        if none.is_set() and "part" in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", poor)
    whole = Parts(2)
    whole.listed = whole.parts[:1]
    with vs.watch([whole], interval=0.01) as monitor:
        none.set()
        whole.listed = whole.parts
        until(lambda: "can't start" in monitor.errors.get("part 1", ""))
        none.clear()
        until(lambda: status(monitor, "cuda:1") == "COMFORTABLE")
    none.set()
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("none")))
    with pytest.raises(RuntimeError, match="none"):
        vs.watch([Live()])


def test_a_close_that_was_interrupted_can_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Live()
    monitor = vs.watch([source], interval=0.01)
    monitor.start()
    monkeypatch.setattr(monitor._publisher, "forget_all", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        monitor.close()
    monkeypatch.undo()
    monitor.close()
    assert (status(monitor, "cpu"), source.closed) == ("UNKNOWN", 1)
    monitor.table.update("cpu", 5, 10)
    monitor.close()
    assert status(monitor, "cpu") == "COMFORTABLE", "what the caller says after the end stays"


def test_a_source_that_hangs_in_its_close_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramsel.monitor._GOODBYE", 0.1)
    leave = threading.Event()

    class Stuck(Live):
        def close(self) -> None:
            leave.wait(20)

    for enter in (False, True):
        monitor = vs.watch([Stuck()], interval=0.01)
        if enter:
            monitor.start()
        monitor.close()
        assert not leave.is_set()
    leave.set()


def test_a_shared_reading_takes_nobodys_placement() -> None:
    own = Script([Reading("gpu", 5, 10, placements=("cuda:0",)), Reading("cpu", 100, 200)])
    monitor = vs.watch([own, Script([Reading("dev", shares="cpu", placements=("cuda:0",))], name="taker")])
    assert "already" in monitor.errors["taker"]
    assert monitor.table._book.placements[vs.Placement("cuda:0")] == 0
    monitor = vs.watch(
        [Script([Reading("cpu", 100, 200)]), Script(OSError("x"), [Reading("cuda:0", shares="cpu")], name="b")]
    )
    monitor.table.add_node("cuda:0", 5, 10)
    monitor.refresh()
    assert "already" in monitor.errors["b"]
    assert monitor.table.would_fit("cuda:0", 6).name == "WONT_FIT"
    first = Script([Reading("cuda:0", shares="cpu")], name="first")
    monitor = vs.watch([Script([Reading("cpu", 100, 200)]), first, Script([Reading("cuda:0", 5, 10)], name="second")])
    monitor.refresh()
    assert list(monitor.errors) == ["second"]


def test_pools_that_are_not_read_any_more_count_for_nothing() -> None:
    pool = PoolReading("torch:0", idle=100, limit=150, used=10)
    monitor = vs.watch([Script([Reading("cuda:0", 10, 200, pools=(pool,))], [Reading("cuda:0", 10, 200)])])
    assert monitor.table.would_fit("torch:0", 90).name != "WONT_FIT"
    monitor.refresh()
    assert [monitor.table.would_fit("torch:0", size).name for size in (10, 11)] == ["TIGHT", "WONT_FIT"]
    host = Reading("cpu", 100, 200)
    card = Reading("cuda:0", shares="cpu", pools=(PoolReading("torch:0"),))
    gone = Reading("cuda:0", lost=True)
    monitor = vs.watch([Script([host]), Script([card], [Reading("cuda:0", shares="cpu")], [gone], name="b")])
    monitor.refresh()
    monitor.refresh()
    assert [status(monitor, place) for place in ("cuda:0", "torch:0", "cpu")] == ["WONT_FIT", "WONT_FIT", "COMFORTABLE"]


def test_very_long_intervals() -> None:
    with vs.watch([Live()], interval=1e10, max_age=float("inf")) as monitor:
        time.sleep(0.05)
        assert monitor._keeper.is_alive()


def test_a_source_that_hangs_without_ever_a_number_is_told() -> None:
    class Nothing(Live):
        def sample(self) -> Iterable[Reading]:
            super().sample()
            return []

    source = Nothing()
    with vs.watch([source], interval=0.01, max_age=0.2) as monitor:
        source.block = threading.Event()
        until(lambda: dict(monitor.errors) == {"live": "does not answer"})
        source.block.set()


def test_texts_of_shared_readings_are_one_line() -> None:
    monitor = vs.watch([Script([Reading("a\nb", shares="cpu", placements=("cuda:0",), uuid=b"\xff")])])  # type: ignore[arg-type]
    assert "\n" not in reason(monitor, "cpu")
    assert isinstance(monitor.table._book.devices[vs.Placement("cuda:0")].uuid, str)
