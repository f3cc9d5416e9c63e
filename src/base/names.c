/* A reference-counted list of distinct names in one block of memory. */
#include "base/names.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mgw_names {
    atomic_uint references;
    size_t count;
    size_t count_capacity;
    size_t *offset; /* of each name in `pool` */
    size_t used;
    size_t pool_capacity;
    char *pool; /* null-terminated names, one after the other */
};

mgw_status mgw_names_create(mgw_names **out, mgw_error *error)
{
    mgw_names *names = calloc(1, sizeof *names);
    if (!names)
        return mgw_fail_memory(error, "names");
    atomic_init(&names->references, 1);
    *out = names;
    return MGW_OK;
}

mgw_status mgw_names_add(mgw_names *names, const char *name, mgw_error *error)
{
    size_t size = strlen(name) + 1;
    if (names->count == names->count_capacity) {
        size_t capacity = names->count_capacity ? 2 * names->count_capacity : 64;
        size_t *offset = realloc(names->offset, capacity * sizeof *offset);
        if (!offset)
            return mgw_fail_memory(error, "names");
        names->offset = offset;
        names->count_capacity = capacity;
    }
    if (size > names->pool_capacity - names->used) {
        size_t capacity = names->pool_capacity + names->pool_capacity / 2 + size + 1024;
        char *pool = realloc(names->pool, capacity);
        if (!pool)
            return mgw_fail_memory(error, "names");
        names->pool = pool;
        names->pool_capacity = capacity;
    }
    memcpy(names->pool + names->used, name, size);
    names->offset[names->count++] = names->used;
    names->used += size;
    return MGW_OK;
}

static uint64_t hash(const char *name, uint64_t seed)
{
    uint64_t value = seed;
    for (; *name; name++)
        value = (value ^ (unsigned char)*name) * 0x100000001b3u;
    return value ^ value >> 32;
}

mgw_status mgw_names_distinct(const mgw_names *names, size_t *first, size_t *second,
                              mgw_error *error)
{
    size_t slots = 16;
    while (slots < 2 * names->count)
        slots *= 2;
    size_t *table = calloc(slots, sizeof *table); /* index + 1; 0 is free */
    if (!table)
        return mgw_fail_memory(error, "names");
    *first = *second = 0;
    /* Seeded, so that nobody can prepare a file whose names all collide. */
    uint64_t seed = ((uint64_t)time(NULL) << 20 ^ (uintptr_t)table) * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < names->count && *first == *second; i++) {
        const char *name = mgw_names_get(names, i);
        size_t slot = hash(name, seed) & (slots - 1);
        while (table[slot] && strcmp(mgw_names_get(names, table[slot] - 1), name) != 0)
            slot = (slot + 1) & (slots - 1);
        if (table[slot]) {
            *first = table[slot] - 1;
            *second = i;
        }
        table[slot] = i + 1;
    }
    free(table);
    return MGW_OK;
}

bool mgw_names_equal(const mgw_names *left, const mgw_names *right)
{
    return left == right || (left->count == right->count && left->used == right->used &&
                             (left->used == 0 || !memcmp(left->pool, right->pool, left->used)));
}

size_t mgw_names_count(const mgw_names *names)
{
    return names->count;
}

const char *mgw_names_get(const mgw_names *names, size_t index)
{
    return names->pool + names->offset[index];
}

mgw_names *mgw_names_share(mgw_names *names)
{
    atomic_fetch_add_explicit(&names->references, 1, memory_order_relaxed);
    return names;
}

void mgw_names_release(mgw_names *names)
{
    if (!names || atomic_fetch_sub_explicit(&names->references, 1, memory_order_acq_rel) != 1)
        return;
    free(names->offset);
    free(names->pool);
    free(names);
}
