# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
# cython: embedsignature=True, embedsignature.format=clinic, auto_pickle=False, autotestdict=False
"""The core: records, the table, and the decision. Codes and integers only.

The work is done by free C functions over plain structs: `view.h` decides, `kernels.h` decides in
batches, `state.h` keeps what there is to decide on. What is here validates and forwards.
"""

# What guards what, with and without the GIL:
#
#   Table.table             set once, before anybody else has the object
#   what it points to       state.h lists each field: a lock between writers, a latch for readers
#   Table._book             set once by MemoryTable.__init__; the Python layer has its own lock
#   AlternativeSet          .rows, .count, .memory never change. .cells: the object's critical section;
#                           a cell is set once and then stays
#   CachedSelector          set once
#   the callers' arrays     nobody's. What is read twice is checked again where it is used (kernels.h)
#   vs_twins                arrays.h
#   few                     set while the module is imported, and so are _Candidate and the other names

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.number cimport PyNumber_AsSsize_t
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from numpy cimport (
    NPY_INT64, PyArray_DATA, PyArray_DIM, PyArray_ISCARRAY_RO, PyArray_NDIM, PyArray_SIZE, PyArray_TYPE, dtype,
    import_array, ndarray,
)

from vramsel._c cimport *

import threading

import numpy as np

import_array()


CANDIDATE_DTYPE = np.dtype(
    [("backend", "u2"), ("device", "u2"), ("kernel", "u4"), ("bytes_moved", "u8")], align=True
)
assert CANDIDATE_DTYPE.itemsize == sizeof(vs_record) == sizeof(record)

cdef dtype _uint8 = np.dtype(np.uint8)
cdef dtype _int32 = np.dtype(np.int32)
# The core's own. The public one can be changed by anybody: `array.dtype.names = ...` does.
cdef dtype _exact = np.dtype([(name, CANDIDATE_DTYPE.fields[name][0]) for name in CANDIDATE_DTYPE.names], align=True)
assert _exact == CANDIDATE_DTYPE

if vs_keep_twins(_exact, CANDIDATE_DTYPE) < 0:
    raise MemoryError

# From the layers above, which the core does not import: see bind().
cdef object _Candidate = None
cdef object _as_candidates = None
cdef object _as_u64 = None
cdef object _as_bytes = None
cdef object _as_output = None
cdef object _as_sets = None
cdef object _MemoryTable = None


def bind(*, candidate_type, as_candidates, as_u64, as_bytes, as_output, as_sets):
    """Tell the core what it needs of the layers above: the Candidate type and the slow paths."""
    global _Candidate, _as_candidates, _as_u64, _as_bytes, _as_output, _as_sets
    _Candidate, _as_candidates, _as_u64 = candidate_type, as_candidates, as_u64
    _as_bytes, _as_output, _as_sets = as_bytes, as_output, as_sets


def bind_table(memory_table, /):
    """Tell the core which subclass of `Table` leaves `select` as it is."""
    global _MemoryTable
    _MemoryTable = memory_table


def kernels():
    """Names of the batch kernels that this processor can run, the best last; all give the same results."""
    cdef list names = []
    while vs_kernel_name(len(names)):
        names.append(vs_kernel_name(len(names)).decode())
    return tuple(names)


def use_kernel(name, /):
    """Make batches use this kernel, for tests and measurements; by default they use the best."""
    if name not in kernels():
        raise ValueError(f"no kernel {name!r} here; there are {', '.join(kernels())}")
    vs_kernel_use(kernels().index(name))


vs_kernel_use(len(kernels()) - 1)


# -- arguments --------------------------------------------------------------------------------

cdef object as_rows(object candidates):
    """A set, or an array that can be read as it is and is nobody else's: its length and dtype stay."""
    if type(candidates) is AlternativeSet:
        return candidates
    return candidates[:] if vs_is_exact(candidates, _exact) else _as_candidates(candidates)


cdef inline uint64_t as_size(object value) except? 0xFFFFFFFFFFFFFFFF:
    cdef int overflow
    cdef long long size
    if PyLong_CheckExact(value):
        size = PyLong_AsLongLongAndOverflow(value, &overflow)
        if size >= 0 and not overflow:
            return size
    return as_other_size(value)


