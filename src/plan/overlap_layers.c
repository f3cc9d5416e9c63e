/* The earliest end of every suffix of the tensors, as a function of when the channel is free. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/overlap.h"

/*
 * A chain of m operations ends at the maximum of t plus all its work and, for each operation, the
 * time when its last tensor is ready plus the work from there on. ends[m][k] is the minimum of the
 * second part. The first operation, k+1..j, costs a start-up and leaves the rest to m-1 operations:
 *
 *     ends[m][k] = min over j > k of max(ready of k+1..j + m a + work_k, ends[m-1][j])
 *
 * The first argument increases with j and the second decreases, so the best j is at their crossing,
 * which moves right as k grows: one pointer suffices. See docs/explanation/model.md for the proof.
 */
typedef struct crossing {
    const double *ready_s;
    uint32_t *window; /* k+1..j-1 by decreasing ready times */
    size_t head;
    size_t tail;
} crossing;

/* When k+1..j are all ready; `before`: without j. */
static double ready_until(const crossing *c, size_t j, double *before)
{
    *before = c->tail > c->head ? c->ready_s[c->window[c->head]] : -INFINITY;
    return mgw_later(*before, c->ready_s[j]);
}

static void pass(crossing *c, size_t j)
{
    while (c->tail > c->head && c->ready_s[c->window[c->tail - 1]] <= c->ready_s[j])
        c->tail--;
    c->window[c->tail++] = (uint32_t)j;
}

/* Computes one layer; returns whether anything is less than in the previous one. */
static bool add_layer(const mgw_layers *layers, const double *ready_s, uint32_t *window,
                      double start_s, const double *before, double *next)
{
    crossing c = {.ready_s = ready_s, .window = window};
    size_t n = layers->n;
    bool less = false;
    next[n] = -INFINITY;
    for (size_t k = 0, j = 1; k < n; k++) {
        double base_s = start_s + layers->work_s[k];
        double earlier_s;
        while (c.head < c.tail && c.window[c.head] <= k)
            c.head++;
        j = j < k + 1 ? k + 1 : j;
        while (j < n && ready_until(&c, j, &earlier_s) + base_s < before[j])
            pass(&c, j++);
        double end_s = mgw_later(ready_until(&c, j, &earlier_s) + base_s, before[j]);
        if (j > k + 1) {
            double other_s = mgw_later(earlier_s + base_s, before[j - 1]);
            end_s = other_s < end_s ? other_s : end_s;
        }
        next[k] = end_s < before[k] ? end_s : before[k];
        less |= end_s < before[k];
    }
    return less;
}

static bool grow(mgw_layers *layers, size_t capacity)
{
    double **ends = realloc(layers->ends, capacity * sizeof *ends);
    if (ends)
        layers->ends = ends;
    return ends != NULL;
}

mgw_status mgw_layers_init(mgw_layers *layers, size_t n, const double *ready_s,
                           const double *work_s, double a_s, size_t most, mgw_error *error)
{
    *layers = (mgw_layers){.n = n, .a_s = a_s, .work_s = malloc((n + 1) * sizeof(double))};
    uint32_t *window = malloc((n + 1) * sizeof *window);
    bool works = layers->work_s && window && grow(layers, 16);
    works = works && (layers->ends[0] = malloc((n + 1) * sizeof(double)));
    for (size_t k = 0; works && k <= n; k++) {
        layers->work_s[k] = work_s[n] - work_s[k];
        layers->ends[0][k] = k < n ? INFINITY : -INFINITY;
    }
    bool less = true;
    while (works && less && layers->count < most) {
        size_t m = layers->count + 1;
        works = m % 16 || grow(layers, m + 16);
        works = works && (layers->ends[m] = malloc((n + 1) * sizeof(double)));
        if (!works)
            break;
        less = add_layer(layers, ready_s, window, a_s * (double)m, layers->ends[m - 1],
                         layers->ends[m]);
        if (less)
            layers->count = m;
        else
            free(layers->ends[m]);
    }
    free(window);
    return works ? MGW_OK : mgw_fail_memory(error, "overlap plan");
}

void mgw_layers_fini(mgw_layers *layers)
{
    for (size_t m = 0; layers->ends && m <= layers->count; m++)
        free(layers->ends[m]);
    free(layers->ends);
    free(layers->work_s);
    *layers = (mgw_layers){0};
}

/* With m operations, the end is the maximum of a term that increases with m and one that decreases.
 */
static double end_with(const mgw_layers *layers, size_t k, double free_s, size_t m)
{
    return mgw_later(free_s + layers->a_s * (double)m + layers->work_s[k], layers->ends[m][k]);
}

double mgw_layers_end(const mgw_layers *layers, size_t k, double free_s)
{
    if (k == layers->n)
        return free_s;
    size_t low = 1;
    size_t high = layers->count;
    while (low < high) {
        size_t m = low + (high - low) / 2;
        if (layers->ends[m][k] <= free_s + layers->a_s * (double)m + layers->work_s[k])
            high = m;
        else
            low = m + 1;
    }
    double end_s = end_with(layers, k, free_s, low);
    double fewer_s = low > 1 ? end_with(layers, k, free_s, low - 1) : INFINITY;
    return fewer_s < end_s ? fewer_s : end_s;
}

size_t mgw_layers_fewest(const mgw_layers *layers, size_t k, double end_s)
{
    size_t low = 1;
    size_t high = layers->count + 1;
    while (low < high) {
        size_t m = low + (high - low) / 2;
        if (layers->ends[m][k] <= end_s)
            high = m;
        else
            low = m + 1;
    }
    return low > layers->count ? 0 : low;
}
