"""The core for Cython: decide without the interpreter.

    from vramsel cimport _core

Bytes are uint64_t; status is that of `FitStatus`. `_core.pyi` has the Python side, `vramsel.h` the same
functions for C.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


ctypedef struct record:             # one candidate: a row of CANDIDATE_DTYPE
    uint16_t backend
    uint16_t device
    uint32_t kernel                 # the caller's; never looked at
    uint64_t bytes_moved


cdef struct table_handle            # the memory behind a MemoryTable


# A reference to a MemoryTable, valid until it is closed, across updates, and whatever becomes of the
# Python object. TypeError if it is none.
cdef table_handle* open_table(object table) except NULL

# The others may be called by any thread at any time.
cdef void close_table(table_handle* handle) noexcept nogil

# Index of the best candidate whose memory can still take it, as MemoryTable.select; -1 for an empty
# set. `status` is NULL or takes the status of the pick: WONT_FIT (2) when nothing fits, 255 for none.
cdef Py_ssize_t pick(table_handle* handle, const record* records, size_t count, uint8_t* status) noexcept nogil

# The same with one size for every candidate.
cdef Py_ssize_t pick_sized(
    table_handle* handle, const record* records, size_t count, uint64_t nbytes, uint8_t* status
) noexcept nogil

# The status of each record. `sizes` is NULL, or bytes to use instead of bytes_moved, one per record.
# 0, or -1 when out of memory.
cdef int classify(
    table_handle* handle, const record* records, size_t count, const uint64_t* sizes, uint8_t* status
) noexcept nogil

# The picks of many sets, each an index within its set, -1 for an empty one: set s is records
# offsets[s] to offsets[s + 1], or, where `offsets` is NULL, the s-th `set_size` records. `status` is NULL
# or takes one per set, 255 for an empty one. 0; -1 when out of memory; -2 when the sets do not lie
# within `count` records, one is longer than 2^31 - 1, or `picks` is NULL.
cdef int pick_many(
    table_handle* handle, const record* records, size_t count, const int64_t* offsets, size_t set_size, size_t sets,
    const uint64_t* sizes, int32_t* picks, uint8_t* status
) noexcept nogil