cdef uint64_t as_other_size(object value) except? 0xFFFFFFFFFFFFFFFF:
    return _as_bytes(value, "nbytes")   # beyond 2^63, or it says what is wrong


def check_offsets(ndarray offsets not None, Py_ssize_t count):
    """Check offsets (contiguous, int64) against a number of rows.

    Returns
    -------
    bad : tuple of int or None
        The first entry that decreases, is beyond `count` or ends a set of more than 2^31-1; what it
        is, and what the one before it is.
    each : int
        The length of every set, if they all have the same and begin at 0; else 0.
    """
    if PyArray_NDIM(offsets) != 1 or PyArray_TYPE(offsets) != NPY_INT64 or not PyArray_ISCARRAY_RO(offsets):
        raise TypeError("offsets must be a contiguous 1-d array of int64")
    cdef const int64_t* bounds = <const int64_t*>PyArray_DATA(offsets)
    cdef size_t entries = PyArray_DIM(offsets, 0), begin = 0, end
    # Read once: what is checked is what is returned, whoever writes to the offsets.
    cdef int64_t first = bounds[0] if entries else 0
    cdef int64_t each = bounds[1] - first if entries > 1 else 0
    cdef int even = 1, fault
    cdef vs_bad_offset bad
    while begin < entries:
        end = min(begin + (1 << 22), entries)
        with nogil:
            fault = vs_check_offsets(bounds, begin, end, count, each, &even, &bad)
        if fault:
            return (bad.entry, bad.here, bad.before), 0
        PyErr_CheckSignals()
        begin = end
    if even and first == 0 and 0 < each <= count // <Py_ssize_t>(entries - 1):
        return None, each
    return None, 0


cdef inline object candidate_at(AlternativeSet alternatives, Py_ssize_t index):
    """The candidate, made when it is first asked for."""
    candidate = alternatives.cells[index]
    return make_candidate(alternatives, index) if candidate is None else candidate


cdef object make_candidate(AlternativeSet alternatives, Py_ssize_t index):
    cdef const vs_record* row = &alternatives.rows[index]
    candidate = _Candidate((row.backend, row.device), row.bytes_moved, kernel=row.kernel)
    with cython.critical_section(alternatives):
        if alternatives.cells[index] is None:   # nobody made one meanwhile
            alternatives.cells[index] = candidate
        return alternatives.cells[index]


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

    cdef const vs_record* rows      # into `memory`
    cdef Py_ssize_t count
    cdef bytes memory
    cdef list cells                 # Candidates; None where nobody has asked for one yet
    cdef object __weakref__

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
        return np.ndarray((self.count,), dtype=CANDIDATE_DTYPE, buffer=self.memory)

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
        cdef Py_ssize_t i = PyNumber_AsSsize_t(index, IndexError)
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


cdef int done(int fault) except -1:
    """Raise what a function of state.h reports."""
    if fault == 0:
        return 0
    if fault == VS_NO_MEMORY:
        raise MemoryError
    raise LookupError("no such node" if fault == VS_NO_NODE else "no such placement")


cdef enum:
    NO_SUCH_PICK = 1                    # what is tight is not of the best rank
    FEW = 32

# The indices that are asked for all the time, made once.
cdef void* few[FEW]
for _index in range(FEW):
    Py_INCREF(_index)
    few[_index] = <void*>_index
del _index


cdef inline uint64_t pick_from(vs_table* table, object candidates, const uint64_t* size) except NO_SUCH_PICK:
    """The pick of a set or an array."""
    if type(candidates) is AlternativeSet:
        return vs_pick(&table.shared, (<AlternativeSet>candidates).rows, (<AlternativeSet>candidates).count, size)
    cdef ndarray array
    if vs_is_exact(candidates, _exact):
        array = <ndarray>candidates
    else:
        array = _as_candidates(candidates)
    return vs_pick(&table.shared, <const vs_record*>PyArray_DATA(array), PyArray_DIM(array, 0), size)


