/* Memory: what the library allocates, which may fail, and what of it is not freed. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* ---- What is allocated ---- */

enum { TABLE = 1 << 18 };

static struct {
    void *at;
    const void *caller;
} table[TABLE];
static long live;
static atomic_flag table_lock = ATOMIC_FLAG_INIT;

static size_t slot_of(const void *at)
{
    return (size_t)(((uintptr_t)at * 0x9e3779b97f4a7c15u) >> 46);
}

static void lock_table(void)
{
    while (atomic_flag_test_and_set(&table_lock))
        continue;
}

/* Those that are made while calls are counted, by whom they are counted. */
static void *note(void *made, const void *caller)
{
    if (!made || !inject_counts(caller))
        return made;
    lock_table();
    size_t i = slot_of(made);
    for (size_t tries = 0; table[i].at && table[i].at != (void *)1 && tries < TABLE; tries++)
        i = (i + 1) % TABLE;
    table[i].at = made;
    table[i].caller = caller;
    live++;
    atomic_flag_clear(&table_lock);
    return made;
}

/* A hole is marked, so that what lies behind it is found. */
static void forget(const void *at)
{
    if (!at || !live)
        return;
    lock_table();
    for (size_t i = slot_of(at), tries = 0; table[i].at && tries < TABLE;
         i = (i + 1) % TABLE, tries++)
        if (table[i].at == at) {
            table[i].at = (void *)1;
            live--;
            break;
        }
    atomic_flag_clear(&table_lock);
}

long inject_live(char *where, size_t size)
{
    for (size_t i = 0; i < TABLE; i++)
        if ((uintptr_t)table[i].at > 1)
            inject_describe("memory", table[i].caller, where, size);
    return live;
}

/* dlsym itself may allocate a little. */
static char early[65536];
static size_t early_used;

static void *allocate_early(size_t size)
{
    void *made = early + early_used;
    early_used += (size + 15) / 16 * 16;
    return early_used <= sizeof early ? made : NULL;
}

static bool is_early(const void *at)
{
    return (const char *)at >= early && (const char *)at < early + sizeof early;
}

#define MEMORY(name)                                                                               \
    if (inject_fails(INJECT_MEMORY, name, CALLER)) {                                               \
        errno = ENOMEM;                                                                            \
        return NULL;                                                                               \
    }

void *malloc(size_t size)
{
    static void *(*next)(size_t);
    static bool looking;
    if (!next && looking)
        return allocate_early(size);
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    }
    MEMORY("malloc")
    return note(next(size), CALLER);
}

void *calloc(size_t count, size_t size)
{
    static void *(*next)(size_t, size_t);
    static bool looking;
    if (!next && looking)
        return allocate_early(count * size);
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "calloc");
    }
    MEMORY("calloc")
    return note(next(count, size), CALLER);
}

void *realloc(void *at, size_t size)
{
    NEXT(realloc);
    MEMORY("realloc")
    forget(at);
    return note(next(at, size), CALLER);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    NEXT(aligned_alloc);
    MEMORY("aligned_alloc")
    return note(next(alignment, size), CALLER);
}

void free(void *at)
{
    static void (*next)(void *);
    static bool looking;
    if (is_early(at) || (!next && looking)) /* looking for it frees a message */
        return;
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "free");
    }
    forget(at);
    next(at);
}

char *strdup(const char *text)
{
    NEXT(strdup);
    MEMORY("strdup")
    return note(next(text), CALLER);
}

char *strndup(const char *text, size_t most)
{
    NEXT(strndup);
    MEMORY("strndup")
    return note(next(text, most), CALLER);
}

int asprintf(char **out, const char *format, ...)
{
    va_list arguments;
    if (inject_fails(INJECT_MEMORY, "asprintf", CALLER))
        return -1;
    va_start(arguments, format);
    int length = vasprintf(out, format, arguments);
    va_end(arguments);
    if (length >= 0)
        note(*out, CALLER);
    return length;
}

int setenv(const char *name, const char *value, int overwrite)
{
    NEXT(setenv);
    if (inject_fails(INJECT_MEMORY, "setenv", CALLER)) {
        errno = ENOMEM;
        return -1;
    }
    return next(name, value, overwrite);
}

DIR *opendir(const char *path)
{
    NEXT(opendir);
    MEMORY("opendir")
    return next(path);
}

char *realpath(const char *path, char *out)
{
    NEXT(realpath);
    MEMORY("realpath")
    char *made = next(path, out);
    return out ? made : note(made, CALLER);
}
