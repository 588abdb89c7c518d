"""Every batch kernel, on any number of threads: the oracle's answers, byte for byte."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from implementations import as_type
from test_properties import POLICIES, random_u64

import vramsel as vs
from vramsel import _core
from vramsel.reference import ReferenceTable
from vramsel.units import MAX_BYTES

THREADS = [1, 2, 3, 7]


@pytest.fixture(params=_core.kernels())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.use_kernel(request.param)
    yield request.param
    _core.use_kernel(_core.kernels()[-1])


def random_table(rng: np.random.Generator, devices: int) -> vs.MemoryTable:
    """Several backends, one of them closed, one with a hole, and every kind of number and state."""
    table = vs.MemoryTable()
    for number, backend in enumerate(["cuda", "vulkan", "cpu", "torch"]):
        for device in range(1 if backend == "cpu" else max(1, devices >> number)):
            if backend == "vulkan" and device == 1:
                continue
            free, total = (int(n) for n in random_u64(rng, 2))
            node = f"{backend}:{device}"
            table.add_node(node, free, total, policy=POLICIES[int(rng.integers(len(POLICIES)))])
            match int(rng.integers(8)):
                case 0:
                    table.mark_lost(node)
                case 1:
                    table.mark_unknown(node)
                case 2:
                    table.set_idle(node, int(random_u64(rng, 1)[0]))
    table.close_backend("vulkan")
    table.close_backend("metal")
    return table


def random_rows(rng: np.random.Generator, count: int, devices: int) -> np.ndarray:
    """Mostly devices that are listed; some just beyond, and some as far beyond as codes go."""
    rows = np.zeros(count, dtype=vs.CANDIDATE_DTYPE)
    rows["backend"] = rng.integers(0, 16, count)
    rows["device"] = rng.integers(0, devices + 2, count)
    for field in ("backend", "device"):
        far = rng.random(count) < 0.05
        rows[field][far] = rng.choice([0x7FFF, 0x8000, 0xFFFF], far.sum())
    rows["bytes_moved"] = random_u64(rng, count)
    return rows


def same(table: vs.MemoryTable, oracle: vs.MemoryTable, rows: np.ndarray, *cut: object, **more: object) -> None:
    want_status = oracle.classify(rows, more.get("sizes"))
    assert table.classify(rows, more.get("sizes")).tobytes() == want_status.tobytes()
    want = oracle.select_many(rows, *cut, **more)
    told = np.zeros(len(want), dtype=np.uint8)
    oracle.select_many(rows, *cut, **more, status_out=told)
    for threads in THREADS:
        assert table.select_many(rows, *cut, **more, threads=threads).tobytes() == want.tobytes()
        status = np.full(len(want), 99, dtype=np.uint8)
        table.select_many(rows, *cut, **more, threads=threads, status_out=status)
        assert status.tobytes() == told.tobytes()


# 3000 devices of several backends are no grid any more for a kernel that wants one.
@pytest.mark.parametrize("devices", [1, 2, 5, 300, 3000])
def test_kernels_and_threads_agree_with_the_oracle(kernel: str, devices: int) -> None:
    rng = np.random.default_rng(devices)
    table = random_table(rng, devices)
    oracle = as_type(table, ReferenceTable)
    for count in (0, 1, 7, 8, 9, 127, 128, 129, 4095, 4096, 4097, 40_000):
        rows = random_rows(rng, count, devices)
        for each in (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 4096, 5000):
            if count % each == 0:
                same(table, oracle, rows, set_size=each)
    rows = random_rows(rng, 70_000, devices)
    sizes = random_u64(rng, len(rows))
    for longest in (1, 4, 17, 300, 20_000):
        lengths = rng.integers(0, longest + 1, 100_000 // longest)
        offsets = np.minimum(np.cumsum([rng.integers(5), *lengths]), len(rows))
        same(table, oracle, rows, offsets)
        same(table, oracle, rows, offsets, sizes=sizes)
    same(table, oracle, rows, set_size=4, sizes=sizes)
    even = np.arange(0, len(rows) + 1, 7)  # offsets that need not have been given as such
    same(table, oracle, rows, even)
    same(table, oracle, rows, even + 3 * (even[-1] < len(rows) - 3))


def test_extreme_sizes_and_rooms(kernel: str) -> None:
    """Every pair of edges, so that no comparison is signed and nothing wraps."""
    edges = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, MAX_BYTES - 1, MAX_BYTES]
    table = vs.MemoryTable(
        {f"cuda:{i}": (free, total) for i, (free, total) in enumerate((f, t) for f in edges for t in edges)}
    )
    rows = vs.candidates([(f"cuda:{i}", size) for i in range(len(table)) for size in edges])
    same(table, as_type(table, ReferenceTable), rows, set_size=len(edges))


def test_reserved_bytes_are_not_given_out(kernel: str) -> None:
    rng = np.random.default_rng(3)
    table = random_table(rng, 12)
    oracle = as_type(table, ReferenceTable)
    assert table.reserved.tolist() == [0] * len(table)
    reserved = [int(n) for n in random_u64(rng, len(table))]
    for index, nbytes in enumerate(reserved):
        for one in (table, oracle):
            one._set_reserved(index, nbytes)
    assert table.reserved.dtype == np.uint64
    assert table.reserved.tolist() == reserved
    rows = random_rows(rng, 4000, 12)
    rows["bytes_moved"][::3] = rng.choice(table.free, len(rows[::3]))
    same(table, oracle, rows, set_size=5)
    singles = [table.select(rows[i : i + 5]) for i in range(0, len(rows), 5)]
    assert singles == oracle.select_many(rows, set_size=5).tolist()


def test_reserved_to_the_byte() -> None:
    table = vs.MemoryTable({"cuda:0": (100, 100), "cpu": (100, 100)}, policy=vs.FitPolicy(tight_fraction=1.0))
    rows = vs.candidates([("cuda:0", 60), ("cpu", 60)])
    for reserved, index in ((0, 0), (40, 0), (41, 1), (MAX_BYTES, 1), (0, 0)):
        before = table.version
        table._set_reserved(0, reserved)
        assert table.version > before
        assert table.select(rows) == table.select_many(rows, set_size=2)[0] == index
        assert table.free.tolist() == [100, 100]
    for index in (2, 2**32 - 1):
        with pytest.raises(LookupError):
            table._set_reserved(index, 1)


def test_names_of_kernels() -> None:
    assert _core.kernels()[0] == "portable"
    with pytest.raises(ValueError, match="no kernel 'abacus' here; there are portable"):
        _core.use_kernel("abacus")


@pytest.mark.parametrize(
    ("threads", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (1025, ValueError),
        (2**70, ValueError),
        (1.5, TypeError),
        ("2", TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_bad_numbers_of_threads(table_type: type[vs.MemoryTable], threads: object, error: type[Exception]) -> None:
    rows = vs.candidates([("cpu", 1)])
    out = np.array([7], dtype=np.int32)
    with pytest.raises(error, match="threads must be"):
        table_type().select_many(rows, set_size=1, threads=threads, out=out)
    assert out.tolist() == [7]


def test_more_threads_than_work() -> None:
    table = vs.MemoryTable({"cpu": (10, 10)})
    assert table.select_many(vs.candidates([("cpu", 1)]), set_size=1, threads=1024).tolist() == [0]
    assert table.select_many(vs.candidates([]), set_size=1, threads=1024).tolist() == []
    rows = np.zeros(200_000, dtype=vs.CANDIDATE_DTYPE)
    assert not table.select_many(rows, set_size=1, threads=np.int8(100)).any()


def test_batches_on_threads_at_once() -> None:
    rng = np.random.default_rng(5)
    table = random_table(rng, 30)
    rows = random_rows(rng, 120_000, 30)
    want = table.select_many(rows, set_size=4).tobytes()
    wrong: list[int] = []

    def work(number: int) -> None:
        results = [table.select_many(rows, set_size=4, threads=3).tobytes() for _ in range(5)]
        wrong.extend(number for result in results if result != want)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_batch_needs_no_memory_beside_its_output(kernel: str) -> None:
    rng = np.random.default_rng(6)
    table = random_table(rng, 30)
    rows = random_rows(rng, 200_000, 30)
    sizes = random_u64(rng, len(rows))
    offsets = np.arange(0, len(rows) + 1, 5)
    offsets[1] = 4
    table.classify(rows[:100])  # what is loaded at the first call is not the batch's
    for call in (
        lambda: table.classify(rows, sizes),
        lambda: table.select_many(rows, set_size=4, threads=2),
        lambda: table.select_many(rows, offsets, sizes),
    ):
        tracemalloc.start()
        try:
            output = call()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak - output.nbytes < 20_000


class StoppedError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.parametrize("call", ["classify", "regular", "ragged", "one set", "threads"])
def test_signals_are_heard_in_a_long_batch(call: str) -> None:
    """A handler that raises ends it; one that does not raise is run, and changes nothing."""
    count = 1 << 27 if call != "classify" else 1 << 26
    try:
        rows = np.zeros(count, dtype=vs.CANDIDATE_DTYPE)  # 2 GiB that nobody writes to: one page of zeros
    except MemoryError:
        pytest.skip("this system does not lend 2 GiB of address space")
    table = vs.MemoryTable({"cpu": (10, 10)})
    offsets = np.arange(0, count + 1, 1 << 16)
    offsets[1] = 5  # not of one length
    long = {
        "classify": lambda: table.classify(rows),
        "regular": lambda: table.select_many(rows, set_size=1 << 16),
        "ragged": lambda: table.select_many(rows, offsets),
        "one set": lambda: table.select_many(rows, set_size=count),
        "threads": lambda: table.select_many(rows, set_size=1 << 16, threads=2),
    }[call]
    heard: list[str] = []

    def handler(number: int, frame: object) -> None:
        heard.append(signal.Signals(number).name)
        if raising:
            raise StoppedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        raising = True
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(StoppedError):
            long()
        assert heard == ["SIGALRM"]
        raising = False
        rows = rows[: 1 << 22]
        offsets = offsets[offsets <= len(rows)]
        count = len(rows)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        assert not long().any()
        while len(heard) < 2:  # the batch may have been quicker than the timer
            signal.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.parametrize("written", [1000, -5, 2**62])
def test_even_offsets_that_change_while_they_are_checked(written: int) -> None:
    """A wrong pick or an error, never a byte outside: the length of all sets is read once."""
    table = vs.MemoryTable({"cpu": (10, 10)})
    count = 2_000_000
    rows = np.zeros(count, dtype=vs.CANDIDATE_DTYPE)
    offsets = np.arange(count + 1)
    before = signal.signal(signal.SIGALRM, lambda *_: offsets.__setitem__(1, written))
    try:
        for _ in range(10):
            offsets[1] = 1
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            with contextlib.suppress(ValueError):
                table.select_many(rows, offsets)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("call", ["classify", "select_many"])
def test_an_array_that_changes_its_dtype_meanwhile(call: str) -> None:
    """The caller's own code runs while the arguments are converted: what was accepted is what is read."""
    table = vs.MemoryTable({"cpu": (10, 10)})
    rows = np.zeros(1000, dtype=vs.CANDIDATE_DTYPE)

    class Sizes:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            rows.dtype = np.uint8  # now it has 16000 rows
            return np.ones(1000, dtype=np.uint64)

    if call == "classify":
        assert table.classify(rows, Sizes()).shape == (1000,)
    else:
        assert table.select_many(rows, None, Sizes(), set_size=4).shape == (250,)


