/* The batch kernels: many candidates against one moment of the table.
 *
 * A batch works in blocks that stay in the first-level cache: locate (which cell of the board is each
 * record about?), judge (one byte per record, the outcome), reduce (the bytes of a set to its
 * pick). Nothing in them branches on the data, which nobody can predict. Only locating gains from a
 * variant per instruction set; all variants give the same numbers.
 */
#ifndef VRAMSEL_KERNELS_H
#define VRAMSEL_KERNELS_H

#include <stdlib.h>
#include <string.h>

#include "view.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define VS_HAVE_AVX2 1      /* can be compiled; whether it can be run is asked at run time */
#include <immintrin.h>
#else
#define VS_HAVE_AVX2 0
#endif
#if defined(__x86_64__) || defined(_M_X64)
#define VS_HAVE_SSE2 1      /* part of every such processor */
#include <emmintrin.h>
#else
#define VS_HAVE_SSE2 0
#endif

/* -- the board: a batch's own copy of what it reads ------------------------------------------- */

typedef struct vs_cell {
    uint64_t room;
    uint64_t tight_from;
} vs_cell;

/* Rows as those of a view. Outcomes lie apart from the rest, as bytes, so that 1024 placements fill
 * 20 KiB and leave the caches to the records, and an outcome is one load. With `stride`, the cells
 * are a grid: every backend has that many devices, the last being the one for all beyond, and no
 * row need be looked up. */
typedef struct vs_board {
    uint64_t *rows;
    vs_cell *cells;
    uint8_t *outcomes;      /* VS_STEPS per cell */
    uint32_t backends;
    uint32_t stride;        /* 0: no grid */
} vs_board;

enum {
    VS_STEPS = 4,               /* three are used; four make an offset into outcomes a shift */
    VS_GRID_CELLS = 1 << 15,    /* a grid larger than this would not stay in the caches */
    VS_GRID_STRIDE = INT16_MAX / VS_STEPS,  /* what a signed 16-bit multiplication takes */
    VS_BOARD_TRIES = 8
};

/* How many cells a copy needs, and whether they are a grid: not for so few records that filling it
 * would take longer than it saves. Backends at the end that say nothing but what the row for all
 * beyond says are left out. */
static inline size_t vs_board_shape(const uint64_t *rows, size_t records, uint32_t *backends, uint32_t *stride) {
    uint32_t last = *backends;
    while (last && vs_load(&rows[last - 1]) == vs_load(&rows[*backends])) last--;
    size_t widest = 1, wanted = 1;
    for (uint32_t b = 0; b < last; b++) {
        size_t width = (size_t)(vs_load(&rows[b]) >> 32) + 1;
        widest = width > widest ? width : widest;
        wanted += width;
    }
    *backends = last;
    size_t grid = ((size_t)last + 1) * widest;
    int fits = last <= INT16_MAX && grid <= VS_GRID_CELLS && widest <= VS_GRID_STRIDE;
    *stride = fits && grid <= wanted + records ? (uint32_t)widest : 0;
    return *stride ? grid : wanted;
}

static inline void vs_copy_cell(const vs_board *board, size_t to, const vs_entry *from) {
    board->cells[to].room = vs_load(&from->room);
    board->cells[to].tight_from = vs_load(&from->tight_from);
    for (int step = 0; step < VS_STEPS; step++) board->outcomes[to * VS_STEPS + step] = vs_load(&from->outcomes[step]);
}

/* One attempt: 0, or -1 when out of memory, or 1 when a writer came between. */
static inline int vs_board_try(const vs_shared *shared, size_t records, vs_board *board) {
    const vs_view *view = vs_load_acquire(&shared->view);
    uint32_t turn = vs_load_acquire(&view->turn), beyond = view->backends;
    const uint64_t *rows = view->rows[turn & 1];
    const vs_entry *entries = view->entries[turn & 1];
    board->backends = beyond;
    size_t space = vs_board_shape(rows, records, &board->backends, &board->stride);
    size_t head = ((size_t)board->backends + 2) / 2 * sizeof(vs_cell);    /* so that no cell lies across two cache lines */
    char *block = (char *)malloc(head + space * (sizeof(vs_cell) + VS_STEPS));
    if (!block) return -1;
    board->rows = (uint64_t *)block;
    board->cells = (vs_cell *)(block + head);
    board->outcomes = (uint8_t *)(board->cells + space);
    size_t next = 0;
    for (uint32_t b = 0; b <= board->backends; b++) {
        uint64_t row = vs_load(&rows[b < board->backends ? b : beyond]);
        size_t count = (size_t)(row >> 32), base = (size_t)(uint32_t)row;
        size_t width = board->stride ? board->stride : count + 1;
        if (next + width > space || count + 1 > width) break;   /* the rows changed since they were measured */
        for (size_t d = 0; d < width; d++) vs_copy_cell(board, next + d, &entries[base + (d < count ? d : count)]);
        board->rows[b] = (uint64_t)next | (uint64_t)(width - 1) << 32;
        next += width;
    }
    vs_fence_acquire();
    if (vs_load(&view->turn) == turn) return 0;
    free(block);
    return 1;
}

