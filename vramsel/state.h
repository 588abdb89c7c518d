/* The writer's side: memory nodes, the placements that live in them, and the view derived from
 * both for readers.
 *
 * What each field is, and what guards it:
 *
 *   nodes, places, closed   the truth. Read and written under the table's lock only
 *   counts, spaces          the same
 *   shared.view             stored under the lock (release), loaded by readers (acquire)
 *   a view's turn           a reader's measure of whether it was overtaken: see vs_turn
 *   a view's sides          stored under the lock, to the side that readers are not sent to; loaded
 *                           by readers. Relaxed atomics on both parts, since a reader that was
 *                           overtaken sees half of a change (and then tries again)
 *   a view's other fields   of `used`, the lock; else never changed
 *   view->older             replaced views. A reader may be in one still, so they live as long as
 *                           the table. Their sizes grow geometrically, so together they are no
 *                           more than a few times the last
 *   version                 stored under the lock, loaded by anybody: one more at every change that
 *                           a reader can see
 *   refs                    atomic. The last to drop the table frees it
 *
 * Nothing is called under the lock but the functions below: no Python, no waiting, no way out that
 * leaves it taken. Every function that begins with vs_table_ takes the lock; the others want it
 * taken. They return 0 or one of the faults below; then nothing has changed.
 */
#ifndef VRAMSEL_STATE_H
#define VRAMSEL_STATE_H

#include <stdlib.h>
#include <string.h>

#include "view.h"

enum { VS_NO_MEMORY = -1, VS_NO_NODE = -2, VS_NO_PLACE = -3 };
enum { VS_NODE_OK, VS_NODE_UNKNOWN, VS_NODE_LOST };

typedef struct vs_policy {
    double fraction;
    uint64_t margin;        /* bytes; UINT64_MAX where there is none */
    uint64_t headroom;      /* bytes */
} vs_policy;

/* Whether a reading is no signal is the caller's to say: here an unknown total and a total of 0
 * are the same. */
typedef struct vs_reading {
    uint64_t free;          /* bytes; not looked at unless the state is VS_NODE_OK */
    uint64_t total;         /* bytes; 0 where unknown */
    int state;
} vs_reading;

typedef struct vs_node {
    vs_reading now;
    vs_policy policy;
    uint64_t reserved;      /* bytes */
    uint64_t keep;          /* bytes: the smallest remainder that is not tight */
    uint32_t first_place;   /* number of one of its placements, from 1; 0 where it has none */
} vs_node;

/* What a placement's own allocator adds to the memory, and how much of it the placement may take. */
typedef struct vs_pool {
    uint64_t idle;          /* bytes that it holds and does not use */
    uint64_t cap;           /* bytes that it may still give out, whatever is free; UINT64_MAX: no limit */
    uint64_t limit;         /* bytes that it may hold in all, at least 1; UINT64_MAX: no limit */
    uint16_t backend;
    uint16_t device;
} vs_pool;

typedef struct vs_place {
    vs_pool pool;
    uint32_t node;
    uint32_t next_place;    /* of the same node, as first_place */
} vs_place;

typedef struct vs_table {
    vs_shared shared;
    vs_node *nodes;
    vs_place *places;
    uint8_t *closed;        /* one flag per backend of the view */
    uint32_t node_count, node_space;
    uint32_t place_count, place_space;
    uint64_t version;
    uint32_t refs;
} vs_table;

static inline uint64_t vs_add_sat(uint64_t a, uint64_t b) {
    return a + b >= a ? a + b : UINT64_MAX;
}

static inline uint64_t vs_sub_sat(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static inline uint64_t vs_least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* The smallest remainder for which  (double)(total - left) / (double)total > fraction  is false,
 * or the margin where that is smaller. Rounding to double, division and comparison are monotone,
 * so bisection finds it exactly; at left = total the quotient is 0, which no fraction is below. */
static inline uint64_t vs_smallest_comfortable(uint64_t total, const vs_policy *policy) {
    uint64_t low = 0, high = total;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((double)(total - middle) / (double)total > policy->fraction)
            low = middle + 1;
        else
            high = middle;
    }
    return vs_least(low, policy->margin);
}

/* -- the view ---------------------------------------------------------------------------------- */

/* The first two entries of every side: the whole of a backend that lists no device. */
enum { VS_ENTRY_UNKNOWN, VS_ENTRY_ABSENT, VS_ENTRY_FIRST };
enum { VS_LINE = 64 };      /* bytes of a cache line, and what views are aligned to */

