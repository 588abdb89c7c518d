/* Runs the C headers of the core under a sanitizer, without Python.
 *
 *     harness kernels SEED    random tables and batches, in buffers of exactly their size, against the
 *                             rule written out once more
 *     harness latch ROUNDS    readers that pick and copy while writers publish, grow and close
 *     harness fork TIMES      children of a process whose other threads hold the lock
 *
 * Exits 0, or says what differs and exits 1; sanitizers exit otherwise.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

#define CHECK(condition, ...) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: ", __func__, __LINE__); \
            printf(__VA_ARGS__); \
            putchar('\n'); \
            exit(1); \
        } \
    } while (0)

static uint64_t state = 1;

static uint64_t any(void) {     /* xorshift64 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t limit) {
    return any() % limit;
}

/* Every magnitude, and the edges. */
static uint64_t bytes(void) {
    static const uint64_t edges[] = {0, 1, 2, (1ull << 53) - 1, 1ull << 53, (1ull << 53) + 1, 1ull << 63, UINT64_MAX};
    return below(3) ? any() >> below(64) : edges[below(8)];
}

/* -- the rule, from what was published ---------------------------------------------------------- */

typedef struct model {
    int listed, closed;
    vs_reading reading;
    vs_policy policy;
    vs_pool pool;
    uint64_t reserved;
} model;

