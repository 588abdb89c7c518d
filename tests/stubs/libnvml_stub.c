/* A libnvidia-ml.so.1 without a GPU: enough of NVML for the real cuda.bindings.nvml to run against.
 *
 * It keeps NVML's rules (nothing works before nvmlInit, which is counted; it lists all GPUs, in an
 * order of its own, whatever CUDA_VISIBLE_DEVICES says; a UUID matches as a whole or not at all; MIG
 * slices are behind their GPU), counts every call, and fails or waits where a test tells it to. Tests
 * steer it through the nv_* functions at the end.
 *
 * To add a function: one row in FUNCTIONS, one definition that begins with ENTER.
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

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MAX_GPUS = 16, MAX_SLICES = 7, MAX_TEXT = 96 };

/* What a test means by `device`: a GPU by its index, then the slices as nv_slice numbers them. */
enum { SLICES_FROM = MAX_GPUS, ANY_DEVICE = SLICES_FROM + MAX_GPUS * MAX_SLICES, NO_DEVICE = -1 };

/* ---- the table of functions ---------------------------------------------------------------- */

/* The exported name, and whether it works only after nvmlInit. */
#define FUNCTIONS(X)                                  \
    X(nvmlInit_v2, 0)                                 \
    X(nvmlInitWithFlags, 0)                           \
    X(nvmlShutdown, 1)                                \
    X(nvmlErrorString, 0)                             \
    X(nvmlSystemGetDriverVersion, 1)                  \
    X(nvmlDeviceGetCount_v2, 1)                       \
    X(nvmlDeviceGetHandleByIndex_v2, 1)               \
    X(nvmlDeviceGetHandleByUUID, 1)                   \
    X(nvmlDeviceGetHandleByPciBusId_v2, 1)            \
    X(nvmlDeviceGetIndex, 1)                          \
    X(nvmlDeviceGetUUID, 1)                           \
    X(nvmlDeviceGetName, 1)                           \
    X(nvmlDeviceGetPciInfo_v3, 1)                     \
    X(nvmlDeviceGetMemoryInfo, 1)                     \
    X(nvmlDeviceGetMemoryInfo_v2, 1)                  \
    X(nvmlDeviceGetMigMode, 1)                        \
    X(nvmlDeviceGetMaxMigDeviceCount, 1)              \
    X(nvmlDeviceGetMigDeviceHandleByIndex, 1)         \
    X(nvmlDeviceIsMigDeviceHandle, 1)                 \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, 1)

#define ROW_INDEX(name, needs_init) ROW_##name,
enum { FUNCTIONS(ROW_INDEX) ROWS };

/* What a test has set: `once` for the next `times` calls, `always` for those after. 0 is nothing. */
struct setting {
    atomic_int always, once, times;
};

struct function {
    const char *exported;
    int needs_init;
    atomic_int calls;
    struct setting fault[ANY_DEVICE + 1]; /* the code to answer; the last is for any device */
    struct setting delay[ANY_DEVICE + 1]; /* microseconds to wait before */
};

#define ROW(name, needs_init) {.exported = #name, needs_init},
static struct function table[ROWS] = {FUNCTIONS(ROW)};

static atomic_int references, inits;
static atomic_int initializer; /* the process that nvmlInit first succeeded in; 0 before */
static atomic_int calls_after_fork;

static int take(struct setting *setting)
{
    int times = atomic_load(&setting->times);

    while (times > 0)
        if (atomic_compare_exchange_weak(&setting->times, &times, times - 1))
            return atomic_load(&setting->once);
    return atomic_load(&setting->always);
}

static int take_for(struct setting *settings, int device)
{
    int value = take(&settings[ANY_DEVICE]);

    return value || device < 0 ? value : take(&settings[device]);
}

static void wait_for(int microseconds)
{
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000L};

    while (nanosleep(&left, &left)) /* a signal does not cut it short */
        ;
}

/* Every function goes through here first, with no lock held: it may wait. `device` is the one it is
 * about, or NO_DEVICE. */
static nvmlReturn_t enter(struct function *function, int device)
{
    int process = atomic_load(&initializer), delay, fault;

    atomic_fetch_add(&function->calls, 1);
    atomic_fetch_add(&calls_after_fork, process && process != (int)getpid());
    delay = take_for(function->delay, device);
    if (delay > 0)
        wait_for(delay);
    fault = take_for(function->fault, device);
    if (fault)
        return fault;
    return function->needs_init && atomic_load(&references) <= 0 ? UNINITIALIZED : SUCCESS;
}

