/* The writer's side: memory nodes, the placements that live in them, and the view derived from
 * both for readers.
 *
 * What each field is, and who may touch it. Today one guard serves all of it, the GIL: writers
 * and single selects hold it, and a batch takes a copy of the view before it lets go.
 *
 *   nodes, places, closed   the truth; only the functions below write to them
 *   view                    derived from the truth at every change; the only thing readers look at
 *   view->older             replaced views. A reader may hold one still, so they live as long as
 *                           the table; rows grow by doubling, so there are few of them
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

static inline vs_view *vs_view_new(uint32_t backends, uint32_t size) {
    size_t head = sizeof(vs_view) + ((size_t)backends + 1) * sizeof(vs_row);
    head = (head + sizeof(vs_entry) - 1) / sizeof(vs_entry) * sizeof(vs_entry);
    char *block = (char *)calloc(1, head + size * sizeof(vs_entry));
    if (!block) return NULL;
    vs_view *view = (vs_view *)block;
    view->rows = (vs_row *)(block + sizeof(vs_view));
    view->entries = (vs_entry *)(block + head);
    view->backends = backends;
    view->size = size;
    return view;
}

static inline vs_view *vs_view_copy(const vs_view *view) {
    vs_view *copy = vs_view_new(view->backends, view->size);
    if (!copy) return NULL;
    memcpy(copy->rows, view->rows, ((size_t)view->backends + 1) * sizeof(vs_row));
    memcpy(copy->entries, view->entries, view->size * sizeof(vs_entry));
    return copy;
}

static inline void vs_put_entry(vs_entry *entry, uint64_t room, uint64_t keep, uint32_t outcomes) {
    entry->room = room;
    entry->keep = keep;
    entry->outcomes = outcomes;
}

/* What devices of this backend are that nobody listed: absent or unknown. */
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

/* Not published yet. A reading of 0/0 comes from a source that cannot tell. */
static inline void vs_set_reading(vs_node *node, uint64_t free_bytes, uint64_t total, int known) {
    known = known && (free_bytes || total);
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

/* Make the view reach `devices` devices of a backend. Does nothing, or replaces the view by a
 * larger one with the same content. */
static inline int vs_cover(vs_table *table, uint32_t backend, uint32_t devices) {
    vs_view *old = table->view;
    uint32_t known = old ? old->backends : 0;
    uint32_t had = backend < known ? old->rows[backend].count : 0;
    if (backend < known && devices <= had) return 0;
    uint32_t backends = backend < known ? known : vs_doubled(backend + 1, 16);
    uint32_t wanted = devices <= had ? had : vs_doubled(devices, had ? had : 1);
    uint32_t size = backends + 1 + wanted - had;  /* one entry beyond each row, and the last row's */
    for (uint32_t b = 0; b < known; b++) size += old->rows[b].count;

    uint8_t *closed = (uint8_t *)realloc(table->closed, backends);
    if (!closed) return -1;
    memset(closed + known, 0, backends - known);
    table->closed = closed;
    vs_view *view = vs_view_new(backends, size);
    if (!view) return -1;

    uint32_t base = 0;
    for (uint32_t b = 0; b <= backends; b++) {
        uint32_t count = b == backend ? wanted : b < known ? old->rows[b].count : 0;
        view->rows[b].base = base;
        view->rows[b].count = count;
        for (uint32_t d = 0; d <= count; d++) vs_put_unlisted(&view->entries[base + d], b < backends && closed[b]);
        base += count + 1;
    }
    view->older = old;
    table->view = view;
    for (uint32_t i = 0; i < table->place_count; i++) vs_publish_place(table, &table->places[i]);
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
    const vs_row *row = &table->view->rows[backend];
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
