/* The functions of vramsel.h, which _core.pxd offers to Cython as well. */
#ifndef VRAMSEL_API_H
#define VRAMSEL_API_H

#include "kernels.h"
#include "state.h"

struct vramsel_table {
    vs_table inside;
};

static void vs_api_close(vramsel_table *table) {
    vs_table_drop(&table->inside);
}

VS_INLINE ptrdiff_t vs_api_put(uint64_t pick, uint8_t *status) {
    if (status) *status = pick == VS_NO_PICK ? VS_EMPTY_STATUS : pick & 3;
    return pick == VS_NO_PICK ? -1 : (ptrdiff_t)vs_pick_index(pick);
}

static ptrdiff_t vs_api_pick(vramsel_table *table, const vramsel_record *records, size_t count, uint8_t *status) {
    return vs_api_put(vs_pick(&table->inside.shared, records, count, NULL), status);
}

static ptrdiff_t vs_api_pick_sized(
    vramsel_table *table, const vramsel_record *records, size_t count, uint64_t nbytes, uint8_t *status
) {
    return vs_api_put(vs_pick(&table->inside.shared, records, count, &nbytes), status);
}

static int vs_api_batch(vramsel_table *table, vs_batch *batch, size_t sets) {
    vs_board board;
    if (vs_board_new(&table->inside.shared, batch->count, &board)) return -1;
    batch->board = &board;
    vs_run(batch, 0, sets);
    vs_board_free(&board);
    return 0;
}

static int vs_api_classify(
    vramsel_table *table, const vramsel_record *records, size_t count, const uint64_t *sizes, uint8_t *status
) {
    vs_batch batch = {.records = records, .sizes = sizes, .count = count, .status = status};
    return vs_api_batch(table, &batch, count);
}

static int vs_api_pick_many(
    vramsel_table *table, const vramsel_record *records, size_t count, const int64_t *offsets, size_t set_size,
    size_t sets, const uint64_t *sizes, int32_t *picks, uint8_t *status
) {
    vs_batch batch = {
        .records = records, .sizes = sizes, .count = count, .offsets = offsets, .set_size = set_size,
        .picks = picks, .status = status
    };
    vs_bad_offset bad;
    int even = 0;
    if (!sets) return 0;
    if (!picks) return -2;
    if (offsets) {
        if (sets == SIZE_MAX || vs_check_offsets(offsets, 0, sets + 1, count, 0, &even, &bad)) return -2;
    } else if (!set_size || set_size > INT32_MAX || sets > count / set_size)
        return -2;
    return vs_api_batch(table, &batch, sets);
}

/* `open` comes from the core, which knows the Python type. */
static vramsel_api vs_api = {
    .version = VRAMSEL_API_VERSION,
    .size = sizeof(vramsel_api),
    .close = vs_api_close,
    .pick = vs_api_pick,
    .pick_sized = vs_api_pick_sized,
    .classify = vs_api_classify,
    .pick_many = vs_api_pick_many,
};

#endif