def test_offsets_that_others_write_to() -> None:
    table = vs.MemoryTable({"cpu": (10, 10)})
    rows = np.zeros(100_000, dtype=vs.CANDIDATE_DTYPE)
    offsets = np.arange(len(rows) + 1)
    stop = threading.Event()

    def write() -> None:
        rng = np.random.default_rng(1)
        while not stop.is_set():
            at = int(rng.integers(3))
            offsets[at] = rng.choice([0, 1, 2, 1000, -1, 2**40, -(2**63)])
            offsets[at] = at

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(150):
            with contextlib.suppress(ValueError):
                table.select_many(rows, offsets, threads=1 + turn % 2)
    finally:
        stop.set()
        writer.join()


DAEMONS = """
import threading, time
import numpy as np
import vramsel as vs
table = vs.MemoryTable({"cpu": (10, 10)})
rows = np.ones(1 << 24, vs.CANDIDATE_DTYPE)
def work():
    while True:
        table.select_many(rows, set_size=2, threads=3)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print("left")
"""


@pytest.mark.parametrize("turn", range(3))
def test_a_process_ends_while_daemon_threads_are_in_batches(turn: int) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", DAEMONS], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_renamed_fields_are_not_read_by_their_old_places() -> None:
    table = vs.MemoryTable({"cuda:0": (10, 10), "cpu": (10, 10)})
    oracle = as_type(table, ReferenceTable)
    rows = vs.candidates([("cuda:0", 5), ("cpu", 5)])
    own = rows.astype(np.dtype([(name, rows.dtype[name]) for name in rows.dtype.names], align=True))
    assert table.select(own) == 0
    own.dtype.names = ("device", "backend", "kernel", "bytes_moved")
    assert table.classify(own).tolist() == oracle.classify(own).tolist()
    own.dtype.names = ("a", "b", "c", "d")
    for one in (table, oracle):
        with pytest.raises(TypeError, match="lack the field 'backend'"):
            one.select(own)
    own.dtype.names = rows.dtype.names
    assert table.select(own) == 0