/* Copy one moment of the table, to judge so many records by; -1 when out of memory. Writers are not
 * held up, unless they never leave the time for a copy: then the last attempt waits its turn among
 * them. */
static inline int vs_board_new(vs_shared *shared, size_t records, vs_board *board) {
    int failed = 1;
    for (int i = 0; i < VS_BOARD_TRIES && failed == 1; i++) failed = vs_board_try(shared, records, board);
    if (failed == 1) {
        vs_lock_take(&shared->lock);
        failed = vs_board_try(shared, records, board);
        vs_lock_drop(&shared->lock);
    }
    return failed;
}

static inline void vs_board_free(vs_board *board) {
    free(board->rows);
}

/* -- locating ---------------------------------------------------------------------------------- */

enum { VS_PART = 128 };     /* records that are located, then judged: 2 KiB of them */

/* `places` gets, for each record, VS_STEPS times the number of its cell. */
typedef void (*vs_locate)(const vs_board *board, const vs_record *records, size_t count, uint32_t *places);

VS_INLINE uint32_t vs_locate_one(const vs_board *board, const vs_record *record) {
    return VS_STEPS * vs_index(board->rows, board->backends, VS_ONCE(record->backend), VS_ONCE(record->device));
}

static void vs_locate_portable(const vs_board *board, const vs_record *records, size_t count, uint32_t *places) {
    const vs_board own = *board;    /* or its numbers would be read again after each number written */
    for (size_t i = 0; i < count; i++) places[i] = vs_locate_one(&own, &records[i]);
}

#if VS_HAVE_AVX2
/* Eight records a step, on a grid: one minimum clamps backends and devices together, and one
 * multiply-add makes indices of them. */
static __attribute__((target("avx2"))) void vs_locate_avx2(
    const vs_board *board, const vs_record *records, size_t count, uint32_t *places
) {
    const __m256i limits = _mm256_set1_epi32((int)(board->backends | (board->stride - 1) << 16));
    const __m256i scales = _mm256_set1_epi32((int)(VS_STEPS * board->stride | VS_STEPS << 16));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);    /* where the shuffles leave them */
    size_t i = 0;
    for (; board->stride && i + 8 <= count; i += 8) {
        const float *at = (const float *)(records + i);     /* 4 of these to a record */
        /* The first 4 bytes of each record are its backend and device. */
        __m256 low = _mm256_shuffle_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8), 0);
        __m256 high = _mm256_shuffle_ps(_mm256_loadu_ps(at + 16), _mm256_loadu_ps(at + 24), 0);
        __m256i eight = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88));
        eight = _mm256_madd_epi16(_mm256_min_epu16(eight, limits), scales);
        _mm256_storeu_si256((__m256i *)(places + i), _mm256_permutevar8x32_epi32(eight, order));
    }
    vs_locate_portable(board, records + i, count - i, places + i);
}
#endif

/* What each kernel is called; NULL where there is none of that number, or this processor cannot run
 * it. The best is the last. */
static inline const char *vs_kernel_name(int number) {
    if (number == 0) return "portable";
#if VS_HAVE_AVX2
    __builtin_cpu_init();
    if (number == 1 && __builtin_cpu_supports("avx2")) return "avx2";
#endif
    return NULL;
}

/* The one that batches use; atomic, since it may be changed at any time. */
static uint32_t vs_kernel_now;

static inline int vs_kernel_use(int number) {
    if (!vs_kernel_name(number)) return -1;
    vs_store(&vs_kernel_now, (uint32_t)number);
    return 0;
}

static inline vs_locate vs_kernel(void) {
#if VS_HAVE_AVX2
    if (vs_load(&vs_kernel_now) == 1) return vs_locate_avx2;
#endif
    return vs_locate_portable;
}

