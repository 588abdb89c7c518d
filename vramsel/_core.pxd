"""The C face of the core: the structs of `kernels.h` and `state.h`, and the two types."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "kernels.h" nogil:
    ctypedef struct vs_record:      # one row of CANDIDATE_DTYPE
        uint16_t backend
        uint16_t device
        uint32_t kernel
        uint64_t bytes_moved

    ctypedef struct vs_view:        # all that a decision reads
        pass


cdef extern from "state.h" nogil:
    ctypedef struct vs_node:
        uint64_t free
        uint64_t total
        int state
    ctypedef struct vs_table:       # opaque to others
        vs_view* view
        vs_node* nodes
        uint32_t node_count
        uint64_t version


cdef class AlternativeSet:
    cdef const vs_record* rows      # into `memory`
    cdef Py_ssize_t count
    cdef bytes memory
    cdef list cells                 # Candidates; None where nobody has asked for one yet
    cdef object __weakref__


cdef class Table:
    cdef vs_table* table
    cdef public object _book        # the Python layer's names and policies; never looked at here
    cdef object __weakref__