def test_many_descriptors_that_are_equal() -> None:
    table = vs.MemoryTable({"cuda:0": (0, 10), "cpu": (10, 10)})
    rows = vs.candidates([("cuda:0", 5), ("cpu", 5)])
    for _ in range(50):
        twin = np.dtype([(name, rows.dtype[name]) for name in rows.dtype.names], align=True)
        assert table.select(np.frombuffer(rows.tobytes(), dtype=twin)) == 1


FORKING = """
import os, signal, sys
import numpy as np
import vramsel as vs
raises = "raises" in sys.argv
table = vs.MemoryTable({"cuda:0": (0, 10), "cpu": (10, 10)})
rows = np.zeros(1 << 27, vs.CANDIDATE_DTYPE)  # nobody writes to it: a page of zeros
rows[0] = (1, 0, 0, 5)
if "waiting" in sys.argv:  # a short set for one thread, and a long one for the other
    cut = np.array([0, 1 << 18, 1 << 27])
else:
    cut = np.arange(0, len(rows) + 1, 2)
child = None
def handler(number, frame):
    global child
    if child is None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends a child that hangs
            signal.alarm(50)
            if raises:
                raise KeyError("in the child")
signal.signal(signal.SIGALRM, handler)
out = np.full(len(cut) - 1, 99, np.int32)
signal.setitimer(signal.ITIMER_REAL, 0.03)
try:
    table.select_many(rows, cut, threads=3, out=out)
    right = out[0] == 1 and not out[1:].any() and child is not None
except KeyError:
    right = raises and child == 0
if child == 0:
    os._exit(0 if right else 1)
print(right, os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("words", [[], ["raises"], ["waiting"], ["waiting", "raises"]], ids=" ".join)
def test_a_handler_that_forks_in_the_middle_of_a_batch(words: list[str]) -> None:
    """The child has none of the threads, and does what they had taken on; or is rid of it."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", FORKING, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("True 0\n", "")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
