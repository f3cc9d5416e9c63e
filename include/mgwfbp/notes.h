/*
 * Collects ready gradients and reports them by message: the last gradient of a message reports all
 * of them.
 *
 * In a Python program, every gradient would otherwise cost a Python call. mgw_hook is a C function
 * that is called for each gradient, so that Python runs only once per message. It is meant for the
 * Python package, which passes it the functions of the interpreter that it needs.
 */
#ifndef MGWFBP_NOTES_H
#define MGWFBP_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

enum { MGW_ALONE = UINT32_MAX }; /* a tensor that is reported by itself */

/* The state of a tensor, in `seen`. */
enum { MGW_UNSEEN, MGW_HANDED_OVER, MGW_NOTED };

/*
 * The state of a step. Threads: one at a time, as the GIL ensures. Ownership: all memory is the
 * caller's.
 */
typedef struct mgw_notes {
    bool on;                 /* if false, the listener is called for every gradient */
    uint8_t *seen;           /* by tensor */
    double *at_s;            /* by tensor: when it was noted, by CLOCK_MONOTONIC */
    const uint32_t *message; /* by tensor: the message that contains it, or MGW_ALONE */
    uint32_t *left;          /* by message: how many of its tensors are not ready yet */
    unsigned sampled;        /* above 0: `mark` is called for tensors share, share + sampled, ... */
    unsigned share;
    void *stream;  /* with `current`: only gradients on this stream are noted */
    void *current; /* a Python callable that returns the stream as an integer, or null */
    void *mark;    /* a Python callable; its argument is the tensor's number */
} mgw_notes;

typedef enum mgw_note { MGW_NOTE_OTHER, MGW_NOTE_TAKEN, MGW_NOTE_LAST } mgw_note;

/* A gradient is ready. Returns MGW_NOTE_OTHER if it is not to be noted or was seen before in this
 * step, and MGW_NOTE_LAST if it was noted and completes its message. */
mgw_note mgw_notes_take(mgw_notes *notes, unsigned id);

/* Functions of the interpreter, which have been stable since Python 3.2. */
typedef struct mgw_python {
    void *none;                                     /* Py_None */
    void (*retain)(void *object);                   /* Py_IncRef */
    void (*release)(void *object);                  /* Py_DecRef */
    void *(*pointer_of)(void *integer);             /* PyLong_AsVoidPtr */
    void *(*call)(void *function, void *arguments); /* PyObject_CallObject */
} mgw_python;

void mgw_hook_lend(const mgw_python *python);

/* One hook. `listener` is a Python callable. It is called with `arguments`, the tensor's number, if
 * the gradient is not noted or completes a message. */
typedef struct mgw_hook_of {
    mgw_notes *notes;
    unsigned id;
    void *listener;
    void *arguments;
} mgw_hook_of;

/* A PyCFunction; `self` is the address of an mgw_hook_of, as an integer. */
void *mgw_hook(void *self, void *arguments);

/* Copies `count` pieces of memory; skips those with a null source. */
void mgw_copy_all(size_t count, void *const *to, const void *const *from, const size_t *bytes);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
