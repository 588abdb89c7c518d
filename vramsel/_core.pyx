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
    PyArray_DATA, PyArray_DESCR, PyArray_DIM, PyArray_IS_C_CONTIGUOUS, PyArray_ISCARRAY, PyArray_NDIM,
    PyArray_SIZE, dtype, import_array, ndarray,
)

import operator

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
    void vs_publish_place(vs_table* table, const vs_place* place)
    void vs_publish_node(vs_table* table, uint32_t node)
    void vs_publish_all(vs_table* table)


CANDIDATE_DTYPE = np.dtype(
    [("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")], align=True
)
assert CANDIDATE_DTYPE.itemsize == sizeof(vs_record)

cdef dtype _uint8 = np.dtype(np.uint8)
cdef dtype _int32 = np.dtype(np.int32)
cdef dtype _exact = CANDIDATE_DTYPE
cdef dtype _twin = CANDIDATE_DTYPE      # the last other descriptor that was found equal to it

# From the layers above, which the core does not import: see bind().
cdef object _Candidate = None
cdef object _as_candidates = None
cdef object _as_u64 = None
cdef object _as_offsets = None
cdef object _as_bytes = None
cdef object _refuse_mask = None


def bind(*, candidate_type, as_candidates, as_u64, as_offsets, as_bytes, refuse_mask):
    """Tell the core what it needs of the layers above: the Candidate type and the slow paths."""
    global _Candidate, _as_candidates, _as_u64, _as_offsets, _as_bytes, _refuse_mask
    _Candidate, _as_candidates, _as_u64 = candidate_type, as_candidates, as_u64
    _as_offsets, _as_bytes, _refuse_mask = as_offsets, as_bytes, refuse_mask


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


cdef object as_rows(object candidates, const vs_record** rows, Py_ssize_t* count):
    """Point `rows` at the records of a set or an array; returns the object that owns them."""
    if type(candidates) is AlternativeSet:
        rows[0] = (<AlternativeSet>candidates).rows
        count[0] = (<AlternativeSet>candidates).count
        return candidates
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


def as_output(out, Py_ssize_t count, wanted, what, inputs):
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
    if not isinstance(out, ndarray):
        raise TypeError(f"{what} must be a numpy array, not {type(out).__name__}")
    _refuse_mask(out, what)
    # A subclass can say what it likes of itself; what is written to is the array below it.
    cdef ndarray array = np.asarray(out)
    if array.dtype != wanted:
        raise TypeError(f"{what} must have dtype {wanted}, not {array.dtype}")
    if PyArray_NDIM(array) != 1 or PyArray_DIM(array, 0) != count:
        raise ValueError(f"{what} must have shape ({count},), not {(<object>array).shape}")
    if not PyArray_ISCARRAY(array):
        raise ValueError(f"{what} must be writable, aligned and contiguous")
    for other in inputs:
        if isinstance(other, ndarray) and np.may_share_memory(array, other):
            raise ValueError(f"{what} overlaps another argument in memory")
    return out


def as_sets(Py_ssize_t count, offsets, set_size):
    """Check how a batch of `count` candidates is cut into sets: (offsets or None, set size, sets)."""
    if (offsets is None) == (set_size is None):
        raise TypeError("select_many takes either offsets or set_size")
    if offsets is None:
        try:
            each = operator.index(set_size)
        except TypeError:
            raise TypeError(f"set_size must be an integer, not {type(set_size).__name__}") from None
        if not 1 <= each <= 0x7FFFFFFF:
            raise ValueError("set_size must be within 1..2^31-1")
        if count % each:
            raise ValueError(f"set_size {each} does not divide {count} candidates")
        return None, each, count // each
    cdef ndarray array = _as_offsets(offsets, count)
    cdef const int64_t* bounds = <const int64_t*>PyArray_DATA(array)
    cdef Py_ssize_t sets = PyArray_DIM(array, 0) - 1, s
    cdef int64_t before = 0, bound
    for s in range(sets + 1):
        bound = bounds[s]
        if bound < before:
            raise ValueError(f"offsets[{s}] = {bound} is below {before}: offsets begin at 0 and never decrease")
        if bound > count:
            raise ValueError(f"offsets[{s}] = {bound} is beyond the {count} candidates")
        if s and bound - before > 0x7FFFFFFF:
            raise ValueError(f"set {s - 1} has more than 2^31-1 candidates")
        before = bound
    return array, 0, sets


