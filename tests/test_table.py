"""MemoryTable: its nodes, placements and readings, and what bad input leaves behind."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import vramsel as vs
from vramsel.book import Pool

GIB = 1 << 30


def state(table: vs.MemoryTable) -> object:
    """Everything that a call could change."""
    return table.__reduce__()[1][1], table.version


def test_a_new_table() -> None:
    table = vs.MemoryTable({"cuda:0": (10 * GIB, 24 * GIB), "cpu": (None, 64 * GIB), "cuda:1": None})
    assert table.nodes == ("cuda:0", "cpu", "cuda:1")
    assert table.free.tolist() == [10 * GIB, 0, 0]
    assert table.total.tolist() == [24 * GIB, 64 * GIB, 0]
    assert table.known.tolist() == [True, False, False]
    assert (table.free.dtype, table.total.dtype, table.known.dtype) == (np.uint64, np.uint64, np.bool_)
    assert len(table) == 3
    assert repr(table) == (
        "MemoryTable(cuda:0 10.0 GiB free of 24.0 GiB, cpu unknown of 64.0 GiB, cuda:1 unknown of ?)"
    )


def test_columns_are_copies() -> None:
    table = vs.MemoryTable({"cpu": (5, 10)})
    for column in (table.free, table.total, table.known):
        column[0] = 0
    assert (table.free[0], table.total[0], table.known[0]) == (5, 10, True)
    assert vs.MemoryTable().free.shape == (0,)


def test_sizes_may_be_written_out() -> None:
    table = vs.MemoryTable({"cuda:0": ("1GiB", "24 GiB")})
    table.update("cuda:0", "2GiB", 24 * GIB)
    assert table.free.tolist() == [2 * GIB]
    assert table.would_fit("cuda:0", "3GiB") is vs.FitStatus.WONT_FIT


def test_names_of_nodes() -> None:
    table = vs.MemoryTable({"cpu:0": (1, 1), "gpu": (2, 2)})
    table.add_node(vs.Placement("cuda:3"), 3, 3)
    table.add_node("0000:65:00.0", 4, 4, placements=[("vulkan", 0), "metal:1"])
    assert table.nodes == ("cpu", "gpu", "cuda:3", "0000:65:00.0")
    table.update("cpu:0", 5, 5)
    table.update(vs.Placement("cuda", 3), 6, 6)
    table.update("gpu", 7, 7)
    assert table.free.tolist() == [5, 7, 6, 4]
    assert table.would_fit("metal:1", 5) is vs.FitStatus.WONT_FIT


def test_one_memory_several_placements() -> None:
    table = vs.MemoryTable()
    table.add_node("cuda:0", 10, 100, placements=("cuda:0", "vulkan:0"))
    table.map("torch:0", node="cuda:0")
    for placement in ("cuda:0", "vulkan:0", "torch:0"):
        assert table.would_fit(placement, 11) is vs.FitStatus.WONT_FIT
    table.update("cuda:0", 90, 100)
    for placement in ("cuda:0", "vulkan:0", "torch:0"):
        assert table.would_fit(placement, 11) is vs.FitStatus.COMFORTABLE
    table.add_node("other", 0, 100)
    table.map("torch:0", "other")
    assert table.would_fit("torch:0", 1) is vs.FitStatus.WONT_FIT
    assert table.would_fit("cuda:0", 1) is vs.FitStatus.COMFORTABLE


def test_policies() -> None:
    table = vs.MemoryTable({"cpu": (50, 100)}, policy=vs.FitPolicy(tight_fraction=0.4))
    assert table.would_fit("cpu", 0) is vs.FitStatus.TIGHT
    table.set_policy("cpu", vs.FitPolicy())
    assert table.would_fit("cpu", 0) is vs.FitStatus.COMFORTABLE
    table.add_node("cuda:0", 50, 100)
    assert table.would_fit("cuda:0", 0) is vs.FitStatus.TIGHT, "the table's policy is for later nodes"


def test_states_follow_the_last_word() -> None:
    table = vs.MemoryTable({"cpu": (50, 100)})
    steps = [
        (lambda: table.mark_unknown("cpu"), (3, False, False)),
        (lambda: table.update("cpu", 50, 100), (0, True, False)),
        (lambda: table.mark_lost("cpu"), (2, False, True)),
        (lambda: table.update("cpu", 50, 100), (0, True, False)),
        (lambda: table.update("cpu", None, 100), (3, False, False)),
        (lambda: table.update("cpu", 50, None), (3, True, False)),
        (lambda: table.update("cpu", 0, 0), (3, False, False)),
        (lambda: table.mark_lost("cpu"), (2, False, True)),
        (lambda: table.mark_unknown("cpu"), (3, False, False)),
    ]
    for step, want in steps:
        before = table.version
        step()
        assert (table.would_fit("cpu", 1), table.known[0], table._columns()[4][0]) == want
        assert table.version > before
    assert table.free.tolist() == [0]


def test_update_all() -> None:
    table = vs.MemoryTable({"cuda:0": (1, 1), "cuda:1": (1, 1), "cuda:2": (1, 1), "cpu": None})
    table.mark_lost("cuda:2")
    with np.errstate(all="raise"):
        table.update_all([10, 20, 30, 40], [100, 0, 100, 100], known=[True, True, True, False])
    assert table.known.tolist() == [True, True, True, False]
    statuses = [table.would_fit(node, 5).name for node in table.nodes]
    assert statuses == ["TIGHT", "UNKNOWN", "COMFORTABLE", "UNKNOWN"]
    assert table.free.tolist() == [10, 20, 30, 0]
    table.update_all(np.array([90] * 4, dtype=">u4"), np.array([100] * 8)[::2])
    assert table.known.all()
    assert not table._columns()[4].any()


BAD = [
    (lambda t: t.__init__({"cuda:1": (1, 1)}), RuntimeError, "initialised"),
    (lambda t: t.update_all(np.ma.MaskedArray([1, 1]), [1, 1]), TypeError, "masked"),
    (lambda t: t.update_all([1, 1], [1, 1], known=np.ma.MaskedArray([True, True])), TypeError, "masked"),
    (lambda t: t.would_fit("cpu", True), TypeError, "nbytes"),
    (lambda t: t.would_fit("cpu", 10**5000), ValueError, "nbytes"),
    (lambda t: vs.MemoryTable([("cpu", (1, 2))]), TypeError, "mapping"),
    (lambda t: vs.MemoryTable(5), TypeError, "mapping"),
    (lambda t: vs.MemoryTable({"cpu": {1, 2}}), TypeError, "cpu"),
    (lambda t: vs.MemoryTable({"cpu": np.zeros((9, 9))}), TypeError, "cpu"),
    (lambda t: t.add_node("cpu", 1, 1), ValueError, "cpu"),
    (lambda t: t.add_node("cpu:0", 1, 1), ValueError, "cpu"),
    (lambda t: t.add_node("cuda:x", 1, 1), ValueError, "cuda:x"),
    (lambda t: t.add_node("cuda:-1", 1, 1), ValueError, "cuda:-1"),
    (lambda t: t.add_node("cuda:65536", 1, 1), ValueError, "65536"),
    (lambda t: t.add_node("cuad:0", 1, 1), vs.UnknownBackendError, "cuad"),
    (lambda t: t.add_node("", 1, 1), ValueError, "empty"),
    (lambda t: t.add_node(3, 1, 1), TypeError, "name"),
    (lambda t: t.add_node("cuda:5", -1, 1), ValueError, "free of node 'cuda:5'"),
    (lambda t: t.add_node("cuda:5", 1, 1 << 64), ValueError, "total of node 'cuda:5'"),
    (lambda t: t.add_node("cuda:5", 1.0, 1), TypeError, "free of node 'cuda:5'"),
    (lambda t: t.add_node("cuda:5", 1, 1, policy=0.5), TypeError, "policy"),
    (lambda t: t.add_node("cuda:5", 1, 1, placements="cuda:5"), TypeError, "placements"),
    (lambda t: t.add_node("gpu", 1, 1, placements=["vulkan:0", "cuda:0"]), ValueError, "cuda:0"),
    (lambda t: t.map("torch:0", "nowhere"), vs.UnknownNodeError, "nowhere"),
    (lambda t: t.map("what:0", "cpu"), vs.UnknownBackendError, "what"),
    (lambda t: t.map(7, "cpu"), TypeError, "7"),
    (lambda t: t.set_idle("torch:0", 1), vs.UnknownPlacementError, "torch:0"),
    (lambda t: t.set_idle("cuda:0", -1), ValueError, "cuda:0"),
    (lambda t: t.set_policy("cpu", None), TypeError, "policy"),
    (lambda t: t.set_policy("nowhere", vs.FitPolicy()), LookupError, "nowhere"),
    (lambda t: t.close_backend("what"), vs.UnknownBackendError, "what"),
    (lambda t: t.update("nowhere", 1, 1), vs.UnknownNodeError, "nowhere"),
    (lambda t: t.update("cpu", "much", 1), ValueError, "much"),
    (lambda t: t.update("cpu", 1, -1), ValueError, "total of node 'cpu'"),
    (lambda t: t.update("cpu", float("nan"), 1), TypeError, "free of node 'cpu'"),
    (lambda t: t.update_all([1], [1]), ValueError, "shape"),
    (lambda t: t.update_all([1, -1], [1, 1]), ValueError, "row 1: free"),
    (lambda t: t.update_all([1, 1], [1.0, 1]), TypeError, "row 0: total"),
    (lambda t: t.update_all([1, 1], [1, 1], known=[1, 1]), TypeError, "known"),
    (lambda t: t.update_all([1, 1], [1, 1], known=[True]), ValueError, "known"),
    (lambda t: t.mark_lost("nowhere"), vs.VramselError, "nowhere"),
    (lambda t: t.mark_unknown("nowhere"), vs.VramselError, "nowhere"),
    (lambda t: t.would_fit("cuda:0", -1), ValueError, "nbytes"),
    (lambda t: t.would_fit("cuda:0", 1e32), TypeError, "nbytes"),
    (lambda t: t.would_fit("cuda:0", 10**32), ValueError, "nbytes"),
    (lambda t: t.would_fit("cuda:x", 1), ValueError, "cuda:x"),
    (lambda t: vs.MemoryTable({"cpu": 5}), TypeError, "cpu"),
    (lambda t: vs.MemoryTable({"cpu": (1, 2, 3)}), TypeError, "cpu"),
    (lambda t: vs.MemoryTable({"cpu": "12"}), TypeError, "cpu"),
    (lambda t: vs.MemoryTable(policy=3), TypeError, "policy"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_bad_input_changes_nothing(call: Callable, error: type[Exception], words: str) -> None:
    table = vs.MemoryTable({"cuda:0": (10, 100), "cpu": (50, 100)})
    before = state(table)
    with pytest.raises(error) as caught:
        call(table)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert state(table) == before


def test_pickles_and_copies(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (10, 100), "cpu": (50, 100), "cuda:1": (None, 7), "cuda:2": (1, 1)})
    table.add_node("gpu", 10, None, policy=vs.FitPolicy(0.5, 3, 4), placements=("vulkan:0", "torch:0"))
    table.set_idle("torch:0", 99)
    table.map("cupy:0", "cuda:0")
    table.mark_lost("cuda:2")
    table.close_backend("cuda")
    rows = vs.candidates(
        [
            (p, n)
            for p in ("cuda:0", "cpu", "cuda:1", "cuda:2", "vulkan:0", "torch:0", "cupy:0", "cuda:9")
            for n in (0, 5, 50, 105)
        ]
    )
    for twin in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert type(twin) is table_type
        assert state(twin)[0] == state(table)[0]
        assert twin.classify(rows).tolist() == table.classify(rows).tolist()
        twin.update("cpu", 0, 100)
        assert table.free[1] == 50, "a copy is its own"


def test_pickles_know_more_than_this_process() -> None:
    """Closed and unregistered backends, names that became placements, attributes of a subclass."""
    script = """
