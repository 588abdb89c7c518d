/* The writer's side: memory nodes, the placements that live in them, and the view derived from
 * both for readers.
 *
 * What each field is, and who may touch it. Today one guard serves all of it, the GIL: writers
 * and single selects hold it, and a batch takes a copy of the view before it lets go.
 *
 *   nodes, places, closed   the truth; only the functions below write to them
 *   view                    derived from the truth at every change; the only thing readers look at
 *   view->older             replaced views. A reader may hold one still, so they live as long as
 *                           the table. Their sizes grow geometrically, so together they are no
 *                           more than a few times the last
 *   version                 one more at every change that a reader can see
 *
 * Functions that return int return 0, or -1 when out of memory; then nothing has changed.
 */
#ifndef VRAMSEL_STATE_H
#define VRAMSEL_STATE_H

#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { VS_NODE_OK, VS_NODE_UNKNOWN, VS_NODE_LOST };

typedef struct vs_node {
    uint64_t free;          /* bytes; 0 unless the state is VS_NODE_OK */
    uint64_t total;         /* bytes; 0 where unknown */
    uint64_t keep;          /* bytes; follows from total, fraction and margin */
    uint64_t margin;        /* bytes; UINT64_MAX where the policy has none */
    uint64_t headroom;      /* bytes */
    double fraction;
    int state;
} vs_node;

typedef struct vs_place {
    uint64_t idle;          /* bytes */
    uint32_t node;
    uint16_t backend;
    uint16_t device;
} vs_place;

typedef struct vs_table {
    vs_view *view;
    vs_node *nodes;
    vs_place *places;
    uint8_t *closed;        /* one flag per backend of the view */
    uint32_t node_count, node_space;
    uint32_t place_count, place_space;
    uint64_t version;
} vs_table;

static inline uint64_t vs_add_sat(uint64_t a, uint64_t b) {
    return a + b >= a ? a + b : UINT64_MAX;
}

static inline uint64_t vs_sub_sat(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* The smallest remainder for which  (double)(total - left) / (double)total > fraction  is false,
 * or the margin where that is smaller. Rounding to double, division and comparison are monotone,
 * so bisection finds it exactly; at left = total the quotient is 0, which no fraction is below. */
static inline uint64_t vs_smallest_comfortable(uint64_t total, double fraction, uint64_t margin) {
    uint64_t low = 0, high = total;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((double)(total - middle) / (double)total > fraction)
            low = middle + 1;
        else
            high = middle;
    }
    return low < margin ? low : margin;
}

/* The first two entries of every view: the whole of a backend that lists no device. */
enum { VS_ENTRY_UNKNOWN, VS_ENTRY_ABSENT, VS_ENTRY_FIRST };

static inline vs_view *vs_view_new(uint32_t backends, uint32_t space) {
    size_t head = sizeof(vs_view) + ((size_t)backends + 1) * sizeof(vs_row);
    head = (head + sizeof(vs_entry) - 1) / sizeof(vs_entry) * sizeof(vs_entry);
    char *block = (char *)calloc(1, head + space * sizeof(vs_entry));
    if (!block) return NULL;
    vs_view *view = (vs_view *)block;
    view->rows = (vs_row *)(block + sizeof(vs_view));
    view->entries = (vs_entry *)(block + head);
    view->backends = backends;
    view->space = space;
    return view;
}

/* For a reader that wants to let go of the guard. Free it with free(). */
static inline vs_view *vs_view_copy(const vs_view *view) {
    vs_view *copy = vs_view_new(view->backends, view->used);
    if (!copy) return NULL;
    memcpy(copy->rows, view->rows, ((size_t)view->backends + 1) * sizeof(vs_row));
    memcpy(copy->entries, view->entries, view->used * sizeof(vs_entry));
    copy->used = view->used;
    return copy;
}

static inline void vs_put_entry(vs_entry *entry, uint64_t room, uint64_t keep, uint32_t outcomes) {
    entry->room = room;
    entry->keep = keep;
    entry->outcomes = outcomes;
}

/* What devices are that nobody listed: absent where their backend is closed, else unknown. */
static inline void vs_put_unlisted(vs_entry *entry, int closed) {
    uint32_t outcome = closed ? VS_GONE : VS_UNKNOWN;
    vs_put_entry(entry, 0, 0, VS_OUTCOMES(outcome, outcome, outcome));
}