/* All zero: no backend lists a device, and none is closed. */
static inline vs_view *vs_view_new(uint32_t backends, uint32_t space) {
    size_t rows = (((size_t)backends + 1) * sizeof(uint64_t) + VS_LINE - 1) / VS_LINE * VS_LINE;
    size_t side = (rows + (size_t)space * sizeof(vs_entry) + VS_LINE - 1) / VS_LINE * VS_LINE;
    vs_view *view = (vs_view *)calloc(1, sizeof(vs_view) + VS_LINE + 2 * side);
    if (!view) return NULL;
    view->backends = backends;
    view->space = space;
    char *sides = (char *)(((uintptr_t)(view + 1) + VS_LINE - 1) / VS_LINE * VS_LINE);
    for (int k = 0; k < 2; k++) {
        view->rows[k] = (uint64_t *)(sides + k * side);
        view->entries[k] = (vs_entry *)(sides + k * side + rows);
    }
    return view;
}

/* Send readers to the other side, and return the one they left. To change a view is to do so twice
 * and make the same change to both:  for (k = 0; k < 2; k++) { side = vs_turn(view); ... }
 * A reader that was on that side while it is changed finds a later turn when it is done. */
static inline uint32_t vs_turn(vs_view *view) {
    uint32_t turn = vs_load(&view->turn) + 1;
    vs_store_release(&view->turn, turn);    /* what was written to the other side comes before */
    vs_fence_release();                     /* and what will be written to this one, after */
    return (turn + 1) & 1;
}

static inline uint64_t vs_as_row(uint32_t base, uint32_t count) {
    return (uint64_t)base | (uint64_t)count << 32;
}

static inline uint32_t vs_row_count(const vs_view *view, uint32_t backend) {
    return (uint32_t)(vs_load(&view->rows[0][backend]) >> 32);
}

static inline void vs_put_entry(vs_entry *entry, uint64_t room, uint64_t tight_from, int fits, int tight, int wont) {
    vs_store(&entry->room, room);
    vs_store(&entry->tight_from, tight_from);
    vs_store(&entry->outcomes[0], (uint8_t)fits);
    vs_store(&entry->outcomes[1], (uint8_t)tight);
    vs_store(&entry->outcomes[2], (uint8_t)wont);
}

static inline void vs_copy_entry(vs_entry *to, const vs_entry *from) {
    vs_put_entry(to, vs_load(&from->room), vs_load(&from->tight_from), vs_load(&from->outcomes[0]),
                 vs_load(&from->outcomes[1]), vs_load(&from->outcomes[2]));
    to->place = from->place;
}

/* What devices are that nobody listed: absent where their backend is closed, else unknown. */
static inline void vs_put_unlisted(vs_entry *entry, int closed) {
    int outcome = closed ? VS_GONE : VS_UNKNOWN;
    vs_put_entry(entry, 0, 0, outcome, outcome, outcome);
}

static inline vs_entry *vs_entry_of(const vs_view *view, uint32_t side, uint32_t backend, uint32_t device) {
    return &view->entries[side][vs_index(view->rows[side], view->backends, backend, device)];
}

static inline void vs_put_place(const vs_table *table, uint32_t side, const vs_place *place) {
    const vs_node *node = &table->nodes[place->node];
    const vs_pool *pool = &place->pool;
    vs_entry *entry = vs_entry_of(table->shared.view, side, pool->backend, pool->device);
    if (node->now.state == VS_NODE_LOST)
        vs_put_entry(entry, 0, 0, VS_GONE, VS_GONE, VS_GONE);
    else if (node->now.state == VS_NODE_UNKNOWN)
        vs_put_entry(entry, 0, 0, VS_UNKNOWN, VS_UNKNOWN, VS_UNKNOWN);
    else {
        uint64_t room = vs_least(vs_add_sat(node->now.free, pool->idle), pool->cap), keep = node->keep;
        room = vs_sub_sat(vs_sub_sat(room, node->reserved), node->policy.headroom);
        if (pool->limit < node->now.total)      /* seldom, so it is not kept */
            keep = vs_smallest_comfortable(pool->limit, &node->policy);
        if (!node->now.total)
            vs_put_entry(entry, room, 0, VS_UNKNOWN, VS_UNKNOWN, VS_WONT_FIT);
        else if (keep)
            vs_put_entry(entry, room, room < keep ? 0 : room - keep + 1, VS_COMFORTABLE, VS_TIGHT, VS_WONT_FIT);
        else    /* nothing is tight: room + 1, which may not exist */
            vs_put_entry(entry, room, room, VS_COMFORTABLE, VS_COMFORTABLE, VS_WONT_FIT);
    }
}

