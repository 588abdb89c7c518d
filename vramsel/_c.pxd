"""What `_core.pyx` uses of the C headers beside it. Not for others: `_core.pxd` is."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "arrays.h":
    int vs_keep_twins(object exact, object open)
    bint vs_is_exact(object candidates, object exact) except -1


cdef extern from "sync.h" nogil:
    int vs_follow_forks()


cdef extern from "view.h" nogil:
    ctypedef struct vs_record:
        uint16_t backend
        uint16_t device
        uint32_t kernel
        uint64_t bytes_moved
    ctypedef struct vs_shared:
        pass
    const uint64_t VS_NO_PICK
    size_t vs_pick_index(uint64_t pick)
    bint vs_pick_fits(uint64_t pick)


cdef extern from "kernels.h" nogil:
    ctypedef struct vs_board:
        pass
    ctypedef struct vs_batch:
        const vs_board* board
        const vs_record* records
        const uint64_t* sizes
        size_t count
        const int64_t* offsets
        size_t set_size
        int32_t* picks
        uint8_t* status
    const char* vs_kernel_name(int number)
    int vs_kernel_use(int number)
    int vs_board_new(vs_shared* shared, size_t records, vs_board* board)
    void vs_board_free(vs_board* board)
    ctypedef struct vs_bad_offset:
        size_t entry
        int64_t here
        int64_t before
    int vs_check_offsets(
        const int64_t* offsets, size_t begin, size_t end, size_t count, uint64_t each, int* even, vs_bad_offset* bad)
    uint64_t vs_pick(vs_shared* shared, const vs_record* records, size_t count, const uint64_t* size)


cdef extern from "threads.h" nogil:
    int vs_run_batch(const vs_batch* batch, size_t sets, int threads, int hears) except -1


cdef extern from "state.h" nogil:
    enum:
        VS_NO_MEMORY
        VS_NO_NODE
        VS_NODE_OK
        VS_NODE_UNKNOWN
        VS_NODE_LOST
    ctypedef struct vs_policy:
        double fraction
        uint64_t margin
        uint64_t headroom
    ctypedef struct vs_reading:
        uint64_t free
        uint64_t total
        int state
    ctypedef struct vs_pool:
        uint64_t idle
        uint64_t cap
        uint64_t limit
        uint16_t backend
        uint16_t device
    ctypedef struct vs_table:
        vs_shared shared
    vs_table* vs_table_new()
    void vs_table_keep(vs_table* table)
    void vs_table_drop(vs_table* table)
    uint64_t vs_table_version(const vs_table* table)
    int vs_table_add(vs_table* table, const vs_policy* policy, const vs_reading* reading, uint32_t* index)
    int vs_table_set_policy(vs_table* table, uint32_t index, const vs_policy* policy)
    int vs_table_update(
        vs_table* table, uint32_t index, const vs_reading* reading, uint32_t count, const vs_pool* pools)
    int vs_table_update_all(
        vs_table* table, uint32_t count, const uint64_t* free_bytes, const uint64_t* total, const uint8_t* known)
    int vs_table_lose(vs_table* table, uint32_t index)
    int vs_table_set_reserved(vs_table* table, uint32_t index, uint64_t reserved)
    int vs_table_set_pool(vs_table* table, const vs_pool* pool)
    int vs_table_map(vs_table* table, uint16_t backend, uint16_t device, uint32_t node)
    int vs_table_close(vs_table* table, uint16_t backend)
    uint32_t vs_table_read(
        vs_table* table, uint32_t count, uint64_t* free_bytes, uint64_t* total, uint64_t* reserved,
        uint8_t* known, uint8_t* lost)


cdef extern from "api.h" nogil:
    ctypedef struct vramsel_table:
        pass
    ctypedef struct vramsel_api:
        vramsel_table* (*open)(void* table) except NULL
    vramsel_api vs_api
    const char* VRAMSEL_API
    void vs_api_close(vramsel_table* table)
    Py_ssize_t vs_api_pick(vramsel_table* table, const vs_record* records, size_t count, uint8_t* status)
    Py_ssize_t vs_api_pick_sized(
        vramsel_table* table, const vs_record* records, size_t count, uint64_t nbytes, uint8_t* status)
    int vs_api_classify(
        vramsel_table* table, const vs_record* records, size_t count, const uint64_t* sizes, uint8_t* status)
    int vs_api_pick_many(
        vramsel_table* table, const vs_record* records, size_t count, const int64_t* offsets, size_t set_size,
        size_t sets, const uint64_t* sizes, int32_t* picks, uint8_t* status)