#define ENTER(name, device)                                         \
    do {                                                            \
        nvmlReturn_t entered = enter(&table[ROW_##name], (device)); \
        if (entered)                                                \
            return entered;                                         \
    } while (0)

/* ---- GPUs and their slices ----------------------------------------------------------------- */

struct device {
    struct device *parent; /* of a slice */
    int index;             /* under its parent, if it has one */
    char name[MAX_TEXT], uuid[MAX_TEXT];
    unsigned int pci[4]; /* domain, bus, device, function */
    uint64_t total, reserved, free, used;
    int slices; /* more than 0: in MIG mode */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two */
static struct device gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];
static atomic_int gpu_count;

/* What a test means by `device`, of a handle, or NO_DEVICE. Handles are addresses that callers keep:
 * none is looked into that is not one of ours. */
static int number_of(nvmlDevice_t handle)
{
    int number = NO_DEVICE;

    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < gpu_count; gpu++) {
        if (handle == &gpus[gpu])
            number = gpu;
        for (int slice = 0; slice < gpus[gpu].slices; slice++)
            if (handle == &slices[gpu][slice])
                number = SLICES_FROM + gpu * MAX_SLICES + slice;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

static int is_slice(int number) { return number >= SLICES_FROM; }

static int number_by_uuid(const char *uuid)
{
    nvmlDevice_t found = NULL;

    pthread_mutex_lock(&lock);
    for (int gpu = 0; uuid && gpu < gpu_count; gpu++) {
        if (!strcmp(gpus[gpu].uuid, uuid))
            found = &gpus[gpu];
        for (int slice = 0; slice < gpus[gpu].slices; slice++)
            if (!strcmp(slices[gpu][slice].uuid, uuid))
                found = &slices[gpu][slice];
    }
    pthread_mutex_unlock(&lock);
    return found ? number_of(found) : NO_DEVICE;
}

/* In the forms that NVML takes: x:x:x.x, x:x:x and x:x.x, all in hexadecimal. */
static int parse_pci(const char *text, unsigned int pci[4])
{
    int end = -1;

    memset(pci, 0, 4 * sizeof *pci);
    sscanf(text, "%x:%x:%x.%x%n", &pci[0], &pci[1], &pci[2], &pci[3], &end);
    if (end >= 0 && !text[end])
        return 1;
    end = -1;
    sscanf(text, "%x:%x:%x%n", &pci[0], &pci[1], &pci[2], &end);
    pci[3] = 0;
    if (end >= 0 && !text[end])
        return 1;
    end = -1;
    pci[0] = 0;
    sscanf(text, "%x:%x.%x%n", &pci[1], &pci[2], &pci[3], &end);
    return end >= 0 && !text[end];
}

static int number_by_pci(const char *text)
{
    unsigned int pci[4];
    int number = NO_DEVICE;

    if (!text || !parse_pci(text, pci))
        return NO_DEVICE;
    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < gpu_count; gpu++)
        if (!memcmp(gpus[gpu].pci, pci, sizeof pci))
            number = gpu;
    pthread_mutex_unlock(&lock);
    return number;
}

static nvmlDevice_t handle_of(int number)
{
    return is_slice(number) ? &slices[(number - SLICES_FROM) / MAX_SLICES][(number - SLICES_FROM) % MAX_SLICES]
                            : &gpus[number];
}

static nvmlReturn_t copy_text(char *to, unsigned int length, const char *from)
{
    nvmlReturn_t result = INSUFFICIENT_SIZE;

    pthread_mutex_lock(&lock);
    if (strlen(from) < length) {
        strcpy(to, from);
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- NVML ---------------------------------------------------------------------------------- */

static nvmlReturn_t init(void)
{
    int nobody = 0;

    atomic_compare_exchange_strong(&initializer, &nobody, (int)getpid());
    atomic_fetch_add(&references, 1);
    atomic_fetch_add(&inits, 1);
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    ENTER(nvmlInit_v2, NO_DEVICE);
    return init();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    ENTER(nvmlInitWithFlags, NO_DEVICE);
    (void)flags;
    return init();
}

nvmlReturn_t nvmlShutdown(void)
{
    int count = 1;

    ENTER(nvmlShutdown, NO_DEVICE);
    while (!atomic_compare_exchange_weak(&references, &count, count - 1))
        if (count <= 0) /* another thread was first */
            return UNINITIALIZED;
    return SUCCESS;
}

/* Faults do not reach its answer, which is no code. */
const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        [SUCCESS] = "Success",
        [UNINITIALIZED] = "Uninitialized",
        [INVALID_ARGUMENT] = "Invalid Argument",
        [NOT_SUPPORTED] = "Not Supported",
        [4] = "Insufficient Permissions",
        [5] = "Already Initialized",
        [NOT_FOUND] = "Not Found",
        [INSUFFICIENT_SIZE] = "Insufficient Size",
        [8] = "Insufficient External Power",
        [9] = "Driver Not Loaded",
        [10] = "Timeout",
        [11] = "Interrupt Request Issue",
        [12] = "NVML Shared Library Not Found",
        [13] = "Function Not Found",
        [14] = "Corrupted infoROM",
        [15] = "GPU is lost",
        [16] = "GPU requires reset",
        [17] = "GPU access blocked by the operating system",
        [18] = "Driver/library version mismatch",
        [19] = "In use by another client",
        [20] = "Insufficient Memory",
        [21] = "No data",
        [ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
    };

    (void)enter(&table[ROW_nvmlErrorString], NO_DEVICE);
    if (code >= 0 && (size_t)code < sizeof texts / sizeof *texts && texts[code])
        return texts[code];
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetDriverVersion, NO_DEVICE);
    return copy_text(version, length, "580.00.00");
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER(nvmlDeviceGetCount_v2, NO_DEVICE);
    *count = (unsigned int)atomic_load(&gpu_count);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
    int number = index < (unsigned int)atomic_load(&gpu_count) ? (int)index : NO_DEVICE;

    ENTER(nvmlDeviceGetHandleByIndex_v2, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    *handle = handle_of(number);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    int number = number_by_uuid(uuid);

    ENTER(nvmlDeviceGetHandleByUUID, number);
    if (!uuid)
        return INVALID_ARGUMENT;
    if (number < 0)
        return NOT_FOUND;
    *handle = handle_of(number);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *handle)
{
    unsigned int pci[4];
    int number = number_by_pci(id);

    ENTER(nvmlDeviceGetHandleByPciBusId_v2, number);
    if (!id || !parse_pci(id, pci))
        return INVALID_ARGUMENT;
    if (number < 0)
        return NOT_FOUND;
    *handle = handle_of(number);
    return SUCCESS;
}

/* Of a slice, that under its GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetIndex, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    *index = (unsigned int)handle->index;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetUUID, number);
    return number < 0 ? INVALID_ARGUMENT : copy_text(uuid, length, handle->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetName, number);
    return number < 0 ? INVALID_ARGUMENT : copy_text(name, length, handle->name);
}

/* In capital letters and with a longer domain than that of cuDeviceGetPCIBusId, as in the real one. */
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info)
{
    int number = number_of(handle);
    const unsigned int *pci;

    ENTER(nvmlDeviceGetPciInfo_v3, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    if (is_slice(number))
        return NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    pci = handle->pci;
    *info = (nvmlPciInfo_t){.domain = pci[0], .bus = pci[1], .device = pci[2]};
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", pci[0] & 0xffff, pci[1] & 0xff,
             pci[2] & 0xff);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", pci[0], pci[1] & 0xff, pci[2] & 0xff);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Its `used` is all that is not free. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetMemoryInfo, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    *memory = (nvmlMemory_t){handle->total, handle->free,
                             handle->used == UINT64_MAX ? UINT64_MAX : handle->used + handle->reserved};
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetMemoryInfo_v2, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    if (memory->version != (2U << 24 | sizeof *memory)) /* callers say which struct they have */
        return ARGUMENT_VERSION_MISMATCH;
    pthread_mutex_lock(&lock);
    memory->total = handle->total;
    memory->reserved = handle->reserved;
    memory->free = handle->free;
    memory->used = handle->used;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetMigMode, number);
    if (number < 0 || is_slice(number))
        return INVALID_ARGUMENT;
    *current = *pending = handle->slices > 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetMaxMigDeviceCount, number);
    if (number < 0 || is_slice(number))
        return INVALID_ARGUMENT;
    *count = handle->slices ? MAX_SLICES : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index, nvmlDevice_t *slice)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, number);
    if (number < 0 || is_slice(number) || index >= (handle->slices ? MAX_SLICES : 0U))
        return INVALID_ARGUMENT;
    if (index >= (unsigned int)handle->slices)
        return NOT_FOUND;
    *slice = &slices[number][index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *answer)
{
    int number = number_of(handle);

    ENTER(nvmlDeviceIsMigDeviceHandle, number);
    if (number < 0)
        return INVALID_ARGUMENT;
    *answer = is_slice(number);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t slice, nvmlDevice_t *handle)
{
    int number = number_of(slice);

    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, number);
    if (number < 0 || !is_slice(number))
        return INVALID_ARGUMENT;
    *handle = slice->parent;
    return SUCCESS;
}

