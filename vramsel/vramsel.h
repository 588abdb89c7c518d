/* vramsel for C, C++, Rust, Numba and whoever else can call through a pointer.
 *
 *     const vramsel_api *vramsel = PyCapsule_Import(VRAMSEL_API, 0);   (with the GIL)
 *     if (!vramsel || vramsel->version != VRAMSEL_API_VERSION) ...
 *
 * Later versions with the same number only add functions at the end; `size` tells which are there.
 * Bytes are uint64_t, status is 0 comfortable, 1 tight, 2 will not fit, 3 unknown, and 255 of no pick.
 * Records and arrays are aligned as their types are.
 */
#ifndef VRAMSEL_H
#define VRAMSEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VRAMSEL_API "vramsel._core.api"
#define VRAMSEL_API_VERSION 1u

/* One candidate: a row of CANDIDATE_DTYPE. */
typedef struct vramsel_record {
    uint16_t backend;
    uint16_t device;
    uint32_t kernel;        /* the caller's; never looked at */
    uint64_t bytes_moved;
} vramsel_record;

typedef struct vramsel_table vramsel_table;

typedef struct vramsel_api {
    uint32_t version;       /* VRAMSEL_API_VERSION */
    uint32_t size;          /* bytes of this struct */

    /* A reference to the memory behind a MemoryTable (a borrowed PyObject *), valid until it is
     * closed, whatever becomes of the Python object. With the GIL; NULL with an exception set. */
    vramsel_table *(*open)(void *table);

    /* The others need no GIL, and any thread may call them at any time. */
    void (*close)(vramsel_table *table);

    /* Index of the best candidate whose memory can still take it, as MemoryTable.select; -1 for an
     * empty set. `status` is NULL or takes the status of the pick, which is 2 when nothing fits and
     * 255 when there is none. */
    ptrdiff_t (*pick)(vramsel_table *table, const vramsel_record *records, size_t count, uint8_t *status);

    /* The same with one size, in bytes, for every candidate. */
    ptrdiff_t (*pick_sized)(
        vramsel_table *table, const vramsel_record *records, size_t count, uint64_t nbytes, uint8_t *status);

    /* The status of each record. `sizes` is NULL, or bytes to use instead of bytes_moved, one per
     * record. 0, or -1 when out of memory. */
    int (*classify)(
        vramsel_table *table, const vramsel_record *records, size_t count, const uint64_t *sizes, uint8_t *status);

    /* The picks of many sets, each an index within its set, -1 for an empty one: set s is records offsets[s] to offsets[s + 1], or, where `offsets` is
     * NULL, the s-th `set_size` records. `status` is NULL or takes one per set, 255 for an empty one.
     * 0; -1 when out of memory; -2 when the sets do not lie within `count` records, or one is longer
     * than 2^31 - 1, or `picks` is NULL. */
    int (*pick_many)(
        vramsel_table *table, const vramsel_record *records, size_t count, const int64_t *offsets, size_t set_size,
        size_t sets, const uint64_t *sizes, int32_t *picks, uint8_t *status);
} vramsel_api;

#ifdef __cplusplus
}
#endif

#endif
