/* Tuners in one thread, as workers; the test makes up the contributions of the others. */
#ifndef TESTS_TUNERS_H
#define TESTS_TUNERS_H

#include <math.h>
#include <stdbool.h>

#include "support.h"

enum { RANKS = 3, TENSORS = 8, WORD_MOST = 64, ROW_MOST = 8 * (2 + 5 * TENSORS) };

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j",
                                    "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"};

static inline mgw_tuner *make(const mgw_tuner_options *options, size_t tensors,
                              const uint64_t *bytes, mgw_line line)
{
    mgw_tuner *tuner = NULL;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_from_line("idle", options->size < 2 ? 2 : options->size, &line, &cluster,
                              &error) ||
        mgw_tuner_create(options, tensors, names, bytes, cluster, &tuner, &error))
        fail_msg("%s", error.message);
    return tuner;
}

/* As one of `size`: 1 MB each, a gradient every 10 ms, messages of 5 ms and 5 ms per MB. */
static const uint64_t megabytes[TENSORS] = {1000000, 1000000, 1000000, 1000000,
                                            1000000, 1000000, 1000000, 1000000};
static const mgw_line usual_line = {5e-3, 5e-9};
static const double usual_ready_s[TENSORS] = {0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08};

static inline mgw_tuner_options usual(unsigned size)
{
    return (mgw_tuner_options){.policy = "optimal",
                               .profile_steps = 2,
                               .replan_steps = 10,
                               .replan_percent = 3,
                               .early_looks = 3,
                               .whole_steps = true,
                               .crowd = 1,
                               .size = size};
}

static inline mgw_tuner *make_usual(unsigned size)
{
    mgw_tuner_options options = usual(size);
    return make(&options, TENSORS, megabytes, usual_line);
}

static inline void step(mgw_tuner *tuner, const double *ready_s, double iteration_s)
{
    mgw_tuner_count(tuner);
    mgw_tuner_observe(tuner, &(mgw_step_record){.compute_s = ready_s[TENSORS - 1],
                                                .iteration_s = iteration_s,
                                                .ready_s = ready_s});
}

static inline mgw_tuner_statistics statistics_of(const mgw_tuner *tuner)
{
    mgw_tuner_statistics statistics;
    mgw_tuner_measure(tuner, &statistics);
    return statistics;
}

static inline void expect_same_operations(const mgw_tuner *left, const mgw_tuner *right)
{
    size_t count = 0;
    size_t other = 0;
    const mgw_operation *a = mgw_tuner_operations(left, &count);
    const mgw_operation *b = mgw_tuner_operations(right, &other);
    assert_int_equal(count, other);
    for (size_t m = 0; m < count; m++)
        assert_true(a[m].kind == b[m].kind && a[m].release == b[m].release &&
                    a[m].first == b[m].first && a[m].count == b[m].count &&
                    a[m].bytes == b[m].bytes);
}

static inline double iteration_with(mgw_plan *plan, const mgw_trace *trace, mgw_line line,
                                    double factor)
{
    mgw_cost cost = {.workers = 2, .cluster = "idle"};
    mgw_error error = {0};
    cost.of[MGW_ALL_REDUCE] =
        (mgw_curve){.a_s = line.a_s * factor, .b_s_per_byte = line.b_s_per_byte * factor};
    if (mgw_plan_time(plan, trace, &cost, &error))
        fail_msg("%s", error.message);
    return plan->iteration_s;
}

/* A plan of the tuner's for what it knows, as it would be with slower messages. */
static inline double slowed_s(const mgw_tuner *tuner, mgw_line line, double factor)
{
    const mgw_plan *now = mgw_tuner_plan(tuner);
    const mgw_trace *trace = mgw_tuner_trace(tuner);
    mgw_plan *copy = NULL;
    mgw_cost cost = {.workers = 2, .cluster = "idle"};
    mgw_error error = {0};
    if (mgw_plan_from_operations(trace, &cost, "copy", now->operations, now->operation_count, &copy,
                                 &error))
        fail_msg("%s", error.message);
    double iteration_s = iteration_with(copy, trace, line, factor);
    mgw_plan_destroy(copy);
    return iteration_s;
}

/* ---- Other workers ---- */

/* The others' share of what is exchanged: made up, or what rank 0 has told. */
typedef struct others {
    unsigned combines;
    unsigned tells;
    size_t sums[4];
    size_t maxima[4];
    size_t told_bytes;
    uint64_t word[WORD_MOST];
    unsigned rank;
    double failed;     /* what the others say of themselves in the end, */
    double said;       /*   and this one of itself */
    bool damages;      /* a bit of what is told */
    int fails_at;      /* the exchange itself, at which call */
    double row_factor; /* what all together have, of what one has, in sums */
} others;

static inline mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                                 mgw_error *error)
{
    others *o = context;
    if (o->fails_at == (int)(o->combines + o->tells + 1)) {
        error->status = MGW_ERR_PEER;
        snprintf(error->message, sizeof error->message, "rank 1 is gone");
        return MGW_ERR_PEER;
    }
    o->sums[o->combines] = sums;
    o->maxima[o->combines] = maxima;
    if (++o->combines == 2) { /* whether all could follow */
        assert_int_equal(sums, 0);
        assert_int_equal(maxima, 1);
        o->said = values[0];
        values[0] = fmax(values[0], o->failed);
    }
    for (size_t i = 0; o->combines == 1 && i < sums; i++)
        values[i] *= o->row_factor;
    return MGW_OK;
}

static inline mgw_status tell(void *context, void *data, size_t bytes, mgw_error *error)
{
    others *o = context;
    if (o->fails_at == (int)(o->combines + ++o->tells)) {
        error->status = MGW_ERR_PEER;
        snprintf(error->message, sizeof error->message, "rank 0 is gone");
        return MGW_ERR_PEER;
    }
    assert_true(bytes <= sizeof o->word);
    o->told_bytes = bytes;
    if (o->rank == 0)
        memcpy(o->word, data, bytes);
    else
        memcpy(data, o->word, bytes);
    if (o->damages)
        ((uint64_t *)data)[5] ^= 2;
    return MGW_OK;
}

static inline mgw_exchange exchange_of(others *o, unsigned rank, unsigned size)
{
    o->rank = rank;
    o->combines = o->tells = 0;
    if (o->row_factor == 0)
        o->row_factor = size;
    return (mgw_exchange){o, rank, size, combine, tell};
}

/* A look of one worker among equals; whether the plan has changed. */
static inline bool look(mgw_tuner *tuner, bool may_stay)
{
    others o = {0};
    mgw_exchange exchange = exchange_of(&o, 0, 1);
    mgw_error error = {0};
    bool changed = false;
    if (mgw_tuner_look(tuner, &exchange, may_stay, &changed, &error))
        fail_msg("%s", error.message);
    return changed;
}

/* The numbers that a look goes through, for one worker. */
static inline void propose(mgw_tuner *tuner, uint64_t *word)
{
    double row[ROW_MOST];
    size_t sums = 0;
    size_t maxima = 0;
    mgw_error error = {0};
    mgw_tuner_row_size(tuner, &sums, &maxima);
    assert_true(sums + maxima <= ROW_MOST);
    assert_true(mgw_tuner_word_size(tuner) <= WORD_MOST);
    mgw_tuner_row(tuner, row);
    if (mgw_tuner_propose(tuner, row, false, word, &error))
        fail_msg("%s", error.message);
}

#endif
