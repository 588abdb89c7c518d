/* Atomics and the lock: the only place that knows one compiler or system from another.
 *
 * Loads and stores are of aligned uint8_t, uint32_t, uint64_t and pointers, and relaxed unless the name
 * says otherwise. The GNU builtins are ThreadSanitizer's own language too.
 */
#ifndef VRAMSEL_SYNC_H
#define VRAMSEL_SYNC_H

#include <stdint.h>

#if SIZE_MAX <= UINT32_MAX
#error "vramsel is written for 64-bit systems"
#endif

#if defined(__GNUC__) || defined(__clang__)

#define vs_load(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define vs_load_acquire(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define vs_store(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
#define vs_store_release(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define vs_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define vs_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
#define vs_add_u32(at, value) __atomic_add_fetch(at, value, __ATOMIC_ACQ_REL)
#define vs_add_u64(at, value) __atomic_add_fetch(at, value, __ATOMIC_ACQ_REL)
static inline int vs_swap_u32(uint32_t *at, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(at, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
#define VS_INLINE static inline __attribute__((always_inline))
#define VS_APART __attribute__((noinline, unused))
#define VS_RARE __attribute__((noinline, cold, unused))
#define VS_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define vs_prefetch(at) __builtin_prefetch(at)

#elif defined(_MSC_VER) && (defined(_M_X64) || defined(_M_ARM64))

/* Aligned volatile accesses of a machine word are single there; the fences do the ordering. */
#include <intrin.h>
#if defined(_M_ARM64)
#define vs_hardware_fence() __dmb(_ARM64_BARRIER_ISH)
#else
#define vs_hardware_fence() ((void)0)   /* x64 keeps loads in order, and stores in order */
#endif
#define vs_fence_acquire() (_ReadWriteBarrier(), vs_hardware_fence(), _ReadWriteBarrier())
#define vs_fence_release() vs_fence_acquire()
static __forceinline uint8_t vs_load_u8(const volatile void *at) { return *(const volatile uint8_t *)at; }
static __forceinline uint32_t vs_load_u32(const volatile void *at) { return *(const volatile uint32_t *)at; }
static __forceinline uint64_t vs_load_u64(const volatile void *at) { return *(const volatile uint64_t *)at; }
static __forceinline void vs_store_u8(volatile void *at, uint8_t value) { *(volatile uint8_t *)at = value; }
static __forceinline void vs_store_u32(volatile void *at, uint32_t value) { *(volatile uint32_t *)at = value; }
static __forceinline void vs_store_u64(volatile void *at, uint64_t value) { *(volatile uint64_t *)at = value; }
static __forceinline uint32_t vs_acquire_u32(const volatile void *at) {
    uint32_t value = vs_load_u32(at);
    vs_fence_acquire();
    return value;
}
static __forceinline uint64_t vs_acquire_u64(const volatile void *at) {
    uint64_t value = vs_load_u64(at);
    vs_fence_acquire();
    return value;
}
static __forceinline void *vs_acquire_pointer(const volatile void *at) {
    void *value = *(void *const volatile *)at;
    vs_fence_acquire();
    return value;
}
#define vs_load(at) _Generic(*(at), uint8_t: vs_load_u8(at), uint32_t: vs_load_u32(at), default: vs_load_u64(at))
#define vs_load_acquire(at) \
    _Generic(*(at), uint32_t: vs_acquire_u32(at), uint64_t: vs_acquire_u64(at), default: vs_acquire_pointer(at))
#define vs_store(at, value) _Generic(*(at), uint8_t: vs_store_u8(at, (uint8_t)(uintptr_t)(value)), \
    uint32_t: vs_store_u32(at, (uint32_t)(uintptr_t)(value)), default: vs_store_u64(at, (uint64_t)(uintptr_t)(value)))
#define vs_store_release(at, value) (vs_fence_release(), vs_store(at, value))
#define vs_add_u32(at, value) ((uint32_t)_InterlockedExchangeAdd((volatile long *)(at), (long)(value)) + (value))
#define vs_add_u64(at, value) \
    ((uint64_t)_InterlockedExchangeAdd64((volatile __int64 *)(at), (__int64)(value)) + (value))
#define VS_INLINE static __forceinline
#define VS_APART __declspec(noinline)
#define VS_RARE __declspec(noinline)
#define VS_UNLIKELY(condition) (condition)
#define vs_prefetch(at) ((void)(at))

#else
#error "vramsel needs GCC, Clang or MSVC"
#endif

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
typedef SRWLOCK vs_lock;
static inline int vs_lock_new(vs_lock *lock) { InitializeSRWLock(lock); return 0; }
static inline void vs_lock_take(vs_lock *lock) { AcquireSRWLockExclusive(lock); }
static inline void vs_lock_drop(vs_lock *lock) { ReleaseSRWLockExclusive(lock); }
static inline void vs_lock_free(vs_lock *lock) { (void)lock; }
#define vs_follow_forks() 0
#define vs_forks_now() 0u
#else
#include <pthread.h>
#include <sched.h>

/* A thread that held the lock at a fork does not exist in the child: there, whoever comes first makes
 * it anew. `born` is the number of forks that the lock has lived through; it is atomic. */
typedef struct vs_lock {
    pthread_mutex_t mutex;
    uint32_t born;
} vs_lock;

static uint32_t vs_forks;   /* atomic: how many there are between this process and the first */

static void vs_forked(void) {
    vs_store(&vs_forks, (vs_load(&vs_forks) + 1) & 0xFFFF);
}

static inline uint32_t vs_forks_now(void) {
    return vs_load(&vs_forks);
}

/* To be called once. */
static inline int vs_follow_forks(void) {
    return pthread_atfork(NULL, NULL, vs_forked);
}

static inline int vs_lock_new(vs_lock *lock) {
    if (pthread_mutex_init(&lock->mutex, NULL)) return -1;
    vs_store_release(&lock->born, vs_forks_now());
    return 0;
}

static inline void vs_lock_take(vs_lock *lock) {
    /* Who is making it anew belongs to one process too: a child forked meanwhile begins again. */
    uint32_t now = vs_forks_now(), busy = now | 1 << 16, born;
    while (VS_UNLIKELY((born = vs_load_acquire(&lock->born)) != now)) {
        if (born == busy || !vs_swap_u32(&lock->born, born, busy))
            sched_yield();
        else if (vs_lock_new(lock))
            vs_store_release(&lock->born, born);
    }
    pthread_mutex_lock(&lock->mutex);
}

static inline void vs_lock_drop(vs_lock *lock) { pthread_mutex_unlock(&lock->mutex); }
static inline void vs_lock_free(vs_lock *lock) { pthread_mutex_destroy(&lock->mutex); }
#endif

#endif