import pickle, sys, vramsel as vs
t = vs.MemoryTable()
t.add_node("late", 1, 2)
vs.register_backend("late")
t.add_node("late:0", 3, 4)
vs.register_backend("closed-one")
t.close_backend("closed-one")
sys.stdout.buffer.write(pickle.dumps(pickle.loads(pickle.dumps(t))))
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, check=True)
    table = pickle.loads(done.stdout)
    assert table.nodes == ("late", "late:0")
    assert table.would_fit("closed-one:0", 0) is vs.FitStatus.WONT_FIT


class Counting(vs.MemoryTable):
    """Overrides what unpickling must not call, and keeps state in slots."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__({"cuda:0": (1, 2)})
        self.calls = 0
        self.close_backend("cuda")

    def close_backend(self, backend: str) -> None:
        super().close_backend(backend)
        self.calls += 1


def test_subclasses_that_override_and_have_slots() -> None:
    for twin in (copy.copy(Counting()), pickle.loads(pickle.dumps(Counting()))):
        assert twin.calls == 1
        assert twin.would_fit("cuda:1", 1) is vs.FitStatus.WONT_FIT


class Named(vs.MemoryTable):
    def __init__(self, owner: str) -> None:
        super().__init__({"cpu": (0, None)})
        self.owner = owner


def test_subclasses_are_copied_whole() -> None:
    for twin in (copy.copy(Named("me")), pickle.loads(pickle.dumps(Named("me")))):
        assert (type(twin), twin.owner) == (Named, "me")
        assert twin.would_fit("cpu", 1) is vs.FitStatus.WONT_FIT, "0 free of an unknown total is a full device"


def test_many_nodes_and_sparse_ordinals() -> None:
    table = vs.MemoryTable()
    names = [f"cuda:{i}" for i in range(0, 65536, 4001)] + [f"vulkan:{i}" for i in range(300)] + ["cpu:65535"]
    for i, name in enumerate(names):
        table.add_node(name, i, 1000)
    for i, name in enumerate(names):
        assert table.would_fit(name, i) is not vs.FitStatus.WONT_FIT
        assert table.would_fit(name, i + 1) is vs.FitStatus.WONT_FIT
    assert table.would_fit("cuda:1", 10**9) is vs.FitStatus.UNKNOWN


def test_many_backends() -> None:
    table = vs.MemoryTable()
    for i in range(70):
        vs.register_backend(f"many-{i}")
        table.add_node(f"many-{i}:1", i, 1000)
    for i in range(70):
        assert table.would_fit(f"many-{i}:1", i + 1) is vs.FitStatus.WONT_FIT
        assert table.would_fit(f"many-{i}:0", i + 1) is vs.FitStatus.UNKNOWN


def test_threads_that_read_while_one_publishes() -> None:
    """No pick may come from half of an update: the two nodes always swap roles together."""
    table = vs.MemoryTable({"cuda:0": (100, 100), "cuda:1": (0, 100)})
    alternatives = vs.AlternativeSet([vs.Candidate("cuda:0", 10), vs.Candidate("cuda:1", 10)])
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        rows = np.tile(alternatives.array, 500)
        while not stop.is_set():
            picks = table.select_many(rows, set_size=2)
            if picks.min() != picks.max():
                wrong.append(picks)
            if table.select_fit(alternatives) is None:
                wrong.append("neither")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(3000):
        table.update_all([100 * (i % 2), 100 * (1 - i % 2)], [100, 100])
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_batches_let_other_threads_run() -> None:
    """A batch holds no GIL, so this thread can see its output half written."""
    table = vs.MemoryTable({f"cuda:{i}": (50, 100) for i in range(4)})
    rows = np.zeros(4_000_000, dtype=vs.CANDIDATE_DTYPE)
    rows["backend"] = 1
    out = np.empty(len(rows), dtype=np.uint8)
    for _ in range(50):
        out[:] = 255
        thread = threading.Thread(target=table.classify, args=(rows,), kwargs={"out": out})
        thread.start()
        half = False
        while thread.is_alive() and not half:
            half = out[0] != 255 and out[-1] == 255
        thread.join()
        assert out[-1] == 0
        if half:
            return
    pytest.fail("no batch was ever seen half done")


def test_threads_that_add_and_publish(table_type: type[vs.MemoryTable]) -> None:
    """Whatever the threads do at once, each node keeps its own bytes and no name comes twice."""
    table = table_type()
    barrier = threading.Barrier(4)
    raised: list[BaseException] = []

    def work(number: int) -> None:
        barrier.wait()
        for i in range(60):
            try:
                table.add_node(f"cuda:{i}", i, 1000)
            except BaseException as error:
                raised.append(error)
            table.add_node(f"vulkan:{number * 100 + i}", number * 100 + i, 1000)
            with contextlib.suppress(ValueError):  # somebody has just added a node
                table.update_all(table.free, table.total)
            pickle.loads(pickle.dumps(table))
            repr(table)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [str(error) for error in raised if "in the table already" not in str(error)] == []
    assert len(raised) == 3 * 60, "each name was added once"
    assert len(set(table.nodes)) == len(table.nodes) == 60 + 240
    for name, free in zip(table.nodes, table.free.tolist(), strict=True):
        assert int(name.partition(":")[2]) == free


def test_a_fork_while_a_lock_is_held() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this platform")
    script = """
