/* FNV-1a, to check that workers agree. */
#ifndef MGW_BASE_HASH_H
#define MGW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t mgw_hash(const void *data, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

#endif
