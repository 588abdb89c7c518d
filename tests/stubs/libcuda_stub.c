/* A libcuda.so.1 without a GPU: enough of the CUDA driver for the real cuda-python to run against.
 *
 * It keeps the driver's rules (nothing works before cuInit, nor in a child that forked after it;
 * CUDA_VISIBLE_DEVICES; each thread has a stack of contexts; a primary context is counted, and
 * retaining an inactive one creates it), counts every call, and fails or waits where a test tells
 * it to. Tests steer it through the stub_* functions at the end.
 *
 * The devices that a test makes are the physical ones, in the driver's own order: all stub_*
 * functions take an index into them. The driver's functions take ordinals of the visible ones.
 *
 * To add a driver function: one row in FUNCTIONS, one definition that begins with ENTER.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    CUDA_NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    CONTEXT_IS_DESTROYED = 709,
};

enum { MAX_DEVICES = 16, MAX_DEPTH = 64, MAX_NAME = 256, MAX_ATTRIBUTES = 256, MAX_MASK = 4096 };
enum { NO_DEVICE = -1, ANY_DEVICE = MAX_DEVICES };

/* ---- the table of functions ---------------------------------------------------------------- */

/* The exported name, the name that cuGetProcAddress knows it by, the first CUDA version that has
 * it, and whether it works only after cuInit. */
#define FUNCTIONS(X)                                                       \
    X(cuInit, "cuInit", 2000, 0)                                           \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0)                   \
    X(cuGetErrorName, "cuGetErrorName", 6000, 0)                           \
    X(cuGetErrorString, "cuGetErrorString", 6000, 0)                       \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 0)                      \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)                   \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 1)                       \
    X(cuDeviceGet, "cuDeviceGet", 2000, 1)                                 \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, 1)                         \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 1)                         \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 1)                     \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 1)               \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, 1)                 \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 1)                    \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 1)   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 1)       \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 1) \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 1)                              \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, 1)                             \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, 1)                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 1)                            \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 1)                    \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 1)                      \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 1)                         \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 1)                         \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 1)                           \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 1)                            \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 1)                                \
    X(cuMemFree_v2, "cuMemFree", 3020, 1)

#define ROW_INDEX(name, base, version, needs_init) ROW_##name,
enum { FUNCTIONS(ROW_INDEX) ROWS };

/* What a test has set: `once` for the next `times` calls, `always` for those after. 0 is nothing. */
struct setting {
    atomic_int always, once, times;
};

struct function {
    const char *exported, *base;
    int version, needs_init;
    atomic_int calls, hidden;
    struct setting fault[MAX_DEVICES + 1]; /* the code to answer; the last is for any device */
    struct setting delay[MAX_DEVICES + 1]; /* microseconds to wait before */
};

#define ROW(name, base, version, needs_init) {.exported = #name, base, version, needs_init},
static struct function table[ROWS] = {FUNCTIONS(ROW)};

static atomic_int initialized;
static atomic_int initializer; /* the process that cuInit succeeded in; 0 before */
static atomic_int calls_after_fork;

static int forked(void)
{
    int process = atomic_load(&initializer);

    return process && process != (int)getpid();
}

static int take(struct setting *setting)
{
    int times = atomic_load(&setting->times);

    while (times > 0)
        if (atomic_compare_exchange_weak(&setting->times, &times, times - 1))
            return atomic_load(&setting->once);
    return atomic_load(&setting->always);
}

static int take_for(struct setting *settings, CUdevice physical)
{
    int value = take(&settings[ANY_DEVICE]);

    return value || physical < 0 ? value : take(&settings[physical]);
}

static void wait_for(int microseconds)
{
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000L};

    while (nanosleep(&left, &left)) /* a signal does not cut it short */
        ;
}

/* Every driver function goes through here first, with no lock held: it may wait. `physical` is the
 * device it is about, or NO_DEVICE. */