/* ---- what tests steer it with -------------------------------------------------------------- */

/* A mistake in a test must not look like a library that does nothing. */
static void misuse(const char *control, const char *what)
{
    fprintf(stderr, "libnvidia-ml stub: wrong use of %s: %s\n", control, what);
    abort();
}

static struct device *gpu_or_die(const char *control, int device)
{
    char text[16];

    if (device >= 0 && device < atomic_load(&gpu_count))
        return &gpus[device];
    snprintf(text, sizeof text, "device %d", device);
    misuse(control, text);
    return NULL;
}

static struct device *slice_or_die(const char *control, int parent, int index)
{
    if (index < 0 || index >= gpu_or_die(control, parent)->slices)
        misuse(control, "slice");
    return &slices[parent][index];
}

static struct function *function_or_die(const char *control, const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(table[i].exported, name))
            return &table[i];
    misuse(control, name);
    return NULL;
}

static void set_text(char *field, const char *text)
{
    pthread_mutex_lock(&lock);
    snprintf(field, MAX_TEXT, "%s", text);
    pthread_mutex_unlock(&lock);
}

static void set_memory(struct device *to, uint64_t total, uint64_t reserved, uint64_t free, uint64_t used)
{
    pthread_mutex_lock(&lock);
    to->total = total;
    to->reserved = reserved;
    to->free = free;
    to->used = used;
    pthread_mutex_unlock(&lock);
}

