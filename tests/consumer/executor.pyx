# cython: language_level=3
"""An executor in Cython that asks at every dispatch, without the interpreter."""

from vramsel cimport _core


def dispatch(table, const _core.record[::1] alternatives, int times):
    """How often each alternative was picked."""
    if not 0 < alternatives.shape[0] <= 16:
        raise ValueError("between 1 and 16 alternatives, please")
    cdef _core.table_handle* handle = _core.open_table(table)
    cdef Py_ssize_t picked
    cdef long[16] counts
    cdef int i, _
    for i in range(16):
        counts[i] = 0
    with nogil:
        for _ in range(times):
            picked = _core.pick(handle, &alternatives[0], alternatives.shape[0], NULL)
            counts[picked] += 1    # here the operation would run
    _core.close_table(handle)
    return [counts[i] for i in range(alternatives.shape[0])]