/* -- judging ----------------------------------------------------------------------------------- */

/* A page ahead: far enough to cover the way from memory, and over the end of a page, where the
 * hardware's own prefetch stops. */
enum { VS_AHEAD = 256, VS_LINE_RECORDS = 64 / sizeof(vs_record) };

VS_INLINE uint8_t vs_judge_cell(const vs_cell *cells, const uint8_t *outcomes, size_t place, uint64_t size) {
    /* Not cells[place / VS_STEPS]: that the division is exact is for us to know. */
    const vs_cell *cell = (const vs_cell *)((const char *)cells + place * (sizeof(vs_cell) / VS_STEPS));
    return outcomes[place + vs_step(cell->room, cell->tight_from, size)];
}

VS_INLINE void vs_judge_part(
    const vs_board *board, const vs_record *records, const uint64_t *sizes, size_t count,
    const uint32_t *places, uint8_t *out
) {
    /* Held here: bytes are written below, and a byte may lie anywhere, also in the board. */
    const vs_cell *cells = board->cells;
    const uint8_t *outcomes = board->outcomes;
    size_t i = 0;
    for (; i + VS_LINE_RECORDS <= count; i += VS_LINE_RECORDS) {
        vs_prefetch((const void *)((uintptr_t)(records + i) + VS_AHEAD * sizeof(vs_record)));     /* which may not exist */
        for (size_t j = i; j < i + VS_LINE_RECORDS; j++)
            out[j] = vs_judge_cell(cells, outcomes, places[j], sizes ? sizes[j] : records[j].bytes_moved);
    }
    for (; i < count; i++)
        out[i] = vs_judge_cell(cells, outcomes, places[i], sizes ? sizes[i] : records[i].bytes_moved);
}

/* One outcome per record. `sizes` is NULL, or one per record: two loops, so that neither asks. */
static inline void vs_judge_block(
    const vs_board *board, const vs_record *records, const uint64_t *sizes, size_t count, uint8_t *out
) {
    vs_locate locate = vs_kernel();
    uint32_t places[VS_PART];
    for (size_t i = 0; i < count; i += VS_PART) {
        size_t part = count - i < VS_PART ? count - i : VS_PART;
        locate(board, records + i, part, places);
        if (sizes)
            vs_judge_part(board, records + i, sizes + i, part, places, out + i);
        else
            vs_judge_part(board, records + i, NULL, part, places, out + i);
    }
}

/* -- batches ----------------------------------------------------------------------------------- */

/* One batch, or a part of it. `ask` is NULL, or is called every thousand records or so; what it
 * returns ends the batch unless it is 0. */
typedef struct vs_batch {
    const vs_board *board;
    const vs_record *records;
    const uint64_t *sizes;          /* NULL, or one per record */
    size_t count;                   /* records */
    const volatile int64_t *offsets;    /* NULL, or sets + 1: where each set begins */
    size_t set_size;                /* where there are no offsets */
    int32_t *picks;                 /* one per set; NULL to classify */
    uint8_t *status;                /* one per set, or NULL; to classify, one per record */
    int (*ask)(void *who);
    void *who;
} vs_batch;

/* What a block needs is small, so that a table of 1024 nodes stays in the first-level cache beside it. */
enum { VS_BLOCK = 1024, VS_SHORT = 16 };

/* A block's outcomes, and so many more bytes that sixteen can be read from any of them. */
typedef uint8_t vs_outcomes[VS_BLOCK + VS_SHORT];

static inline void vs_judge_batch(const vs_batch *batch, size_t from, size_t count, uint8_t *out) {
    const uint64_t *sizes = batch->sizes ? batch->sizes + from : NULL;
    vs_judge_block(batch->board, batch->records + from, sizes, count, out);
}

static inline int vs_asked(const vs_batch *batch) {
    return batch->ask ? batch->ask(batch->who) : 0;
}

/* For the functions below: end with what `call` returns, unless it is 0. */
#define VS_TRY(call) \
    do { \
        int ended = (call); \
        if (VS_UNLIKELY(ended)) return ended; \
    } while (0)

/* The smallest of up to 16 outcomes, with its index in the bits that an outcome leaves free: the
 * pick, as rank << 6 | index << 2 | status, or VS_EMPTY_STATUS of none. */
