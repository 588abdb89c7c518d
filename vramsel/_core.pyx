# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: embedsignature=True, embedsignature.format=clinic, auto_pickle=False, autotestdict=False
"""The core: records, the table, and the decision. Codes and integers only.

The work is done by free C functions over plain structs: `kernels.h` decides, `state.h` keeps
what there is to decide on, and says which guard each field has. The types below validate their
arguments and forward.
"""

cimport cython
from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from numpy cimport (
    NPY_INT32, NPY_UINT8, PyArray_DATA, PyArray_DESCR, PyArray_DIM, PyArray_EMPTY, PyArray_IS_C_CONTIGUOUS,
    PyArray_ISCARRAY, PyArray_NDIM, dtype, import_array, ndarray, npy_intp,
)

import numpy as np

import_array()

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLong(object) except? 0xFFFFFFFFFFFFFFFF

cdef extern from "kernels.h" nogil:
    uint32_t vs_judge(const vs_entry* entry, uint64_t size)
    const vs_entry* vs_find(const vs_view* view, uint32_t backend, uint32_t device)
    uint64_t vs_pick(const vs_view* view, const vs_record* rows, size_t count, const uint64_t* size)
    size_t vs_pick_index(uint64_t pick)
    bint vs_pick_fits(uint64_t pick)
    void vs_classify(
        const vs_view* view, const vs_record* rows, const uint64_t* sizes, size_t count, uint8_t* out)
    void vs_pick_regular(
        const vs_view* view, const vs_record* rows, const uint64_t* sizes,
        size_t set_size, size_t sets, int32_t* out, uint8_t* status)
    void vs_pick_ragged(
        const vs_view* view, const vs_record* rows, const uint64_t* sizes, size_t count,
        const int64_t* offsets, size_t sets, int32_t* out, uint8_t* status)
    ctypedef struct vs_entry:
        pass

cdef extern from "state.h" nogil:
    enum:
        VS_NODE_OK
        VS_NODE_LOST
    ctypedef struct vs_place:
        uint64_t idle
    vs_table* vs_table_new()
    void vs_table_free(vs_table* table)
    vs_view* vs_view_copy(const vs_view* view)
    int vs_add_node(vs_table* table)
    int vs_map(vs_table* table, uint16_t backend, uint16_t device, uint32_t node)
    int vs_close(vs_table* table, uint16_t backend)
    vs_place* vs_place_of(vs_table* table, uint16_t backend, uint16_t device)
    void vs_set_policy(vs_table* table, uint32_t node, double fraction, uint64_t margin, uint64_t headroom)
    void vs_set_reading(vs_node* node, uint64_t free_bytes, uint64_t total, bint known)
    void vs_publish_node(vs_table* table, uint32_t node)
    void vs_publish_all(vs_table* table)


CANDIDATE_DTYPE = np.dtype(
    [("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")], align=True
)
assert CANDIDATE_DTYPE.itemsize == sizeof(vs_record)

cdef dtype _exact = CANDIDATE_DTYPE
cdef dtype _twin = CANDIDATE_DTYPE      # the last other descriptor that was found equal to it

# From the layers above, which the core does not import: see bind().
cdef object _Candidate = None
cdef object _as_candidates = None
cdef object _as_u64 = None
cdef object _as_bytes = None


def bind(*, candidate_type, as_candidates, as_u64, as_bytes):
    """Tell the core what it needs of the layers above: the Candidate type and the slow paths."""
    global _Candidate, _as_candidates, _as_u64, _as_bytes
    _Candidate, _as_candidates, _as_u64, _as_bytes = candidate_type, as_candidates, as_u64, as_bytes


cdef inline bint is_exact(object candidates) except -1:
    """Whether this array can be read as it is: the dtype, 1-d, contiguous, aligned."""
    global _twin
    if type(candidates) is not ndarray:
        return False
    cdef ndarray array = <ndarray>candidates
    if PyArray_NDIM(array) != 1 or not PyArray_IS_C_CONTIGUOUS(array):
        return False
    if <uintptr_t>PyArray_DATA(array) % sizeof(uint64_t):
        return False
    if <void*>PyArray_DESCR(array) == <void*>_exact or <void*>PyArray_DESCR(array) == <void*>_twin:
        return True
    descr = candidates.dtype
    if descr != _exact:
        return False
    _twin = descr
    return True