import os, threading, vramsel as vs
table = vs.MemoryTable({"cpu": (50, 100)})
held, done = threading.Event(), threading.Event()
def hold():
    with table._book.lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    table.update("cpu", 0, 100)
    os._exit(int(table.would_fit("cpu", 1)))
status = os.waitpid(child, 0)[1]
done.set()
thread.join()
print(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-P", "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "2\n"


def test_forks_in_the_middle_of_things() -> None:
    """Forks while threads add nodes, register backends and refresh: each child finds all of it whole."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this platform")
    script = """
import itertools, os, threading, time, vramsel as vs
from vramsel.sources import Reading, Source
class Slow(Source):
    name = "slow"
    def sample(self):
        time.sleep(0.002)
        return [Reading("cpu", 90, 100)]
table, monitor, stop = vs.MemoryTable(), vs.watch([Slow()]), threading.Event()
numbers = itertools.count()
def add():
    while not stop.wait(0.0001):
        table.add_node(f"cuda:{next(numbers)}", 90, 100)
def register():
    while not stop.wait(0.0001):
        vs.register_backend(f"b-{next(numbers)}")
def refresh():
    while not stop.is_set():
        monitor.refresh()
threads = [threading.Thread(target=work) for work in (add, register, refresh)]
for thread in threads:
    thread.start()
codes = set()
for i in range(40):
    child = os.fork()
    if child == 0:
        try:
            assert len(table.nodes) == len(table.free)
            assert table.known.all()
            table.add_node("metal:0", 1, 1)
            vs.register_backend("in-the-child")
            monitor.refresh()
            monitor.close()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
print(codes)
"""
    command = [sys.executable, "-P", "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("{0}\n", "")


def test_views_that_are_replaced_stay_few() -> None:
    """A table that grows by one placement at a time stays within a few times its size."""
    script = """
import psutil, vramsel as vs
process = psutil.Process()
codes = [vs.register_backend(f"grown-{i}") for i in range(3000)]
before = process.memory_info().rss
table = vs.MemoryTable()
table.add_node("memory", 90, 100)
for code in codes:
    table.map(vs.Placement(code, 0), "memory")
assert table.would_fit(vs.Placement(codes[-1], 0), 1) is vs.FitStatus.COMFORTABLE
print(process.memory_info().rss - before)
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20 << 20  # a new view for each takes hundreds of MiB


def test_a_table_can_be_collected() -> None:
    import gc
    import weakref

    table = vs.MemoryTable({"cpu": (1, 1)})
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None


# ---- samples that take their time -----------------------------------------------------------------


def test_publish_takes_what_begin_sample_gave(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (5, 100), "cpu": (5, 100)})
    table.map("torch:0", "cuda:0")
    token = table.begin_sample()
    before = table.version
    other = vs.MemoryTable({"cuda:0": (5, 100)})
    for arguments, error, words in (
        ((3, "cuda:0", 1, 2), TypeError, "begin_sample"),
        ((None, "cuda:0", 1, 2), TypeError, "begin_sample"),
        ((other.begin_sample(), "cuda:0", 1, 2), ValueError, "another table"),
        ((token, "cuda:9", 1, 2), vs.UnknownNodeError, "cuda:9"),
        ((token, "cuda:0", -1, 2), ValueError, "free"),
        ((token, "cuda:0", 1, 2.5), TypeError, "total"),
        ((token, "cuda:0", 1, 2, {"torch:1": 1}), vs.UnknownPlacementError, "torch:1"),
        ((token, "cpu", 1, 2, {"torch:0": 1}), vs.UnknownPlacementError, "torch:0"),
        ((token, "cuda:0", 1, 2, {"torch:0": -1}), ValueError, "torch:0"),
        ((token, "cuda:0", 1, 2, {"nope:0": 1}), vs.UnknownBackendError, "nope"),
    ):
        with pytest.raises(error, match=words):
            table.publish(*arguments)
    assert (table.version, table.free.tolist()) == (before, [5, 5])
    assert table.publish(token, "cuda:0", 40, 100, {"torch:0": 20}) is True
    assert [table.would_fit(place, 50).name for place in ("cuda:0", "torch:0")] == ["WONT_FIT", "TIGHT"]
    assert table.publish(table.begin_sample(), "cuda:0", 60, 100) is True
    assert table.would_fit("torch:0", 80).name == "TIGHT", "idle bytes that a sample does not speak of stay"
    assert table.publish(table.begin_sample(), "cuda:0", None, 100) is True
    assert table.would_fit("torch:0", 80).name == "UNKNOWN"