static uint64_t minus(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* rank << 2 | status */
static int judge(const model *m, uint64_t size) {
    if (!m->listed) return m->closed ? 3 << 2 | 2 : 3;
    if (m->reading.state == VS_NODE_LOST) return 3 << 2 | 2;
    if (m->reading.state == VS_NODE_UNKNOWN) return 3;
    uint64_t total = m->reading.total;
    const vs_pool *pool = &m->pool;
    uint64_t sum = m->reading.free + pool->idle < pool->idle ? UINT64_MAX : m->reading.free + pool->idle;
    if (sum > pool->cap) sum = pool->cap;
    if (total > pool->limit) total = pool->limit;
    uint64_t room = minus(minus(sum, m->reserved), m->policy.headroom);
    if (size > room) return 2 << 2 | 2;
    if (!total) return 3;
    uint64_t left = room - size;
    int tight = (double)minus(total, left) / (double)total > m->policy.fraction;
    if (m->policy.margin != UINT64_MAX) tight = tight && left < m->policy.margin;
    return tight ? 1 << 2 | 1 : 0;
}

/* -- kernels ------------------------------------------------------------------------------------ */

enum { BACKENDS = 40, DEVICES = 70 };
static model models[BACKENDS][DEVICES];

static const model *find(const vs_record *record) {
    static const model nothing;
    static model absent;
    if (record->backend >= BACKENDS) return &nothing;
    const model *row = models[record->backend];
    if (record->device < DEVICES) return &row[record->device];
    absent.closed = row[0].closed;
    return &absent;
}

static vs_reading some_reading(void) {
    vs_reading reading = {bytes(), bytes(), (int)below(3)};
    if (below(2)) reading.state = VS_NODE_OK;
    return reading;
}

static vs_policy some_policy(void) {
    static const double fractions[] = {0.0, 0.5, 0.85, 0.9999999999999999, 1.0};
    vs_policy policy = {fractions[below(5)], below(2) ? UINT64_MAX : bytes(), below(2) ? 0 : bytes()};
    return policy;
}

static vs_pool unlimited(uint16_t backend, uint16_t device) {
    vs_pool pool = {0, UINT64_MAX, UINT64_MAX, backend, device};
    return pool;
}

static vs_pool some_pool(uint16_t backend, uint16_t device) {
    vs_pool pool = unlimited(backend, device);
    pool.idle = bytes();
    if (below(2)) {
        uint64_t used = bytes();
        pool.limit = bytes();
        pool.cap = vs_sub_sat(pool.limit, used);
        if (!pool.limit) pool.limit = 1;
    }
    return pool;
}

static vs_table *some_table(void) {
    vs_table *table = vs_table_new();
    uint64_t backends = 1 + below(BACKENDS), devices = 1 + below(below(4) ? 5 : DEVICES), nodes = below(40);
    memset(models, 0, sizeof(models));
    for (uint64_t n = 0; n < nodes; n++) {
        uint32_t index = 0;
        vs_policy policy = some_policy();
        vs_reading reading = some_reading();
        CHECK(!vs_table_add(table, &policy, &reading, &index), "no node");
        for (uint64_t times = below(3); times; times--) {
            uint64_t b = below(backends), d = below(devices);
            CHECK(!vs_table_map(table, (uint16_t)b, (uint16_t)d, index), "no place");
            vs_pool pool = models[b][d].listed ? models[b][d].pool : unlimited((uint16_t)b, (uint16_t)d);
            model m = {1, 0, reading, policy, pool, 0};  /* a placement keeps its own when it moves */
            if (below(2)) {
                m.pool = some_pool((uint16_t)b, (uint16_t)d);
                if (below(2))
                    CHECK(!vs_table_set_pool(table, &m.pool), "no place");
                else
                    CHECK(!vs_table_update(table, index, &reading, 1, &m.pool), "no node or place");
            }
            m.closed = models[b][0].closed;
            models[b][d] = m;
        }
        if (below(3) == 0) {
            uint64_t reserved = bytes();
            CHECK(!vs_table_set_reserved(table, index, reserved), "no node");
            for (int b = 0; b < BACKENDS; b++)
                for (int d = 0; d < DEVICES; d++) {
                    const vs_entry *entry = vs_entry_of(table->shared.view, 0, (uint32_t)b, (uint32_t)d);
                    if (models[b][d].listed && entry->place && table->places[entry->place - 1].node == index)
                        models[b][d].reserved = reserved;
                }
        }
        if (below(4) == 0) {
            uint64_t b = below(backends);
            CHECK(!vs_table_close(table, (uint16_t)b), "no memory");
            for (int d = 0; d < DEVICES; d++) models[b][d].closed = 1;
        }
    }
    return table;
}

/* A buffer of exactly this size, so that a byte too far is found. */
static void *exactly(size_t size) {
    void *at = malloc(size ? size : 1);
    CHECK(at, "out of memory");
    return at;
}

static void check_kernels(void) {
    vs_table *table = some_table();
    vramsel_table *handle = (vramsel_table *)table;
    size_t count = below(3) ? below(600) : below(12000);
    vs_record *records = exactly(count * sizeof(vs_record));
    uint64_t *sizes = exactly(count * sizeof(uint64_t));
    uint8_t *want = exactly(count), *got = exactly(count);
    for (size_t i = 0; i < count; i++) {
        vs_record record = {(uint16_t)below(BACKENDS + 2), (uint16_t)below(8), 0, bytes()};
        if (below(50) == 0) record.backend = (uint16_t)any();
        if (below(10) == 0) record.device = (uint16_t)any();
        records[i] = record;
        sizes[i] = bytes();
    }
    for (int with_sizes = 0; with_sizes < 2; with_sizes++) {
        for (size_t i = 0; i < count; i++)
            want[i] = (uint8_t)judge(find(&records[i]), with_sizes ? sizes[i] : records[i].bytes_moved);
        /* Sets: of one length, or of any, with empty ones. */
        int regular = (int)below(2);
        size_t each = 1 + below(below(4) ? 20 : 6000), sets = regular ? count / each : below(count + 20);
        int64_t *offsets = exactly((sets + 1) * sizeof(int64_t));
        int32_t *picks = exactly(sets * sizeof(int32_t));
        uint8_t *status = exactly(sets);
        size_t at = regular ? 0 : below(count + 1);
        for (size_t s = 0; s <= sets; s++) {
            offsets[s] = (int64_t)at;
            at += regular ? each : below(3) ? below(17) : 0;
            at = at > count ? count : at;
        }
        for (int number = 0; vs_kernel_name(number); number++) {
            vs_kernel_use(number);
            CHECK(!vs_api_classify(handle, records, count, with_sizes ? sizes : NULL, got), "no memory");
            for (size_t i = 0; i < count; i++)
                CHECK(got[i] == (want[i] & 3), "%s: row %zu of %zu: %d, not %d", vs_kernel_name(number), i, count, got[i],
                      want[i] & 3);
            const int64_t *bounds = regular ? NULL : offsets;
            int fault = vs_api_pick_many(
                handle, records, count, bounds, each, sets, with_sizes ? sizes : NULL, picks, number ? status : NULL);
            CHECK(fault == 0, "%s: fault %d", vs_kernel_name(number), fault);
            for (size_t s = 0; s < sets; s++) {
                int best = 255, index = -1;
                for (int64_t i = offsets[s]; i < offsets[s + 1]; i++)
                    if (want[i] >> 2 < best >> 2) {
                        best = want[i];
                        index = (int)(i - offsets[s]);
                    }
                CHECK(picks[s] == index, "%s: set %zu of %zu: %d, not %d", vs_kernel_name(number), s, sets, picks[s], index);
                int told = index < 0 ? VS_EMPTY_STATUS : best & 3;
                CHECK(!number || status[s] == told, "set %zu: status %d, not %d", s, status[s], told);
                if (with_sizes || s % 7) continue;
                size_t length = (size_t)(offsets[s + 1] - offsets[s]);
                ptrdiff_t one = vs_api_pick(handle, records + offsets[s], length, status + s);
                CHECK(one == index && status[s] == told, "set %zu alone: %td, not %d", s, one, index);
            }
        }
        free(offsets);
        free(picks);
        free(status);
    }
    vs_table_drop(table);
    free(records);
    free(sizes);
    free(want);
    free(got);
}

/* Offsets that somebody wrote to after they were checked: any answer, but no byte outside. */
static void check_wild_offsets(void) {
    vs_table *table = some_table();
    vs_board board;
    size_t count = below(9000), sets = below(300);
    vs_record *records = exactly(count * sizeof(vs_record));
    int64_t *offsets = exactly((sets + 1) * sizeof(int64_t));
    int32_t *picks = exactly(sets * sizeof(int32_t));
    uint8_t *status = exactly(sets);
    memset(records, 1, count * sizeof(vs_record));
    for (size_t s = 0; s <= sets; s++) offsets[s] = below(2) ? (int64_t)bytes() : (int64_t)below(count + 1);
    CHECK(!vs_board_new(&table->shared, count, &board), "no memory");
    vs_batch batch = {
        .board = &board, .records = records, .count = count, .offsets = offsets, .picks = picks, .status = status
    };
    for (int number = 0; vs_kernel_name(number); number++) {
        vs_kernel_use(number);
        CHECK(!vs_run(&batch, 0, sets), "ended early");
    }
    vs_board_free(&board);
    vs_table_drop(table);
    free(records);
    free(offsets);
    free(picks);
    free(status);
}

/* -- latch -------------------------------------------------------------------------------------- */

/* Two states in turn: of two devices, one is full and one is empty; and a third device is full in
 * both. Whoever sees half of a change finds no room at all, or room in both. */
typedef struct arena {
    vs_table *table;
    uint32_t stop;          /* atomic */
    uint64_t picks, boards; /* atomic: what readers did */
} arena;

enum { READERS = 3, LONG = 3000 };

static void *publish(void *argument) {
    arena *a = argument;
    static const uint8_t known[3] = {1, 1, 1};
    static const uint64_t total[3] = {100, 100, 100};
    for (int turn = 0; !vs_load(&a->stop); turn ^= 1) {
        const uint64_t free_bytes[3] = {turn ? 100 : 0, turn ? 0 : 100, 0};
        CHECK(!vs_table_update_all(a->table, 3, free_bytes, total, known), "not three nodes");
    }
    return NULL;
}

/* Changes that no reader may notice: devices that nobody asks about, listed and closed. */
static void *grow(void *argument) {
    arena *a = argument;
    for (uint32_t i = 0; !vs_load(&a->stop); i++) {
        uint64_t free_bytes[3], all[3], reserved[3];
        uint8_t known[3], lost[3];
        CHECK(!vs_table_map(a->table, (uint16_t)(2 + i % 20), (uint16_t)(i / 20 % 20), 2), "no place");
        if (i % 64 == 0) CHECK(!vs_table_close(a->table, (uint16_t)(2 + i / 64 % 20)), "no memory");
        vs_pool pool = {i, UINT64_MAX, UINT64_MAX, 2, 0};
        CHECK(!vs_table_set_pool(a->table, &pool), "no place");
        CHECK(vs_table_read(a->table, 3, free_bytes, all, reserved, known, lost) == 3, "not three nodes");
        CHECK(free_bytes[0] + free_bytes[1] == 100, "%d and %d free", (int)free_bytes[0], (int)free_bytes[1]);
    }
    return NULL;
}

static void *look(void *argument) {
    arena *a = argument;
    vramsel_table *handle = (vramsel_table *)a->table;
    /* The full device first; a long set; and both of the two, judged in one batch. */
    vs_record few[3] = {{1, 2, 0, 50}, {1, 0, 0, 50}, {1, 1, 0, 50}};
    vs_record *many = exactly(LONG * sizeof(vs_record));
    for (int i = 0; i < LONG; i++) many[i] = few[0];
    many[LONG / 3] = few[1];
    many[LONG - 1] = few[2];
    while (!vs_load(&a->stop)) {
        uint8_t status = 9, both[3];
        ptrdiff_t index = vs_api_pick(handle, few, 3, &status);
        CHECK(index > 0 && status == 0, "picked %td with status %d", index, status);
        index = vs_api_pick(handle, many, LONG, &status);
        CHECK((index == LONG / 3 || index == LONG - 1) && status == 0, "picked %td with status %d", index, status);
        CHECK(!vs_api_classify(handle, few, 3, NULL, both), "no memory");
        CHECK(both[0] == 2 && both[1] + both[2] == 2, "judged %d %d %d", both[0], both[1], both[2]);
        vs_add_u64(&a->picks, 2);
        vs_add_u64(&a->boards, 1);
    }
    free(many);
    return NULL;
}

static void check_latch(uint64_t rounds) {
    arena a = {.table = vs_table_new()};
    vs_policy policy = {1.0, UINT64_MAX, 0};
    for (uint16_t d = 0; d < 3; d++) {
        vs_reading reading = {d == 0 ? 100 : 0, 100, VS_NODE_OK};
        uint32_t index = 0;
        CHECK(!vs_table_add(a.table, &policy, &reading, &index), "no node");
        CHECK(!vs_table_map(a.table, 1, d, index), "no place");
    }
    pthread_t threads[READERS + 2];
    pthread_create(&threads[0], NULL, publish, &a);
    pthread_create(&threads[1], NULL, grow, &a);
    for (int i = 0; i < READERS; i++) pthread_create(&threads[2 + i], NULL, look, &a);
    while (vs_load(&a.boards) < rounds) sched_yield();
    vs_store(&a.stop, 1);
    for (int i = 0; i < READERS + 2; i++) pthread_join(threads[i], NULL);
    printf("%d picks, %d copies, version %d\n", (int)a.picks, (int)a.boards, (int)vs_table_version(a.table));
    vs_table_drop(a.table);
}

/* -- fork --------------------------------------------------------------------------------------- */

static void *write_once(void *argument) {
    vs_reading reading = {7, 100, VS_NODE_OK};
    CHECK(!vs_table_update(argument, 0, &reading, 0, NULL), "no node");
    return NULL;
}

/* In the child nobody holds the lock that a thread of the parent held; several come for it at once,
 * and a grandchild finds the same. */
static void in_child(vs_table *table, int generations) {
    pthread_t threads[8];
    alarm(20);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, write_once, table);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    if (generations) {
        int status = 1;
        vs_lock_take(&table->shared.lock);
        pid_t child = fork();
        if (!child) in_child(table, generations - 1);
        vs_lock_drop(&table->shared.lock);
        waitpid(child, &status, 0);
        CHECK(status == 0, "a grandchild ended with %d", status);
    }
    _exit(0);
}

