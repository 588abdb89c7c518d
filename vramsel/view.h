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

/* What a reader needs of a view, in registers: past an atomic load the compiler would fetch it again. */
typedef struct vs_side {
    const uint64_t *rows;
    const vs_entry *entries;
    uint32_t backends;
} vs_side;

VS_INLINE vs_side vs_side_of(const vs_view *view, uint32_t turn) {
    vs_side side = {view->rows[turn & 1], view->entries[turn & 1], view->backends};
    return side;
}

/* The outcome of one candidate. `size` is NULL, or what to take for its bytes. */
VS_INLINE uint32_t vs_judge(const vs_side side, const vs_record *record, const uint64_t *size) {
    uint32_t index = vs_index(side.rows, side.backends, VS_ONCE(record->backend), VS_ONCE(record->device));
    const vs_entry *entry = &side.entries[index];
    uint64_t nbytes = size ? *size : record->bytes_moved;
    return vs_load(&entry->outcomes[vs_step(vs_load(&entry->room), vs_load(&entry->tight_from), nbytes)]);
}

/* The pick of a set whose first candidate has been judged already. It ends where one fits, since a
 * set is short and an early one usually does. */
VS_INLINE uint64_t vs_pick_side(
    const vs_side side, const vs_record *records, size_t count, const uint64_t *size, uint32_t first
) {
    uint32_t best = first, limit = first & 0xC0;    /* an outcome below has a better rank than `best` */
    const vs_record *at = records;
    for (const vs_record *record = records + 1; limit && record != records + count; record++) {
        uint32_t outcome = vs_judge(side, record, size);
        if (outcome < limit) {
            best = outcome;
            at = record;
            limit = outcome & 0xC0;
        }
    }
    return vs_as_pick(best, (size_t)(at - records));
}

/* Whether a writer has come between since the reader was sent to this side. */
VS_INLINE int vs_overtaken(const vs_view *view, uint32_t turn) {
    vs_fence_acquire();
    return VS_UNLIKELY(vs_load(&view->turn) != turn);
}

#endif
