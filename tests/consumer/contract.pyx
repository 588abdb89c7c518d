# cython: language_level=3
"""Every function of `_core.pxd`, for tests/test_cimport.py."""

import numpy as np

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from vramsel cimport _core


cdef class Handle:
    """A handle that outlives its table."""

    cdef _core.table_handle* inside

    def __cinit__(self, table):
        self.inside = _core.open_table(table)

    def __dealloc__(self):
        if self.inside:
            _core.close_table(self.inside)

    def pick(self, const _core.record[::1] records):
        cdef uint8_t status = 9
        cdef Py_ssize_t index
        with nogil:
            index = _core.pick(self.inside, &records[0] if records.shape[0] else NULL, records.shape[0], &status)
        return index, status

    def pick_sized(self, const _core.record[::1] records, uint64_t nbytes):
        cdef uint8_t status = 9
        cdef Py_ssize_t index
        with nogil:
            index = _core.pick_sized(self.inside, &records[0], records.shape[0], nbytes, &status)
        return index, status

    def classify(self, const _core.record[::1] records, const uint64_t[::1] sizes=None):
        cdef uint8_t[::1] status = np.full(records.shape[0], 9, dtype=np.uint8)
        cdef int fault
        with nogil:
            fault = _core.classify(
                self.inside, &records[0], records.shape[0], NULL if sizes is None else &sizes[0], &status[0])
        assert fault == 0
        return np.asarray(status)

    def pick_many(
        self, const _core.record[::1] records, size_t sets, const int64_t[::1] offsets=None, size_t set_size=0,
        const uint64_t[::1] sizes=None
    ):
        cdef int32_t[::1] picks = np.full(max(sets, 1), 99, dtype=np.int32)
        cdef uint8_t[::1] status = np.full(max(sets, 1), 99, dtype=np.uint8)
        cdef int fault
        with nogil:
            fault = _core.pick_many(
                self.inside, &records[0], records.shape[0], NULL if offsets is None else &offsets[0], set_size, sets,
                NULL if sizes is None else &sizes[0], &picks[0], &status[0])
        return fault, np.asarray(picks)[:sets], np.asarray(status)[:sets]


def layout():
    """Size and offsets of the record, as this module was compiled to believe."""
    cdef _core.record r
    return {
        "size": sizeof(_core.record),
        "backend": <size_t>&r.backend - <size_t>&r,
        "device": <size_t>&r.device - <size_t>&r,
        "kernel": <size_t>&r.kernel - <size_t>&r,
        "bytes_moved": <size_t>&r.bytes_moved - <size_t>&r,
    }
