/* The reader's side: what a decision reads, and the decision itself, for one set and for many.
 *
 * Plain C99 over plain structs: no allocation, no lock, no clock, no Python. Everything that a
 * decision needs to know is found when a sample is published (state.h), so that what is left is
 * a lookup and two integer comparisons per candidate.
 */
#ifndef VRAMSEL_KERNELS_H
#define VRAMSEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* One candidate: a row of CANDIDATE_DTYPE. */
typedef struct vs_record {
    uint16_t backend;
    uint16_t device;
    uint32_t kernel;        /* the caller's; never looked at */
    uint64_t bytes_moved;
} vs_record;

/* One placement. With left = room - size:  size > room: does not fit;  left < keep: tight.
 * `outcomes` has one byte for each result, low to high: comfortable, tight, does not fit, does
 * not fit. So unknown, lost and absent memory take the same path as a known one. */
typedef struct vs_entry {
    uint64_t room;          /* bytes: free + idle - headroom, saturating */
    uint64_t keep;          /* bytes: the smallest remainder that is not tight */
    uint32_t outcomes;
    uint32_t spare[3];      /* to 32 bytes: an index is a shift, two entries fill a cache line */
} vs_entry;

/* The entries of one backend: device d is entries[base + min(d, count)], so that the last one
 * stands for every device beyond. A backend without devices shares such a last one. */
typedef struct vs_row {
    uint32_t base;
    uint32_t count;
} vs_row;

/* All that a decision reads, in one allocation. rows[backends] stands for every backend beyond. */
typedef struct vs_view {
    vs_row *rows;
    vs_entry *entries;
    uint32_t backends;
    uint32_t used, space;   /* number of entries */
    struct vs_view *older;  /* the view that this one replaced */
} vs_view;

/* An outcome is rank << 2 | status. Selection is then the minimum over (rank, index): the first
 * that is comfortable or unknown, else the first tight, else the first that is neither lost nor
 * absent, else index 0. */
enum {
    VS_COMFORTABLE = 0 << 2 | 0,
    VS_UNKNOWN = 0 << 2 | 3,
    VS_TIGHT = 1 << 2 | 1,
    VS_WONT_FIT = 2 << 2 | 2,
    VS_GONE = 3 << 2 | 2    /* lost or absent */
};

#define VS_OUTCOMES(fits, tight, wont) \
    ((uint32_t)(fits) | (uint32_t)(tight) << 8 | (uint32_t)(wont) << 16 | (uint32_t)(wont) << 24)

static inline const vs_entry *vs_find(const vs_view *view, uint32_t backend, uint32_t device) {
    const vs_row *row = &view->rows[backend < view->backends ? backend : view->backends];
    return &view->entries[row->base + (device < row->count ? device : row->count)];
}

/* No branch: in a batch neither comparison can be predicted. When the size exceeds the room the
 * difference wraps and the second comparison means nothing; both outcomes are then the same. */
static inline uint32_t vs_judge(const vs_entry *entry, uint64_t size) {
    uint32_t over = size > entry->room;
    uint32_t tight = entry->room - size < entry->keep;
    return entry->outcomes >> (over << 4 | tight << 3) & 0xFF;
}

/* A pick is rank << 62 | index << 2 | status: again, the smallest wins. The pick of an empty set
 * is VS_NO_PICK. */
#define VS_NO_PICK UINT64_MAX
#define VS_EMPTY_STATUS 255  /* in arrays of status, for an empty set */

static inline uint64_t vs_as_pick(uint32_t outcome, size_t index) {
    return (uint64_t)(outcome >> 2) << 62 | (uint64_t)index << 2 | (outcome & 3);
}

static inline size_t vs_pick_index(uint64_t pick) {
    return (size_t)(pick >> 2 & (UINT64_MAX >> 4));
}

static inline int vs_pick_fits(uint64_t pick) {
    return pick >> 62 < VS_WONT_FIT >> 2;
}

/* In a batch the caller may write to the rows meanwhile. Read each field once, so that what was
 * compared with a bound is what is then used. */
#define VS_ONCE(field) (*(const volatile uint16_t *)&(field))

/* One set. It is short and its first candidate usually fits, so leave as soon as one does.
 * `size` is NULL, or the one size of every candidate. */
static inline uint64_t vs_pick(const vs_view *view, const vs_record *rows, size_t count, const uint64_t *size) {
    uint64_t best = VS_NO_PICK;
    for (size_t i = 0; i < count; i++) {
        const vs_entry *entry = vs_find(view, rows[i].backend, rows[i].device);
        uint32_t outcome = vs_judge(entry, size ? *size : rows[i].bytes_moved);
        uint64_t pick = vs_as_pick(outcome, i);
        if (outcome >> 2 == 0) return pick;
        if (pick < best) best = pick;
    }
    return best;
}

/* The same without the early way out, which a batch of random sets mispredicts. `sizes` is NULL,
 * or one per row. */
static inline uint64_t vs_pick_flat(const vs_view *view, const vs_record *rows, const uint64_t *sizes, size_t count) {
    uint64_t best = VS_NO_PICK;
    for (size_t i = 0; i < count; i++) {
        const vs_entry *entry = vs_find(view, VS_ONCE(rows[i].backend), VS_ONCE(rows[i].device));
        uint64_t pick = vs_as_pick(vs_judge(entry, sizes ? sizes[i] : rows[i].bytes_moved), i);
        best = pick < best ? pick : best;
    }
    return best;
}

static inline void vs_put_pick(uint64_t pick, int32_t *out, uint8_t *status) {
    *out = pick == VS_NO_PICK ? -1 : (int32_t)vs_pick_index(pick);
    if (status) *status = pick == VS_NO_PICK ? VS_EMPTY_STATUS : pick & 3;
}

static inline void vs_classify(
    const vs_view *view, const vs_record *rows, const uint64_t *sizes, size_t count, uint8_t *out
) {
    for (size_t i = 0; i < count; i++) {
        const vs_entry *entry = vs_find(view, VS_ONCE(rows[i].backend), VS_ONCE(rows[i].device));
        out[i] = vs_judge(entry, sizes ? sizes[i] : rows[i].bytes_moved) & 3;
    }
}

/* Sets of one length. `status` is NULL, or one per set. */
static inline void vs_pick_regular(
    const vs_view *view, const vs_record *rows, const uint64_t *sizes,
    size_t set_size, size_t sets, int32_t *out, uint8_t *status
) {
    for (size_t s = 0; s < sets; s++) {
        const uint64_t *own = sizes ? sizes + s * set_size : NULL;
        vs_put_pick(vs_pick_flat(view, rows + s * set_size, own, set_size), out + s, status ? status + s : NULL);
    }
}

/* Sets of any length: set s is rows offsets[s] to offsets[s + 1]. The offsets were validated, but
 * they are the caller's and may change while this runs: clamped, a changed one gives a wrong
 * pick and never a wild pointer. */
static inline void vs_pick_ragged(
    const vs_view *view, const vs_record *rows, const uint64_t *sizes, size_t count,
    const volatile int64_t *offsets, size_t sets, int32_t *out, uint8_t *status
) {
    for (size_t s = 0; s < sets; s++) {
        uint64_t low = (uint64_t)offsets[s], high = (uint64_t)offsets[s + 1];
        if (high > count) high = count;
        if (low > high) low = high;
        vs_put_pick(
            vs_pick_flat(view, rows + low, sizes ? sizes + low : NULL, (size_t)(high - low)),
            out + s, status ? status + s : NULL
        );
    }
}

#endif