static inline void vs_publish_place(vs_table *table, const vs_place *place) {
    const vs_node *node = &table->nodes[place->node];
    vs_entry *entry = &table->view->entries[table->view->rows[place->backend].base + place->device];
    if (node->state == VS_NODE_LOST)
        vs_put_entry(entry, 0, 0, VS_OUTCOMES(VS_GONE, VS_GONE, VS_GONE));
    else if (node->state == VS_NODE_UNKNOWN)
        vs_put_entry(entry, 0, 0, VS_OUTCOMES(VS_UNKNOWN, VS_UNKNOWN, VS_UNKNOWN));
    else {
        uint64_t room = vs_sub_sat(vs_add_sat(node->free, place->idle), node->headroom);
        if (node->total)
            vs_put_entry(entry, room, node->keep, VS_OUTCOMES(VS_COMFORTABLE, VS_TIGHT, VS_WONT_FIT));
        else
            vs_put_entry(entry, room, 0, VS_OUTCOMES(VS_UNKNOWN, VS_UNKNOWN, VS_WONT_FIT));
    }
}

static inline void vs_publish_node(vs_table *table, uint32_t node) {
    for (uint32_t i = 0; i < table->place_count; i++)
        if (table->places[i].node == node) vs_publish_place(table, &table->places[i]);
    table->version++;
}

static inline void vs_publish_all(vs_table *table) {
    for (uint32_t i = 0; i < table->place_count; i++) vs_publish_place(table, &table->places[i]);
    table->version++;
}

/* Not published yet. Whether a reading is no signal is the caller's to say: here an unknown total
 * and a total of 0 are the same. */
static inline void vs_set_reading(vs_node *node, uint64_t free_bytes, uint64_t total, int known) {
    if (node->total != total) {
        node->total = total;
        node->keep = vs_smallest_comfortable(total, node->fraction, node->margin);
    }
    node->free = known ? free_bytes : 0;
    node->state = known ? VS_NODE_OK : VS_NODE_UNKNOWN;
}

static inline void vs_set_policy(vs_table *table, uint32_t index, double fraction, uint64_t margin, uint64_t headroom) {
    vs_node *node = &table->nodes[index];
    node->fraction = fraction;
    node->margin = margin;
    node->headroom = headroom;
    node->keep = vs_smallest_comfortable(node->total, fraction, margin);
    vs_publish_node(table, index);
}

static inline uint32_t vs_doubled(uint32_t wanted, uint32_t from) {
    while (from < wanted) from *= 2;
    return from;
}

/* The array with room for one more item, or NULL. It may move, so readers never look at it. */
static inline void *vs_grown(void *items, uint32_t count, uint32_t *space, size_t width) {
    if (count < *space) return items;
    uint32_t wanted = vs_doubled(count + 1, 8);
    items = realloc(items, wanted * width);
    if (items) *space = wanted;
    return items;
}

/* A larger view with the same content, in place of the present one. */
static inline int vs_replace_view(vs_table *table, uint32_t backends, uint32_t wanted) {
    const vs_view *old = table->view;
    uint32_t known = old ? old->backends : 0;
    uint64_t live = VS_ENTRY_FIRST + wanted;
    for (uint32_t b = 0; b < known; b++) live += old->rows[b].count ? (uint64_t)old->rows[b].count + 1 : 0;
    if (live > UINT32_MAX / 4) return -1;

    uint8_t *closed = (uint8_t *)realloc(table->closed, backends);
    if (!closed) return -1;
    memset(closed + known, 0, backends - known);
    table->closed = closed;
    /* Twice what is in use: then the next replacement is as far away as all that came before. */
    vs_view *view = vs_view_new(backends, vs_doubled(2 * (uint32_t)live, 16));
    if (!view) return -1;

    vs_put_unlisted(&view->entries[VS_ENTRY_UNKNOWN], 0);
    vs_put_unlisted(&view->entries[VS_ENTRY_ABSENT], 1);
    view->used = VS_ENTRY_FIRST;
    for (uint32_t b = 0; b < known; b++) {
        vs_row row = old->rows[b];
        if (row.count) {
            memcpy(&view->entries[view->used], &old->entries[row.base], (row.count + 1) * sizeof(vs_entry));
            row.base = view->used;
            view->used += row.count + 1;
        }
        view->rows[b] = row;
    }
    view->older = table->view;
    table->view = view;
    return 0;
}