static inline void vs_changed(vs_table *table) {
    vs_store_release(&table->version, table->version + 1);
}

static inline void vs_publish_node(vs_table *table, uint32_t node) {
    for (int k = 0; k < 2; k++) {
        uint32_t side = vs_turn(table->shared.view);
        for (uint32_t p = table->nodes[node].first_place; p; p = table->places[p - 1].next_place)
            vs_put_place(table, side, &table->places[p - 1]);
    }
    vs_changed(table);
}

static inline uint32_t vs_doubled(uint32_t wanted, uint32_t from) {
    while (from < wanted) from *= 2;
    return from;
}

/* Room for one more item. The array may move, so readers never look at it. */
static inline int vs_grow(void **items, uint32_t count, uint32_t *space, size_t width) {
    if (count < *space) return 0;
    uint32_t wanted = vs_doubled(count + 1, 8);
    void *grown = realloc(*items, wanted * width);
    if (!grown) return VS_NO_MEMORY;
    *items = grown;
    *space = wanted;
    return 0;
}

/* A larger view with the same content, in place of the present one. */
static inline int vs_replace_view(vs_table *table, uint32_t backends, uint32_t wanted) {
    const vs_view *old = table->shared.view;
    uint32_t known = old ? old->backends : 0;
    uint64_t live = VS_ENTRY_FIRST + wanted;
    for (uint32_t b = 0; b < known; b++) live += vs_row_count(old, b) ? (uint64_t)vs_row_count(old, b) + 1 : 0;
    if (live > UINT32_MAX / 4) return VS_NO_MEMORY;

    uint8_t *closed = (uint8_t *)realloc(table->closed, backends);
    if (!closed) return VS_NO_MEMORY;
    memset(closed + known, 0, backends - known);
    table->closed = closed;
    /* Twice what is in use: then the next replacement is as far away as all that came before. */
    vs_view *view = vs_view_new(backends, vs_doubled(2 * (uint32_t)live, 16));
    if (!view) return VS_NO_MEMORY;

    for (uint32_t side = 0; side < 2; side++) {
        vs_entry *entries = view->entries[side];
        uint64_t *rows = view->rows[side];
        vs_put_unlisted(&entries[VS_ENTRY_UNKNOWN], 0);
        vs_put_unlisted(&entries[VS_ENTRY_ABSENT], 1);
        view->used = VS_ENTRY_FIRST;
        for (uint32_t b = 0; b < known; b++) {
            uint64_t row = old->rows[side][b];
            uint32_t count = (uint32_t)(row >> 32);
            if (count) {
                for (uint32_t d = 0; d <= count; d++)
                    vs_copy_entry(&entries[view->used + d], &old->entries[side][(uint32_t)row + d]);
                row = vs_as_row(view->used, count);
                view->used += count + 1;
            }
            rows[b] = row;
        }
    }
    view->older = table->shared.view;
    vs_store_release(&table->shared.view, view);
    return 0;
}

/* Make the view reach `devices` devices of a backend; what it says stays the same. A row that must
 * grow gets a new place, at least twice as long, behind the others. */
static inline int vs_cover(vs_table *table, uint32_t backend, uint32_t devices) {
    vs_view *view = table->shared.view;
    uint32_t backends = view ? view->backends : 0;
    uint32_t had = backend < backends ? vs_row_count(view, backend) : 0;
    if (backend < backends && devices <= had) return 0;
    uint32_t count = devices <= had ? had : vs_doubled(devices, had ? had : 1);
    uint32_t wanted = count > had ? count + 1 : 0;
    if (backend >= backends || wanted > view->space - view->used) {
        if (vs_replace_view(table, vs_doubled(backend + 1, backends ? backends : 16), wanted)) return VS_NO_MEMORY;
        view = table->shared.view;
    }
    if (!wanted) return 0;
    for (int k = 0; k < 2; k++) {
        uint32_t side = vs_turn(view);
        uint64_t *row = &view->rows[side][backend];
        const vs_entry *old = &view->entries[side][(uint32_t)*row];
        vs_entry *entries = &view->entries[side][view->used];
        for (uint32_t d = 0; d < had; d++) vs_copy_entry(&entries[d], &old[d]);
        for (uint32_t d = had; d <= count; d++) vs_put_unlisted(&entries[d], table->closed[backend]);
        vs_store(row, vs_as_row(view->used, count));
    }
    view->used += wanted;
    return 0;
}