static void clear(struct setting *setting)
{
    atomic_store(&setting->always, 0);
    atomic_store(&setting->once, 0);
    atomic_store(&setting->times, 0);
}

/* `count` fresh GPUs, none in MIG mode, each with 16 of 16 GiB free; with the names, UUIDs and PCI
 * ids that fresh devices of the CUDA stub have. */
void nv_devices(int count)
{
    if (count < 0 || count > MAX_GPUS)
        misuse("nv_devices", "count");
    pthread_mutex_lock(&lock);
    memset(gpus, 0, sizeof gpus);
    memset(slices, 0, sizeof slices);
    for (int i = 0; i < count; i++) {
        gpus[i].index = i;
        snprintf(gpus[i].name, MAX_TEXT, "Stub GPU %d", i);
        snprintf(gpus[i].uuid, MAX_TEXT, "GPU-00000000-0000-0000-0000-0000000000%02x", i + 1);
        gpus[i].pci[1] = (unsigned int)i;
        gpus[i].total = gpus[i].free = (uint64_t)16 << 30;
    }
    atomic_store(&gpu_count, count);
    pthread_mutex_unlock(&lock);
}

/* As a new process with no GPU. */
void nv_reset(void)
{
    for (int i = 0; i < ROWS; i++) {
        atomic_store(&table[i].calls, 0);
        for (int device = 0; device <= ANY_DEVICE; device++) {
            clear(&table[i].fault[device]);
            clear(&table[i].delay[device]);
        }
    }
    nv_devices(0);
    atomic_store(&references, 0);
    atomic_store(&inits, 0);
    atomic_store(&initializer, 0);
    atomic_store(&calls_after_fork, 0);
}

void nv_uuid(int device, const char *uuid)
{
    struct device *to = gpu_or_die("nv_uuid", device);

    set_text(to->uuid, uuid);
}