VS_INLINE uint32_t vs_smallest(const uint8_t *outcomes, size_t count) {
    uint32_t best = VS_EMPTY_STATUS;
    for (size_t j = 0; j < count; j++) {
        uint32_t pick = outcomes[j] | (uint32_t)j << 2;
        best = pick < best ? pick : best;
    }
    return best;
}

/* The same of a number that is not known beforehand: all sixteen at once, since the end of a loop
 * of random length is mispredicted. Reads sixteen bytes. */
#if VS_HAVE_SSE2
VS_INLINE uint32_t vs_smallest_of(const uint8_t *outcomes, size_t count) {
    static const uint8_t beyond[2 * VS_SHORT] = {
        [VS_SHORT] = 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255
    };
    const __m128i index = _mm_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    __m128i picks = _mm_or_si128(_mm_loadu_si128((const __m128i *)outcomes), index);
    picks = _mm_or_si128(picks, _mm_loadu_si128((const __m128i *)(beyond + VS_SHORT - count)));
    picks = _mm_min_epu8(picks, _mm_srli_si128(picks, 8));
    picks = _mm_min_epu8(picks, _mm_srli_si128(picks, 4));
    picks = _mm_min_epu8(picks, _mm_srli_si128(picks, 2));
    picks = _mm_min_epu8(picks, _mm_srli_si128(picks, 1));
    return (uint32_t)_mm_cvtsi128_si32(picks) & 0xFF;
}
#else
VS_INLINE uint32_t vs_smallest_of(const uint8_t *outcomes, size_t count) {
    return vs_smallest(outcomes, count);
}
#endif

/* The pick of any number of outcomes, the first of which has this index. */
VS_INLINE uint64_t vs_reduce(const uint8_t *outcomes, size_t count, size_t index) {
    uint64_t best = VS_NO_PICK;
    for (size_t i = 0; i < count; i += VS_SHORT) {
        uint32_t pick = vs_smallest_of(outcomes + i, count - i < VS_SHORT ? count - i : VS_SHORT);
        uint64_t whole = vs_as_pick(pick & 0xC3, index + i + (pick >> 2 & (VS_SHORT - 1)));
        best = whole < best ? whole : best;
    }
    return best;
}

static inline void vs_put_pick(const vs_batch *batch, size_t set, uint64_t pick) {
    batch->picks[set] = pick == VS_NO_PICK ? -1 : (int32_t)vs_pick_index(pick);
    if (batch->status) batch->status[set] = pick == VS_NO_PICK ? VS_EMPTY_STATUS : pick & 3;
}

/* The pick of a set whose outcomes lie in one block. */
VS_INLINE void vs_put_set(const uint8_t *outcomes, size_t count, int32_t *pick, uint8_t *status) {
    if (VS_UNLIKELY(count > VS_SHORT)) {
        uint64_t whole = vs_reduce(outcomes, count, 0);
        *pick = (int32_t)vs_pick_index(whole);
        if (status) *status = whole & 3;
        return;
    }
    uint32_t byte = vs_smallest_of(outcomes, count);
    *pick = byte == VS_EMPTY_STATUS ? -1 : (int32_t)(byte >> 2 & (VS_SHORT - 1));
    if (status) *status = byte == VS_EMPTY_STATUS ? VS_EMPTY_STATUS : byte & 3;
}

/* Sets of one short length. Called with a constant, the loop over a set unrolls and the one over
 * sets is vectorised. */
VS_INLINE void vs_reduce_short(const uint8_t *outcomes, size_t each, size_t sets, int32_t *picks, uint8_t *status) {
    for (size_t s = 0; s < sets; s++) picks[s] = (int32_t)(vs_smallest(outcomes + s * each, each) >> 2 & (VS_SHORT - 1));
    if (status)
        for (size_t s = 0; s < sets; s++) status[s] = vs_smallest(outcomes + s * each, each) & 3;
}

/* A set that fills more than one block. */
static inline int vs_run_long(const vs_batch *batch, size_t set, size_t low, size_t high, uint8_t *outcomes) {
    uint64_t best = VS_NO_PICK;
    for (size_t from = low; from < high; from += VS_BLOCK) {
        size_t count = high - from < VS_BLOCK ? high - from : VS_BLOCK;
        vs_judge_batch(batch, from, count, outcomes);
        uint64_t pick = vs_reduce(outcomes, count, from - low);
        best = pick < best ? pick : best;
        VS_TRY(vs_asked(batch));
    }
    vs_put_pick(batch, set, best);
    return 0;
}

