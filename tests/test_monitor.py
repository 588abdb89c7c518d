"""Sources that touch no device, and the monitor that fills a table from them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable

import pytest

import vramsel as vs
from vramsel.decision import explain
from vramsel.sources import CallbackSource, FixedSource, HostSource, Reading, Sample, Source

GIB = 1 << 30


class Script(Source):
    """Plays back samples, one per refresh; an exception is raised."""

    def __init__(self, *steps: object, name: str = "script") -> None:
        self.name = name
        self.steps = list(steps)

    def sample(self) -> Sample | Iterable[Reading]:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, BaseException):
            raise step
        return step  # type: ignore[return-value]


def node(monitor: vs.Monitor, name: str) -> object:
    return monitor.table._book.nodes[monitor.table._node_index(name)]


def status(monitor: vs.Monitor, placement: str, size: int = 1) -> str:
    return monitor.table.would_fit(placement, size).name


def test_fixed() -> None:
    source = FixedSource({"cuda:0": ("10GiB", 24 * GIB), "cpu:0": (None, 1)}, enumerated=["cuda"])
    with vs.watch([source]) as monitor:
        assert monitor.table.nodes == ("cuda:0", "cpu")
        assert monitor.table.free.tolist() == [10 * GIB, 0]
        assert monitor.table.known.tolist() == [True, False]
        assert status(monitor, "cuda:1") == "WONT_FIT"
        assert dict(monitor.errors) == {}
    assert FixedSource({"cpu": None}).sample().readings == (Reading("cpu"),)
    for bad, error in (
        ({"cpu": (1,)}, TypeError),
        ({"cpu": (1, 2, 3)}, TypeError),
        (None, TypeError),
        (["cpu"], TypeError),
        ({"cuda:0": (-1, 1)}, ValueError),
        ({"what:0": (1, 1)}, ValueError),
        ({"cpu": (1.5, 1)}, TypeError),
    ):
        with pytest.raises(error):
            FixedSource(bad)


def test_fixed_knows_its_backends() -> None:
    with pytest.raises(TypeError, match="several"):
        FixedSource({}, enumerated="cuda")
    with pytest.raises(vs.UnknownBackendError):
        FixedSource({}, enumerated=["nope"])


def test_callback() -> None:
    class Runtime(vs.BackendRuntime):
        asked = 0

        def available_bytes(self) -> int:
            Runtime.asked += 1
            return 5

        def total_bytes(self) -> int:
            return 10

    class Broken(vs.BackendRuntime):
        def available_bytes(self) -> int:
            raise OSError("no answer")

    class Silly(vs.BackendRuntime):
        def available_bytes(self) -> float:  # type: ignore[override]
            return 0.5

    answers = {(1, 0): Runtime(), (1, 1): None, (1, 2): Broken(), (2, 0): vs.BackendRuntime(), (3, 0): Silly()}
    source = CallbackSource(lambda b, d: answers[b, d], ["cuda:0", "cuda:1", "cuda:2", ("vulkan", 0), "metal:0", "cpu"])
    monitor = vs.watch([source])
    assert monitor.table.known.tolist() == [True, False, False, False, False, False]
    reasons = [node(monitor, name).reason for name in monitor.table.nodes]
    assert reasons[0] is None
    assert "no runtime" in reasons[1]
    assert reasons[2] == "OSError: no answer"
    assert "cannot tell" in reasons[3]
    assert "free of node" in reasons[4]
    assert reasons[5].startswith("KeyError")
    assert Runtime.asked == 1
    monitor.table.select(vs.AlternativeSet([vs.Candidate("cuda:0", 1)]))
    assert Runtime.asked == 1, "a select asks nobody"
    monitor.refresh()
    assert Runtime.asked == 2
    assert status(monitor, "cuda:9") == "UNKNOWN", "a callback's None is not absence"


def test_callback_placements() -> None:
    for wrong in ("cpu", 3, None):
        with pytest.raises(TypeError, match="placements"):
            CallbackSource(lambda b, d: None, wrong)
    with pytest.raises(TypeError, match="lookup"):
        CallbackSource(None, ["cpu"])


def test_a_sources_fault_is_its_own() -> None:
    good = FixedSource({"cpu": (5, 10)})
    flaky = Script(
        Sample((Reading("cuda:0", 5, 10), Reading("cuda:1", 5, 10))),
        RuntimeError("bus\nerror"),
        Sample((Reading("cuda:0", 6, 10),)),
        Sample((Reading("cuda:0", 6, 10), Reading("cuda:1", 7, 10))),
    )
    monitor = vs.watch([flaky, good])
    assert [status(monitor, p) for p in ("cuda:0", "cuda:1", "cpu")] == ["COMFORTABLE"] * 3
    monitor.refresh()
    assert [status(monitor, p) for p in ("cuda:0", "cuda:1", "cpu")] == ["UNKNOWN", "UNKNOWN", "COMFORTABLE"]
    assert dict(monitor.errors) == {"script": "RuntimeError: bus error"}
    assert node(monitor, "cuda:0").reason == "RuntimeError: bus error"
    monitor.refresh()
    assert [status(monitor, p) for p in ("cuda:0", "cuda:1")] == ["COMFORTABLE", "UNKNOWN"]
    assert "no longer" in node(monitor, "cuda:1").reason
    assert dict(monitor.errors) == {}
    monitor.refresh()
    assert monitor.table.free.tolist() == [6, 7, 5]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnprintableError(), "UnprintableError: a UnprintableError that cannot be printed"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("\n\n real\ttext \x1b[1m"), "RuntimeError: real text ?[1m"),
        (KeyError("key"), "KeyError: 'key'"),
    ],
)
def test_every_fault_is_one_line(error: Exception, text: str) -> None:
    def boom(backend: int, device: int) -> None:
        if device == 0:
            raise error

    monitor = vs.watch([Script(error), CallbackSource(boom, ["cuda:0", "cuda:1"])])
    assert monitor.errors["script"] == text
    assert node(monitor, "cuda:0").reason == text
    assert "no runtime" in node(monitor, "cuda:1").reason
    monitor = vs.watch([Script(Sample((Reading("cpu", reason="a\nb"),), note="c\nd"))])  # type: ignore[arg-type]
    assert (node(monitor, "cpu").reason, monitor.errors["script"]) == ("a b", "c d")


def test_a_readings_fault_is_its_nodes() -> None:
    good, bad = Reading("cuda:0", 5, 10), Reading("cuda:1", -1, 10)
    monitor = vs.watch([Script([good, bad], [good, Reading("cuda:1", 5, 10)], [bad, good], [bad, "x", good])])
    assert monitor.table.nodes == ("cuda:0", "cuda:1"), "the device is there, whatever its numbers"
    assert (status(monitor, "cuda:0"), status(monitor, "cuda:1")) == ("COMFORTABLE", "UNKNOWN")
    assert monitor.errors["script"] == "ValueError: free of node 'cuda:1' must not be negative, got -1"
    monitor.refresh()
    assert (monitor.table.known.tolist(), dict(monitor.errors)) == ([True, True], {})
    for _ in range(2):
        monitor.refresh()
        assert monitor.table.known.tolist() == [True, False]
        assert "negative" in node(monitor, "cuda:1").reason


class Hostile:
    def __index__(self) -> int:
        raise RuntimeError("no number")


def test_no_bad_reading_leaves_an_old_number() -> None:
    cuda = frozenset({"cuda"})
    good, bad = Reading("cuda:0", 5, 10), Reading("cuda:0", Hostile(), 10)  # type: ignore[arg-type]
    monitor = vs.watch([Script([good], [bad], Sample((), cuda), Sample((bad,), cuda))])
    seen = []
    for _ in range(4):
        seen.append(status(monitor, "cuda:0"))
        monitor.refresh()
    assert seen == ["COMFORTABLE", "UNKNOWN", "WONT_FIT", "UNKNOWN"]
    assert status(vs.watch([Script(Sample((bad,), cuda))]), "cuda:0") == "UNKNOWN", "listed, so not absent"


def boom() -> Iterable[Reading]:
    yield Reading("cuda:0", 5, 10)
    raise OSError("half way")


@pytest.mark.parametrize("readings", [boom(), None, 3])
def test_readings_that_cannot_be_listed(readings: object) -> None:
    monitor = vs.watch([Script(Sample(readings)), FixedSource({"cpu": (5, 10)})])  # type: ignore[arg-type]
    assert "script" in monitor.errors
    assert monitor.table.nodes == ("cpu",)


def test_what_the_caller_maps_does_not_hide_that_a_device_is_gone() -> None:
    cuda = frozenset({"cuda"})
    monitor = vs.watch([Script(Sample((Reading("cuda:0", 50, 100), Reading("gpu", 5, 9, ()))), Sample((), cuda))])
    monitor.table.map("torch:0", "cuda:0")
    monitor.refresh()
    assert (status(monitor, "cuda:0"), status(monitor, "torch:0")) == ("WONT_FIT", "WONT_FIT")
    assert monitor.table._columns()[4].tolist() == [True, False], "a node without placements is merely unknown"


def test_notes_are_those_of_the_last_refresh() -> None:
    class Flaky(Script):
        backends = ("cuda",)

    def why() -> str | None:
        (verdict,) = explain(monitor.table, vs.AlternativeSet([vs.Candidate("cuda:0", 1)])).verdicts
        return verdict.detail

    healthy = Flaky([], name="healthy")
    monitor = vs.watch([Flaky(OSError("no answer"), []), healthy])
    assert why() == "OSError: no answer", "a healthy source of the same backend does not silence it"
    monitor.refresh()
    assert why() is None


def test_new_devices_appear_with_their_numbers() -> None:
    """A select during a refresh never meets a device that is listed and not yet measured."""
    cuda = frozenset({"cuda"})
    full = tuple(Reading(f"cuda:{i}", 0, 100) for i in range(300))
    alternatives = vs.AlternativeSet([vs.Candidate("cuda:299", 10), vs.Candidate("cpu", 10)])
    for _ in range(5):
        monitor = vs.watch([FixedSource({"cpu": (90, 100)}), Script(Sample((), cuda), Sample(full, cuda))])
        thread = threading.Thread(target=monitor.refresh)
        thread.start()
        picks = set()
        while thread.is_alive():
            picks.add(monitor.table.select(alternatives))
        thread.join()
        assert picks <= {1}


def test_names_have_one_spelling() -> None:
    strict = vs.FitPolicy(tight_fraction=0.1)
    source = Script([Reading("cpu:0", 50, 100)], [Reading("cpu", 40, 100)], name="one")
    monitor = vs.watch([source, Script([Reading("cpu", 1, 1)], name="two")], policy={"cpu": strict})
    assert (status(monitor, "cpu"), monitor.table.free.tolist()) == ("TIGHT", [50])
    assert "reported by source 'one'" in monitor.errors["two"]
    monitor.refresh()
    assert monitor.table.free.tolist() == [40]


def test_a_device_that_leaves_a_complete_enumeration_is_gone() -> None:
    cuda = frozenset({"cuda"})
    both = (Reading("cuda:0", 50, 100), Reading("cuda:1", 50, 100))
    source = Script(
        Sample(both, cuda),
        Sample(both[:1], cuda),
        Sample((), cuda, "no device"),
        Sample((both[0], Reading("cuda:1", reason="no context")), cuda),
        Sample(both[:1]),
    )
    monitor = vs.watch([source])
    seen = []
    for _ in range(5):
        seen.append((status(monitor, "cuda:0"), status(monitor, "cuda:1")))
        monitor.refresh()
    assert seen == [
        ("COMFORTABLE", "COMFORTABLE"),
        ("COMFORTABLE", "WONT_FIT"),
        ("WONT_FIT", "WONT_FIT"),
        ("COMFORTABLE", "UNKNOWN"),  # it is back, though without a number
        ("COMFORTABLE", "UNKNOWN"),  # not a complete sample: who knows
    ]


def test_age_runs_from_when_the_sample_began() -> None:
    times = []

    class Clock(Source):
        name = "clock"

        def sample(self) -> list[Reading]:
            times.append(time.monotonic())
            return [Reading("cpu", 1, 9), Reading("cuda:0"), Reading("cuda:1", lost=True)]

    before = time.monotonic()
    monitor = vs.watch([Clock()])
    for name in monitor.table.nodes:
        assert before <= node(monitor, name).sampled_at <= times[0]


def test_refreshing_from_several_threads() -> None:
    """Turns are taken: no error, and never an older number after a newer one."""
    count = itertools.count(1)

    class Counting(Source):
        name = "counting"

        def sample(self) -> list[Reading]:
            number = next(count)
            return [Reading(f"cuda:{i}", number, 10**9) for i in range(number % 50)]

    monitor = vs.watch([Counting(), FixedSource({"cpu": (5, 10)})])
    raised: list[BaseException] = []
    free: list[int] = []

    def work() -> None:
        try:
            for _ in range(40):
                monitor.refresh()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        free.append(int(monitor.table.free[0]))
    for thread in threads:
        thread.join()
    assert raised == []
    assert dict(monitor.errors) == {}
    numbers = [number for number in free if number]  # 0: not in that sample, so unknown
    assert numbers == sorted(numbers)


def test_a_source_that_reaches_for_its_monitor() -> None:
    class Meddler(Source):
        name = "meddler"
        monitor: vs.Monitor | None = None

        def sample(self) -> list[Reading]:
            if self.monitor is not None:
                getattr(self.monitor, self.act)()
            return [Reading("cuda:0", 5, 10)]

    source = Meddler()
    monitor = vs.watch([source, FixedSource({"cpu": (5, 10)})])
    source.monitor = monitor
    for source.act in ("refresh", "close"):
        monitor.refresh()
        assert "must not" in monitor.errors["meddler"]
        assert status(monitor, "cpu") == "COMFORTABLE"


def test_nothing_is_published_after_closing() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Source):
        name = "slow"
        first = True

        def sample(self) -> list[Reading]:
            if not self.first:
                entered.set()
                leave.wait(10)
            self.first = False
            return [Reading("cpu", 5, 10)]

    monitor = vs.watch([Slow()])
    refreshing = threading.Thread(target=monitor.refresh)
    closing = threading.Thread(target=monitor.close)
    refreshing.start()
    assert entered.wait(10)
    closing.start()
    leave.set()
    for thread in (refreshing, closing):
        thread.join()
    assert monitor.table.known.tolist() == [False]


def test_interrupts_are_not_faults() -> None:
    with pytest.raises(KeyboardInterrupt):
        vs.watch([Script(KeyboardInterrupt())])


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Sample((Reading("cuda:0", -1, 10),)), "free of node 'cuda:0'"),
        (Sample((Reading("cuda:0", 1.5, 10),)), "free of node 'cuda:0'"),  # type: ignore[arg-type]
        (Sample((Reading("cuda:x", 1, 10),)), "cuda:x"),
        (Sample((Reading("what:0", 1, 10),)), "what"),
        (Sample((Reading("gpu", 1, 10, placements=("cpu",)),)), "cpu"),
        (Sample((Reading("cpu", 1, 10),)), "reported by"),
        (Sample((("cuda:0", 1, 10),)), "Readings"),  # type: ignore[arg-type]
        (Sample((), frozenset({"what"})), "what"),
        (3, "int"),
    ],
)
def test_a_source_that_talks_nonsense(sample: object, words: str) -> None:
    monitor = vs.watch([FixedSource({"cpu": (5, 10)}), Script(sample)])
    assert words in monitor.errors["script"]
    assert "\n" not in monitor.errors["script"]
    assert monitor.table.free.tolist()[0] == 5
    assert status(monitor, "cpu") == "COMFORTABLE"


def test_readings_are_judged() -> None:
    readings = [
        Reading("cuda:0", 55 * GIB, 32 * GIB),
        Reading("cuda:1", 17, 16),
        Reading("cuda:2", 0, 0),
        Reading("cuda:3", 0, 16),
        Reading("cuda:4", 34, 32),
        Reading("cuda:5", 35, 32),
        Reading("cuda:6", 5, None),
        Reading("cuda:7", 255, 240),
        Reading("cuda:8", 256, 240),
        Reading("cuda:9", "1KiB", "1 MiB"),
        Reading("cuda:10", 0, 0, reason="asleep"),
    ]
    monitor = vs.watch([Script(readings)])
    assert monitor.table.known.tolist() == [False, True, False, True, True, False, True, True, False, True, False]
    assert monitor.table.free.tolist() == [0, 16, 0, 0, 32, 0, 5, 240, 0, 1024, 0]
    assert node(monitor, "cuda:10").reason == "asleep"
    assert "discarded" in node(monitor, "cuda:0").reason
    assert "0 of 0" in node(monitor, "cuda:2").reason


def test_lost_until_a_number_comes_back() -> None:
    lost = Reading("cuda:0", lost=True, reason="fell off the bus")
    monitor = vs.watch(
        [Script([lost], [Reading("cuda:0", reason="no answer")], OSError("x"), [Reading("cuda:0", 5, 10)])]
    )
    assert status(monitor, "cuda:0") == "WONT_FIT"
    for _ in range(2):
        monitor.refresh()
        assert status(monitor, "cuda:0") == "WONT_FIT"
        assert node(monitor, "cuda:0").reason == "fell off the bus"
    monitor.refresh()
    assert status(monitor, "cuda:0") == "COMFORTABLE"
    assert node(monitor, "cuda:0").reason is None


def test_policies() -> None:
    strict = vs.FitPolicy(tight_fraction=0.1)
    source = FixedSource({"cpu": (50, 100), "cuda:0": (50, 100)})
    assert status(vs.watch([source], policy=strict), "cpu") == "TIGHT"
    monitor = vs.watch([source], policy={"cpu:0": strict})
    assert (status(monitor, "cpu"), status(monitor, "cuda:0")) == ("TIGHT", "COMFORTABLE")
    for wrong in (3, {"cpu": 3}, "strict"):
        with pytest.raises(TypeError, match="policy"):
            vs.watch([source], policy=wrong)


def test_closing() -> None:
    with vs.watch([FixedSource({"cpu": (5, 10), "cuda:0": (5, 10)})]) as monitor:
        table = monitor.table
        table.mark_lost("cuda:0")
    assert table.known.tolist() == [False, False]
    assert (table.would_fit("cpu", 1), table.would_fit("cuda:0", 1)) == (3, 3)
    monitor.close()
    with pytest.raises(RuntimeError, match="closed"):
        monitor.refresh()
    with pytest.raises(RuntimeError, match="closed"), monitor:
        pass
    assert "closed" in repr(monitor)


def test_two_sources_of_one_name() -> None:
    names = ["x", "x#2", "x", "y"]
    monitor = vs.watch([Script(OSError(str(i)), name=name) for i, name in enumerate(names)])
    assert dict(monitor.errors) == {"x": "OSError: 0", "x#2": "OSError: 1", "x#3": "OSError: 2", "y": "OSError: 3"}


def test_what_is_no_source() -> None:
    with pytest.raises(TypeError, match="Source"):
        vs.watch([list])  # type: ignore[list-item]


def test_a_source_of_ones_own() -> None:
    """The example of the documentation: a source is a name and a `sample`."""

    class Accelerator(Source):
        name = "npu-tool"

        def sample(self) -> Iterable[Reading]:
            yield Reading("npu:0", free=3 * GIB, total=8 * GIB, device_name="NPU 9000")

    vs.register_backend("npu")
    with vs.watch([HostSource(), Accelerator()]) as monitor:
        wanted = vs.AlternativeSet([vs.Candidate("npu:0", 4 * GIB), vs.Candidate("npu:0", GIB)])
        assert monitor.table.select(wanted) == 1


def test_the_default_watch_sees_this_machine() -> None:
    with vs.watch() as monitor:
        assert monitor.table.nodes[0] == "cpu"
        assert status(monitor, "cpu") == "COMFORTABLE"
        assert status(monitor, "cpu", 1 << 60) == "WONT_FIT"
