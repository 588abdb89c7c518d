/* Runs a batch, on several threads where that is asked for, and hears signals meanwhile.
 *
 * The threads are plain ones that never touch Python. They and the caller take part after part of
 * the sets, so that one that is held up holds up nobody. A caller that is Python's main thread, and
 * has let go of the GIL, takes it every 50 ms for as long as it takes to ask for signals: Ctrl-C
 * is heard within a few blocks of that, and then no thread begins another block. Others have no
 * signals to hear; and at exit the interpreter would end them there, with the job on their stack.
 */
#ifndef VRAMSEL_THREADS_H
#define VRAMSEL_THREADS_H

#include <Python.h>
#include <pythread.h>

#include "kernels.h"

#ifdef _WIN32
static inline int64_t vs_milliseconds(void) { return (int64_t)GetTickCount64(); }
#else
#include <time.h>
static inline int64_t vs_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
#endif

enum { VS_ASK_EVERY = 50, VS_BLOCKS_PER_LOOK = 64, VS_SHARE = 1 << 14 };

typedef struct vs_job {
    const vs_batch *batch;
    uint64_t next, end, step;   /* sets; `next` is atomic */
    uint32_t stopped;           /* atomic */
    uint32_t blocks;            /* the caller's: how many it has done */
    int64_t asked;              /* the caller's: when it last asked for signals */
    int hears;                  /* whether the caller is to ask for them */
    uint32_t forks;             /* vs_forks_now() when it began; later in a child that a handler forked */
} vs_job;

/* Ask Python for signals if it is time to: -1 when a handler raised an exception, which stays set; 1
 * in a child that a handler forked, where there are no workers. */
static int vs_hear(vs_job *job) {
    int64_t now = vs_milliseconds();
    if (!job->hears || now - job->asked < VS_ASK_EVERY) return 0;
    job->asked = now;
    PyGILState_STATE state = PyGILState_Ensure();
    int raised = PyErr_CheckSignals();
    PyGILState_Release(state);
    if (raised) vs_store(&job->stopped, 1);
    return raised ? -1 : vs_forks_now() != job->forks;
}

static int vs_ask_caller(void *who) {
    vs_job *job = (vs_job *)who;
    return ++job->blocks % VS_BLOCKS_PER_LOOK ? 0 : vs_hear(job);
}

static int vs_ask_worker(void *who) {
    return (int)vs_load(&((vs_job *)who)->stopped);
}

static int vs_work(vs_job *job, int (*ask)(void *who)) {
    vs_batch own = *job->batch;
    own.ask = ask;
    own.who = job;
    while (!vs_load(&job->stopped)) {
        uint64_t to = vs_add_u64(&job->next, job->step), from = to - job->step;
        if (from >= job->end) return 0;
        int ended = vs_run(&own, (size_t)from, (size_t)(to < job->end ? to : job->end));
        if (ended) return ended;
    }
    return -1;
}

typedef struct vs_worker {
    vs_job *job;
    PyThread_type_lock running;     /* taken until it is done */
} vs_worker;

static void vs_worker_main(void *argument) {
    vs_worker *worker = (vs_worker *)argument;
    vs_work(worker->job, vs_ask_worker);
    PyThread_release_lock(worker->running);
}

/* A thread that cannot be started leaves its share to the others. */
static int vs_worker_start(vs_worker *worker, vs_job *job) {
    worker->job = job;
    worker->running = PyThread_allocate_lock();
    if (!worker->running) return -1;
    PyThread_acquire_lock(worker->running, WAIT_LOCK);
    if (PyThread_start_new_thread(vs_worker_main, worker) != PYTHREAD_INVALID_THREAD_ID) return 0;
    PyThread_release_lock(worker->running);
    PyThread_free_lock(worker->running);
    return -1;
}

/* Sets (to classify: records) 0 to `sets`. Called without the GIL; `hears` says whether by Python's main
 * thread. -1 with an exception set. */
static int vs_run_batch(const vs_batch *batch, size_t sets, int threads, int hears) {
    vs_job job = {.batch = batch, .end = sets, .step = sets ? sets : 1, .asked = vs_milliseconds(), .hears = hears};
    job.forks = vs_forks_now();
    int raised = 0, running = 0;
    vs_worker *workers = NULL;
    if (threads > 1) {
        /* Eight parts per thread even out what one of them loses to other programs; fewer where a
         * part would be too short to be worth the trouble. */
        uint64_t parts = (batch->count + sets) / VS_SHARE, most = 8 * (uint64_t)threads;
        parts = parts < most ? parts : most;
        parts = parts < sets ? parts : sets;
        if (parts > 1) {
            job.step = (sets + parts - 1) / parts;
            if ((uint64_t)threads > parts) threads = (int)parts;
            workers = (vs_worker *)malloc((size_t)(threads - 1) * sizeof(vs_worker));
        }
        while (workers && running < threads - 1 && !raised && !vs_worker_start(&workers[running], &job)) {
            running++;
            raised = vs_hear(&job);
        }
    }
    if (!raised) raised = vs_work(&job, vs_ask_caller);
    while (running && vs_forks_now() == job.forks) {
        vs_worker *worker = &workers[--running];
        while (PyThread_acquire_lock_timed(worker->running, VS_ASK_EVERY * 1000, 0) != PY_LOCK_ACQUIRED) {
            if (!raised) raised = vs_hear(&job);
            if (vs_forks_now() != job.forks) break;     /* nobody runs here who could let go of it */
        }
        if (vs_forks_now() != job.forks) break;
        PyThread_release_lock(worker->running);
        PyThread_free_lock(worker->running);
    }
    free(workers);
    /* What the parent's workers had taken on, nobody does here: the child runs the whole batch again. */
    return raised > 0 ? vs_run_batch(batch, sets, 1, hears) : raised;
}

#endif