static inline int vs_run_regular(const vs_batch *batch, size_t set, size_t end) {
    vs_outcomes outcomes;
    size_t each = batch->set_size, step = VS_BLOCK / each;
    if (!step) {
        for (; set < end; set++)
            VS_TRY(vs_run_long(batch, set, set * each, (set + 1) * each, outcomes));
        return 0;
    }
    for (; set < end; set += step) {
        size_t sets = end - set < step ? end - set : step;
        int32_t *picks = batch->picks + set;
        uint8_t *status = batch->status ? batch->status + set : NULL;
        vs_judge_batch(batch, set * each, sets * each, outcomes);
        switch (each) {
        case 2: vs_reduce_short(outcomes, 2, sets, picks, status); break;
        case 3: vs_reduce_short(outcomes, 3, sets, picks, status); break;
        case 4: vs_reduce_short(outcomes, 4, sets, picks, status); break;
        case 8: vs_reduce_short(outcomes, 8, sets, picks, status); break;
        default:
            for (size_t s = 0; s < sets; s++) vs_put_set(outcomes + s * each, each, picks + s, status ? status + s : NULL);
        }
        VS_TRY(vs_asked(batch));
    }
    return 0;
}

/* The offsets were validated, but they are the caller's and may change while this runs. Each is
 * read once, and clamped between the one before and the number of records: a changed one gives a
 * wrong pick and never a wild pointer. */
VS_INLINE size_t vs_bound(const vs_batch *batch, size_t set, size_t before) {
    uint64_t bound = (uint64_t)batch->offsets[set];
    bound = bound > batch->count ? batch->count : bound;
    return bound < before ? before : (size_t)bound;
}

static inline int vs_run_ragged(const vs_batch *batch, size_t set, size_t end) {
    vs_outcomes outcomes;
    int32_t *picks = batch->picks;
    uint8_t *status = batch->status;
    size_t low = set < end ? vs_bound(batch, set, 0) : 0;
    while (set < end) {
        size_t high = vs_bound(batch, set + 1, low);
        if (high - low > VS_BLOCK) {
            VS_TRY(vs_run_long(batch, set++, low, high, outcomes));
            low = high;
            continue;
        }
        /* A block begins with a set; one that its end cuts begins the next. */
        size_t from = low, last = vs_bound(batch, end, high);
        size_t count = last - from < VS_BLOCK ? last - from : VS_BLOCK;
        if (count) vs_judge_batch(batch, from, count, outcomes);
        size_t stop = set + VS_BLOCK;   /* empty sets take no records, and would never end the block */
        do {
            vs_put_set(outcomes + (low - from), high - low, picks + set, status ? status + set : NULL);
            low = high;
            if (++set == end) break;
            high = vs_bound(batch, set + 1, low);
        } while (high - from <= count && set < stop);
        VS_TRY(vs_asked(batch));
    }
    return 0;
}

static inline int vs_run_classify(const vs_batch *batch, size_t from, size_t end) {
    vs_outcomes outcomes;
    for (; from < end; from += VS_BLOCK) {
        size_t count = end - from < VS_BLOCK ? end - from : VS_BLOCK;
        uint8_t *status = batch->status + from;
        vs_judge_batch(batch, from, count, outcomes);
        for (size_t i = 0; i < count; i++) status[i] = outcomes[i] & 3;
        VS_TRY(vs_asked(batch));
    }
    return 0;
}

/* The sets (or, to classify, the records) from `from` up to `end`; 0, or what `ask` ended it with. */
static inline int vs_run(const vs_batch *batch, size_t from, size_t end) {
    if (!batch->picks) return vs_run_classify(batch, from, end);
    return batch->offsets ? vs_run_ragged(batch, from, end) : vs_run_regular(batch, from, end);
}

/* What is wrong with some offsets: the first entry that decreases, lies beyond the records, or ends
 * a set of more than 2^31 - 1, as it was read then. */
typedef struct vs_bad_offset {
    size_t entry;
    int64_t here, before;
} vs_bad_offset;

/* Check the entries from `from` to `end`: 0 when all is well. Clears `even` unless all sets are as
 * long as `each`. Somebody may write to the offsets meanwhile: what was found does not bind them. */