/* Make the view reach `devices` devices of a backend. A row that must grow gets a new place, at
 * least twice as long, behind the others. */
static inline int vs_cover(vs_table *table, uint32_t backend, uint32_t devices) {
    const vs_view *old = table->view;
    uint32_t backends = old ? old->backends : 0;
    uint32_t had = backend < backends ? old->rows[backend].count : 0;
    if (backend < backends && devices <= had) return 0;
    uint32_t count = devices <= had ? had : vs_doubled(devices, had ? had : 1);
    uint32_t wanted = count > had ? count + 1 : 0;
    if (backend >= backends || wanted > old->space - old->used)
        if (vs_replace_view(table, vs_doubled(backend + 1, backends ? backends : 16), wanted)) return -1;
    if (!wanted) return 0;

    vs_view *view = table->view;
    vs_entry *entries = &view->entries[view->used];
    const vs_row *row = &view->rows[backend];
    memcpy(entries, &view->entries[row->base], had * sizeof(vs_entry));
    for (uint32_t d = had; d <= count; d++) vs_put_unlisted(&entries[d], table->closed[backend]);
    view->rows[backend].base = view->used;
    view->rows[backend].count = count;
    view->used += wanted;
    return 0;
}

static inline vs_place *vs_place_of(vs_table *table, uint16_t backend, uint16_t device) {
    for (uint32_t i = 0; i < table->place_count; i++) {
        vs_place *place = &table->places[i];
        if (place->backend == backend && place->device == device) return place;
    }
    return NULL;
}

/* Add a node of which nothing is known; its index is node_count - 1. */
static inline int vs_add_node(vs_table *table) {
    static const vs_node blank = {.margin = UINT64_MAX, .fraction = 1.0, .state = VS_NODE_UNKNOWN};
    vs_node *nodes = (vs_node *)vs_grown(table->nodes, table->node_count, &table->node_space, sizeof(vs_node));
    if (!nodes) return -1;
    table->nodes = nodes;
    table->nodes[table->node_count++] = blank;
    return 0;
}

/* List a placement on a node, or move a listed one there. */
static inline int vs_map(vs_table *table, uint16_t backend, uint16_t device, uint32_t node) {
    vs_place *place = vs_place_of(table, backend, device);
    if (!place) {
        vs_place *places = (vs_place *)vs_grown(table->places, table->place_count, &table->place_space, sizeof(vs_place));
        if (!places) return -1;
        table->places = places;
        if (vs_cover(table, backend, (uint32_t)device + 1)) return -1;
        place = &table->places[table->place_count++];
        place->idle = 0;
        place->backend = backend;
        place->device = device;
    }
    place->node = node;
    vs_publish_place(table, place);
    table->version++;
    return 0;
}

/* From now on, devices of this backend that are not listed are absent. */
static inline int vs_close(vs_table *table, uint16_t backend) {
    if (vs_cover(table, backend, 0)) return -1;
    if (table->closed[backend]) return 0;
    table->closed[backend] = 1;
    vs_row *row = &table->view->rows[backend];
    if (!row->count) row->base = VS_ENTRY_ABSENT;
    else
        for (uint32_t d = 0; d <= row->count; d++) vs_put_unlisted(&table->view->entries[row->base + d], 1);
    vs_publish_all(table);
    return 0;
}

static inline vs_table *vs_table_new(void) {
    vs_table *table = (vs_table *)calloc(1, sizeof(vs_table));
    if (table && vs_cover(table, 0, 0)) {
        free(table->closed);
        free(table);
        table = NULL;
    }
    return table;
}

static inline void vs_table_free(vs_table *table) {
    if (!table) return;
    for (vs_view *view = table->view, *older; view; view = older) {
        older = view->older;
        free(view);
    }
    free(table->nodes);
    free(table->places);
    free(table->closed);
    free(table);
}

#endif
