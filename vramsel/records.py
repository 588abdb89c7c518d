"""Candidates, one by one and as arrays: the records that the core reads."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._core import CANDIDATE_DTYPE, AlternativeSet
from .errors import shown
from .placement import Placement, PlacementLike
from .units import MAX_BYTES, as_bytes, format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "CANDIDATE_DTYPE",
    "AlternativeSet",
    "Candidate",
    "as_candidates",
    "as_output",
    "as_sets",
    "as_u64",
    "candidates",
    "refuse_mask",
]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Candidate:
    """One way to run an operation: where, and with how many bytes.

    Parameters
    ----------
    placement : str, Placement or pair
        Where it would run: ``"cuda:0"``, a `Placement`, or ``(backend, device)``.
    bytes_moved : int
        Projected bytes: reads, writes and intermediates. A string such as ``"2GiB"`` is parsed.
    payload : object, optional
        The caller's own; handed back with the pick.
    kernel : int, default 0
        The caller's kernel index, 0 to 2^32-1; carried in arrays, never looked at.

    Raises
    ------
    UnknownBackendError, TypeError, ValueError
        If the placement is none, or a number is out of range.
    """

    placement: Placement
    bytes_moved: int
    payload: Any
    kernel: int

    def __init__(self, placement: PlacementLike, bytes_moved: int, payload: Any = None, kernel: int = 0) -> None:
        number = _as_index(kernel, "kernel")
        if not 0 <= number < 2**32:
            raise ValueError(f"kernel must be within 0..2^32-1, got {shown(number)}")
        put = object.__setattr__
        put(self, "placement", Placement(placement))
        put(self, "bytes_moved", as_bytes(bytes_moved, "bytes_moved"))
        put(self, "payload", payload)
        put(self, "kernel", number)

    @property
    def backend(self) -> int:
        """Code of the backend."""
        return self.placement.backend

    @property
    def device(self) -> int:
        """Ordinal of the device within the backend."""
        return self.placement.device

    def __repr__(self) -> str:
        more = "" if self.payload is None else f", payload={self.payload!r}"
        more += f", kernel={self.kernel}" if self.kernel else ""
        return f"Candidate({str(self.placement)!r}, {self.bytes_moved}{more})"

    def __str__(self) -> str:
        return f"{self.placement} {format_bytes(self.bytes_moved)}"


def candidates(
    items: Iterable[Candidate | tuple[PlacementLike, int] | tuple[PlacementLike, int, int]],
) -> npt.NDArray[np.void]:
    """Build an array of candidates.

    Parameters
    ----------
    items : iterable
        Of `Candidate`, ``(placement, bytes_moved)`` or ``(placement, bytes_moved, kernel)``.

    Returns
    -------
    numpy.ndarray
        Shape (n,), dtype `CANDIDATE_DTYPE`.

    Raises
    ------
    UnknownBackendError, TypeError, ValueError
        If an item is none of these; the message says which.
    """
    rows = []
    for row, item in enumerate(items):
        if isinstance(item, Candidate):
            candidate = item
        elif isinstance(item, (tuple, list)) and len(item) in (2, 3):
            try:
                candidate = Candidate(item[0], item[1], kernel=item[2] if len(item) == 3 else 0)
            except (TypeError, ValueError) as error:
                error.args = (f"candidate {row}: {error}",)
                raise
        else:
            raise TypeError(f"candidate {row} must be a Candidate or (placement, bytes), got {shown(item)}")
        rows.append((candidate.backend, candidate.device, candidate.kernel, candidate.bytes_moved))
    return np.array(rows, dtype=CANDIDATE_DTYPE)


# As CANDIDATE_DTYPE was made: `array.dtype.names = ...` renames the fields of the one that everybody has.
_ROW = np.dtype([("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")], align=True)
assert _ROW == CANDIDATE_DTYPE

_FIELDS = {"backend": 2**16 - 1, "device": 2**16 - 1, "kernel": 2**32 - 1, "bytes_moved": MAX_BYTES}


def as_candidates(values: Any) -> npt.NDArray[np.void]:
    """Convert a structured array to contiguous records of `CANDIDATE_DTYPE`, field by name.

    Parameters
    ----------
    values : numpy.ndarray
        Shape (n,), with integer fields ``backend``, ``device`` and ``bytes_moved``, and perhaps
        ``kernel``, of any width, byte order, alignment and stride; further fields are ignored.
        (A ``kernel`` plays no part in a decision, but it must be what it is in a `Candidate`.)

    Returns
    -------
    numpy.ndarray
        Shape (n,), always a new array.

    Raises
    ------
    TypeError
        If it is no such array; the message names the field that is missing or no integer.
    ValueError
        If it is not 1-d, or a value is out of range; the message names the row.
    """
    if not isinstance(values, np.ndarray):
        raise TypeError(
            f"expected an AlternativeSet or a structured array of candidates, not {type(values).__name__};"
            " vramsel.candidates([(placement, bytes), ...]) builds one"
        )
    names = values.dtype.names
    if names is None:
        raise TypeError(
            f"an array of candidates has the fields backend, device and bytes_moved; this one is {values.dtype}"
        )
    refuse_mask(values, "candidates")
    values = np.asarray(values)  # a subclass can say what it likes of itself
    if values.ndim != 1:
        raise ValueError(f"candidates must be 1-d, not of shape {values.shape}")
    rows = np.zeros(len(values), dtype=_ROW)
    for name, largest in _FIELDS.items():
        if name not in names:
            if name == "kernel":
                continue
            raise TypeError(f"candidates lack the field {name!r}; they have {shown(', '.join(names))}")
        # A copy first, so that what is checked is what is used, whoever writes to `values`.
        column = np.array(values[name])
        if column.ndim != 1 or column.dtype.kind not in "iu":
            raise TypeError(f"field {name!r} of the candidates must be an integer, not {values.dtype[name]}")
        _check_range(column, largest, f"field {name!r}")
        rows[name] = column
    return rows


def as_u64(values: Any, count: int, what: str) -> npt.NDArray[np.uint64]:
    """Convert to a contiguous, aligned uint64 array of `count` byte counts.

    Raises
    ------
    TypeError
        If it is no sequence, or a value is not an integer.
    ValueError
        If the shape is not ``(count,)`` or a value is out of range; the message names the row.
    """
    array = _as_integers(values, what)
    if isinstance(array, list):
        # NumPy would turn a list with 2**64-1 and a signed number in it into floats.
        array = np.array([as_bytes(item, f"row {row}: {what}") for row, item in enumerate(array)], dtype=np.uint64)
    if array.shape != (count,):
        raise ValueError(f"{what} must have shape ({count},), not {array.shape}")
    if array.dtype.kind == "i":
        # A copy, so that what is checked is what is used; then its bits are those of uint64.
        array = array.astype(np.int64)
        _check_range(array, MAX_BYTES, what)
        return array.view(np.uint64)
    return np.require(array, np.uint64, ["C", "A"])


def as_sets(
    count: int, offsets: Any, set_size: Any, threads: Any
) -> tuple[npt.NDArray[np.int64] | None, int, int, int]:
    """Check how a batch of `count` candidates is cut into sets, and how many threads share them.

    Returns
    -------
    offsets : numpy.ndarray or None
        Contiguous and aligned, where they were given.
    each : int
        The length of every set, if they all have the same; else 0.
    sets : int
    threads : int

    Raises
    ------
    TypeError, ValueError
        If they do not cut them into sets, or `threads` is not within 1..1024.
    """
    if (offsets is None) == (set_size is None):
        raise TypeError("select_many takes either offsets or set_size")
    number = _as_index(threads, "threads")
    if not 1 <= number <= 1024:
        raise ValueError(f"threads must be within 1..1024, got {shown(number)}")
    if offsets is None:
        each = _as_index(set_size, "set_size")
        if not 1 <= each < 2**31:
            raise ValueError(f"set_size must be within 1..2^31-1, got {shown(each)}")
        if count % each:
            raise ValueError(f"set_size {each} does not divide {count} candidates")
        return None, each, count // each, number
    bounds = _as_offsets(offsets, count)
    bad, each = _core.check_offsets(bounds, count)
    if bad is None:
        return bounds, each, len(bounds) - 1, number
    entry, bound, before = bad
    if bound > count:
        raise ValueError(f"offsets[{entry}] = {bound} is beyond the {count} candidates")
    if bound < before:
        raise ValueError(f"offsets[{entry}] = {bound} is below {before}: offsets begin at 0 and never decrease")
    raise ValueError(f"set {entry - 1} has more than 2^31-1 candidates")


def as_output(out: Any, count: int, wanted: np.dtype[Any], what: str, inputs: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Make a new array, or check that the caller's `out` can take the results.

    Parameters
    ----------
    out : numpy.ndarray or None
    count : int
    wanted : numpy.dtype
    what : str
        What to call it in an error.
    inputs : tuple
        Arrays that `out` must not overlap; anything else in it is ignored.

    Returns
    -------
    numpy.ndarray
        `out` itself where it was given.

    Raises
    ------
    TypeError, ValueError
        If `out` is no array of that dtype and shape, cannot be written to as it is, or overlaps.
    """
    if out is None:
        return np.empty(count, dtype=wanted)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{what} must be a numpy array, not {type(out).__name__}")
    refuse_mask(out, what)
    # A subclass can say what it likes of itself; what is written to is the array below it.
    array = np.asarray(out)
    if array.dtype != wanted:
        raise TypeError(f"{what} must have dtype {wanted}, not {array.dtype}")
    if array.shape != (count,):
        raise ValueError(f"{what} must have shape ({count},), not {array.shape}")
    if not array.flags.carray:
        raise ValueError(f"{what} must be writable, aligned and contiguous")
    for other in inputs:
        if isinstance(other, np.ndarray) and np.may_share_memory(array, other):
            raise ValueError(f"{what} overlaps another argument in memory")
    return out