static inline int vs_check_offsets(
    const int64_t *offsets, size_t from, size_t end, size_t count, uint64_t each, int *even, vs_bad_offset *bad
) {
    for (size_t block = from; block < end; block += VS_BLOCK) {
        size_t stop = end - block < VS_BLOCK ? end : block + VS_BLOCK;
        uint64_t wrong = block == 0 && (uint64_t)offsets[0] > count, uneven = 0;
        /* No way out within a block, so that it is vectorised. */
        for (size_t i = block ? block : 1; i < stop; i++) {
            uint64_t here = (uint64_t)offsets[i], before = (uint64_t)offsets[i - 1];
            wrong |= (here > count) | (here < before) | (here - before > INT32_MAX);
            uneven |= (here - before) ^ each;
        }
        if (uneven) *even = 0;
        for (size_t i = block; wrong && i < stop; i++) {
            uint64_t here = *(const volatile uint64_t *)&offsets[i];
            uint64_t before = i ? *(const volatile uint64_t *)&offsets[i - 1] : 0;
            if (here <= count && here >= before && (!i || here - before <= INT32_MAX)) continue;
            bad->entry = i;
            bad->here = (int64_t)here;
            bad->before = (int64_t)before;
            return -1;
        }
    }
    return 0;
}

/* -- one set, whatever writers do -------------------------------------------------------------- */

enum { VS_PICK_WORK = 1024 };   /* records judged in vain before a copy is made */

/* Where a writer came between: try again, and if it always does (a set of thousands, a writer that
 * never rests), pick from a copy, which takes less time than the set. */
static VS_RARE uint64_t vs_pick_again(vs_shared *shared, const vs_record *records, size_t count, const uint64_t *size) {
    for (;;) {
        vs_board board;
        for (size_t i = 0; i <= VS_PICK_WORK / count; i++) {
            const vs_view *view = vs_load_acquire(&shared->view);
            uint32_t turn = vs_load_acquire(&view->turn);
            vs_side side = vs_side_of(view, turn);
            uint64_t pick = vs_pick_side(side, records, count, size, vs_judge(side, records, size));
            if (!vs_overtaken(view, turn)) return pick;
        }
        if (vs_board_new(shared, 0, &board)) continue;
        uint64_t best = VS_NO_PICK;
        for (size_t i = 0; i < count; i++) {
            uint64_t nbytes = size ? *size : records[i].bytes_moved;
            uint64_t pick = vs_as_pick(
                vs_judge_cell(board.cells, board.outcomes, vs_locate_one(&board, &records[i]), nbytes), i);
            best = pick < best ? pick : best;
        }
        vs_board_free(&board);
        return best;
    }
}

VS_INLINE uint64_t vs_pick_rest_as(
    vs_shared *shared, const vs_view *view, uint32_t turn, const vs_record *records, size_t count,
    const uint64_t *size, uint32_t first
) {
    uint64_t pick = vs_pick_side(vs_side_of(view, turn), records, count, size, first);
    return vs_overtaken(view, turn) ? vs_pick_again(shared, records, count, size) : pick;
}

/* Apart from vs_pick, so that a first candidate that fits does not pay for the registers of the loop;
 * and two of them, so that the loop does not ask where a size comes from. */
static VS_APART uint64_t vs_pick_rest(
    vs_shared *shared, const vs_view *view, uint32_t turn, const vs_record *records, size_t count, uint32_t first
) {
    return vs_pick_rest_as(shared, view, turn, records, count, NULL, first);
}

static VS_APART uint64_t vs_pick_rest_sized(
    vs_shared *shared, const vs_view *view, uint32_t turn, const vs_record *records, size_t count,
    uint64_t size, uint32_t first
) {
    return vs_pick_rest_as(shared, view, turn, records, count, &size, first);
}

/* One set at one moment of the table. `size` is NULL, or the one size of every candidate. */
VS_INLINE uint64_t vs_pick(vs_shared *shared, const vs_record *records, size_t count, const uint64_t *size) {
    if (VS_UNLIKELY(!count)) return VS_NO_PICK;
    const vs_view *view = vs_load_acquire(&shared->view);
    uint32_t turn = vs_load_acquire(&view->turn);
    uint32_t first = vs_judge(vs_side_of(view, turn), records, size);
    if (first >> 6)
        return size ? vs_pick_rest_sized(shared, view, turn, records, count, *size, first)
                    : vs_pick_rest(shared, view, turn, records, count, first);
    return vs_overtaken(view, turn) ? vs_pick_again(shared, records, count, size) : vs_as_pick(first, 0);
}

#endif