/* A child that is forked while another thread of its parent makes the lock anew. */
static void check_fork_while_busy(vs_table *table) {
    int status = 1;
    pid_t child = fork();
    if (!child) {
        vs_store(&table->shared.lock.born, vs_forks_now() | 1 << 16);
        if (!fork()) in_child(table, 0);
        wait(&status);
        _exit(status != 0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "a grandchild ended with %d", status);
}

static void check_fork(uint64_t times) {
    vs_table *table = vs_table_new();
    vs_policy policy = {1.0, UINT64_MAX, 0};
    vs_reading reading = {0, 100, VS_NODE_OK};
    uint32_t index = 0;
    CHECK(!vs_follow_forks(), "no memory");
    CHECK(!vs_table_add(table, &policy, &reading, &index), "no node");
    check_fork_while_busy(table);
    for (; times; times--) {
        int status = 1;
        vs_lock_take(&table->shared.lock);
        pid_t child = fork();
        if (!child) in_child(table, 2);
        vs_lock_drop(&table->shared.lock);
        waitpid(child, &status, 0);
        CHECK(status == 0, "a child ended with %d", status);
        write_once(table);
    }
    vs_table_drop(table);
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "kernels")) {
        state = strtoull(words[2], NULL, 10) * 2654435761u + 1;
        for (int i = 0; i < 60; i++) {
            check_kernels();
            check_wild_offsets();
        }
        printf("kernels:");
        for (int i = 0; vs_kernel_name(i); i++) printf(" %s", vs_kernel_name(i));
        putchar('\n');
        return 0;
    }
    if (count == 3 && !strcmp(words[1], "latch")) {
        check_latch(strtoull(words[2], NULL, 10));
        return 0;
    }
    if (count == 3 && !strcmp(words[1], "fork")) {
        check_fork(strtoull(words[2], NULL, 10));
        printf("forked\n");
        return 0;
    }
    printf("usage: harness kernels SEED | harness latch ROUNDS | harness fork TIMES\n");
    return 2;
}