cdef object candidate_at(AlternativeSet alternatives, Py_ssize_t index):
    """The candidate, made when it is first asked for."""
    cdef const vs_record* row = &alternatives.rows[index]
    candidate = alternatives.cells[index]
    if candidate is None:
        candidate = _Candidate((row.backend, row.device), row.bytes_moved, kernel=row.kernel)
        alternatives.cells[index] = candidate
    return candidate


cdef str shown_at(AlternativeSet alternatives, Py_ssize_t index):
    cdef const vs_record* row = &alternatives.rows[index]
    try:
        return repr(candidate_at(alternatives, index))
    except ValueError:                  # its backend is not registered in this process
        return f"({row.backend}, {row.device}) {row.bytes_moved}"


cdef list payloads(AlternativeSet alternatives):
    """What candidates hold beside their row; one that nobody has asked for holds nothing."""
    return [None if cell is None else cell.payload for cell in alternatives.cells]


@cython.final
cdef class AlternativeSet:
    """The candidates of one operation, in cost order; index 0 is the static winner.

    Parameters
    ----------
    candidates : iterable of Candidate

    Raises
    ------
    TypeError
        If an element is not a `Candidate`.

    Notes
    -----
    Immutable: build it when the plan is made, use it at every dispatch.
    """

    def __cinit__(self, candidates=()):
        cdef ndarray array
        if isinstance(candidates, ndarray):
            array = _as_candidates(candidates)
            self.cells = [None] * PyArray_DIM(array, 0)
        else:
            if isinstance(candidates, (str, bytes)) or not hasattr(candidates, "__iter__"):
                raise TypeError(f"an AlternativeSet is built from Candidates, not {type(candidates).__name__}")
            self.cells = list(candidates)
            for i, candidate in enumerate(self.cells):
                if not isinstance(candidate, _Candidate):
                    raise TypeError(f"alternative {i} must be a Candidate, not {type(candidate).__name__}")
            array = np.array([(c.backend, c.device, c.kernel, c.bytes_moved) for c in self.cells], dtype=_exact)
        # Bytes, since nobody can write to them, resize or free them while the set lives.
        self.memory = array.tobytes()
        self.rows = <const vs_record*><const char*>self.memory
        self.count = PyArray_DIM(array, 0)

    @staticmethod
    def from_array(array, /):
        """Build a set from a structured array with the fields backend, device and bytes_moved.

        The values are copied. A candidate is made when it is first asked for, and only that
        raises UnknownBackendError where its backend code is not registered.

        Raises
        ------
        TypeError, ValueError
            If it is not such an array, or a value is out of range.
        """
        if not isinstance(array, ndarray):
            raise TypeError(f"from_array takes a structured numpy array, not a {type(array).__name__}")
        return AlternativeSet(array)

    @property
    def array(self):
        """The candidates as records: a read-only view, shape (len,), dtype `CANDIDATE_DTYPE`."""
        return np.ndarray((self.count,), dtype=_exact, buffer=self.memory)

    @property
    def alternatives(self):
        """The candidates, a tuple of `Candidate`."""
        return tuple([candidate_at(self, i) for i in range(self.count)])

    @property
    def winner(self):
        """The static winner, the candidate of lowest cost; None for an empty set."""
        return candidate_at(self, 0) if self.count else None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.alternatives[index]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"index {index} is out of range for {self.count} alternatives")
        return candidate_at(self, i)

    def __iter__(self):
        return iter(self.alternatives)

    def __eq__(self, other):
        if not isinstance(other, AlternativeSet):
            return NotImplemented
        return self.memory == (<AlternativeSet>other).memory and payloads(self) == payloads(other)

    def __hash__(self):
        return hash(self.memory)

    def __repr__(self):
        return f"AlternativeSet([{', '.join([shown_at(self, i) for i in range(self.count)])}])"

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

    def _add_node(
        self, double fraction, uint64_t margin, uint64_t headroom, uint64_t free_bytes, uint64_t total, bint known,
        bint lost
    ):
        """Add a node, whole in one step; returns its index."""
        if vs_add_node(self.table):
            raise MemoryError
        cdef uint32_t index = self.table.node_count - 1
        vs_set_policy(self.table, index, fraction, margin, headroom)
        vs_set_reading(&self.table.nodes[index], free_bytes, total, known)
        if lost:
            self.table.nodes[index].state = VS_NODE_LOST
        return index

    def _set_policy(self, index, double fraction, uint64_t margin, uint64_t headroom):
        vs_set_policy(self.table, checked(self.table, index), fraction, margin, headroom)

    def _update(self, index, uint64_t free_bytes, uint64_t total, bint known):
        cdef uint32_t node = checked(self.table, index)
        vs_set_reading(&self.table.nodes[node], free_bytes, total, known)
        vs_publish_node(self.table, node)

    def _update_all(self, ndarray free_bytes not None, ndarray total not None, ndarray known not None):
        """Contiguous uint64, uint64 and bool, one per node."""
        for column in (free_bytes, total, known):
            if PyArray_SIZE(column) != self.table.node_count:
                raise ValueError(f"the table has {self.table.node_count} nodes now; the readings are of another number")
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
        vs_publish_place(self.table, place)
        self.table.version += 1

    def _close(self, uint16_t backend):
        """From now on, devices of this backend that are not listed are absent."""
        if vs_close(self.table, backend):
            raise MemoryError

    # -- reading ------------------------------------------------------------------------------

    def _columns(self):
        """Read free, total, known and lost of every node at one moment: new arrays in node order."""
        cdef uint32_t count = self.table.node_count, i
        cdef ndarray free_bytes = np.empty(count, dtype=np.uint64), total = np.empty(count, dtype=np.uint64)
        cdef ndarray known = np.empty(count, dtype=np.bool_), lost = np.empty(count, dtype=np.bool_)
        for i in range(count):
            (<uint64_t*>PyArray_DATA(free_bytes))[i] = self.table.nodes[i].free
            (<uint64_t*>PyArray_DATA(total))[i] = self.table.nodes[i].total
            (<uint8_t*>PyArray_DATA(known))[i] = self.table.nodes[i].state == VS_NODE_OK
            (<uint8_t*>PyArray_DATA(lost))[i] = self.table.nodes[i].state == VS_NODE_LOST
        return free_bytes, total, known, lost

    @property
    def free(self):
        """Free bytes per node: a new uint64 array in node order; 0 where not known."""
        return self._columns()[0]

    @property
    def total(self):
        """Total bytes per node: a new uint64 array in node order; 0 where unknown."""
        return self._columns()[1]

    @property
    def known(self):
        """Whether the free bytes of a node are known: a new bool array in node order."""
        return self._columns()[2]

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
        cdef object _owner = None          # keeps converted rows alive
        if type(candidates) is AlternativeSet:
            rows = (<AlternativeSet>candidates).rows
            count = (<AlternativeSet>candidates).count
        else:
            _owner = as_rows(candidates, &rows, &count)
        if count == 0:
            return None
        return vs_pick_index(vs_pick(self.table.view, rows, count, NULL))

    def select_sized(self, candidates, nbytes, /):
        """As `select`, with one size for every candidate: one that is known only at dispatch.

        Parameters
        ----------
        candidates : AlternativeSet or numpy.ndarray
            As for `select`; their own sizes are not looked at.
        nbytes : int
            Bytes.

        Returns
        -------
        int or None
            As `select`.

        Raises
        ------
        TypeError, ValueError
            As `select`; also if `nbytes` is not an integer in 0..2^64-1.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef object _owner = as_rows(candidates, &rows, &count)
        cdef uint64_t size = as_size(nbytes)
        if count == 0:
            return None
        return vs_pick_index(vs_pick(self.table.view, rows, count, &size))

    def select_fit(self, candidates, /):
        """As `select`, but None also when nothing fits.

        Returns
        -------
        int or None

        Raises
        ------
        TypeError, ValueError
            As `select`.
        """
        cdef const vs_record* rows
        cdef Py_ssize_t count
        cdef object _owner = as_rows(candidates, &rows, &count)
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
        cdef object owner = as_rows(candidates, &rows, &count)
        cdef const uint64_t* own
        cdef ndarray owner_sizes = as_sizes(sizes, count, &own)
        cdef tuple inputs = (owner, owner_sizes)
        result = as_output(out, count, _uint8, "out", inputs)
        cdef uint8_t* status = <uint8_t*>PyArray_DATA(<ndarray>result)
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
        cdef Py_ssize_t count, sets, each
        cdef object owner = as_rows(candidates, &rows, &count)
        offsets, each, sets = as_sets(count, offsets, set_size)
        cdef const uint64_t* own
        cdef ndarray owner_sizes = as_sizes(sizes, count, &own)
        cdef tuple inputs = (owner, owner_sizes, offsets)
        result = as_output(out, sets, _int32, "out", inputs)
        cdef int32_t* picks = <int32_t*>PyArray_DATA(<ndarray>result)
        cdef uint8_t* status = NULL
        if status_out is not None:
            status_out = as_output(status_out, sets, _uint8, "status_out", (*inputs, result))
            status = <uint8_t*>PyArray_DATA(<ndarray>status_out)
        cdef const int64_t* bounds = NULL
        if offsets is not None:
            bounds = <const int64_t*>PyArray_DATA(<ndarray>offsets)
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
