/* Gradients that are there, and not handed over yet: the last one of a message hands all of them
 * over.
 *
 * In a program of Python every gradient would cost a call of its own there. With mgw_hook it is a
 * function of C that is called for each, and Python runs once for a message. It is made for the
 * package, which lends it what it needs of the interpreter.
 */
#ifndef MGWFBP_NOTES_H
#define MGWFBP_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

enum { MGW_ALONE = UINT32_MAX }; /* a tensor that is handed over when it comes, not with others */

/* Of a tensor, in `seen`. */
enum { MGW_UNSEEN, MGW_HANDED_OVER, MGW_NOTED };

/*
 * The books of a step. Threads: one at a time, as Python's lock has it. Ownership: all memory is
 * the caller's.
 */
typedef struct mgw_notes {
    bool on;                 /* else every gradient is somebody's business at once */
    uint8_t *seen;           /* by tensor */
    double *at_s;            /* by tensor: when it was noted, as CLOCK_MONOTONIC has it */
    const uint32_t *message; /* by tensor: which one it is part of, or MGW_ALONE */
    uint32_t *left;          /* by message: how many of its tensors are still to come */
    unsigned sampled;        /* above 0: of tensors share, share + sampled, ... `mark` hears, too */
    unsigned share;
    void *stream;  /* with `current`: only what comes on this one is noted */
    void *current; /* Python's, or null: returns the stream as an integer */
    void *mark;    /* Python's: called with the tensor's number */
} mgw_notes;

typedef enum mgw_note { MGW_NOTE_OTHER, MGW_NOTE_TAKEN, MGW_NOTE_LAST } mgw_note;

/* A gradient has come. Other: it is not to be noted, or was seen before in this step. Last: it was
 * noted, and completes its message. */
mgw_note mgw_notes_take(mgw_notes *notes, unsigned id);

/* What the interpreter lends: its own functions of these names, which have meant the same since
 * Python 3.2. */
typedef struct mgw_python {
    void *none;                                     /* Py_None */
    void (*retain)(void *object);                   /* Py_IncRef */
    void (*release)(void *object);                  /* Py_DecRef */
    void *(*pointer_of)(void *integer);             /* PyLong_AsVoidPtr */
    void *(*call)(void *function, void *arguments); /* PyObject_CallObject */
} mgw_python;

void mgw_hook_lend(const mgw_python *python);

/* One hook. `listener` is Python's, called with `arguments`, its number, of what is not noted, and
 * of what completes a message. */
typedef struct mgw_hook_of {
    mgw_notes *notes;
    unsigned id;
    void *listener;
    void *arguments;
} mgw_hook_of;

/* A PyCFunction; `self` is the address of an mgw_hook_of, as an integer. */
void *mgw_hook(void *self, void *arguments);

/* Copies so many pieces of memory; from null: nothing. */
void mgw_copy_all(size_t count, void *const *to, const void *const *from, const size_t *bytes);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
