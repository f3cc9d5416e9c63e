/* The shortest period of any schedule: reduce-scatters, all-gathers and all-reduces of any sets of
 * tensors in any order, by exhaustive search. */
#ifndef TESTS_ANY_SCHEDULE_H
#define TESTS_ANY_SCHEDULE_H

#include "overlap_search.h"

enum { ANY_MAX = 6, ANY_STATES = 729, ANY_FRONT = 256 };

/* A schedule up to a point: when the channel is free, and the period that it needs so far. */
typedef struct any_point {
    double free_s;
    double late_s;
} any_point;

/* By what each tensor has done, in base 3: nothing, scattered, back. Only what no other point is
 * better than in both is kept. */
typedef struct any_front {
    size_t count;
    any_point points[ANY_FRONT];
} any_front;

static inline void any_add(any_front *front, any_point point)
{
    size_t kept = 0;
    for (size_t i = 0; i < front->count; i++)
        if (front->points[i].free_s <= point.free_s && front->points[i].late_s <= point.late_s)
            return;
    for (size_t i = 0; i < front->count; i++)
        if (front->points[i].free_s < point.free_s || front->points[i].late_s < point.late_s)
            front->points[kept++] = front->points[i];
    assert_true(kept < ANY_FRONT);
    front->points[kept++] = point;
    front->count = kept;
}

/* Sends one set of tensors, all of which are in state `from`. */
static inline void any_send(const overlap_problem *p, any_front *fronts, size_t state, unsigned set,
                            mgw_collective kind)
{
    static const size_t powers[] = {1, 3, 9, 27, 81, 243};
    uint64_t elements = 0;
    double ready_s = 0;
    double needed_s = INFINITY;
    size_t next = state;
    for (size_t i = 0; i < p->n; i++) {
        if (!(set >> i & 1))
            continue;
        elements += p->tensors[i].count;
        if (kind != MGW_ALL_GATHER)
            ready_s = fmax(ready_s, p->ready_s[i]);
        if (kind != MGW_REDUCE_SCATTER)
            needed_s = fmin(needed_s, p->needed_s[i]);
        next += powers[i] * (kind == MGW_ALL_REDUCE ? 2 : 1);
    }
    bool halved = kind == MGW_ALL_GATHER && p->parameters == MGW_BF16;
    double took_s = mgw_cost_seconds(&p->cost, kind, elements * (halved ? 2 : 4));
    for (size_t i = 0; i < fronts[state].count; i++) {
        any_point at = fronts[state].points[i];
        at.free_s = fmax(at.free_s, ready_s) + took_s;
        at.late_s = fmax(at.late_s, at.free_s - needed_s);
        any_add(&fronts[next], at);
    }
}

static inline double any_schedule(const overlap_problem *p)
{
    static any_front fronts[ANY_STATES];
    size_t states = 1;
    for (size_t i = 0; i < p->n; i++)
        states *= 3;
    for (size_t state = 0; state < states; state++)
        fronts[state].count = 0;
    any_add(&fronts[0], (any_point){0, p->ready_s[p->n - 1]});
    for (size_t state = 0; state + 1 < states; state++) {
        unsigned fresh = 0;
        unsigned scattered = 0;
        for (size_t i = 0, rest = state; i < p->n; i++, rest /= 3) {
            fresh |= (rest % 3 == 0) << i;
            scattered |= (rest % 3 == 1) << i;
        }
        for (unsigned set = fresh; set; set = (set - 1) & fresh) {
            any_send(p, fronts, state, set, MGW_REDUCE_SCATTER);
            any_send(p, fronts, state, set, MGW_ALL_REDUCE);
        }
        for (unsigned set = scattered; set; set = (set - 1) & scattered)
            any_send(p, fronts, state, set, MGW_ALL_GATHER);
    }
    double best_s = INFINITY;
    for (size_t i = 0; i < fronts[states - 1].count; i++)
        best_s = fmin(best_s, fronts[states - 1].points[i].late_s);
    return best_s;
}

#endif
