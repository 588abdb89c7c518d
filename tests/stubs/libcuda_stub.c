/* A libcuda.so.1 without a GPU: enough of the CUDA driver for the real cuda-python to run against.
 *
 * It keeps the driver's rules (nothing works before cuInit; each thread has a stack of contexts; a
 * primary context is counted, and retaining an inactive one creates it), counts every call, and
 * fails where a test tells it to. Tests steer it through the stub_* functions at the end.
 *
 * To add a driver function: one row in FUNCTIONS, one definition that begins with ENTER.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    CONTEXT_IS_DESTROYED = 709,
};

enum { MAX_DEVICES = 16, MAX_DEPTH = 64, MAX_NAME = 256, MAX_ATTRIBUTES = 256, NO_DEVICE = -1 };

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
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 1)                    \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 1)   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 1)       \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 1) \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 1)                              \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, 1)                             \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, 1)                             \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 1)                    \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 1)                      \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 1)                         \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 1)                         \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 1)                           \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 1)

#define ROW_INDEX(name, base, version, needs_init) ROW_##name,
enum { FUNCTIONS(ROW_INDEX) ROWS };

struct function {
    const char *exported, *base;
    int version, needs_init;
    atomic_int calls, hidden;
    atomic_int fault, device_fault[MAX_DEVICES]; /* the code to answer; 0 is none */
};

#define ROW(name, base, version, needs_init) {#name, base, version, needs_init, 0, 0, 0, {0}},
static struct function table[ROWS] = {FUNCTIONS(ROW)};

static atomic_int initialized;

/* Every driver function goes through here first. `device` is the one it is about, or NO_DEVICE. */
static CUresult enter(struct function *function, CUdevice device)
{
    CUresult fault = atomic_load(&function->fault);

    atomic_fetch_add(&function->calls, 1);
    if (!fault && device >= 0 && device < MAX_DEVICES)
        fault = atomic_load(&function->device_fault[device]);
    if (fault)
        return fault;
    return function->needs_init && !atomic_load(&initialized) ? NOT_INITIALIZED : SUCCESS;
}