cdef ndarray as_rows(object candidates, const vs_record** rows, Py_ssize_t* count):
    """Point `rows` at the records of a set or an array; returns the array that owns them."""
    if type(candidates) is AlternativeSet:
        rows[0] = (<AlternativeSet>candidates).rows
        count[0] = (<AlternativeSet>candidates).count
        return (<AlternativeSet>candidates).array
    cdef ndarray array = candidates if is_exact(candidates) else _as_candidates(candidates)
    rows[0] = <const vs_record*>PyArray_DATA(array)
    count[0] = PyArray_DIM(array, 0)
    return array


cdef ndarray as_sizes(object sizes, Py_ssize_t count, const uint64_t** cells):
    """Point `cells` at one size per row, or at nothing when there are none; returns their owner."""
    cells[0] = NULL
    if sizes is None:
        return None
    cdef ndarray array = _as_u64(sizes, count, "sizes")
    cells[0] = <const uint64_t*>PyArray_DATA(array)
    return array


cdef uint64_t as_size(object value) except? 0xFFFFFFFFFFFFFFFF:
    if PyLong_CheckExact(value):
        try:
            return PyLong_AsUnsignedLongLong(value)
        except OverflowError:
            pass                        # the slow path says what is wrong with it
    return PyLong_AsUnsignedLongLong(_as_bytes(value, "nbytes"))


cdef ndarray as_output(object out, Py_ssize_t count, int typenum, str what, tuple inputs):
    """A new array, or the caller's `out` once it is known to take the results."""
    cdef npy_intp length = count
    if out is None:
        return PyArray_EMPTY(1, &length, typenum, 0)
    if not isinstance(out, ndarray):
        raise TypeError(f"{what} must be a numpy array, not {type(out).__name__}")
    wanted = np.dtype(np.uint8 if typenum == NPY_UINT8 else np.int32)
    if out.dtype != wanted:
        raise TypeError(f"{what} must have dtype {wanted}, not {out.dtype}")
    if out.shape != (count,):
        raise ValueError(f"{what} must have shape ({count},), not {out.shape}")
    if not PyArray_ISCARRAY(out):
        raise ValueError(f"{what} must be writable, aligned and contiguous")
    for other in inputs:
        if other is not None and np.may_share_memory(out, other):
            raise ValueError(f"{what} overlaps another argument in memory")
    return out


cdef ndarray as_offsets(object offsets):
    array = np.asarray(offsets)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"offsets must be 1-d with at least one entry, not of shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"offsets must be integers, not {array.dtype}")
    # A uint64 of 2^63 or more turns negative here, and is refused for that.
    return np.ascontiguousarray(array, dtype=np.int64)


cdef int check_offsets(const int64_t* offsets, Py_ssize_t sets, Py_ssize_t count) except -1:
    cdef int64_t before = 0
    cdef Py_ssize_t s
    for s in range(sets + 1):
        if offsets[s] < before:
            raise ValueError(f"offsets[{s}] = {offsets[s]} is below {before}: offsets begin at 0 and never decrease")
        if offsets[s] > count:
            raise ValueError(f"offsets[{s}] = {offsets[s]} is beyond the {count} candidates")
        if s and offsets[s] - before > 0x7FFFFFFF:
            raise ValueError(f"set {s - 1} has more than 2^31-1 candidates")
        before = offsets[s]
    return 0


