/* How elements are divided among workers: one rule, for messages and for ownership. */
#ifndef MGW_BASE_BLOCK_H
#define MGW_BASE_BLOCK_H

#include <stddef.h>

/* A rank's block of `count` elements. Blocks begin at multiples of 32 elements, so that two ranks
 * never write to the same cache line. */
static inline void mgw_block(size_t count, unsigned size, unsigned rank, size_t *first,
                             size_t *length)
{
    size_t ranks = size ? size : 1;
    size_t units = (count + 31) / 32;
    size_t begin = units * rank / ranks * 32;
    size_t end = units * (rank + 1) / ranks * 32;
    begin = begin < count ? begin : count;
    end = end < count ? end : count;
    *first = begin;
    *length = end - begin;
}

#endif