cdef inline object as_index(uint64_t pick):
    cdef size_t index = vs_pick_index(pick)
    if index < FEW:
        return <object>few[index]
    return None if pick == VS_NO_PICK else index


cdef class Table:
    """Memory nodes, the placements that live in them, and the decision. See `MemoryTable`.

    The methods that begin with an underscore take codes and checked integers; `MemoryTable`
    calls them.
    """

    cdef vs_table* table
    cdef public object _book        # the Python layer's names and policies; never looked at here
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self.table = vs_table_new()
        if not self.table:
            raise MemoryError

    def __dealloc__(self):
        if self.table:
            vs_table_drop(self.table)

    # -- writing ------------------------------------------------------------------------------

    def _add_node(
        self, double fraction, uint64_t margin, uint64_t headroom, uint64_t free_bytes, uint64_t total, bint known,
        bint lost
    ):
        """Add a node, whole in one step; returns its index."""
        cdef vs_policy policy = vs_policy(fraction, margin, headroom)
        cdef vs_reading reading = vs_reading(
            free_bytes, total, VS_NODE_LOST if lost else VS_NODE_OK if known else VS_NODE_UNKNOWN)
        cdef uint32_t index = 0
        done(vs_table_add(self.table, &policy, &reading, &index))
        return index

    def _set_policy(self, uint32_t index, double fraction, uint64_t margin, uint64_t headroom):
        cdef vs_policy policy = vs_policy(fraction, margin, headroom)
        done(vs_table_set_policy(self.table, index, &policy))

    def _update(self, uint32_t index, uint64_t free_bytes, uint64_t total, bint known, list pools not None):
        """A reading, and with it the pools of placements of that node, each as `_set_pool` takes it."""
        cdef vs_reading reading = vs_reading(free_bytes, total, VS_NODE_OK if known else VS_NODE_UNKNOWN)
        cdef bytearray memory = bytearray(len(pools) * sizeof(vs_pool))
        cdef vs_pool* rows = <vs_pool*><char*>memory
        cdef Py_ssize_t i
        for i in range(len(pools)):
            rows[i].backend, rows[i].device, rows[i].idle, rows[i].cap, rows[i].limit = pools[i]
        done(vs_table_update(self.table, index, &reading, len(pools), rows))

    def _update_all(self, ndarray free_bytes not None, ndarray total not None, ndarray known not None):
        """Contiguous uint64, uint64 and bool, one per node."""
        cdef Py_ssize_t count = PyArray_SIZE(free_bytes)
        if PyArray_SIZE(total) != count or PyArray_SIZE(known) != count or vs_table_update_all(
            self.table, count, <const uint64_t*>PyArray_DATA(free_bytes), <const uint64_t*>PyArray_DATA(total),
            <const uint8_t*>PyArray_DATA(known)
        ):
            raise ValueError(f"the readings are of {count} nodes; the table has another number")

    def _mark_lost(self, uint32_t index):
        done(vs_table_lose(self.table, index))

    def _set_reserved(self, uint32_t index, uint64_t reserved):
        """Bytes promised on a node and not yet visible in its free bytes."""
        done(vs_table_set_reserved(self.table, index, reserved))

    def _map(self, uint16_t backend, uint16_t device, uint32_t index):
        """List a placement on a node, or move a listed one there."""
        done(vs_table_map(self.table, backend, device, index))

    def _set_pool(self, uint16_t backend, uint16_t device, uint64_t idle, uint64_t cap, uint64_t limit):
        cdef vs_pool pool = vs_pool(idle, cap, limit, backend, device)
        done(vs_table_set_pool(self.table, &pool))

    def _close(self, uint16_t backend):
        """From now on, devices of this backend that are not listed are absent."""
        done(vs_table_close(self.table, backend))

    # -- reading ------------------------------------------------------------------------------

    def _columns(self):
        """Read free, total, reserved, known and lost of every node at one moment: new arrays in node order."""
        cdef uint32_t count = 0, nodes = 0
        while True:
            count = nodes
            columns = [np.empty(count, dtype=kind) for kind in ("u8", "u8", "u8", "?", "?")]
            nodes = vs_table_read(
                self.table, count, <uint64_t*>PyArray_DATA(<ndarray>columns[0]),
                <uint64_t*>PyArray_DATA(<ndarray>columns[1]), <uint64_t*>PyArray_DATA(<ndarray>columns[2]),
                <uint8_t*>PyArray_DATA(<ndarray>columns[3]), <uint8_t*>PyArray_DATA(<ndarray>columns[4]))
            if nodes == count:
                return tuple(columns)

    @property
    def version(self):
        """A counter that grows with every change that a decision could see."""
        return vs_table_version(self.table)

    # -- deciding -----------------------------------------------------------------------------

    def _judge(self, uint16_t backend, uint16_t device, uint64_t size):
        cdef vs_record row = vs_record(backend, device, 0, size)
        return vs_pick(&self.table.shared, &row, 1, NULL) & 3

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
        cdef AlternativeSet own
        if type(candidates) is AlternativeSet:      # pick_from would say the same, at the price of a call
            own = <AlternativeSet>candidates
            return as_index(vs_pick(&self.table.shared, own.rows, own.count, NULL))
        return as_index(pick_from(self.table, candidates, NULL))

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
        cdef uint64_t size = as_size(nbytes)
        cdef AlternativeSet own
        if type(candidates) is AlternativeSet:
            own = <AlternativeSet>candidates
            return as_index(vs_pick(&self.table.shared, own.rows, own.count, &size))
        return as_index(pick_from(self.table, candidates, &size))

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
        cdef uint64_t found = pick_from(self.table, candidates, NULL)
        return as_index(found) if vs_pick_fits(found) else None

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
        cdef vs_batch batch
        rows = as_rows(candidates)
        own = None if sizes is None else _as_u64(sizes, len(rows), "sizes")
        result = _as_output(out, len(rows), _uint8, "out", (candidates, sizes, rows, own))
        point(&batch, rows, own)
        batch.status = <uint8_t*>PyArray_DATA(<ndarray>result)
        run(self.table, &batch, batch.count, 1)
        return result

    def select_many(
        self, candidates, offsets=None, sizes=None, *, set_size=None, out=None, status_out=None, threads=1
    ):
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
        threads : int, default 1
            1 to 1024: how many threads share the sets, this one included.

        Returns
        -------
        numpy.ndarray
            Shape (sets,), dtype int32: the index of the pick within its set; -1 for an empty set.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type, shape or range.

        Notes
        -----
        In Python's main thread, a signal handler that raises (Ctrl-C) ends it within 0.2 s; then
        `out` and `status_out` are filled in part.
        """
        cdef vs_batch batch
        rows = as_rows(candidates)
        own = None if sizes is None else _as_u64(sizes, len(rows), "sizes")
        bounds, each, sets, threads = _as_sets(len(rows), offsets, set_size, threads)
        inputs = (candidates, sizes, offsets, rows, own, bounds)
        result = _as_output(out, sets, _int32, "out", inputs)
        if status_out is not None:
            status_out = _as_output(status_out, sets, _uint8, "status_out", (*inputs, result))
        # Last, when no code of the caller's runs any more.
        point(&batch, rows, own)
        batch.picks = <int32_t*>PyArray_DATA(<ndarray>result)
        if status_out is not None:
            batch.status = <uint8_t*>PyArray_DATA(<ndarray>status_out)
        batch.set_size = each
        if not each:
            batch.offsets = <const int64_t*>PyArray_DATA(<ndarray>bounds)
        run(self.table, &batch, sets, threads)
        return result


cdef int point(vs_batch* batch, object rows, object sizes) except -1:
    """Point a new batch at what `as_rows` and `as_u64` gave."""
    memset(batch, 0, sizeof(batch[0]))
    if type(rows) is AlternativeSet:
        batch.records = (<AlternativeSet>rows).rows
        batch.count = (<AlternativeSet>rows).count
    else:
        batch.records = <const vs_record*>PyArray_DATA(<ndarray>rows)
        batch.count = PyArray_DIM(<ndarray>rows, 0)
    if sizes is not None:
        batch.sizes = <const uint64_t*>PyArray_DATA(<ndarray>sizes)
    return 0


cdef int run(vs_table* table, vs_batch* batch, size_t sets, int threads) except -1:
    """Run a batch on a copy of the table, without the GIL."""
    cdef vs_board board
    cdef int hears = threading.get_ident() == threading.main_thread().ident
    with nogil:
        if vs_board_new(&table.shared, batch.count, &board):
            raise MemoryError
        batch.board = &board
        try:
            vs_run_batch(batch, sets, threads, hears)
        finally:
            vs_board_free(&board)
    return 0


cdef class CachedSelector:
    """The core of `CachedPressureSelector`: see there."""

    cdef readonly Table table
    cdef readonly object estimate   # None: the set is read as it is

    def __init__(self, table, estimate_output_bytes=None):
        if self.table is not None:
            raise RuntimeError("this selector is initialised already; make a new one")
        if not isinstance(table, Table):
            raise TypeError(f"table must be a MemoryTable, not {type(table).__name__}")
        if estimate_output_bytes is not None and not callable(estimate_output_bytes):
            raise TypeError(f"estimate_output_bytes must be callable, not {type(estimate_output_bytes).__name__}")
        self.estimate = estimate_output_bytes
        self.table = table

    def select(self, alternatives, /):
        """The candidate that ``table.select`` points at, or None for an empty set.

        Raises
        ------
        TypeError
            If `alternatives` is not an `AlternativeSet`.
        """
        if type(alternatives) is not AlternativeSet:
            raise TypeError(f"select takes an AlternativeSet, not {type(alternatives).__name__}")
        if self.table is None:
            raise RuntimeError("this selector is not initialised")
        cdef AlternativeSet own = <AlternativeSet>alternatives
        # A subclass of MemoryTable may have a `select` of its own, and may get one at any time.
        if type(self.table) is not _MemoryTable or self.estimate is not None:
            index = self.table.select(self._estimated(own))
            return None if index is None else own[index]
        if own.count == 0:
            return None
        return candidate_at(own, vs_pick_index(vs_pick(&self.table.table.shared, own.rows, own.count, NULL)))


# -- for Cython and C: _core.pxd and vramsel.h say what these do -------------------------------

cdef table_handle* open_table(object table) except NULL:
    if not isinstance(table, Table):
        raise TypeError(f"a handle is of a MemoryTable, not of a {type(table).__name__}")
    vs_table_keep((<Table>table).table)
    return <table_handle*>(<Table>table).table


cdef void close_table(table_handle* handle) noexcept nogil:
    vs_api_close(<vramsel_table*>handle)


cdef Py_ssize_t pick(table_handle* handle, const record* records, size_t count, uint8_t* status) noexcept nogil:
    return vs_api_pick(<vramsel_table*>handle, <const vs_record*>records, count, status)


cdef Py_ssize_t pick_sized(
    table_handle* handle, const record* records, size_t count, uint64_t nbytes, uint8_t* status
) noexcept nogil:
    return vs_api_pick_sized(<vramsel_table*>handle, <const vs_record*>records, count, nbytes, status)


cdef int classify(
    table_handle* handle, const record* records, size_t count, const uint64_t* sizes, uint8_t* status
) noexcept nogil:
    return vs_api_classify(<vramsel_table*>handle, <const vs_record*>records, count, sizes, status)


cdef int pick_many(
    table_handle* handle, const record* records, size_t count, const int64_t* offsets, size_t set_size, size_t sets,
    const uint64_t* sizes, int32_t* picks, uint8_t* status
) noexcept nogil:
    return vs_api_pick_many(
        <vramsel_table*>handle, <const vs_record*>records, count, offsets, set_size, sets, sizes, picks, status)


cdef vramsel_table* open_from_c(void* table) except NULL:
    return <vramsel_table*>open_table(<object>table)


if vs_follow_forks():
    raise MemoryError
vs_api.open = open_from_c
api = PyCapsule_New(&vs_api, VRAMSEL_API, NULL)