@cython.final
cdef class AlternativeSet:
    """The candidates of one operation, in cost order; index 0 is the static winner.

    Parameters
    ----------
    candidates : iterable of Candidate

    Attributes
    ----------
    array : numpy.ndarray
        The candidates as records: read-only, dtype `CANDIDATE_DTYPE`.

    Raises
    ------
    TypeError
        If an element is not a `Candidate`.

    Notes
    -----
    Immutable: build it when the plan is made, use it at every dispatch.
    """

    def __cinit__(self, candidates):
        cdef object array
        if isinstance(candidates, ndarray):
            array = _as_candidates(candidates)      # a copy: the caller may go on writing to theirs
        else:
            if isinstance(candidates, (str, bytes)) or not hasattr(candidates, "__iter__"):
                raise TypeError(f"an AlternativeSet is built from Candidates, not {type(candidates).__name__}")
            self.candidates = tuple(candidates)
            for i, candidate in enumerate(self.candidates):
                if not isinstance(candidate, _Candidate):
                    raise TypeError(f"alternative {i} must be a Candidate, not {type(candidate).__name__}")
            array = np.array(
                [(c.backend, c.device, c.kernel, c.bytes_moved) for c in self.candidates], dtype=_exact
            )
        array.flags.writeable = False
        self.array = array
        self.rows = <const vs_record*>PyArray_DATA(self.array)
        self.count = PyArray_DIM(self.array, 0)

    @staticmethod
    def from_array(array, /):
        """Build a set from a structured array with the fields backend, device and bytes_moved.

        Raises
        ------
        TypeError, ValueError
            If it is not such an array, or a value is out of range.
        UnknownBackendError
            When a candidate is first asked for whose backend code is not registered.
        """
        if not isinstance(array, ndarray):
            raise TypeError(f"from_array takes a structured numpy array, not {type(array).__name__}")
        return AlternativeSet(array)

    @property
    def alternatives(self):
        """The candidates, a tuple of `Candidate`."""
        if self.candidates is None:
            self.candidates = tuple([
                _Candidate((backend, device), size, kernel=kernel)
                for backend, device, kernel, size in self.array.tolist()
            ])
        return self.candidates

    @property
    def winner(self):
        """The static winner, the candidate of lowest cost; None for an empty set."""
        return self.alternatives[0] if self.count else None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.alternatives[index]

    def __iter__(self):
        return iter(self.alternatives)

    def __eq__(self, other):
        if not isinstance(other, AlternativeSet):
            return NotImplemented
        return self.alternatives == other.alternatives

    def __hash__(self):
        return hash(self.array.tobytes())

    def __repr__(self):
        return f"AlternativeSet([{', '.join(map(repr, self.alternatives))}])"

    def __reduce__(self):
        return AlternativeSet, (self.alternatives,)


cdef uint32_t checked(const vs_table* table, Py_ssize_t index) except? 0xFFFFFFFF:
    if not 0 <= index < table.node_count:
        raise IndexError(f"no node {index}")
    return index


