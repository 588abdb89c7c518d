"""The decision: one table of cases, every implementation."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from implementations import Implementation, as_type, callback

import vramsel as vs
from vramsel.units import MAX_BYTES

GIB = 1 << 30
C, T, W, U = "COMFORTABLE", "TIGHT", "WONT_FIT", "UNKNOWN"

# name: nodes, candidates, statuses, pick
CASES = {
    "the winner stays": ({"cuda:0": (90, 100), "cpu": (90, 100)}, [("cuda:0", 5), ("cpu", 5)], [C, C], 0),
    "what does not fit is skipped": ({"cuda:0": (4, 100), "cpu": (90, 100)}, [("cuda:0", 5), ("cpu", 5)], [W, C], 1),
    "tight is demoted": ({"cuda:0": (19, 100), "cpu": (90, 100)}, [("cuda:0", 5), ("cpu", 5)], [T, C], 1),
    "tight beats nothing": ({"cuda:0": (4, 100), "cpu": (19, 100)}, [("cuda:0", 5), ("cpu", 5)], [W, T], 1),
    "the first tight of two": ({"cuda:0": (19, 100), "cpu": (18, 100)}, [("cuda:0", 5), ("cpu", 5)], [T, T], 0),
    "unknown ties with comfortable": ({"cuda:0": None, "cpu": (90, 100)}, [("cuda:0", 5), ("cpu", 5)], [U, C], 0),
    "and not the other way round": ({"cuda:0": None, "cpu": (90, 100)}, [("cpu", 5), ("cuda:0", 5)], [C, U], 0),
    "unknown beats tight": ({"cuda:0": (19, 100), "cpu": None}, [("cuda:0", 5), ("cpu", 5)], [T, U], 1),
    "not listed is unknown": ({"cpu": (90, 100)}, [("cuda:3", 5), ("cpu", 5)], [U, C], 0),
    "nothing fits": ({"cuda:0": (4, 100), "cpu": (3, 100)}, [("cuda:0", 5), ("cpu", 5)], [W, W], 0),
    "the boundary is not tight": ({"cpu": (100, 100)}, [("cpu", 85)], [C], 0),
    "one byte more is": ({"cpu": (100, 100)}, [("cpu", 86)], [T], 0),
    "all of free fits": ({"cpu": (100, 200)}, [("cpu", 100)], [T], 0),
    "a full card takes 0 bytes, tight": ({"cpu": (0, 100)}, [("cpu", 0), ("cpu", 1)], [T, W], 0),
    "0 of 0 is no signal": ({"cpu": (0, 0)}, [("cpu", 1 << 40)], [U], 0),
    "no free and no total known": ({"cpu": (0, None)}, [("cpu", 1), ("cpu", 0)], [W, U], 1),
    "free without a total refuses": ({"cpu": (10, None)}, [("cpu", 11), ("cpu", 10)], [W, U], 1),
    "a total without free is no signal": ({"cpu": (None, 100)}, [("cpu", 1000)], [U], 0),
    "more free than total": ({"cpu": (200, 100)}, [("cpu", 150), ("cpu", 186), ("cpu", 201)], [C, T, W], 0),
    "the largest of everything": ({"cpu": (MAX_BYTES, MAX_BYTES)}, [("cpu", MAX_BYTES), ("cpu", 1 << 63)], [T, C], 1),
    "no candidates": ({"cpu": (1, 1)}, [], [], None),
}


def make_set(candidates: list[tuple[str, int]]) -> vs.AlternativeSet:
    return vs.AlternativeSet([vs.Candidate(placement, size) for placement, size in candidates])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_cases(decide: Implementation, case: tuple) -> None:
    nodes, candidates, statuses, pick = case
    assert decide(vs.MemoryTable(nodes), make_set(candidates)) == (statuses, pick)


def test_policy(decide: Implementation) -> None:
    table = vs.MemoryTable()
    table.add_node("cuda:0", 100, 100, policy=vs.FitPolicy(tight_fraction=0.5, headroom=10))
    table.add_node("cuda:1", 1000, 1000, policy=vs.FitPolicy(tight_margin=100))
    table.add_node("cuda:2", 100, 100, policy=vs.FitPolicy(tight_fraction=1.0))
    table.add_node("cuda:3", 100, 100, policy=vs.FitPolicy(tight_fraction=0.0))
    sizes = [("cuda:0", n) for n in (40, 41, 90, 91)] + [("cuda:1", n) for n in (900, 901)]
    sizes += [("cuda:2", 100), ("cuda:3", 0), ("cuda:3", 1)]
    statuses, _ = decide(table, make_set(sizes))
    assert statuses == [C, T, T, W, C, T, C, C, T]


def test_idle_bytes_are_their_placements_own(decide: Implementation) -> None:
    table = vs.MemoryTable()
    table.add_node("gpu", GIB, 24 * GIB, placements=("torch:0", "cupy:0"))
    table.set_idle("torch:0", 16 * GIB)
    assert decide(table, make_set([("cupy:0", 4 * GIB), ("torch:0", 4 * GIB)])) == ([W, C], 1)
    table.set_idle("torch:0", MAX_BYTES)
    assert decide(table, make_set([("torch:0", MAX_BYTES), ("torch:0", 1)]))[0] == [T, C], "the sum saturates"


def test_no_reading_is_no_signal_whatever_is_idle(decide: Implementation) -> None:
    table = vs.MemoryTable({"torch:0": (0, 0)})
    table.set_idle("torch:0", 10)
    assert decide(table, make_set([("torch:0", 11)]))[0] == [U]


def test_lost_devices_are_excluded(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (20, 24), "cuda:1": (1, 24), "cuda:2": (1, 24)})
    table.mark_lost("cuda:0")
    alternatives = make_set([("cuda:0", 4), ("cuda:1", 4), ("cuda:2", 4)])
    assert [table.would_fit(f"cuda:{i}", 4).name for i in range(3)] == [W, W, W]
    assert table.select(alternatives) == 1, "the fallback is the first that is not lost"
    assert table.select_fit(alternatives) is None
    table.mark_lost("cuda:1")
    assert table.select(alternatives) == 2
    table.mark_lost("cuda:2")
    assert table.select(alternatives) == 0, "all are lost"
    table.update("cuda:2", 20, 24)
    assert table.select(alternatives) == 2, "a reading revives a device"


def test_absent_and_unknown(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:1": (20, 24), "cpu": (1, 24)})
    alternatives = make_set([("cuda:0", 4), ("cuda:9", 4), ("cpu", 4)])
    assert table.select(alternatives) == 0, "what is merely not listed is unknown"
    table.close_backend("cuda")
    assert table.classify(alternatives).tolist() == [2, 2, 2]
    assert table.select(alternatives) == 2, "the fallback is the first that is there"
    assert table.would_fit("cuda:1", 4) is vs.FitStatus.COMFORTABLE, "a listed device stays"
    assert table.would_fit("cuda:65535", 0) is vs.FitStatus.WONT_FIT
    assert table.would_fit("vulkan:0", 0) is vs.FitStatus.UNKNOWN, "another backend is not closed"
    table.map("cuda:0", "cuda:1")
    assert table.select(alternatives) == 0, "a closed backend can still list a device"
    table.add_node("cuda:700", 20, 24)
    assert table.would_fit("cuda:699", 0) is vs.FitStatus.WONT_FIT, "a grown view keeps the backend closed"


def test_a_closed_backend_without_devices(table_type: type[vs.MemoryTable]) -> None:
    table = table_type()
    code = vs.register_backend("never-seen")
    table.close_backend("never-seen")
    alternatives = vs.AlternativeSet([vs.Candidate((code, 0), 1), vs.Candidate("cpu", 1)])
    assert table.select(alternatives) == 1
    table.close_backend("cpu")
    assert table.select(alternatives) == 0, "all are absent"
    assert table.select_fit(alternatives) is None


def test_select_sized_takes_one_size_for_all(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (10, 100), "cpu": (90, 100)})
    alternatives = make_set([("cuda:0", 1), ("cpu", 1)])
    assert table.select_sized(alternatives, 50) == 1
    assert table.select_sized(alternatives.array, 91) == 0
    assert table.select_sized(make_set([]), 50) is None
    assert table.select_sized(alternatives, np.uint64(50)) == 1
    for bad, error in ((-1, ValueError), (1 << 64, ValueError), (1e32, TypeError), (None, TypeError)):
        with pytest.raises(error, match="nbytes"):
            table.select_sized(alternatives, bad)


def test_select_fit(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (10, 100), "cpu": (15, 100)})
    assert table.select_fit(make_set([("cuda:0", 11), ("cpu", 11)])) == 1
    assert table.select_fit(make_set([("cuda:0", 16), ("cpu", 16)])) is None
    assert table.select_fit(make_set([("metal:0", 16)])) == 0
    assert table.select_fit(make_set([])) is None


def test_batches(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (10, 100), "cpu": (90, 100)})
    rows = vs.candidates([("cuda:0", 11), ("cpu", 5), ("cuda:0", 5), ("cpu", 91), ("cuda:0", 50), ("metal:1", 1)])
    statuses = table.classify(rows)
    assert statuses.dtype == np.uint8
    assert statuses.tolist() == [2, 0, 1, 2, 2, 3]

    status = np.zeros(3, dtype=np.uint8)
    picks = table.select_many(rows, set_size=2, status_out=status)
    assert picks.dtype == np.int32
    assert (picks.tolist(), status.tolist()) == ([1, 0, 1], [0, 1, 3])

    status = np.zeros(6, dtype=np.uint8)
    picks = table.select_many(rows, [0, 0, 1, 4, 4, 6, 6], status_out=status)
    assert (picks.tolist(), status.tolist()) == ([-1, 0, 0, -1, 1, -1], [255, 2, 0, 255, 3, 255])
    assert table.select_many(rows, [2, 4]).tolist() == [0], "offsets need not cover the rows"

    sizes = [5, 91, 11, 5, 0, 0]
    assert table.classify(rows, sizes).tolist() == [1, 2, 2, 0, 1, 3]
    assert table.select_many(rows, [0, 2, 6], sizes).tolist() == [0, 1]
    assert table.select_many(rows, sizes=sizes, set_size=3).tolist() == [0, 0]


def test_batches_agree_with_single_selects(table_type: type[vs.MemoryTable]) -> None:
    rng = np.random.default_rng(5)
    table = table_type({f"cuda:{i}": (int(rng.integers(0, 100)), 100) for i in range(8)})
    table.mark_lost("cuda:7")
    table.mark_unknown("cuda:6")
    table.close_backend("cuda")
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 200))])
    rows = np.zeros(offsets[-1], dtype=vs.CANDIDATE_DTYPE)
    rows["backend"], rows["device"] = 1, rng.integers(0, 10, len(rows))
    rows["bytes_moved"] = rng.integers(0, 120, len(rows))
    want = [table.select(rows[a:b]) for a, b in itertools.pairwise(offsets)]
    got = table.select_many(rows, offsets).tolist()
    assert got == [-1 if index is None else index for index in want]


def test_out_arrays_are_filled_and_returned(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cpu": (90, 100)})
    rows = vs.candidates([("cpu", 1), ("cpu", 1)])
    out = np.full(2, 9, dtype=np.uint8)
    assert table.classify(rows, out=out) is out
    assert out.tolist() == [0, 0]
    picks = np.full(1, 9, dtype=np.int32)
    assert table.select_many(rows, set_size=2, out=picks) is picks
    assert picks.tolist() == [0]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (lambda t, rows: t.select_many(rows), TypeError),
        (lambda t, rows: t.select_many(rows, [0, 2], set_size=2), TypeError),
        (lambda t, rows: t.select_many(rows, set_size=3), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=0), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=-2), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=2.0), TypeError),
        (lambda t, rows: t.select_many(rows, []), ValueError),
        (lambda t, rows: t.select_many(rows, [[0, 2]]), TypeError),
        (lambda t, rows: t.select_many(rows, np.array([[0, 2]])), ValueError),
        (lambda t, rows: t.select_many(rows, [0, 2**63]), ValueError),
        (lambda t, rows: t.select_many(rows, "02"), TypeError),
        (lambda t, rows: t.select_many(rows, [False, True]), TypeError),
        (lambda t, rows: t.select_many(rows, [0, -(2**70)]), ValueError),
        (lambda t, rows: t.select_many(rows, memoryview(np.zeros((2, 2), dtype=np.int64))), ValueError),
        (lambda t, rows: t.classify(rows, memoryview(np.zeros((2, 1), dtype=np.int64))), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=True), TypeError),
        (lambda t, rows: t.select_many(rows, [0, 99], [1.0, 2.0]), TypeError),
        (lambda t, rows: t.select_many(rows, set_size=2**31), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=2**64), ValueError),
        (lambda t, rows: t.select_many(rows[:0], set_size=2**31), ValueError),
        (lambda t, rows: t.classify(rows, "12"), TypeError),
        (lambda t, rows: t.classify(rows, {1, 2}), TypeError),
        (lambda t, rows: t.classify(rows, {1: 1, 2: 2}), TypeError),
        (lambda t, rows: t.classify(rows, [True, False]), TypeError),
        (lambda t, rows: t.classify(rows, np.array([True, False])), TypeError),
        (lambda t, rows: t.classify(rows, np.ma.MaskedArray([1, 2])), TypeError),
        (lambda t, rows: t.select_many(rows, np.ma.MaskedArray([0, 2])), TypeError),
        (lambda t, rows: t.classify(rows, out=np.ma.MaskedArray(np.zeros(2, dtype=np.uint8))), TypeError),
        (lambda t, rows: t.select_many(rows, [0.0, 2.0]), TypeError),
        (lambda t, rows: t.select_many(rows, [0, 3]), ValueError),
        (lambda t, rows: t.select_many(rows, [-1, 2]), ValueError),
        (lambda t, rows: t.select_many(rows, [2, 0]), ValueError),
        (lambda t, rows: t.select_many(rows, [0, 2, 1, 2]), ValueError),
        (lambda t, rows: t.select_many(rows, np.array([0, 2**64 - 1], dtype=np.uint64)), ValueError),
        (lambda t, rows: t.classify(rows, [1]), ValueError),
        (lambda t, rows: t.classify(rows, [1, -1]), ValueError),
        (lambda t, rows: t.classify(rows, [1, 2**64]), ValueError),
        (lambda t, rows: t.classify(rows, [1, 2.5]), TypeError),
        (lambda t, rows: t.classify(rows, np.array([1.0, 2.0])), TypeError),
        (lambda t, rows: t.classify(rows, 3), TypeError),
        (lambda t, rows: t.classify(rows, out=[0, 0]), TypeError),
        (lambda t, rows: t.classify(rows, out=np.zeros(2, dtype=np.int8)), TypeError),
        (lambda t, rows: t.classify(rows, out=np.zeros(3, dtype=np.uint8)), ValueError),
        (lambda t, rows: t.classify(rows, out=np.zeros(4, dtype=np.uint8)[::2]), ValueError),
        (lambda t, rows: t.select_many(rows, set_size=2, out=np.zeros(1, dtype=np.int64)), TypeError),
        (lambda t, rows: t.select_many(rows, set_size=2, status_out=np.zeros(2, dtype=np.uint8)), ValueError),
    ],
)
def test_bad_batch_arguments(table_type: type[vs.MemoryTable], case: object, error: type[Exception]) -> None:
    table = table_type({"cpu": (90, 100)})
    with pytest.raises(error) as caught:
        case(table, vs.candidates([("cpu", 1), ("cpu", 1)]))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_out_must_not_overlap_the_input(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cpu": (90, 100)})
    rows = vs.candidates([("cpu", 1), ("cpu", 1)])
    with pytest.raises(ValueError, match="overlaps"):
        table.classify(rows, out=rows.view(np.uint8)[:2])
    out = np.zeros(4, dtype=np.uint8)
    with pytest.raises(ValueError, match="overlaps"):
        table.select_many(rows, set_size=2, out=out.view(np.int32), status_out=out[:1])
    sizes = np.zeros(2, dtype=np.uint64)
    with pytest.raises(ValueError, match="overlaps"):
        table.classify(rows, sizes, out=sizes.view(np.uint8)[:2])
    offsets = np.array([0, 2])
    with pytest.raises(ValueError, match="overlaps"):
        table.select_many(rows, offsets, out=offsets.view(np.int32)[:1])
    # Also where only a converted copy is read: the caller's own would be written to.
    wide = np.zeros(4, dtype=vs.CANDIDATE_DTYPE)
    with pytest.raises(ValueError, match="overlaps"):
        table.select_many(wide[::2], set_size=2, out=wide.view(np.int32)[:1])
    with pytest.raises(ValueError, match="overlaps"):
        table.classify(wide[::2], out=wide.view(np.uint8)[:2])
    offsets = np.array([0, 2], dtype=np.int32)
    with pytest.raises(ValueError, match="overlaps"):
        table.select_many(rows, offsets, out=offsets[:1])
    sizes = np.zeros(2, dtype=np.int32)
    with pytest.raises(ValueError, match="overlaps"):
        table.select_many(rows, set_size=2, sizes=sizes, out=sizes[:1])


def test_nothing_is_written_before_all_is_checked(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cpu": (90, 100)})
    rows = vs.candidates([("cpu", 1), ("cpu", 1)])
    status = np.full(1, 77, dtype=np.uint8)
    with pytest.raises(TypeError, match="int32"):
        table.select_many(rows, set_size=2, out=np.zeros(1), status_out=status)
    out = np.full(1, 77, dtype=np.int32)
    with pytest.raises(TypeError, match="uint8"):
        table.select_many(rows, set_size=2, out=out, status_out=np.zeros(1))
    assert (status[0], out[0]) == (77, 77)


def test_an_out_that_lies_about_its_shape() -> None:
    class Liar(np.ndarray):
        shape = (1000,)  # type: ignore[assignment]

        ndim = 1  # type: ignore[assignment]
        size = 1000  # type: ignore[assignment]

        def view(self, *_: object) -> np.ndarray:  # type: ignore[override]
            return np.zeros(1000, dtype=self.dtype)

    rows = np.tile(vs.candidates([("cpu", 1)]), 1000)
    table = vs.MemoryTable({"cpu": (1, 1)})
    short = np.zeros(2, dtype=np.uint64).view(np.ndarray)
    for call in (
        lambda: table.classify(rows, out=np.ndarray.view(np.zeros(2, dtype=np.uint8), Liar)),
        lambda: table.classify(rows, np.ndarray.view(short, Liar)),
        lambda: table.select_many(rows, np.ndarray.view(np.array(0), Liar)),
        lambda: table.update_all(np.ndarray.view(short, Liar), [1]),
    ):
        with pytest.raises(ValueError, match="shape"):
            call()


@pytest.mark.parametrize("wrong", [None, 3, "cuda:0", [("cuda:0", 1)], {}, (), np.zeros(3), object()])
def test_a_set_of_the_wrong_type(table_type: type[vs.MemoryTable], wrong: object) -> None:
    table = table_type({"cpu": (1, 1)})
    for method in (table.select, table.select_fit, table.classify, lambda x: table.select_sized(x, 1)):
        with pytest.raises(TypeError, match="candidates"):
            method(wrong)


def load_verdicts(shared: Path) -> list[dict]:
    return json.loads((shared / "cases" / "verdicts.json").read_text(encoding="utf-8"))


def test_field_cases(decide: Implementation, shared: Path) -> None:
    """Every numeric case met in the field that needs no reservation."""
    ran = 0
    for case in load_verdicts(shared):
        if case["reserved"] or (decide is callback and case["lost"]):
            continue
        table = vs.MemoryTable()
        for name, (free, total) in case["nodes"].items():
            table.add_node(name, free, total, policy=vs.FitPolicy(**case["policy"].get(name, {})))
        for placement, node in case["maps"].items():
            table.map(placement, node)
        for placement, idle in case["idle"].items():
            table.set_idle(placement, idle)
        for node in case["lost"]:
            table.mark_lost(node)
        assert decide(table, make_set(case["candidates"])) == (case["status"], case["pick"]), case["id"]
        ran += 1
    assert ran >= 20


def test_a_copy_in_the_other_implementation_is_equal() -> None:
    table = vs.MemoryTable({"cuda:0": (10, 100), "cpu": None})
    twin = as_type(table, vs.MemoryTable)
    assert twin.nodes == table.nodes
    assert twin.free.tolist() == table.free.tolist()
