/*
 * Calls that fail on purpose: whose calls count, and which one fails. Other files define what the
 * library calls of the C library, ask here, and pass it on unless it is its turn to fail: memory.c
 * and system.c. Linked into a test, or put in front of a command (command.c).
 */
#include <execinfo.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

const char *const inject_mode_names[] = {"nothing", "memory", "system", "interrupt", "short"};

/* ---- Whose calls count ---- */

enum { OBJECTS = 16 };

static struct {
    uintptr_t begin, end, base;
    char name[64];
} objects[OBJECTS];
static size_t object_count;
static const char *const *wanted;

static int note_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    bool is_wanted = false;
    for (const char *const *w = wanted; *w; w++)
        is_wanted |= **w ? strstr(name, *w) != NULL : !*info->dlpi_name;
    for (int i = 0; is_wanted && i < info->dlpi_phnum && object_count < OBJECTS; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        objects[object_count].begin = begin;
        objects[object_count].end = begin + part->p_memsz;
        objects[object_count].base = info->dlpi_addr;
        strncpy(objects[object_count++].name, *name ? name : "program", 63);
    }
    return 0;
}

/* -1: nobody we look at. */
static int object_of(const void *caller)
{
    for (size_t i = 0; i < object_count; i++)
        if ((uintptr_t)caller >= objects[i].begin && (uintptr_t)caller < objects[i].end)
            return (int)i;
    return -1;
}

/* ---- Counting ---- */

static inject_record *record;

static _Atomic inject_mode armed;
static atomic_ulong own_counts[INJECT_MODES];
static atomic_ulong *counted = own_counts;
static unsigned long turn;
static _Atomic(const void *) hit_caller;
static const char *hit_name;

void inject_describe(const char *name, const void *caller, char *where, size_t size)
{
    int object = object_of(caller);
    snprintf(where, size, "%s from %s+0x%lx", name, object < 0 ? "?" : objects[object].name,
             (unsigned long)((uintptr_t)caller - (object < 0 ? 0 : objects[object].base)));
}

/* ---- Stacks ---- */

static bool by_stack;
static unsigned long stack_key;

/* Made of what is the same in each run: where functions of the objects that count were left. */
static unsigned long key_of_stack(inject_mode mode)
{
    static __thread bool inside;
    void *frames[64];
    unsigned long key = 0xcbf29ce484222325u;
    if (inside)
        return 0;
    inside = true;
    int count = backtrace(frames, 64);
    inside = false;
    for (int i = 0; i < count; i++) {
        int object = object_of(frames[i]);
        if (object >= 0)
            key = (key ^ ((uintptr_t)frames[i] - objects[object].base)) * 0x100000001b3u;
    }
    return (key & ~7UL) | mode;
}

/* How many there have been with this key, with this one; 0: there is no room left. */
static unsigned long count_stack(unsigned long key)
{
    for (size_t i = (key >> 3) % INJECT_STACKS, tries = 0; tries < INJECT_STACKS;
         i = (i + 1) % INJECT_STACKS, tries++) {
        unsigned long found = 0;
        if (atomic_compare_exchange_strong(&record->stacks[i].key, &found, key) || found == key)
            return atomic_fetch_add(&record->stacks[i].count, 1) + 1;
    }
    return 0;
}

void inject_by_stack(unsigned long key)
{
    void *frame = NULL;
    backtrace(&frame, 1); /* the first one loads a library */
    stack_key = key;
    by_stack = true;
}

bool inject_fails(inject_mode mode, const char *name, const void *caller)
{
    inject_mode now_armed = atomic_load_explicit(&armed, memory_order_relaxed);
    int object = now_armed == INJECT_NOTHING ? -1 : object_of(caller);
    if (object < 0)
        return false;
    unsigned long number = atomic_fetch_add(&counted[mode], 1) + 1;
    unsigned long key = by_stack ? key_of_stack(mode) : 0;
    if (key)
        number = count_stack(key);
    bool now = number == turn && mode == now_armed && (!by_stack || key == stack_key);
    if (!now)
        return false;
    hit_name = name;
    atomic_store(&hit_caller, caller);
    if (record) /* it may crash next */
        inject_describe(name, caller, record->where, sizeof record->where);
    return true;
}

bool inject_counts(const void *caller)
{
    return atomic_load(&armed) != INJECT_NOTHING && object_of(caller) >= 0;
}

void inject_write_down(inject_record *to)
{
    record = to;
    counted = to->counts;
}

void inject_arm(inject_mode mode, unsigned long at, const char *const *whose)
{
    wanted = whose;
    object_count = 0;
    dl_iterate_phdr(note_object, NULL);
    for (int m = 0; m < INJECT_MODES; m++)
        atomic_store(&counted[m], 0);
    atomic_store(&hit_caller, NULL);
    turn = at;
    atomic_store(&armed, mode);
}

void inject_disarm(unsigned long counts[INJECT_MODES])
{
    atomic_store(&armed, INJECT_NOTHING);
    for (int m = 0; m < INJECT_MODES; m++)
        counts[m] = atomic_load(&counted[m]);
}

bool inject_hit(char *where, size_t size)
{
    const void *caller = atomic_load(&hit_caller);
    if (caller)
        inject_describe(hit_name, caller, where, size);
    return caller != NULL;
}