static CUresult enter(struct function *function, CUdevice physical)
{
    int in_child = forked(), delay, fault;

    atomic_fetch_add(&function->calls, 1);
    atomic_fetch_add(&calls_after_fork, in_child);
    delay = take_for(function->delay, physical);
    if (delay > 0)
        wait_for(delay);
    fault = take_for(function->fault, physical);
    if (fault)
        return fault;
    return function->needs_init && (in_child || !atomic_load(&initialized)) ? NOT_INITIALIZED : SUCCESS;
}

#define ENTER(name, physical)                                     \
    do {                                                          \
        CUresult entered = enter(&table[ROW_##name], (physical)); \
        if (entered)                                              \
            return entered;                                       \
    } while (0)

/* ---- devices and contexts ------------------------------------------------------------------ */

struct context {
    CUdevice device; /* physical */
    int references;  /* 0: inactive, if primary; destroyed, if not */
    size_t cost;     /* what it took from the device */
    CUcontext next;
};

struct allocation {
    CUdeviceptr address;
    size_t bytes;
    CUcontext context; /* goes with it */
    struct allocation *next;
};

struct device {
    struct context primary;
    size_t available, total, reported_total, context_cost;
    char name[MAX_NAME], pci[MAX_NAME];
    CUuuid uuid, parent; /* `parent`: of a MIG slice */
    int is_slice;
    int attributes[MAX_ATTRIBUTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is not atomic, from here on */
static struct device devices[MAX_DEVICES];
static atomic_int device_count, contexts_created;
static CUcontext created; /* all that are not primary; destroyed ones stay, since a stack may have them */
static struct allocation *allocations;

static atomic_int visible[MAX_DEVICES], visible_count; /* physical, by ordinal */
static char mask[MAX_MASK];                            /* CUDA_VISIBLE_DEVICES as cuInit found it */
static int masked;

static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
static CUdevice device_of(CUcontext context) { return context ? context->device : NO_DEVICE; }

/* The physical device of an ordinal, or NO_DEVICE. */
static CUdevice physical(int ordinal)
{
    return ordinal >= 0 && ordinal < atomic_load(&visible_count) ? atomic_load(&visible[ordinal]) : NO_DEVICE;
}

static int is_active(CUcontext context)
{
    int active;

    pthread_mutex_lock(&lock);
    active = context->references > 0;
    pthread_mutex_unlock(&lock);
    return active;
}

/* Call the next four with the lock held. */

static CUresult give_life(CUcontext context)
{
    struct device *on = &devices[context->device];

    if (on->context_cost > on->available)
        return OUT_OF_MEMORY;
    context->cost = on->context_cost;
    on->available -= context->cost;
    context->references = 1;
    return SUCCESS;
}

static void take_life(CUcontext context)
{
    struct device *on = &devices[context->device];

    for (struct allocation **link = &allocations; *link;) {
        struct allocation *allocation = *link;

        if (allocation->context != context) {
            link = &allocation->next;
            continue;
        }
        on->available += allocation->bytes;
        *link = allocation->next;
        free(allocation);
    }
    on->available += context->cost;
    context->cost = 0;
    context->references = 0;
}

/* The physical device that an entry of the mask names, or NO_DEVICE. */
static CUdevice find_device(const char *entry, size_t length)
{
    CUdevice found = NO_DEVICE;
    char *end;
    long ordinal;

    if (length < 4 || (memcmp(entry, "GPU-", 4) && memcmp(entry, "MIG-", 4))) {
        ordinal = strtol(entry, &end, 10);
        if (end == entry)
            return NO_DEVICE;
        end += strspn(end, " ");
        return end == entry + length && ordinal >= 0 && ordinal < device_count ? (CUdevice)ordinal : NO_DEVICE;
    }
    for (int i = 0; i < device_count; i++) {
        char text[64];
        size_t at = (size_t)snprintf(text, sizeof text, devices[i].is_slice ? "MIG" : "GPU");

        for (int byte = 0; byte < 16; byte++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%02x",
                                   byte == 0 || (byte >= 4 && byte <= 10 && byte % 2 == 0) ? "-" : "",
                                   devices[i].uuid.bytes[byte]);
        if (length > at || memcmp(text, entry, length))
            continue;
        if (found != NO_DEVICE) /* two devices begin so: it names none */
            return NO_DEVICE;
        found = i;
    }
    return found;
}

/* The visible devices, from the physical ones and the mask: up to the first entry that names none,
 * and none at all if one is named twice. */
static void apply_mask(void)
{
    int count = 0;
    unsigned long seen = 0;

    if (!masked)
        for (; count < device_count; count++)
            atomic_store(&visible[count], count);
    for (const char *entry = mask, *end; masked; entry = end + 1) {
        CUdevice device;

        end = entry + strcspn(entry, ",");
        device = find_device(entry, (size_t)(end - entry));
        if (device == NO_DEVICE)
            break;
        if (seen >> device & 1) {
            count = 0;
            break;
        }
        seen |= 1UL << device;
        atomic_store(&visible[count++], device);
        if (!*end)
            break;
    }
    atomic_store(&visible_count, count);
}

static CUresult push(CUcontext context)
{
    if (depth == MAX_DEPTH)
        return OUT_OF_MEMORY;
    stack[depth++] = context;
    return SUCCESS;
}

/* ---- the driver ---------------------------------------------------------------------------- */

CUresult cuInit(unsigned int flags)
{
    CUresult result = SUCCESS;
    const char *value;

    ENTER(cuInit, NO_DEVICE);
    if (forked())
        return NOT_INITIALIZED;
    if (flags)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&initialized)) { /* later changes of the environment change nothing */
        value = getenv("CUDA_VISIBLE_DEVICES");
        masked = value != NULL;
        snprintf(mask, sizeof mask, "%s", value ? value : "");
        apply_mask();
        /* So does the driver where the mask hides all. A test without devices may yet make some. */
        if (device_count && !visible_count) {
            result = CUDA_NO_DEVICE;
        } else {
            atomic_store(&initializer, (int)getpid());
            atomic_store(&initialized, 1);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER(cuDriverGetVersion, NO_DEVICE);
    *version = 13000;
    return SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
};

static CUresult find_error(CUresult code, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == code) {
            *name = errors[i].name;
            *text = errors[i].text;
            return SUCCESS;
        }
    }
    *name = *text = NULL;
    return INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    const char *text;

    ENTER(cuGetErrorName, NO_DEVICE);
    return find_error(code, name, &text);
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    const char *name;

    ENTER(cuGetErrorString, NO_DEVICE);
    return find_error(code, &name, text);
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount, NO_DEVICE);
    *count = atomic_load(&visible_count);
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet, physical(ordinal));
    if (physical(ordinal) < 0)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUdevice at = physical(device);

    ENTER(cuDeviceGetName, at);
    if (at < 0)
        return INVALID_DEVICE;
    if (length < 1)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    snprintf(name, (size_t)length, "%s", devices[at].name);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* The first version of it knows no slices. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUdevice at = physical(device);

    ENTER(cuDeviceGetUuid, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *uuid = devices[at].is_slice ? devices[at].parent : devices[at].uuid;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUdevice at = physical(device);

    ENTER(cuDeviceGetUuid_v2, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *uuid = devices[at].uuid;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUdevice at = physical(device);

    ENTER(cuDeviceGetAttribute, at);
    if (at < 0)
        return INVALID_DEVICE;
    if (attribute < 1 || attribute >= MAX_ATTRIBUTES)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *value = devices[at].attributes[attribute];
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    CUdevice at = physical(device);
    CUresult result = INVALID_VALUE;

    ENTER(cuDeviceGetPCIBusId, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (length > 0 && strlen(devices[at].pci) < (size_t)length) {
        strcpy(id, devices[at].pci);
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUdevice at = physical(device);

    ENTER(cuDeviceTotalMem_v2, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *bytes = devices[at].reported_total ? devices[at].reported_total : devices[at].total;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUdevice at = physical(device);

    ENTER(cuDevicePrimaryCtxGetState, at);
    if (at < 0)
        return INVALID_DEVICE;
    *flags = 0;
    *active = is_active(&devices[at].primary);
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUdevice at = physical(device);
    CUresult result = SUCCESS;
    CUcontext primary;

    ENTER(cuDevicePrimaryCtxRetain, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    primary = &devices[at].primary;
    if (primary->references) {
        primary->references++;
    } else {
        result = give_life(primary);
        if (result == SUCCESS)
            atomic_fetch_add(&contexts_created, 1);
    }
    if (result == SUCCESS)
        *context = primary;
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUdevice at = physical(device);
    CUresult result = INVALID_CONTEXT;
    CUcontext primary;

    ENTER(cuDevicePrimaryCtxRelease_v2, at);
    if (at < 0)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    primary = &devices[at].primary;
    if (primary->references > 0) {
        if (primary->references == 1)
            take_life(primary);
        else
            primary->references--;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult create(CUcontext *context, CUdevice at)
{
    CUcontext made;
    CUresult result;

    if (at < 0)
        return INVALID_DEVICE;
    made = depth < MAX_DEPTH ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return OUT_OF_MEMORY;
    made->device = at;
    pthread_mutex_lock(&lock);
    result = give_life(made);
    if (result == SUCCESS) {
        made->next = created;
        created = made;
    }
    pthread_mutex_unlock(&lock);
    if (result != SUCCESS) {
        free(made);
        return result;
    }
    atomic_fetch_add(&contexts_created, 1);
    *context = made;
    return push(made);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v2, physical(device));
    (void)flags;
    return create(context, physical(device));
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v3, physical(device));
    (void)affinity, (void)count, (void)flags;
    return create(context, physical(device));
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v4, physical(device));
    (void)parameters, (void)flags;
    return create(context, physical(device));
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = INVALID_CONTEXT;

    ENTER(cuCtxDestroy_v2, device_of(context));
    pthread_mutex_lock(&lock);
    for (CUcontext at = created; at; at = at->next) { /* not a primary one */
        if (at == context && at->references) {
            take_life(at);
            result = SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    if (result == SUCCESS && current() == context)
        depth--;
    return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(cuCtxPushCurrent_v2, device_of(context));
    if (!context || !is_active(context))
        return INVALID_CONTEXT;
    return push(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(cuCtxPopCurrent_v2, device_of(current()));
    if (!depth)
        return INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(cuCtxGetCurrent, device_of(current()));
    *context = current();
    return SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(cuCtxSetCurrent, device_of(context));
    if (context && !is_active(context))
        return INVALID_CONTEXT;
    if (depth)
        depth--;
    return context ? push(context) : SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(cuCtxGetDevice, device_of(current()));
    if (!depth)
        return INVALID_CONTEXT;
    for (int ordinal = 0; ordinal < atomic_load(&visible_count); ordinal++)
        if (physical(ordinal) == current()->device)
            *device = ordinal;
    return SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CUcontext context = current();

    ENTER(cuMemGetInfo_v2, device_of(context));
    if (!context)
        return INVALID_CONTEXT;
    if (!is_active(context))
        return CONTEXT_IS_DESTROYED;
    pthread_mutex_lock(&lock);
    *available = devices[context->device].available;
    *total = devices[context->device].total;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    static CUdeviceptr next = 0x7f0000000000; /* no address is given twice, so that a stale one is unknown */
    CUcontext context = current();
    struct allocation *made;
    CUresult result = SUCCESS;

    ENTER(cuMemAlloc_v2, device_of(context));
    if (!context)
        return INVALID_CONTEXT;
    if (!bytes)
        return INVALID_VALUE;
    made = malloc(sizeof *made);
    if (!made)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (!context->references) {
        result = CONTEXT_IS_DESTROYED;
    } else if (bytes > devices[context->device].available) {
        result = OUT_OF_MEMORY;
    } else {
        *made = (struct allocation){next, bytes, context, allocations};
        allocations = made;
        devices[context->device].available -= bytes;
        *address = next;
        next += (bytes + 511) / 512 * 512;
    }
    pthread_mutex_unlock(&lock);
    if (result != SUCCESS)
        free(made);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result = INVALID_VALUE;

    ENTER(cuMemFree_v2, device_of(current()));
    if (!current())
        return INVALID_CONTEXT;
    if (!address) /* as free(NULL) */
        return SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct allocation **link = &allocations; *link; link = &(*link)->next) {
        struct allocation *found = *link;

        if (found->address != address)
            continue;
        devices[found->context->device].available += found->bytes;
        *link = found->next;
        free(found);
        result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- cuGetProcAddress: after all the functions whose addresses it gives -------------------- */

CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status);

#define ADDRESS(name, base, version, needs_init) (void *)name,
static void *const addresses[ROWS] = {FUNCTIONS(ADDRESS)};

/* The newest function of that name which `version` already had, as the driver does. */
static CUresult find_address(const char *symbol, void **address, int version)
{
    int best = -1;

    for (int i = 0; i < ROWS; i++) {
        if (strcmp(table[i].base, symbol) || table[i].version > version)
            continue;
        if (best < 0 || table[i].version > table[best].version)
            best = i;
    }
    *address = best < 0 || atomic_load(&table[best].hidden) ? NULL : addresses[best];
    return *address ? SUCCESS : NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
    ENTER(cuGetProcAddress, NO_DEVICE);
    (void)flags;
    return find_address(symbol, address, version);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    enum { FOUND = 0, SYMBOL_NOT_FOUND = 1 };
    CUresult result;

    ENTER(cuGetProcAddress_v2, NO_DEVICE);
    (void)flags;
    result = find_address(symbol, address, version);
    if (status)
        *status = result == SUCCESS ? FOUND : SYMBOL_NOT_FOUND;
    return result;
}

/* ---- what tests steer it with -------------------------------------------------------------- */

/* A mistake in a test must not look like a driver that does nothing. */
static void misuse(const char *control, const char *what)
{
    fprintf(stderr, "libcuda stub: wrong use of %s: %s\n", control, what);
    abort();
}

static struct device *device_or_die(const char *control, CUdevice device)
{
    char text[16];

    if (device >= 0 && device < atomic_load(&device_count))
        return &devices[device];
    snprintf(text, sizeof text, "device %d", device);
    misuse(control, text);
    return NULL;
}

/* The rows that a test means by `name`: the function exported under it ("cuMemGetInfo_v2"), or
 * else all versions of it ("cuMemGetInfo"). Call with *row = -1 first. */
static int next_row(const char *control, const char *name, int *row)
{
    int exact = 0, first = *row < 0;

    for (int i = 0; i < ROWS; i++)
        exact |= !strcmp(table[i].exported, name);
    while (++*row < ROWS)
        if (!strcmp(exact ? table[*row].exported : table[*row].base, name))
            return 1;
    if (first)
        misuse(control, name);
    return 0;
}

static void clear(struct setting *setting)
{
    atomic_store(&setting->always, 0);
    atomic_store(&setting->once, 0);
    atomic_store(&setting->times, 0);
}

/* `count` fresh devices, with the lock held. Contexts on the old ones are destroyed. */
static void replace_devices(int count)
{
    for (CUcontext context = created; context; context = context->next)
        take_life(context);
    for (int i = 0; i < MAX_DEVICES; i++)
        take_life(&devices[i].primary);
    memset(devices, 0, sizeof devices);
    for (int i = 0; i < MAX_DEVICES; i++) {
        devices[i].primary.device = i;
        devices[i].available = devices[i].total = (size_t)16 << 30;
        snprintf(devices[i].name, MAX_NAME, "Stub GPU %d", i);
        snprintf(devices[i].pci, MAX_NAME, "0000:%02x:00.0", i);
        devices[i].uuid.bytes[15] = (unsigned char)(i + 1);
    }
    atomic_store(&device_count, count);
}

/* As a new process with no device: for a test that does several things one after the other. The
 * stacks of other threads stay, of contexts that are destroyed. */
void stub_reset(void)
{
    for (int i = 0; i < ROWS; i++) {
        atomic_store(&table[i].calls, 0);
        atomic_store(&table[i].hidden, 0);
        for (int device = 0; device <= MAX_DEVICES; device++) {
            clear(&table[i].fault[device]);
            clear(&table[i].delay[device]);
        }
    }
    pthread_mutex_lock(&lock);
    replace_devices(0);
    masked = 0;
    apply_mask();
    pthread_mutex_unlock(&lock);
    atomic_store(&initialized, 0);
    atomic_store(&initializer, 0);
    atomic_store(&calls_after_fork, 0);
    atomic_store(&contexts_created, 0);
    depth = 0;
}

/* `count` fresh devices, none with a context, each with 16 of 16 GiB free, with UUIDs that end in
 * 01, 02.. and the PCI ids 0000:00:00.0, 0000:01:00.0.. After cuInit, its mask hides some of these too. */
void stub_devices(int count)
{
    if (count < 0 || count > MAX_DEVICES)
        misuse("stub_devices", "count");
    pthread_mutex_lock(&lock);
    replace_devices(count);
    apply_mask();
    pthread_mutex_unlock(&lock);
}

/* What is free now. Contexts and allocations from before give back on top of it. */
void stub_memory(int device, size_t available, size_t total)
{
    struct device *to = device_or_die("stub_memory", device);

    pthread_mutex_lock(&lock);
    to->available = available;
    to->total = total;
    pthread_mutex_unlock(&lock);
}

/* A total for cuDeviceTotalMem alone; with 0, it is that of cuMemGetInfo again. */
void stub_total_mem(int device, size_t bytes)
{
    struct device *to = device_or_die("stub_total_mem", device);

    pthread_mutex_lock(&lock);
    to->reported_total = bytes;
    pthread_mutex_unlock(&lock);
}

/* What each context that comes to be on it from now on takes, until it goes. */
void stub_context_cost(int device, size_t bytes)
{
    struct device *to = device_or_die("stub_context_cost", device);

    pthread_mutex_lock(&lock);
    to->context_cost = bytes;
    pthread_mutex_unlock(&lock);
}

void stub_name(int device, const char *name)
{
    struct device *to = device_or_die("stub_name", device);

    pthread_mutex_lock(&lock);
    snprintf(to->name, MAX_NAME, "%s", name);
    pthread_mutex_unlock(&lock);
}

void stub_uuid(int device, const unsigned char *bytes)
{
    struct device *to = device_or_die("stub_uuid", device);

    pthread_mutex_lock(&lock);
    memcpy(to->uuid.bytes, bytes, sizeof to->uuid.bytes);
    apply_mask();
    pthread_mutex_unlock(&lock);
}

/* A slice of the device with that UUID, of which it need not be told more; with NULL, a whole device. */
void stub_mig(int device, const unsigned char *parent)
{
    struct device *to = device_or_die("stub_mig", device);

    pthread_mutex_lock(&lock);
    to->is_slice = parent != NULL;
    if (parent)
        memcpy(to->parent.bytes, parent, sizeof to->parent.bytes);
    apply_mask();
    pthread_mutex_unlock(&lock);
}

void stub_pci(int device, const char *id)
{
    struct device *to = device_or_die("stub_pci", device);

    pthread_mutex_lock(&lock);
    snprintf(to->pci, MAX_NAME, "%s", id);
    pthread_mutex_unlock(&lock);
}

void stub_attribute(int device, int attribute, int value)
{
    struct device *to = device_or_die("stub_attribute", device);

    if (attribute < 1 || attribute >= MAX_ATTRIBUTES)
        misuse("stub_attribute", "attribute");
    pthread_mutex_lock(&lock);
    to->attributes[attribute] = value;
    pthread_mutex_unlock(&lock);
}

/* The application takes a reference to the primary context, so that it is active. Not counted
 * among the calls or the contexts created. */
void stub_activate(int device)
{
    struct device *to = device_or_die("stub_activate", device);
    CUresult result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (to->primary.references)
        to->primary.references++;
    else
        result = give_life(&to->primary);
    pthread_mutex_unlock(&lock);
    if (result != SUCCESS)
        misuse("stub_activate", "no memory for a context");
}

static struct setting *setting_of(const char *control, struct setting *settings, int device)
{
    if (device >= MAX_DEVICES)
        misuse(control, "device");
    return &settings[device < 0 ? ANY_DEVICE : device];
}

static void set_once(struct setting *setting, int value, int times)
{
    atomic_store(&setting->times, 0);
    atomic_store(&setting->once, value);
    atomic_store(&setting->times, times);
}

/* Let `name` answer `code` for that device, or for any device and call if it is negative. A code
 * of 0 ends it. */
void stub_fault(const char *name, int device, int code)
{
    for (int row = -1; next_row("stub_fault", name, &row);)
        atomic_store(&setting_of("stub_fault", table[row].fault, device)->always, code);
}

/* The same for the next `times` calls alone, instead of what stub_fault set for that `device`. So a code
 * of 0 lets some calls through first. */
void stub_fault_once(const char *name, int device, int code, int times)
{
    for (int row = -1; next_row("stub_fault_once", name, &row);)
        set_once(setting_of("stub_fault_once", table[row].fault, device), code, times);
}

/* Let `name` wait before it answers, or fails. 0 ends it. */
void stub_delay(const char *name, int device, int microseconds)
{
    for (int row = -1; next_row("stub_delay", name, &row);)
        atomic_store(&setting_of("stub_delay", table[row].delay, device)->always, microseconds);
}

void stub_delay_once(const char *name, int device, int microseconds, int times)
{
    for (int row = -1; next_row("stub_delay_once", name, &row);)
        set_once(setting_of("stub_delay_once", table[row].delay, device), microseconds, times);
}

/* A driver that lacks `name`. The bindings look all names up at their first call. */
void stub_hide(const char *name)
{
    for (int row = -1; next_row("stub_hide", name, &row);)
        atomic_store(&table[row].hidden, 1);
}

int stub_calls(const char *name)
{
    int calls = 0;

    for (int row = -1; next_row("stub_calls", name, &row);)
        calls += atomic_load(&table[row].calls);
    return calls;
}

/* Of all driver functions, in this process, if it is a child of the one that cuInit succeeded in. */
int stub_calls_after_fork(void) { return atomic_load(&calls_after_fork); }

int stub_contexts_created(void) { return atomic_load(&contexts_created); }

/* Contexts that there are now, the application's included. */
int stub_contexts_alive(void)
{
    int alive = 0;

    pthread_mutex_lock(&lock);
    for (CUcontext context = created; context; context = context->next)
        alive += context->references > 0;
    for (int i = 0; i < device_count; i++)
        alive += devices[i].primary.references > 0;
    pthread_mutex_unlock(&lock);
    return alive;
}

/* Bytes of cuMemAlloc on a device that are not freed yet. */
size_t stub_live_bytes(int device)
{
    size_t bytes = 0;

    device_or_die("stub_live_bytes", device);
    pthread_mutex_lock(&lock);
    for (const struct allocation *allocation = allocations; allocation; allocation = allocation->next)
        bytes += allocation->context->device == device ? allocation->bytes : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* References to the primary context of a device, the application's included. */
int stub_references(int device)
{
    struct device *of = device_or_die("stub_references", device);
    int references;

    pthread_mutex_lock(&lock);
    references = of->primary.references;
    pthread_mutex_unlock(&lock);
    return references;
}

/* Contexts on the stack of the calling thread. */
int stub_depth(void) { return depth; }
