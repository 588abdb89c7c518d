"""Backends, placements and candidates."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import vramsel as vs
from vramsel.placement import backend_name


def test_fixed_codes() -> None:
    assert [vs.backend_code(name) for name in ("cpu", "cuda", "vulkan", "metal")] == [0, 1, 2, 3]
    for name in ("rocm", "torch", "cupy", "rmm"):
        assert backend_name(vs.backend_code(name)) == name


def test_registering() -> None:
    code = vs.register_backend("npu")
    assert code > vs.backend_code("rmm")
    assert vs.register_backend("npu") == code == vs.backend_code("npu")
    assert vs.register_backend("cuda") == 1
    assert str(vs.Placement("npu:2")) == "npu:2"
    for bad in ("", "NPU", "n:pu", "1x", " npu", "n pu", "né"):
        with pytest.raises(ValueError, match="backend name"):
            vs.register_backend(bad)
    for bad in (None, 3, b"npu"):
        with pytest.raises(TypeError):
            vs.register_backend(bad)


@pytest.mark.parametrize("code", [-1, 65535, 10**9])
def test_unknown_codes(code: int) -> None:
    with pytest.raises(vs.UnknownBackendError, match=str(code)):
        backend_name(code)


@pytest.mark.parametrize("name", ["nope", "", None, 1, ["cuda"]])
def test_unknown_names(name: object) -> None:
    with pytest.raises(vs.UnknownBackendError, match="unknown backend"):
        vs.backend_code(name)


def test_every_spelling() -> None:
    want = vs.Placement("cuda:1")
    assert want == vs.Placement("cuda", 1) == vs.Placement(1, 1) == vs.Placement(("cuda", 1)) == vs.Placement((1, 1))
    assert want == vs.Placement(want) == vs.Placement(np.uint16(1), np.int64(1)) == (1, 1)
    assert (want.backend, want.device, want.backend_name) == (1, 1, "cuda")
    assert (str(want), repr(want)) == ("cuda:1", "Placement('cuda:1')")
    assert vs.Placement("cpu") == vs.Placement("cpu:0") == (0, 0)
    assert (str(vs.Placement("cpu")), str(vs.Placement("cpu:1")), str(vs.Placement("disk"))) == (
        "cpu",
        "cpu:1",
        "disk:0",
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("cuda:x",), ValueError),
        (("cuda:",), ValueError),
        (("cuda:-1",), ValueError),
        (("cuda:1:2",), ValueError),
        (("cuda: 1",), ValueError),
        (("cuda:\u0661",), ValueError),
        (("cuda:65536",), ValueError),
        (("cuda:" + "9" * 5000,), ValueError),
        ((np.zeros((9, 9)),), TypeError),
        (("cuda", 10**5000), ValueError),
        (("cuda:1e3",), ValueError),
        (("CUDA:0",), ValueError),
        (("",), ValueError),
        ((":0",), ValueError),
        (("what:0",), vs.UnknownBackendError),
        ((1,), TypeError),
        ((None,), TypeError),
        (((1, 2, 3),), TypeError),
        (((),), TypeError),
        (({},), TypeError),
        ((1.0, 0), TypeError),
        (("cuda", 1.0), TypeError),
        (("cuda", "1"), TypeError),
        (("cuda", -1), ValueError),
        ((999, 0), vs.UnknownBackendError),
        ((-1, 0), vs.UnknownBackendError),
    ],
)
def test_no_placements(arguments: tuple, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        vs.Placement(*arguments)
    assert "\n" not in str(caught.value)


def test_replacing_checks_as_making_does() -> None:
    placement = vs.Placement("cuda:0")
    assert placement._replace(device=3) == vs.Placement("cuda:3")
    for wrong in ({"device": 70000}, {"device": -1}, {"backend": 999}):
        with pytest.raises(ValueError):
            placement._replace(**wrong)


def test_pickles_travel_by_name() -> None:
    vs.register_backend("first-here")
    code = vs.register_backend("second-here")
    candidate = vs.Candidate("second-here:4", 5, payload=["mine"], kernel=6)
    assert copy.deepcopy(candidate) == candidate
    assert pickle.loads(pickle.dumps(candidate)) == candidate
    script = (
        "import pickle, sys, vramsel as vs; c = pickle.load(sys.stdin.buffer);"
        "print(c.placement, c.backend == vs.backend_code('second-here'), c.backend)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], input=pickle.dumps(candidate), capture_output=True, check=True
    )
    name, same, other_code = done.stdout.decode().split()
    assert (name, same) == ("second-here:4", "True")
    assert int(other_code) != code, "the other process gave it another code, and it did not matter"


def test_candidate() -> None:
    candidate = vs.Candidate("cuda:1", 5)
    assert (candidate.backend, candidate.device, candidate.bytes_moved) == (1, 1, 5)
    assert (candidate.payload, candidate.kernel) == (None, 0)
    assert candidate == vs.Candidate(("cuda", 1), 5) != vs.Candidate("cuda:1", 6)
    assert repr(candidate) == "Candidate('cuda:1', 5)"
    assert repr(vs.Candidate("cpu", 5, "p", 3)) == "Candidate('cpu', 5, payload='p', kernel=3)"
    assert vs.Candidate("cpu", "1KiB").bytes_moved == 1024
    with pytest.raises(AttributeError):
        candidate.bytes_moved = 3
    for arguments, error, words in (
        (("cuda:1", -1), ValueError, "bytes_moved"),
        (("cuda:1", 1e32), TypeError, "bytes_moved"),
        (("cuda:1", 10**32), ValueError, "bytes_moved"),
        (("cuda:x", 1), ValueError, "cuda:x"),
        (("cuda:1", 1, None, -1), ValueError, "kernel"),
        (("cuda:1", 1, None, 2**32), ValueError, "kernel"),
    ):
        with pytest.raises(error, match=words):
            vs.Candidate(*arguments)


def test_candidates() -> None:
    rows = vs.candidates([("cuda:1", 5), vs.Candidate("cpu", 2**64 - 1, kernel=7), (("vulkan", 2), 3, 9)])
    assert rows.dtype == vs.CANDIDATE_DTYPE
    assert rows.tolist() == [(1, 1, 0, 5), (0, 0, 7, 2**64 - 1), (2, 2, 9, 3)]
    assert vs.candidates([]).shape == (0,)
    assert vs.candidates(iter([("cpu", 1)])).shape == (1,)
    for bad, error in (
        ([("cpu", 1), ("cuda:x", 1)], ValueError),
        ([("cpu", 1), ("what:0", 1)], vs.UnknownBackendError),
        ([("cpu", 1), ("cpu", -1)], ValueError),
        ([("cpu", 1), ("cpu", 1e32)], TypeError),
        ([("cpu", 1), "cpu"], TypeError),
        ([("cpu", 1), ("cpu",)], TypeError),
        ([("cpu", 1), 5], TypeError),
    ):
        with pytest.raises(error, match="candidate 1"):
            vs.candidates(bad)


def test_dtype() -> None:
    dtype = vs.CANDIDATE_DTYPE
    assert (dtype.itemsize, dtype.alignment, dtype.isalignedstruct) == (16, 8, True)
    assert {name: (str(t), offset) for name, (t, offset) in dtype.fields.items()} == {
        "backend": ("uint16", 0),
        "device": ("uint16", 2),
        "kernel": ("uint32", 4),
        "bytes_moved": ("uint64", 8),
    }


def test_alternative_set() -> None:
    items = [vs.Candidate("cuda:0", 5, payload=object()), vs.Candidate("cpu", 6, kernel=2)]
    alternatives = vs.AlternativeSet(items)
    assert len(alternatives) == 2
    assert alternatives.alternatives == tuple(items)
    assert alternatives[0] is alternatives.winner is items[0]
    assert alternatives[-1] is items[1]
    assert alternatives[1:] == (items[1],)
    assert list(alternatives) == items
    assert items[1] in alternatives
    assert alternatives.array.tolist() == [(1, 0, 0, 5), (0, 0, 2, 6)]
    assert alternatives.array.dtype is vs.CANDIDATE_DTYPE
    assert not alternatives.array.flags.writeable
    with pytest.raises(IndexError):
        alternatives[2]
    assert repr(vs.AlternativeSet(items[1:])) == "AlternativeSet([Candidate('cpu', 6, kernel=2)])"
    assert vs.AlternativeSet(items) == alternatives != vs.AlternativeSet(items[:1])
    assert hash(vs.AlternativeSet(items)) == hash(alternatives)
    assert alternatives != tuple(items)
    empty = vs.AlternativeSet([])
    assert (len(empty), empty.winner, empty.alternatives, empty.array.shape) == (0, None, (), (0,))


def test_alternative_set_pickles() -> None:
    items = vs.AlternativeSet([vs.Candidate("cuda:0", 5, payload={"a": 1}), vs.Candidate("cpu", 6, kernel=2)])
    for twin in (pickle.loads(pickle.dumps(items)), copy.copy(items), copy.deepcopy(items)):
        assert twin == items
        assert twin.array.tolist() == items.array.tolist()
        assert twin[0].payload == {"a": 1}


def test_alternative_set_from_array() -> None:
    rows = vs.candidates([("cuda:0", 5, 1), ("cpu", 6)])
    alternatives = vs.AlternativeSet.from_array(rows)
    assert alternatives.alternatives == (vs.Candidate("cuda:0", 5, kernel=1), vs.Candidate("cpu", 6))
    assert alternatives == vs.AlternativeSet(rows)
    rows["backend"] = 60000
    strange = vs.AlternativeSet.from_array(rows)
    assert vs.MemoryTable().select(strange) == 0, "codes are only named when somebody asks for the candidates"
    with pytest.raises(vs.UnknownBackendError, match="60000"):
        strange[0]
    rows["backend"][0] = 0
    half = vs.AlternativeSet.from_array(rows)
    assert half[0] == half.winner == vs.Candidate("cpu", 5, kernel=1)
    assert repr(half) == "AlternativeSet([Candidate('cpu', 5, kernel=1), (60000, 0) 6])"
    assert half == vs.AlternativeSet.from_array(rows) != strange


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_nobody_can_change_a_set() -> None:
    """The core reads the rows without a check, so they must stay where and what they are."""
    alternatives = vs.AlternativeSet([vs.Candidate("cuda:0", i) for i in range(200)])
    view = alternatives.array
    with pytest.raises(ValueError):
        view.setflags(write=True)
    with pytest.raises(ValueError):
        view.resize(100000, refcheck=False)
    view.shape = (100, 2)
    with contextlib.suppress(ValueError, TypeError):
        view.__setstate__((1, (1,), np.dtype("u1"), False, b"x"))
    del view
    assert alternatives.array.shape == (200,)
    assert alternatives.array["bytes_moved"].tolist() == list(range(200))
    assert vs.MemoryTable().select(alternatives) == 0


def test_payload_cycles_are_collected() -> None:
    class Payload:
        pass

    payload = Payload()
    payload.owner = vs.AlternativeSet([vs.Candidate("cpu", 1, payload)])
    gone = weakref.ref(payload)
    del payload
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "wrong", [None, 3, "cuda:0", [("cuda:0", 1)], ["cuda:0"], [None], {"cuda:0": 1}, vs.Candidate("cpu", 1)]
)
def test_no_sets(wrong: object) -> None:
    with pytest.raises(TypeError, match="Candidate"):
        vs.AlternativeSet(wrong)
    with pytest.raises(TypeError, match="from_array"):
        vs.AlternativeSet.from_array(wrong)
