/* Which NumPy arrays can be read as records just as they are. With the GIL, or a thread state. */
#ifndef VRAMSEL_ARRAYS_H
#define VRAMSEL_ARRAYS_H

#include <Python.h>
#include <numpy/arrayobject.h>

#include "sync.h"
#include "vramsel.h"

/* A descriptor that was found equal to that of records, and its names then: `dtype.names = ...` changes
 * them in place. Both are kept for ever, so that a pointer that equals one of them is that one,
 * whatever other threads do; and so there are few of them. */
typedef struct vs_twin {
    PyArray_Descr *descr;   /* stored last, under the lock; loaded without */
    PyObject *names;
} vs_twin;

enum { VS_TWINS = 32 };
static vs_twin vs_twins[VS_TWINS];
static vs_lock vs_twin_lock;

static void vs_keep_twin(PyArray_Descr *descr, PyObject *names) {
    int kept = 0;
    Py_INCREF(descr);       /* before the lock: nothing of Python's runs under it */
    Py_INCREF(names);
    vs_lock_take(&vs_twin_lock);
    for (int i = 0; i < VS_TWINS && !kept; i++) {
        vs_twin *twin = &vs_twins[i];
        if (twin->descr == descr) break;    /* it has other names since: asked for at every call now */
        if (twin->descr) continue;
        twin->names = names;
        vs_store_release(&twin->descr, descr);
        kept = 1;
    }
    vs_lock_drop(&vs_twin_lock);
    if (kept) return;
    Py_DECREF(descr);
    Py_DECREF(names);
}

/* Whether this is the descriptor of records; -1 with an exception set. */
static int vs_is_twin(PyArray_Descr *descr, PyObject *exact) {
    PyObject *names = PyDataType_NAMES(descr);
    if (!names) return 0;
    for (int i = 0; i < VS_TWINS; i++)
        if (vs_load_acquire(&vs_twins[i].descr) == descr && vs_twins[i].names == names) return 1;
    int equal = PyObject_RichCompareBool((PyObject *)descr, exact, Py_EQ);
    if (equal > 0) vs_keep_twin(descr, names);
    return equal;
}

/* To be called once, before all else. `exact` is the core's own descriptor of records, `open` the one
 * that everybody has. */
static int vs_keep_twins(PyObject *exact, PyObject *open) {
    if (vs_lock_new(&vs_twin_lock)) return -1;
    return vs_is_twin((PyArray_Descr *)open, exact) == 1 && vs_is_twin((PyArray_Descr *)exact, exact) == 1 ? 0 : -1;
}

/* Whether it is an array of records, 1-d, contiguous and aligned; -1 with an exception set. `exact` is
 * the descriptor of records. */
VS_INLINE int vs_is_exact(PyObject *candidates, PyObject *exact) {
    if (!PyArray_CheckExact(candidates)) return 0;
    PyArrayObject *array = (PyArrayObject *)candidates;
    if (PyArray_NDIM(array) != 1 || !PyArray_IS_C_CONTIGUOUS(array)) return 0;
    if ((uintptr_t)PyArray_DATA(array) % sizeof(uint64_t)) return 0;
    PyArray_Descr *descr = PyArray_DESCR(array);
    if (vs_load_acquire(&vs_twins[0].descr) == descr && vs_twins[0].names == PyDataType_NAMES(descr)) return 1;
    return vs_is_twin(descr, exact);
}

#endif
