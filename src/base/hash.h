/* Hashes, to check that workers agree. */
#ifndef MGW_BASE_HASH_H
#define MGW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a. */
static inline uint64_t mgw_hash(const void *data, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* The last steps of splitmix64: another number for each, without a pattern. */
static inline uint64_t mgw_mix(uint64_t z)
{
    z *= 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
