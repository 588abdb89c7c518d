"""What others compile against: `_core.pxd`, and the capsule of `vramsel.h`."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import re
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from implementations import as_type
from toolchain import HEADERS, compiler, run

import vramsel as vs
from vramsel import _core
from vramsel.reference import ReferenceTable

pytestmark = pytest.mark.xdist_group("consumer")  # which is compiled once, by one worker

HERE = Path(__file__).parent
ABI = json.loads((HERE / "abi.json").read_text(encoding="utf-8"))

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup

# Unoptimised: it is compiled faster, and its speed is no matter here.
flags = [] if sys.platform == "win32" else ["-O0"]
modules = [Extension(name, [name + ".pyx"], extra_compile_args=flags) for name in ("executor", "contract")]
setup(name="consumer", script_args=["-q", "build_ext", "--inplace"], ext_modules=cythonize(modules, quiet=True))
"""


@pytest.fixture(scope="session")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both consumers, compiled by a user's means: Cython, and the installed package."""
    for name in ("Cython", "setuptools"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} (the test extra) is not installed")
    compiler()
    folder = tmp_path_factory.mktemp("consumer")
    for source in (HERE / "consumer").glob("*.pyx"):
        (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "build.py").write_text(BUILD, encoding="utf-8")
    # Elsewhere, so that it is the installed package that is found.
    run([sys.executable, "build.py"], cwd=folder, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    return folder


def load(folder: Path, name: str) -> ModuleType:
    (path,) = [path for path in folder.glob(f"{name}.*") if path.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def contract(consumer: Path) -> ModuleType:
    return load(consumer, "contract")


@pytest.fixture
def table() -> vs.MemoryTable:
    return vs.MemoryTable({"cuda:0": (100, 1000), "cuda:1": (600, 1000), "cpu": (None, None)})


ROWS = vs.candidates([("cuda:0", 200), ("cuda:1", 500), ("cpu", 200), ("cuda:1", 100)])


def test_the_example_of_the_readme(consumer: Path, table: vs.MemoryTable) -> None:
    text = (HERE / "consumer" / "executor.pyx").read_text(encoding="utf-8")
    readme = (HERE.parent / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^```cython\n(.*?)^```", readme, re.MULTILINE | re.DOTALL) == [text]
    executor = load(consumer, "executor")
    assert executor.dispatch(table, ROWS, 1000) == [0, 0, 1000, 0]
    with pytest.raises(TypeError, match="a handle is of a MemoryTable, not of a dict"):
        executor.dispatch({}, ROWS, 1)


def test_single_picks(contract: ModuleType, table: vs.MemoryTable) -> None:
    handle = contract.Handle(table)
    assert handle.pick(ROWS) == (2, vs.FitStatus.UNKNOWN)
    assert handle.pick(ROWS[:2]) == (1, vs.FitStatus.TIGHT)
    assert handle.pick(ROWS[:1]) == (0, vs.FitStatus.WONT_FIT)
    assert handle.pick(ROWS[:0]) == (-1, 255)
    assert handle.pick_sized(ROWS[:2], 100) == (1, vs.FitStatus.COMFORTABLE)
    assert handle.pick_sized(ROWS[:1], 100) == (0, vs.FitStatus.TIGHT)
    assert handle.pick_sized(ROWS[:2], 2**64 - 1) == (0, vs.FitStatus.WONT_FIT)
    table.update("cuda:0", 1000, 1000)
    assert handle.pick(ROWS) == (0, vs.FitStatus.COMFORTABLE)


def test_batches(contract: ModuleType, table: vs.MemoryTable) -> None:
    handle = contract.Handle(table)
    oracle = as_type(table, ReferenceTable)
    sizes = np.array([1, 1000, 3, 450], dtype=np.uint64)
    assert handle.classify(ROWS).tolist() == oracle.classify(ROWS).tolist()
    assert handle.classify(ROWS, sizes).tolist() == oracle.classify(ROWS, sizes).tolist()
    offsets = np.array([0, 2, 2, 4])
    told = np.zeros(3, dtype=np.uint8)
    want = oracle.select_many(ROWS, offsets, sizes, status_out=told)
    fault, picks, status = handle.pick_many(ROWS, 3, offsets, sizes=sizes)
    assert (fault, picks.tolist(), status.tolist()) == (0, want.tolist(), told.tolist())
    fault, picks, _ = handle.pick_many(ROWS, 2, set_size=2)
    assert (fault, picks.tolist()) == (0, oracle.select_many(ROWS, set_size=2).tolist())
    assert handle.pick_many(ROWS, 0)[0] == 0


@pytest.mark.parametrize(
    ("sets", "offsets", "set_size"),
    [
        (3, None, 2),
        (1, None, 0),
        (1, None, 2**31),
        (2, [0, 3, 2], 0),
        (2, [0, 2, 5], 0),
        (2, [-1, 2, 4], 0),
        (2, [0, 2, -(2**63)], 0),
    ],
)
def test_sets_that_do_not_lie_within_are_refused(
    contract: ModuleType, table: vs.MemoryTable, sets: int, offsets: list[int] | None, set_size: int
) -> None:
    bounds = None if offsets is None else np.array(offsets)
    fault, picks, status = contract.Handle(table).pick_many(ROWS, sets, bounds, set_size)
    assert fault == -2
    assert set(picks.tolist()) == {99}
    assert set(status.tolist()) == {99}


def test_a_handle_outlives_its_table(contract: ModuleType) -> None:
    table = vs.MemoryTable({"cuda:0": (100, 1000), "cuda:1": (600, 1000), "cpu": (None, None)})
    handles = [contract.Handle(table) for _ in range(3)]
    del table
    gc.collect()
    noise = [vs.MemoryTable({f"cuda:{i}": (i, i) for i in range(50)}) for _ in range(50)]
    assert [handle.pick(ROWS) for handle in handles] == [(2, vs.FitStatus.UNKNOWN)] * 3
    del noise, handles[1]
    assert handles[1].pick(ROWS[:2]) == (1, vs.FitStatus.TIGHT)


def test_a_handle_sees_one_moment_while_the_table_changes_and_grows(contract: ModuleType) -> None:
    table = vs.MemoryTable({"cuda:0": (0, 100), "cuda:1": (100, 100)})
    handle = contract.Handle(table)
    rows = vs.candidates([("cuda:0", 50), ("cuda:1", 50)])
    stop = threading.Event()
    seen: set[tuple[int, int]] = set()

    def look() -> None:
        while not stop.is_set():
            seen.add(handle.pick(rows))
            seen.add((-2, int(handle.classify(rows).sum())))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    total = np.array([100, 100], dtype=np.uint64)
    for turn in range(3000):
        table.update_all(np.array([100, 0] if turn % 2 else [0, 100], dtype=np.uint64), total)
        if turn % 10 == 0:
            table.map(("vulkan", turn // 10), "cuda:0")
    stop.set()
    for reader in readers:
        reader.join()
    # Tight with half of its memory free it is not; one of the two never fits.
    assert seen <= {(0, 0), (1, 0), (-2, 2)}


def test_the_contract_of_cython_callers(contract: ModuleType) -> None:
    """A change here breaks compiled consumers: say so in CHANGES.md, and write abi.json anew."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    signatures = {}
    for function, capsule in _core.__pyx_capi__.items():
        # Cython's own prefix to a type's name is its affair.
        signatures[function] = re.sub(r"__pyx_t_\w*?_core_", "", name(capsule).decode())
    assert signatures == ABI["cimport"]
    assert contract.layout() == ABI["record"]
    dtype = vs.CANDIDATE_DTYPE
    assert ABI["record"] == {"size": dtype.itemsize} | {field: dtype.fields[field][1] for field in dtype.names}


POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
RECORDS = (POINTER, POINTER, SIZE)  # what every function but two begins with: the table, records and their number


class Api(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("open", ctypes.PYFUNCTYPE(POINTER, ctypes.py_object)),
        ("close", ctypes.CFUNCTYPE(None, POINTER)),
        ("pick", ctypes.CFUNCTYPE(ctypes.c_ssize_t, *RECORDS, POINTER)),
        ("pick_sized", ctypes.CFUNCTYPE(ctypes.c_ssize_t, *RECORDS, ctypes.c_uint64, POINTER)),
        ("classify", ctypes.CFUNCTYPE(ctypes.c_int, *RECORDS, POINTER, POINTER)),
        ("pick_many", ctypes.CFUNCTYPE(ctypes.c_int, *RECORDS, POINTER, SIZE, SIZE, POINTER, POINTER, POINTER)),
    )


class Capsule:
    """The capsule, as a caller in another language sees it."""

    def __init__(self) -> None:
        point = ctypes.pythonapi.PyCapsule_Import
        point.restype, point.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
        self.api = Api.from_address(point(b"vramsel._core.api", 0))

    def open(self, table: object) -> int:
        return self.api.open(table)


def test_the_contract_of_c_callers(tmp_path: Path) -> None:
    """As the header has it, and as the structure above repeats it."""
    prints = "".join(f'    print_one("{name}", offsetof(vramsel_api, {name}));\n' for name, *_ in Api._fields_)
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n"
        '#include "vramsel.h"\n'
        'static void print_one(const char *name, size_t at) { printf("\\"%s\\": %d, ", name, (int)at); }\n'
        f'int main(void) {{\n    putchar(123);\n{prints}    printf("\\"struct\\": %d", (int)sizeof(vramsel_api));\n'
        "    putchar(125);\n    return 0;\n}\n"
    )
    run([*compiler(), f"-I{HEADERS}", "-o", tmp_path / "layout", source])
    assert json.loads(run([tmp_path / "layout"])) == ABI["api"]
    layout = {name: getattr(Api, name).offset for name, *_ in Api._fields_}
    assert layout | {"struct": ctypes.sizeof(Api)} == ABI["api"]
    api = Capsule().api
    assert (api.version, api.size) == (ABI["version"], ABI["api"]["struct"])


def test_the_capsule_through_ctypes(table: vs.MemoryTable) -> None:
    capsule = Capsule()
    api = capsule.api
    handle = capsule.open(table)
    oracle = as_type(table, ReferenceTable)
    del table
    gc.collect()
    status = ctypes.c_uint8(9)
    assert api.pick(handle, ROWS.ctypes.data, 4, ctypes.byref(status)) == 2
    assert status.value == vs.FitStatus.UNKNOWN
    assert api.pick(handle, None, 0, ctypes.byref(status)) == -1
    assert status.value == 255
    assert api.pick(handle, ROWS.ctypes.data, 1, None) == 0
    assert api.pick_sized(handle, ROWS.ctypes.data, 2, 100, ctypes.byref(status)) == 1
    assert status.value == vs.FitStatus.COMFORTABLE
    statuses = np.full(4, 9, dtype=np.uint8)
    sizes = np.array([1, 1000, 3, 450], dtype=np.uint64)
    assert api.classify(handle, ROWS.ctypes.data, 4, sizes.ctypes.data, statuses.ctypes.data) == 0
    assert statuses.tolist() == oracle.classify(ROWS, sizes).tolist()
    picks = np.full(2, 99, dtype=np.int32)
    assert api.pick_many(handle, ROWS.ctypes.data, 4, None, 2, 2, None, picks.ctypes.data, None) == 0
    assert picks.tolist() == oracle.select_many(ROWS, set_size=2).tolist()
    api.close(handle)


def test_a_product_of_lengths_that_wraps_is_refused(table: vs.MemoryTable) -> None:
    api = Capsule().api
    handle = api.open(table)
    pick = np.full(1, 99, dtype=np.int32)
    for sets, each in ((2**62, 4), (2**63, 2), (2**64 - 1, 1)):
        assert api.pick_many(handle, ROWS.ctypes.data, 4, None, each, sets, None, pick.ctypes.data, None) == -2
    assert (
        api.pick_many(handle, ROWS.ctypes.data, 4, ROWS.ctypes.data, 0, 2**64 - 1, None, pick.ctypes.data, None) == -2
    )
    assert pick[0] == 99
    api.close(handle)


def test_the_capsule_refuses_what_is_no_table() -> None:
    for wrong in (None, 3, vs.AlternativeSet([])):
        with pytest.raises(TypeError, match="a handle is of a MemoryTable"):
            Capsule().open(wrong)