/* Number of a listed placement, from 1; 0 where it is not listed. */
static inline uint32_t vs_place_of(const vs_table *table, uint32_t backend, uint32_t device) {
    return vs_entry_of(table->shared.view, 0, backend, device)->place;
}

/* Take a placement off the list of its node. */
static inline void vs_unlink(vs_table *table, uint32_t number) {
    uint32_t *link = &table->nodes[table->places[number - 1].node].first_place;
    while (*link != number) link = &table->places[*link - 1].next_place;
    *link = table->places[number - 1].next_place;
}

static inline void vs_read(vs_node *node, const vs_reading *reading) {
    if (node->now.total != reading->total) {
        node->now.total = reading->total;
        node->keep = vs_smallest_comfortable(reading->total, &node->policy);
    }
    node->now.free = reading->state == VS_NODE_OK ? reading->free : 0;
    node->now.state = reading->state;
}

/* -- what writers call ------------------------------------------------------------------------- */

/* The body runs under the lock; `continue` leaves it. */
#define VS_LOCKED(table) \
    for (vs_lock *held = &(table)->shared.lock, *once = (vs_lock_take(held), held); once; vs_lock_drop(held), once = NULL)

/* Add a node, whole in one step; its index comes back in `index`. */
static inline int vs_table_add(vs_table *table, const vs_policy *policy, const vs_reading *reading, uint32_t *index) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = vs_grow((void **)&table->nodes, table->node_count, &table->node_space, sizeof(vs_node));
        if (fault) continue;
        vs_node *node = &table->nodes[table->node_count];
        memset(node, 0, sizeof(*node));
        node->policy = *policy;
        vs_read(node, reading);
        *index = table->node_count++;
        vs_changed(table);
    }
    return fault;
}

static inline int vs_table_set_policy(vs_table *table, uint32_t index, const vs_policy *policy) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = index < table->node_count ? 0 : VS_NO_NODE;
        if (fault) continue;
        table->nodes[index].policy = *policy;
        table->nodes[index].keep = vs_smallest_comfortable(table->nodes[index].now.total, policy);
        vs_publish_node(table, index);
    }
    return fault;
}

/* A reading of a node and of `count` pools in its memory, seen by readers all at once. */
static inline int vs_table_update(
    vs_table *table, uint32_t index, const vs_reading *reading, uint32_t count, const vs_pool *pools
) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = index < table->node_count ? 0 : VS_NO_NODE;
        for (uint32_t i = 0; i < count && !fault; i++) {
            uint32_t number = vs_place_of(table, pools[i].backend, pools[i].device);
            fault = number && table->places[number - 1].node == index ? 0 : VS_NO_PLACE;
        }
        if (fault) continue;
        for (uint32_t i = 0; i < count; i++)
            table->places[vs_place_of(table, pools[i].backend, pools[i].device) - 1].pool = pools[i];
        vs_read(&table->nodes[index], reading);
        vs_publish_node(table, index);
    }
    return fault;
}

/* One reading per node, seen by readers all at once. */
static inline int vs_table_update_all(
    vs_table *table, uint32_t count, const uint64_t *free_bytes, const uint64_t *total, const uint8_t *known
) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = count == table->node_count ? 0 : VS_NO_NODE;
        if (fault) continue;
        for (uint32_t i = 0; i < count; i++) {
            vs_reading reading = {free_bytes[i], total[i], known[i] ? VS_NODE_OK : VS_NODE_UNKNOWN};
            vs_read(&table->nodes[i], &reading);
        }
        for (int k = 0; k < 2; k++) {
            uint32_t side = vs_turn(table->shared.view);
            for (uint32_t i = 0; i < table->place_count; i++) vs_put_place(table, side, &table->places[i]);
        }
        vs_changed(table);
    }
    return fault;
}

/* Its total stays known. */
static inline int vs_table_lose(vs_table *table, uint32_t index) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = index < table->node_count ? 0 : VS_NO_NODE;
        if (fault) continue;
        table->nodes[index].now.free = 0;
        table->nodes[index].now.state = VS_NODE_LOST;
        vs_publish_node(table, index);
    }
    return fault;
}

static inline int vs_table_set_reserved(vs_table *table, uint32_t index, uint64_t reserved) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = index < table->node_count ? 0 : VS_NO_NODE;
        if (fault) continue;
        table->nodes[index].reserved = reserved;
        vs_publish_node(table, index);
    }
    return fault;
}