cdef class Table:
    """Memory nodes, the placements that live in them, and the decision. See `MemoryTable`.

    The methods that begin with an underscore take codes and checked integers; `MemoryTable`
    calls them.
    """

    def __cinit__(self, *args, **kwargs):
        self.table = vs_table_new()
        if not self.table:
            raise MemoryError

    def __dealloc__(self):
        vs_table_free(self.table)

    # -- writing ------------------------------------------------------------------------------

    def _add_node(self):
        """Add a node of which nothing is known; returns its index."""
        if vs_add_node(self.table):
            raise MemoryError
        return self.table.node_count - 1

    def _set_policy(self, index, double fraction, uint64_t margin, uint64_t headroom):
        vs_set_policy(self.table, checked(self.table, index), fraction, margin, headroom)

    def _update(self, index, uint64_t free_bytes, uint64_t total, bint known):
        cdef uint32_t node = checked(self.table, index)
        vs_set_reading(&self.table.nodes[node], free_bytes, total, known)
        vs_publish_node(self.table, node)

    def _update_all(self, ndarray free_bytes not None, ndarray total not None, ndarray known not None):
        """Contiguous uint64, uint64 and bool, one per node; the caller has checked them."""
        cdef const uint64_t* f = <const uint64_t*>PyArray_DATA(free_bytes)
        cdef const uint64_t* t = <const uint64_t*>PyArray_DATA(total)
        cdef const uint8_t* k = <const uint8_t*>PyArray_DATA(known)
        cdef uint32_t i
        for i in range(self.table.node_count):
            vs_set_reading(&self.table.nodes[i], f[i], t[i], k[i])
        vs_publish_all(self.table)

    def _mark_lost(self, index):
        cdef uint32_t node = checked(self.table, index)
        self.table.nodes[node].free = 0
        self.table.nodes[node].state = VS_NODE_LOST
        vs_publish_node(self.table, node)

    def _map(self, uint16_t backend, uint16_t device, index):
        """List a placement on a node, or move a listed one there."""
        if vs_map(self.table, backend, device, checked(self.table, index)):
            raise MemoryError

    def _set_idle(self, uint16_t backend, uint16_t device, uint64_t idle):
        cdef vs_place* place = vs_place_of(self.table, backend, device)
        if not place:
            raise LookupError(f"no placement ({backend}, {device})")
        place.idle = idle
        vs_publish_all(self.table)

    def _close(self, uint16_t backend):
        """From now on, devices of this backend that are not listed are absent."""
        if vs_close(self.table, backend):
            raise MemoryError

    # -- reading ------------------------------------------------------------------------------

    @property
    def free(self):
        """Free bytes per node: a new uint64 array in node order; 0 where not known."""
        cdef ndarray column = np.empty(self.table.node_count, dtype=np.uint64)
        cdef uint64_t* cells = <uint64_t*>PyArray_DATA(column)
        cdef uint32_t i
        for i in range(self.table.node_count):
            cells[i] = self.table.nodes[i].free
        return column

    @property
    def total(self):
        """Total bytes per node: a new uint64 array in node order; 0 where unknown."""
        cdef ndarray column = np.empty(self.table.node_count, dtype=np.uint64)
        cdef uint64_t* cells = <uint64_t*>PyArray_DATA(column)
        cdef uint32_t i
        for i in range(self.table.node_count):
            cells[i] = self.table.nodes[i].total
        return column

    def _has_state(self, int state):
        cdef ndarray column = np.empty(self.table.node_count, dtype=np.bool_)
        cdef uint8_t* cells = <uint8_t*>PyArray_DATA(column)
        cdef uint32_t i
        for i in range(self.table.node_count):
            cells[i] = self.table.nodes[i].state == state
        return column

    @property
    def known(self):
        """Whether the free bytes of a node are known: a new bool array in node order."""
        return self._has_state(VS_NODE_OK)

    @property
    def _lost(self):
        """Whether a node is lost: a new bool array in node order."""
        return self._has_state(VS_NODE_LOST)

    @property
    def version(self):
        """A counter that grows with every change that a decision could see."""
        return self.table.version

    # -- deciding -----------------------------------------------------------------------------

    def _judge(self, uint16_t backend, uint16_t device, uint64_t size):
        return vs_judge(vs_find(self.table.view, backend, device), size) & 3

    def select(self, candidates, /):
        """Index of the best candidate whose memory can still take it.

        Parameters
        ----------
        candidates : AlternativeSet or numpy.ndarray
            In cost order. An array of exactly `CANDIDATE_DTYPE` (1-d, contiguous, aligned) is
            read as it is; any other structured array with integer fields ``backend``,
            ``device`` and ``bytes_moved`` is converted at every call.

        Returns
        -------
        int or None
            The first candidate that is COMFORTABLE or UNKNOWN, else the first TIGHT, else the
            first whose device is neither lost nor absent, else 0. None for an empty set.

        Raises
        ------
        TypeError, ValueError
            If it is neither; the message names the field or the row.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef ndarray _owner = None          # keeps converted rows alive
        if type(candidates) is AlternativeSet:
            rows = (<AlternativeSet>candidates).rows
            count = (<AlternativeSet>candidates).count
        else:
            _owner = as_rows(candidates, &rows, &count)
        if count == 0:
            return None
        return vs_pick_index(vs_pick(self.table.view, rows, count, NULL))

    def select_sized(self, candidates, nbytes, /):
        """As `select`, with one size, in bytes, for every candidate: one known only at dispatch.

        Raises
        ------
        TypeError, ValueError
            As `select`; also if `nbytes` is not an integer in 0..2^64-1.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef ndarray _owner = as_rows(candidates, &rows, &count)
        cdef uint64_t size = as_size(nbytes)
        if count == 0:
            return None
        return vs_pick_index(vs_pick(self.table.view, rows, count, &size))

    def select_fit(self, candidates, /):
        """As `select`, but None also when nothing fits."""
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef ndarray _owner = as_rows(candidates, &rows, &count)
        if count == 0:
            return None
        cdef uint64_t pick = vs_pick(self.table.view, rows, count, NULL)
        return vs_pick_index(pick) if vs_pick_fits(pick) else None

    def classify(self, candidates, sizes=None, *, out=None):
        """The status of every candidate. Runs without the GIL on a copy of the table.

        Parameters
        ----------
        candidates : numpy.ndarray or AlternativeSet
            Shape (n,), as for `select`.
        sizes : array_like of int, optional
            Shape (n,): bytes, instead of the field ``bytes_moved``.
        out : numpy.ndarray, optional
            Shape (n,), dtype uint8, contiguous: where the result goes.

        Returns
        -------
        numpy.ndarray
            Shape (n,), dtype uint8, values of `FitStatus`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type, shape or range.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef ndarray owner = as_rows(candidates, &rows, &count)
        cdef const uint64_t* own
        cdef ndarray owner_sizes = as_sizes(sizes, count, &own)
        cdef tuple inputs = (owner, owner_sizes)
        cdef ndarray result = as_output(out, count, NPY_UINT8, "out", inputs)
        cdef uint8_t* status = <uint8_t*>PyArray_DATA(result)
        cdef vs_view* view = vs_view_copy(self.table.view)
        if not view:
            raise MemoryError
        with nogil:
            vs_classify(view, rows, own, count, status)
            free(view)
        return result

    def select_many(self, candidates, offsets=None, sizes=None, *, set_size=None, out=None, status_out=None):
        """Select in many sets at once. Runs without the GIL on a copy of the table.

        Parameters
        ----------
        candidates : numpy.ndarray
            Shape (n,), the candidates of all sets, as for `select`.
        offsets : array_like of int, optional
            Shape (sets + 1,), not decreasing, within 0..n: set s is rows
            ``offsets[s]:offsets[s + 1]``.
        sizes : array_like of int, optional
            Shape (n,): bytes, instead of the field ``bytes_moved``.
        set_size : int, optional
            Instead of `offsets`: every set has this many candidates, and n is a multiple.
        out : numpy.ndarray, optional
            Shape (sets,), dtype int32, contiguous: where the result goes.
        status_out : numpy.ndarray, optional
            Shape (sets,), dtype uint8, contiguous: takes the `FitStatus` of each pick, and 255
            for an empty set.

        Returns
        -------
        numpy.ndarray
            Shape (sets,), dtype int32: the index of the pick within its set; -1 for an empty set.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type, shape or range.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count, sets, each = 0
        cdef ndarray owner = as_rows(candidates, &rows, &count)
        cdef const int64_t* bounds = NULL
        if (offsets is None) == (set_size is None):
            raise TypeError("select_many takes either offsets or set_size")
        if offsets is not None:
            offsets = as_offsets(offsets)
            bounds = <const int64_t*>PyArray_DATA(<ndarray>offsets)
            sets = PyArray_DIM(<ndarray>offsets, 0) - 1
            check_offsets(bounds, sets, count)
        else:
            each = set_size
            if each < 1 or count % each:
                raise ValueError(f"set_size {each} does not divide {count} candidates")
            if each > 0x7FFFFFFF:
                raise ValueError(f"set_size {each} is above 2^31-1, the largest set")
            sets = count // each
        cdef const uint64_t* own
        cdef ndarray owner_sizes = as_sizes(sizes, count, &own)
        cdef tuple inputs = (owner, owner_sizes, offsets)
        cdef ndarray result = as_output(out, sets, NPY_INT32, "out", inputs)
        cdef int32_t* picks = <int32_t*>PyArray_DATA(result)
        cdef uint8_t* status = NULL
        if status_out is not None:
            inputs += (result,)
            status = <uint8_t*>PyArray_DATA(as_output(status_out, sets, NPY_UINT8, "status_out", inputs))
        cdef vs_view* view = vs_view_copy(self.table.view)
        if not view:
            raise MemoryError
        with nogil:
            if bounds:
                vs_pick_ragged(view, rows, own, count, bounds, sets, picks, status)
            else:
                vs_pick_regular(view, rows, own, each, sets, picks, status)
            free(view)
        return result
