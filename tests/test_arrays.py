"""Every odd array gives what a plain copy of it gives, or an error that names the trouble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vramsel as vs

FIELDS = ["backend", "device", "bytes_moved"]


@pytest.fixture
def table(table_type: type[vs.MemoryTable]) -> vs.MemoryTable:
    return table_type({"cuda:0": (100, 1000), "cuda:1": (900, 1000), "cpu": (2**63, 2**64 - 1)})


@pytest.fixture
def plain() -> np.ndarray:
    return vs.candidates(
        [("cuda:0", 101), ("cuda:1", 101), ("cpu", 2**53 + 1), ("cuda:0", 1), ("cpu", 2**64 - 1), ("cuda:1", 900)]
    )


def with_dtype(dtype: object) -> Callable[[np.ndarray], np.ndarray]:
    def convert(plain: np.ndarray) -> np.ndarray:
        rows = np.zeros(len(plain), dtype=dtype)
        for name in rows.dtype.names:
            if name in plain.dtype.names:
                rows[name] = plain[name]
        return rows

    return convert


def read_only(plain: np.ndarray) -> np.ndarray:
    plain.flags.writeable = False
    return plain


def misaligned(plain: np.ndarray) -> np.ndarray:
    buffer = np.zeros(plain.nbytes + 1, dtype=np.uint8)
    rows = buffer[1:].view(vs.CANDIDATE_DTYPE)
    rows[...] = plain
    assert rows.ctypes.data % 2 == 1
    return rows


def strided(plain: np.ndarray) -> np.ndarray:
    return np.repeat(plain, 2)[::2]


def backwards(plain: np.ndarray) -> np.ndarray:
    return plain[::-1].copy()[::-1]


def column_of_a_matrix(plain: np.ndarray) -> np.ndarray:
    return np.column_stack([plain, plain])[:, 1]


class Subclass(np.ndarray):
    pass


ODD = {
    "read-only": read_only,
    "misaligned": misaligned,
    "strided": strided,
    "backwards": backwards,
    "column": column_of_a_matrix,
    "subclass": lambda plain: plain.view(Subclass),
    "recarray": lambda plain: plain.view(np.recarray),
    "the dtype again": with_dtype(np.dtype(vs.CANDIDATE_DTYPE.descr, align=True)),
    "packed": with_dtype([("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")]),
    "big-endian size": with_dtype([("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", ">u8")]),
    "all big-endian": with_dtype(vs.CANDIDATE_DTYPE.newbyteorder(">")),
    "no kernel": with_dtype([("backend", "u2"), ("device", "u2"), ("bytes_moved", "u8")]),
    "other order": with_dtype([("bytes_moved", "u8"), ("device", "u1"), ("backend", "i8")]),
    "same widths, fields swapped": with_dtype(
        [("device", "u2"), ("backend", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")]
    ),
    "extra fields": with_dtype(
        [("cost", "f8"), ("backend", "u2"), ("device", "u2"), ("bytes_moved", "u8"), ("name", "U5")]
    ),
    "padded": with_dtype({"names": FIELDS, "formats": ["u2", "u2", "u8"], "offsets": [3, 9, 40], "itemsize": 64}),
    "overlapping fields": with_dtype(
        {"names": [*FIELDS, "word"], "formats": ["u2", "u2", "u8", "u4"], "offsets": [0, 2, 8, 0], "itemsize": 16}
    ),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_odd_arrays(table: vs.MemoryTable, plain: np.ndarray, make: Callable) -> None:
    want = table.classify(plain).tolist()
    odd = make(plain.copy())
    before = odd.tobytes()
    assert table.classify(odd).tolist() == want
    assert table.select_many(odd, set_size=3).tolist() == table.select_many(plain, set_size=3).tolist()
    assert table.select(odd) == table.select(plain)
    assert table.select_sized(odd, 200) == table.select_sized(plain, 200)
    assert table.select_fit(odd) == table.select_fit(plain)
    alternatives = vs.AlternativeSet.from_array(odd)
    assert alternatives.array["bytes_moved"].tolist() == plain["bytes_moved"].tolist()
    assert table.classify(alternatives).tolist() == want
    assert odd.tobytes() == before


def test_memmap(table: vs.MemoryTable, plain: np.ndarray, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    plain.tofile(file)
    rows = np.memmap(file, dtype=vs.CANDIDATE_DTYPE, mode="r")
    assert table.classify(rows).tolist() == table.classify(plain).tolist()
    assert table.select(rows) == table.select(plain)


def test_signed_sizes(table: vs.MemoryTable) -> None:
    rows = np.array([(1, 1, 800), (1, 1, 0)], dtype=[("backend", "i4"), ("device", "i8"), ("bytes_moved", "i8")])
    assert table.classify(rows).tolist() == [1, 0]


def test_nothing_at_all(table: vs.MemoryTable) -> None:
    empty = np.zeros(0, dtype=vs.CANDIDATE_DTYPE)
    assert table.select(empty) is None
    assert table.select_fit(empty) is None
    assert table.select_sized(empty, 1) is None
    assert table.classify(empty).tolist() == []
    assert table.classify(empty, []).tolist() == []
    assert table.select_many(empty, [0]).tolist() == []
    assert table.select_many(empty, [0, 0, 0, 0]).tolist() == [-1, -1, -1]
    assert table.select_many(empty, set_size=4).tolist() == []
    assert table.select_many(empty, [0, 0]).dtype == np.int32


def test_a_table_without_nodes(table_type: type[vs.MemoryTable], plain: np.ndarray) -> None:
    assert table_type().classify(plain).tolist() == [3] * len(plain)
    assert table_type().select(plain) == 0


def test_codes_at_the_ends(table: vs.MemoryTable) -> None:
    rows = np.zeros(4, dtype=vs.CANDIDATE_DTYPE)
    rows["backend"] = [65535, 0, 1, 65535]
    rows["device"] = [65535, 65535, 65535, 0]
    rows["kernel"] = 2**32 - 1
    assert table.classify(rows).tolist() == [3, 3, 3, 3]


def test_kernels_travel() -> None:
    rows = np.array(
        [(1, 0, 2**32 - 1, 5)], dtype=[("backend", "u2"), ("device", "u2"), ("kernel", "u8"), ("bytes_moved", "u8")]
    )
    assert vs.AlternativeSet.from_array(rows)[0].kernel == 2**32 - 1


def fields(**changes: object) -> list[tuple]:
    columns = {"backend": "u2", "device": "u2", "kernel": "u4", "bytes_moved": "i8"} | changes
    return [(name, *(code if isinstance(code, tuple) else (code,))) for name, code in columns.items() if code]


@pytest.mark.parametrize(
    ("dtype", "rows", "error", "words"),
    [
        (fields(bytes_moved="f8"), 1, TypeError, ["bytes_moved", "float64"]),
        (fields(bytes_moved="O"), 1, TypeError, ["bytes_moved", "object"]),
        (fields(bytes_moved="?"), 1, TypeError, ["bytes_moved", "bool"]),
        (fields(bytes_moved="m8[s]"), 1, TypeError, ["bytes_moved"]),
        (fields(bytes_moved=("u8", (2,))), 1, TypeError, ["bytes_moved"]),
        (fields(device="f4"), 1, TypeError, ["device", "float32"]),
        (fields(bytes_moved=None), 1, TypeError, ["lack", "bytes_moved"]),
        (fields(backend=None), 1, TypeError, ["lack", "backend"]),
        (fields(device=None), 1, TypeError, ["lack", "device"]),
        ("u8", 1, TypeError, ["fields", "uint64"]),
        (fields(bytes_moved="f8"), 0, TypeError, ["bytes_moved"]),
    ],
)
def test_wrong_dtypes(
    table: vs.MemoryTable, dtype: object, rows: int, error: type[Exception], words: list[str]
) -> None:
    array = np.zeros(rows, dtype=dtype)
    for call in (table.select, table.classify, table.select_fit, vs.AlternativeSet.from_array):
        with pytest.raises(error) as caught:
            call(array)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("bytes_moved", -1, ["row 2", "bytes_moved", "-1"]),
        ("device", -1, ["row 2", "device"]),
        ("device", 65536, ["row 2", "device", "65536"]),
        ("backend", 70000, ["row 2", "backend"]),
    ],
)
def test_values_out_of_range(table: vs.MemoryTable, field: str, value: int, words: list[str]) -> None:
    array = np.zeros(4, dtype=[("backend", "i8"), ("device", "i8"), ("bytes_moved", "i8")])
    array[field][2] = value
    for call in (
        table.select,
        table.classify,
        lambda a: table.select_many(a, set_size=2),
        vs.AlternativeSet.from_array,
    ):
        with pytest.raises(ValueError, match="row 2") as caught:
            call(array)
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_shapes(table: vs.MemoryTable) -> None:
    for shape in ((), (2, 2), (0, 3)):
        with pytest.raises(ValueError, match="1-d"):
            table.select(np.zeros(shape, dtype=vs.CANDIDATE_DTYPE))


def test_a_single_record_is_no_array(table: vs.MemoryTable, plain: np.ndarray) -> None:
    with pytest.raises(TypeError, match="void"):
        table.select(plain[0])


def test_masked_arrays_are_refused(table: vs.MemoryTable, plain: np.ndarray) -> None:
    with pytest.raises(TypeError, match="masked"):
        table.select(np.ma.MaskedArray(plain))


def test_a_set_keeps_its_own_copy(table: vs.MemoryTable, plain: np.ndarray) -> None:
    alternatives = vs.AlternativeSet.from_array(plain)
    plain["bytes_moved"] = 0
    assert alternatives.array["bytes_moved"][0] == 101
    with pytest.raises(ValueError, match="read-only"):
        alternatives.array["bytes_moved"] = 0


def test_sizes_of_every_kind(table: vs.MemoryTable, plain: np.ndarray) -> None:
    exact = plain["bytes_moved"].copy()
    want = table.classify(plain).tolist()
    other = vs.candidates([(vs.Placement(int(b), int(d)), 0) for b, d, _, _ in plain.tolist()])
    readonly = exact.copy()
    readonly.flags.writeable = False
    for sizes in (
        exact,
        exact.tolist(),
        tuple(exact.tolist()),
        exact.astype(">u8"),
        np.repeat(exact, 2)[::2],
        readonly,
        exact.astype(object),
        plain["bytes_moved"],
    ):
        assert table.classify(other, sizes).tolist() == want
    assert table.classify(other[:2], np.array([101, 101], dtype=np.int8)).tolist() == want[:2]
    with pytest.raises(ValueError, match="row 1"):
        table.classify(other[:2], np.array([101, -1], dtype=np.int64))


def test_misaligned_sizes_and_offsets(table: vs.MemoryTable, plain: np.ndarray) -> None:
    sizes = np.frombuffer(b"x" + plain["bytes_moved"].tobytes(), np.uint64, offset=1)
    offsets = np.frombuffer(b"x" + np.array([0, 2, 6]).tobytes(), np.int64, offset=1)
    assert not sizes.flags.aligned
    assert table.classify(plain, sizes).tolist() == table.classify(plain).tolist()
    assert table.select_many(plain, offsets).tolist() == table.select_many(plain, [0, 2, 6]).tolist()
    table.update_all(sizes[:3], sizes[:3])


def test_offsets_of_every_kind(table: vs.MemoryTable, plain: np.ndarray) -> None:
    want = table.select_many(plain, [0, 2, 6]).tolist()
    offsets = np.array([0, 2, 6])
    for odd in (
        offsets.astype(np.uint8),
        offsets.astype(">i4"),
        np.repeat(offsets, 2)[::2],
        (0, 2, 6),
        offsets.astype(np.uint64),
    ):
        assert table.select_many(plain, odd).tolist() == want