#define ENTER(name, device)                                     \
    do {                                                        \
        CUresult entered = enter(&table[ROW_##name], (device)); \
        if (entered)                                            \
            return entered;                                     \
    } while (0)

/* ---- devices and contexts ------------------------------------------------------------------ */

struct context {
    CUdevice device;
    int references; /* 0: inactive, if primary */
};

struct device {
    struct context primary;
    size_t available, total;
    char name[MAX_NAME];
    CUuuid uuid;
    int attributes[MAX_ATTRIBUTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is behind `devices` */
static struct device devices[MAX_DEVICES];
static atomic_int device_count, contexts_created;

static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

static int exists(CUdevice device) { return device >= 0 && device < atomic_load(&device_count); }
static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
static CUdevice device_of(CUcontext context) { return context ? context->device : NO_DEVICE; }

static int is_active(CUcontext context)
{
    int active;

    pthread_mutex_lock(&lock);
    active = context->references > 0;
    pthread_mutex_unlock(&lock);
    return active;
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
    ENTER(cuInit, NO_DEVICE);
    if (flags)
        return INVALID_VALUE;
    atomic_store(&initialized, 1);
    return SUCCESS;
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
    *count = atomic_load(&device_count);
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet, ordinal);
    if (!exists(ordinal))
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER(cuDeviceGetName, device);
    if (!exists(device))
        return INVALID_DEVICE;
    if (length < 1)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    snprintf(name, (size_t)length, "%s", devices[device].name);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static CUresult copy_uuid(CUuuid *uuid, CUdevice device)
{
    if (!exists(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *uuid = devices[device].uuid;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid, device);
    return copy_uuid(uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid_v2, device);
    return copy_uuid(uuid, device);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute, device);
    if (!exists(device))
        return INVALID_DEVICE;
    if (attribute < 1 || attribute >= MAX_ATTRIBUTES)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *value = devices[device].attributes[attribute];
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem_v2, device);
    if (!exists(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *bytes = devices[device].total;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER(cuDevicePrimaryCtxGetState, device);
    if (!exists(device))
        return INVALID_DEVICE;
    *flags = 0;
    *active = is_active(&devices[device].primary);
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain, device);
    if (!exists(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *context = &devices[device].primary;
    if ((*context)->references++ == 0)
        atomic_fetch_add(&contexts_created, 1);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = INVALID_CONTEXT;

    ENTER(cuDevicePrimaryCtxRelease_v2, device);
    if (!exists(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (devices[device].primary.references > 0) {
        devices[device].primary.references--;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult create(CUcontext *context, CUdevice device)
{
    if (!exists(device))
        return INVALID_DEVICE;
    *context = malloc(sizeof **context);
    if (!*context)
        return OUT_OF_MEMORY;
    **context = (struct context){.device = device, .references = 1};
    atomic_fetch_add(&contexts_created, 1);
    return push(*context);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v2, device);
    (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v3, device);
    (void)affinity, (void)count, (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    ENTER(cuCtxCreate_v4, device);
    (void)parameters, (void)flags;
    return create(context, device);
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
    *device = current()->device;
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
    fprintf(stderr, "libcuda stub: %s: no such function or device: %s\n", control, what);
    abort();
}

static struct device *device_or_die(const char *control, CUdevice device)
{
    char text[16];

    if (exists(device))
        return &devices[device];
    snprintf(text, sizeof text, "%d", device);
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

/* As a new process with no device: for a test that does several things one after the other. The
 * contexts of other threads stay. */
void stub_reset(void)
{
    for (int i = 0; i < ROWS; i++) {
        atomic_store(&table[i].calls, 0);
        atomic_store(&table[i].hidden, 0);
        atomic_store(&table[i].fault, 0);
        for (int device = 0; device < MAX_DEVICES; device++)
            atomic_store(&table[i].device_fault[device], 0);
    }
    atomic_store(&initialized, 0);
    atomic_store(&device_count, 0);
    atomic_store(&contexts_created, 0);
    depth = 0;
}

/* `count` fresh devices, none with a context, each with 16 of 16 GiB free. */
void stub_devices(int count)
{
    if (count < 0 || count > MAX_DEVICES)
        misuse("stub_devices", "count");
    pthread_mutex_lock(&lock);
    memset(devices, 0, sizeof devices);
    for (int i = 0; i < count; i++) {
        devices[i].primary.device = i;
        devices[i].available = devices[i].total = (size_t)16 << 30;
        snprintf(devices[i].name, MAX_NAME, "Stub GPU %d", i);
        devices[i].uuid.bytes[15] = (unsigned char)(i + 1);
    }
    pthread_mutex_unlock(&lock);
    atomic_store(&device_count, count);
}

void stub_memory(int device, size_t available, size_t total)
{
    struct device *to = device_or_die("stub_memory", device);

    pthread_mutex_lock(&lock);
    to->available = available;
    to->total = total;
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

/* The application takes a reference to the primary context, so that it is active. Not counted. */
void stub_activate(int device)
{
    struct device *to = device_or_die("stub_activate", device);

    pthread_mutex_lock(&lock);
    to->primary.references++;
    pthread_mutex_unlock(&lock);
}

/* Let `name` answer `code` for that device, or for any device and call if it is negative. A code
 * of 0 ends it. */
void stub_fault(const char *name, int device, int code)
{
    if (device >= MAX_DEVICES)
        misuse("stub_fault", "device");
    for (int row = -1; next_row("stub_fault", name, &row);)
        atomic_store(device < 0 ? &table[row].fault : &table[row].device_fault[device], code);
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

int stub_contexts_created(void) { return atomic_load(&contexts_created); }

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