def test_a_published_reading_is_as_old_as_its_beginning() -> None:
    table = vs.MemoryTable({"cuda:0": (5, 100)})
    token = table.begin_sample()
    table.publish(token, "cuda:0", 6, 100)
    assert table._book.nodes[0].sampled_at == token.began
    table.update("cuda:0", 7, 100)
    assert table._book.nodes[0].sampled_at >= token.began


def test_a_pickle_keeps_pools() -> None:
    table = vs.MemoryTable({"cuda:0": (5, 100)})
    table._put_pool(vs.Placement("cuda:0"), Pool(idle=10, cap=12, limit=50))
    twin = pickle.loads(pickle.dumps(table))
    for size in (0, 4, 5, 12, 13):
        assert twin.would_fit("cuda:0", size) == table.would_fit("cuda:0", size)
    assert (twin.would_fit("cuda:0", 12).name, twin.would_fit("cuda:0", 13).name) == ("TIGHT", "WONT_FIT")


def test_adding_a_node_is_newer_than_what_began_before() -> None:
    table = vs.MemoryTable()
    token = table.begin_sample()
    table.add_node("cuda:0", 5, 10)
    assert table.publish(token, "cuda:0", 1, 10) is False
    assert (table.free.tolist(), table._book.refused) == ([5], 1)
    for idle in ([("cuda:0", 5)], 5, "cuda:0"):
        with pytest.raises(TypeError, match="idle"):
            table.publish(table.begin_sample(), "cuda:0", 1, 10, idle)