void nv_name(int device, const char *name)
{
    struct device *to = gpu_or_die("nv_name", device);

    set_text(to->name, name);
}

void nv_pci(int device, const char *id)
{
    struct device *to = gpu_or_die("nv_pci", device);
    unsigned int pci[4];

    if (!parse_pci(id, pci))
        misuse("nv_pci", id);
    pthread_mutex_lock(&lock);
    memcpy(to->pci, pci, sizeof pci);
    pthread_mutex_unlock(&lock);
}

/* Any numbers, whether they add up or not. */
void nv_memory(int device, uint64_t total, uint64_t reserved, uint64_t free, uint64_t used)
{
    set_memory(gpu_or_die("nv_memory", device), total, reserved, free, used);
}

/* Put a GPU into MIG mode with `count` fresh slices, each with 2 of 2 GiB free, or with 0 out of it. */
void nv_mig(int parent, int count)
{
    struct device *to = gpu_or_die("nv_mig", parent);

    if (count < 0 || count > MAX_SLICES)
        misuse("nv_mig", "count");
    pthread_mutex_lock(&lock);
    memset(slices[parent], 0, sizeof slices[parent]);
    for (int i = 0; i < count; i++) {
        struct device *slice = &slices[parent][i];

        slice->parent = to;
        slice->index = i;
        snprintf(slice->name, MAX_TEXT, "Stub GPU %d MIG %d", parent, i);
        snprintf(slice->uuid, MAX_TEXT, "MIG-00000000-0000-0000-0000-00000000%02x%02x", parent + 1, i + 1);
        slice->total = slice->free = (uint64_t)2 << 30;
    }
    to->slices = count;
    pthread_mutex_unlock(&lock);
}

void nv_mig_uuid(int parent, int index, const char *uuid)
{
    struct device *to = slice_or_die("nv_mig_uuid", parent, index);

    set_text(to->uuid, uuid);
}

void nv_mig_memory(int parent, int index, uint64_t total, uint64_t reserved, uint64_t free, uint64_t used)
{
    set_memory(slice_or_die("nv_mig_memory", parent, index), total, reserved, free, used);
}

/* The `device` of a slice, for the functions below. */
int nv_slice(int parent, int index)
{
    slice_or_die("nv_slice", parent, index);
    return SLICES_FROM + parent * MAX_SLICES + index;
}

static struct setting *setting_of(const char *control, struct setting *settings, int device)
{
    if (device >= ANY_DEVICE)
        misuse(control, "device");
    return &settings[device < 0 ? ANY_DEVICE : device];
}

static void set_once(struct setting *setting, int value, int times)
{
    atomic_store(&setting->times, 0);
    atomic_store(&setting->once, value);
    atomic_store(&setting->times, times);
}

/* Let `name` answer `code` for that device (a GPU's slices are others), or for any device and call if
 * it is negative. A code of 0 ends it. */
void nv_fault(const char *name, int device, int code)
{
    atomic_store(&setting_of("nv_fault", function_or_die("nv_fault", name)->fault, device)->always, code);
}

/* The same for the next `times` calls alone, instead of what nv_fault set for that `device`. So a code
 * of 0 lets some calls through first. */
void nv_fault_once(const char *name, int device, int code, int times)
{
    set_once(setting_of("nv_fault_once", function_or_die("nv_fault_once", name)->fault, device), code, times);
}

/* Let `name` wait before it answers, or fails. 0 ends it. */
void nv_delay(const char *name, int device, int microseconds)
{
    atomic_store(&setting_of("nv_delay", function_or_die("nv_delay", name)->delay, device)->always, microseconds);
}

void nv_delay_once(const char *name, int device, int microseconds, int times)
{
    set_once(setting_of("nv_delay_once", function_or_die("nv_delay_once", name)->delay, device), microseconds, times);
}

int nv_calls(const char *name) { return atomic_load(&function_or_die("nv_calls", name)->calls); }

/* nvmlInit calls not shut down yet, and all that succeeded. */
int nv_references(void) { return atomic_load(&references); }
int nv_inits(void) { return atomic_load(&inits); }

/* Of all functions, in this process, if it is a child of the first that nvmlInit succeeded in. */
int nv_calls_after_fork(void) { return atomic_load(&calls_after_fork); }
