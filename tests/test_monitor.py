"""Sources that touch no device, and the monitor that fills a table from them."""

from __future__ import annotations

from collections.abc import Iterable

import psutil
import pytest

import vramsel as vs
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
    for bad, error in (
        ({"cuda:0": (-1, 1)}, ValueError),
        ({"what:0": (1, 1)}, ValueError),
        ({"cpu": (1.5, 1)}, TypeError),
    ):
        with pytest.raises(error):
            FixedSource(bad)


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
    assert "available_bytes" in reasons[4]
    assert reasons[5].startswith("KeyError")
    assert Runtime.asked == 1
    monitor.table.select(vs.AlternativeSet([vs.Candidate("cuda:0", 1)]))
    assert Runtime.asked == 1, "a select asks nobody"
    monitor.refresh()
    assert Runtime.asked == 2
    assert status(monitor, "cuda:9") == "UNKNOWN", "a callback's None is not absence"


def test_host_is_the_real_memory() -> None:
    (reading,) = HostSource().sample().readings
    memory = psutil.virtual_memory()
    assert reading.node == "cpu"
    assert reading.total == memory.total
    assert 0 < reading.free <= reading.total
    # Other processes come and go; the unit must be right.
    assert abs(reading.free - memory.available) < memory.total / 2


def test_host_never_reports_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available, total = 101, 100

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    (reading,) = HostSource().sample().readings
    assert (reading.free, reading.total) == (100, 100)


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
    ]
    monitor = vs.watch([Script(readings)])
    assert monitor.table.known.tolist() == [False, True, False, True, True, False, True]
    assert monitor.table.free.tolist() == [0, 16, 0, 0, 32, 0, 5]
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
    assert "closed" in repr(monitor)


def test_two_sources_of_one_name() -> None:
    monitor = vs.watch([Script(OSError("a")), Script(OSError("b")), Script(OSError("c"), name="other")])
    assert dict(monitor.errors) == {"script": "OSError: a", "script#2": "OSError: b", "other": "OSError: c"}


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
