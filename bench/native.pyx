# cython: language_level=3, boundscheck=False
"""The floor of every single decision, methods that do nothing; and a loop that picks without Python."""

from vramsel cimport _core


cdef class Floor:
    def call(self, argument, /):
        return None

    def call_two(self, argument, other, /):
        return None


def pick_loop(table, const _core.record[::1] records, long loops):
    """Pick so many times from one set; returns the sum of the picks, so that none can be left out."""
    cdef _core.table_handle* handle = _core.open_table(table)
    cdef Py_ssize_t total = 0
    cdef long _
    with nogil:
        for _ in range(loops):
            total += _core.pick(handle, &records[0], records.shape[0], NULL)
    _core.close_table(handle)
    return total