static inline int vs_table_set_pool(vs_table *table, const vs_pool *pool) {
    int fault = 0;
    VS_LOCKED(table) {
        uint32_t number = vs_place_of(table, pool->backend, pool->device);
        fault = number ? 0 : VS_NO_PLACE;
        if (fault) continue;
        vs_place *place = &table->places[number - 1];
        place->pool = *pool;
        for (int k = 0; k < 2; k++) vs_put_place(table, vs_turn(table->shared.view), place);
        vs_changed(table);
    }
    return fault;
}

/* List a placement on a node, or move a listed one there. */
static inline int vs_table_map(vs_table *table, uint16_t backend, uint16_t device, uint32_t node) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = node < table->node_count ? 0 : VS_NO_NODE;
        if (fault) continue;
        uint32_t number = vs_place_of(table, backend, device);
        if (number)
            vs_unlink(table, number);
        else {
            fault = vs_grow((void **)&table->places, table->place_count, &table->place_space, sizeof(vs_place));
            fault = fault ? fault : vs_cover(table, backend, (uint32_t)device + 1);
            if (fault) continue;
            number = ++table->place_count;
            vs_place blank = {.pool = {0, UINT64_MAX, UINT64_MAX, backend, device}};
            table->places[number - 1] = blank;
        }
        vs_place *place = &table->places[number - 1];
        place->node = node;
        place->next_place = table->nodes[node].first_place;
        table->nodes[node].first_place = number;
        for (int k = 0; k < 2; k++) {
            uint32_t side = vs_turn(table->shared.view);
            vs_put_place(table, side, place);
            vs_entry_of(table->shared.view, side, backend, device)->place = number;
        }
        vs_changed(table);
    }
    return fault;
}

/* From now on, devices of this backend that are not listed are absent. */
static inline int vs_table_close(vs_table *table, uint16_t backend) {
    int fault = 0;
    VS_LOCKED(table) {
        fault = vs_cover(table, backend, 0);
        if (fault || table->closed[backend]) continue;
        table->closed[backend] = 1;
        vs_view *view = table->shared.view;
        uint32_t count = vs_row_count(view, backend);
        for (int k = 0; k < 2; k++) {
            uint32_t side = vs_turn(view);
            if (!count) vs_store(&view->rows[side][backend], vs_as_row(VS_ENTRY_ABSENT, 0));
            for (uint32_t d = 0; count && d <= count; d++) {
                vs_entry *entry = vs_entry_of(view, side, backend, d);
                if (!entry->place) vs_put_unlisted(entry, 1);
            }
        }
        vs_changed(table);
    }
    return fault;
}

/* Numbers of every node at one moment. Returns how many nodes there are; writes nothing unless
 * that is `count`. */
static inline uint32_t vs_table_read(
    vs_table *table, uint32_t count, uint64_t *free_bytes, uint64_t *total, uint64_t *reserved,
    uint8_t *known, uint8_t *lost
) {
    uint32_t nodes = 0;
    VS_LOCKED(table) {
        nodes = table->node_count;
        for (uint32_t i = 0; nodes == count && i < count; i++) {
            const vs_node *node = &table->nodes[i];
            free_bytes[i] = node->now.free;
            total[i] = node->now.total;
            reserved[i] = node->reserved;
            known[i] = node->now.state == VS_NODE_OK;
            lost[i] = node->now.state == VS_NODE_LOST;
        }
    }
    return nodes;
}

static inline uint64_t vs_table_version(const vs_table *table) {
    return vs_load_acquire(&table->version);
}

static inline vs_table *vs_table_new(void) {
    vs_table *table = (vs_table *)calloc(1, sizeof(vs_table));
    if (!table) return NULL;
    table->refs = 1;
    if (vs_lock_new(&table->shared.lock)) {
        free(table);
        return NULL;
    }
    if (vs_cover(table, 0, 0)) {
        vs_lock_free(&table->shared.lock);
        free(table->closed);
        free(table);
        return NULL;
    }
    return table;
}

static inline void vs_table_keep(vs_table *table) {
    vs_add_u32(&table->refs, 1);
}

static inline void vs_table_drop(vs_table *table) {
    if (vs_add_u32(&table->refs, (uint32_t)-1)) return;
    for (vs_view *view = table->shared.view, *older; view; view = older) {
        older = view->older;
        free(view);
    }
    vs_lock_free(&table->shared.lock);
    free(table->nodes);
    free(table->places);
    free(table->closed);
    free(table);
}

#endif