def _as_index(value: Any, what: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{what} must be an integer, not bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}") from None


def _as_offsets(offsets: Any, count: int) -> npt.NDArray[np.int64]:
    """Convert to a contiguous, aligned int64 array."""
    array = _as_integers(offsets, "offsets")
    if isinstance(array, list):
        numbers = []
        for entry, item in enumerate(array):
            number = _as_index(item, f"offsets[{entry}]")
            numbers.append(number)
            if number < 0:
                raise ValueError(
                    f"offsets[{entry}] = {shown(number)} is below 0: offsets begin at 0 and never decrease"
                )
            if number >= 2**63:
                raise ValueError(f"offsets[{entry}] = {shown(number)} is beyond the {count} candidates")
        array = np.array(numbers, dtype=np.int64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"offsets must be 1-d with at least one entry, not of shape {array.shape}")
    if array.dtype.kind == "u":
        array = np.array(array)
        if (array > count).any():
            entry = int(np.argmax(array > count))
            raise ValueError(f"offsets[{entry}] = {array[entry]} is beyond the {count} candidates")
    return np.require(array, np.int64, ["C", "A"])


def _as_integers(values: Any, what: str) -> npt.NDArray[Any] | list[Any]:
    """An array of integers as it is; of another sequence, or an array of objects, its items."""
    if isinstance(values, memoryview) or (not isinstance(values, np.ndarray) and hasattr(values, "__array__")):
        values = np.asarray(values)
    refuse_mask(values, what)
    if isinstance(values, np.ndarray):
        values = np.asarray(values)  # a subclass can say what it likes of itself
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        if values.dtype.kind not in "iu":
            raise TypeError(f"{what} must be integers, not {values.dtype}")
        return values
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"{what} must be 1-d, not of shape {values.shape}")
        return list(values)
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence):
        raise TypeError(f"{what} must be an array or a sequence of integers, not {type(values).__name__}")
    return list(values)


def refuse_mask(values: Any, what: str) -> None:
    """Raise TypeError for a masked array: ignoring its mask would use what was masked out."""
    # An exact ndarray has none; asking NumPy loads its module for masks.
    if type(values) is not np.ndarray and isinstance(values, np.ndarray) and isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{what} must not be a masked array: a masked row has no meaning here")


def _check_range(column: npt.NDArray[Any], largest: int, what: str) -> None:
    if column.dtype.kind == "i" and column.size and column.min() < 0:
        row = int(np.argmax(column < 0))
        raise ValueError(f"row {row}: {what} must not be negative, got {column[row]}")
    if np.iinfo(column.dtype).max > largest and column.size and column.max() > largest:
        row = int(np.argmax(column > largest))
        raise ValueError(f"row {row}: {what} must be at most {largest}, got {column[row]}")


_core.bind(
    candidate_type=Candidate,
    as_candidates=as_candidates,
    as_u64=as_u64,
    as_bytes=as_bytes,
    as_output=as_output,
    as_sets=as_sets,
)
