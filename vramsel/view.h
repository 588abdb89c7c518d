/* What a decision reads, and the decision for one set.
 *
 * Plain C over plain structs: no allocation, no lock, no clock, no Python. Everything that a
 * decision needs to know is found when a sample is published (state.h), so that what is left is
 * a lookup and two integer comparisons per candidate.
 */
#ifndef VRAMSEL_VIEW_H
#define VRAMSEL_VIEW_H

#include <stddef.h>
#include <stdint.h>

#include "sync.h"
#include "vramsel.h"

typedef vramsel_record vs_record;

/* One placement. With step = (size >= tight_from) + (size > room), outcomes[step] is the outcome:
 * fits, tight, or does not fit. So unknown, lost and absent memory take the same path
 * as a known one. */
typedef struct vs_entry {
    uint64_t room;          /* bytes: free + idle - reserved - headroom, saturating */
    uint64_t tight_from;    /* bytes: the smallest size that is tight; at most room + 1 */
    uint8_t outcomes[4];    /* three are used */
    uint32_t place;         /* the writer's: number of the placement, from 1; 0 where none is listed */
    uint64_t spare;         /* to 32 bytes: an index is a shift, two entries fill a cache line */
} vs_entry;

/* An outcome is rank << 6 | status. Selection is the minimum over (rank, index): the first that
 * is comfortable or unknown, else the first tight, else the first that is neither lost nor absent,
 * else index 0. The bits between are left for an index (kernels.h). */
enum {
    VS_COMFORTABLE = 0 << 6 | 0,
    VS_UNKNOWN = 0 << 6 | 3,
    VS_TIGHT = 1 << 6 | 1,
    VS_WONT_FIT = 2 << 6 | 2,
    VS_GONE = 3 << 6 | 2    /* lost or absent */
};

/* Two copies ("sides") of the same rows and entries behind a counter: readers use side turn & 1,
 * the writer changes the other one. A side is an array of rows, one per backend and one more that
 * stands for every backend beyond, and then the entries. A row is base | count << 32: device d of
 * that backend is entries[base + min(d, count)], so the last one stands for every device beyond.
 * A backend without devices shares such a last one. */
typedef struct vs_view {
    uint32_t turn;
    uint32_t backends;
    uint64_t *rows[2];
    vs_entry *entries[2];
    uint32_t used, space;   /* the writer's: number of entries of a side */
    struct vs_view *older;  /* the view that this one replaced */
} vs_view;

/* What is shared between readers and writers of one table. */
typedef struct vs_shared {
    vs_view *view;
    vs_lock lock;           /* between writers */
} vs_shared;

VS_INLINE uint32_t vs_index(const uint64_t *rows, uint32_t backends, uint32_t backend, uint32_t device) {
    if (VS_UNLIKELY(backend >= backends)) backend = backends;
    uint64_t row = vs_load(&rows[backend]);
    uint32_t count = (uint32_t)(row >> 32);
    return (uint32_t)row + (device < count ? device : count);
}

/* No branch: in a batch neither comparison can be predicted. */
VS_INLINE uint32_t vs_step(uint64_t room, uint64_t tight_from, uint64_t size) {
    return (uint32_t)(size >= tight_from) + (uint32_t)(size > room);
}

/* A pick is rank << 62 | index << 2 | status: the smallest wins. That of an empty set is VS_NO_PICK. */
#define VS_NO_PICK UINT64_MAX
#define VS_EMPTY_STATUS 255  /* in arrays of status, for an empty set */

VS_INLINE uint64_t vs_as_pick(uint32_t outcome, size_t index) {
    return (uint64_t)(outcome >> 6) << 62 | (uint64_t)index << 2 | (outcome & 3);
}

static inline size_t vs_pick_index(uint64_t pick) {
    return (size_t)(pick >> 2 & (UINT64_MAX >> 4));
}

static inline int vs_pick_fits(uint64_t pick) {
    return pick >> 62 < VS_WONT_FIT >> 6;
}

/* Somebody else may write to the rows meanwhile. Read each field once, so that what was compared
 * with a bound is what is then used. */
#define VS_ONCE(field) (*(const volatile uint16_t *)&(field))

/* One set, on one side. It is short and its first candidate usually fits, so leave as soon as one
 * does. `size` is NULL, or the one size of every candidate. */
VS_INLINE uint64_t vs_pick_side(
    const uint64_t *rows, const vs_entry *entries, uint32_t backends,
    const vs_record *records, size_t count, const uint64_t *size
) {
    uint32_t best = 0, limit = 256;     /* an outcome below the limit has a better rank than `best` */
    const vs_record *at = records;
    for (const vs_record *record = records; record != records + count; record++) {
        const vs_entry *entry = &entries[vs_index(rows, backends, VS_ONCE(record->backend), VS_ONCE(record->device))];
        uint64_t nbytes = size ? *size : record->bytes_moved;
        uint32_t step = vs_step(vs_load(&entry->room), vs_load(&entry->tight_from), nbytes);
        uint32_t outcome = vs_load(&entry->outcomes[step]);
        if (outcome < limit) {
            best = outcome;
            at = record;
            limit = outcome & 0xC0;
            if (!limit) break;
        }
    }
    return count ? vs_as_pick(best, (size_t)(at - records)) : VS_NO_PICK;
}

/* Pick at one moment of the table, unless a writer changes it meanwhile: then it returns 0. */
VS_INLINE int vs_try_pick(
    const vs_shared *shared, const vs_record *records, size_t count, const uint64_t *size, uint64_t *pick
) {
    const vs_view *view = vs_load_acquire(&shared->view);
    uint32_t turn = vs_load_acquire(&view->turn);
    uint32_t side = turn & 1;
    *pick = vs_pick_side(view->rows[side], view->entries[side], view->backends, records, count, size);
    vs_fence_acquire();
    return vs_load(&view->turn) == turn;
}

#endif