def test_signals_are_heard_among_empty_sets() -> None:
    offsets = np.zeros(1 << 28, dtype=np.int64)  # nobody writes to it: a page of zeros
    table = vs.MemoryTable({"cpu": (10, 10)})
    handled: list[int] = []

    def handler(number: int, frame: object) -> None:
        handled.append(number)
        if len(handled) == 3:
            raise StoppedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        with pytest.raises(StoppedError):
            table.select_many(vs.candidates([("cpu", 1)]), offsets, threads=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_large_sets_are_selected_from_while_a_writer_never_rests() -> None:
    """So many candidates that no attempt at one moment succeeds; the pick comes from a copy then."""
    table = vs.MemoryTable({"cuda:0": (0, 100), "cuda:1": (100, 100), "cuda:2": (0, 100)})
    rows = np.zeros(20_000, dtype=vs.CANDIDATE_DTYPE)
    rows["backend"] = 1
    rows["device"] = 2
    rows["bytes_moved"] = 50
    rows["device"][100], rows["device"][-1] = 0, 1
    stop = threading.Event()

    def publish() -> None:
        total = np.array([100, 100, 100], dtype=np.uint64)
        turn = 0
        while not stop.is_set():
            turn = 100 - turn
            table.update_all(np.array([turn, 100 - turn, 0], dtype=np.uint64), total)

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        picks = {table.select(rows) for _ in range(300)} | set(table.select_many(rows, set_size=20_000, threads=2))
    finally:
        stop.set()
        writer.join()
    assert picks <= {100, 19_999}
