/* The inside of the layer: what its parts know of each other. */
#ifndef TESTS_INJECT_INSIDE_H
#define TESTS_INJECT_INSIDE_H

#include <dlfcn.h>
#include <stdatomic.h>

#include "inject.h"

/* ---- inject.c ---- */

/* A call of this kind, which `caller` makes: counts it, and tells whether it fails. */
bool inject_fails(inject_mode mode, const char *name, const void *caller);

/* Whether what this caller does counts now. */
bool inject_counts(const void *caller);

/* "malloc from libmgwfbp.so.0+0x1234". */
void inject_describe(const char *name, const void *caller, char *where, size_t size);

enum { INJECT_STACKS = 4096 };

/* Calls of one mode that were made by the same chain of functions. The key holds the mode in its
 * lowest bits; 0: free. */
typedef struct inject_stack {
    atomic_ulong key;
    atomic_ulong count;
} inject_stack;

/* What is known of one run of a command, also of one that crashed. The first is counted by all
 * processes that it forks. */
typedef struct inject_record {
    atomic_ulong counts[INJECT_MODES];
    long live; /* allocations that were not freed at exit */
    char where[128];
    char leak[128];
    inject_stack stacks[INJECT_STACKS];
} inject_record;

/* What is counted goes there from now on, and what fails at once. */
void inject_write_down(inject_record *to);

/* Counts by stack as well; and what is armed is the call `at` of those with this key (0: none). */
void inject_by_stack(unsigned long key);

/* ---- For who stands in front of a function ---- */

/* What comes next in the order of libraries; while it is looked for, nothing is there yet. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next)                                                                                     \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

#define CALLER __builtin_return_address(0)

#endif
