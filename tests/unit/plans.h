/* Random layouts, and random plans for them: all-reduces and halves, cut independently. */
#ifndef MGW_TESTS_PLANS_H
#define MGW_TESTS_PLANS_H

#include <mgwfbp/layout.h>
#include <mgwfbp/plan.h>

#include "support.h"

enum { LAYOUT_MOST = 64 };

typedef struct layout_case {
    size_t count;
    size_t counts[LAYOUT_MOST];
    mgw_dtype dtypes[LAYOUT_MOST];
} layout_case;

/* At most so many tensors, some of them empty, some larger than all blocks' lines. */
static inline void random_layout(layout_case *l, size_t most, uint64_t *random)
{
    static const unsigned limits[] = {1, 5, 70, 700};
    l->count = 1 + random_below(random, most);
    unsigned dtypes = 1 + (unsigned)random_below(random, MGW_F64 + 1);
    for (size_t i = 0; i < l->count; i++) {
        l->counts[i] = random_below(random, limits[random_below(random, 4)]);
        l->dtypes[i] = (mgw_dtype)random_below(random, dtypes);
    }
}

/*
 * Runs of tensors are all-reduced, or scattered in some cuts and gathered in others. The
 * all-gathers come last, in any order. Returns how many operations, at most two per tensor.
 */
static inline size_t random_operations(size_t tensors, mgw_operation *out, uint64_t *random)
{
    size_t count = 0;
    bool scattered[LAYOUT_MOST + 1] = {false}; /* and nothing behind the last one */
    unsigned chance = (unsigned)random_below(random, 4);
    for (size_t first = 0, length = 0; first < tensors; first += length) {
        length = 1 + random_below(random, tensors - first);
        bool half = random_below(random, 3) < chance;
        out[count++] = (mgw_operation){
            .kind = half ? MGW_REDUCE_SCATTER : MGW_ALL_REDUCE, .first = first, .count = length};
        for (size_t i = 0; half && i < length; i++)
            scattered[first + i] = true;
    }
    size_t gathers = count;
    for (size_t first = 0; first < tensors;) {
        size_t end = first;
        size_t most = 1 + random_below(random, tensors);
        while (scattered[end] && end - first < most)
            end++;
        if (end > first)
            out[count++] = (mgw_operation){.kind = MGW_ALL_GATHER,
                                           .release = MGW_AFTER_UPDATE,
                                           .first = first,
                                           .count = end - first};
        first = end > first ? end : first + 1;
    }
    for (size_t i = gathers; i < count; i++) {
        size_t k = i + random_below(random, count - i);
        mgw_operation other = out[k];
        out[k] = out[i];
        out[i] = other;
    }
    return count;
}

#endif
