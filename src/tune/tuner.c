/* The tuner: counts steps, decides when to look, and adopts the plans that rank 0 sends. */
#include "tune/tuner.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"

/* ---- Creating ---- */

void mgw_tuner_destroy(mgw_tuner *tuner)
{
    if (!tuner)
        return;
    mgw_plan_destroy(tuner->ddp);
    mgw_plan_destroy(tuner->zero);
    mgw_plan_destroy(tuner->first);
    mgw_plan_destroy(tuner->plan);
    mgw_plan_destroy(tuner->proposed);
    mgw_trace_destroy(tuner->trace);
    mgw_trace_destroy(tuner->alone);
    mgw_trace_destroy(tuner->proposal);
    tune_trying_fini(tuner);
    mgw_cluster_destroy(tuner->cluster);
    tune_recent_fini(tuner);
    mgw_trace_destroy(tuner->untimed);
    free(tuner);
}

/* The parameter dtype for gradients of a dtype, by the ratio of their bytes. */
static mgw_dtype parameters_of(mgw_dtype dtype, double ratio)
{
    double bytes = (double)mgw_dtype_bytes(dtype) * ratio;
    return ratio == 1 ? dtype : bytes < 4 ? MGW_F16 : bytes < 8 ? MGW_F32 : MGW_F64;
}

static const mgw_policy ddp_buckets = {MGW_DDP, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES};
static const mgw_policy zero_buckets = {MGW_ZERO, MGW_DDP_CAP_BYTES, MGW_DDP_CAP_BYTES};

const mgw_plan *tune_peer(const mgw_tuner *tuner)
{
    return tuner->policy.kind == MGW_SHARDED ? tuner->zero : tuner->ddp;
}

/* Policies that scatter everything do so from the first step on: there may be no memory for the
 * whole state of the optimizer. */
static const mgw_policy *first_policy(const mgw_tuner *tuner)
{
    if (tuner->policy.kind == MGW_SHARDED)
        return &zero_buckets;
    bool by_size = mgw_policy_gathers(&tuner->policy) && tuner->policy.kind != MGW_OVERLAP;
    return by_size ? &tuner->policy : &ddp_buckets;
}

/*
 * The first plan, used until there is another, mostly has the buckets of PyTorch's DDP, which
 * depend only on sizes. If only whole steps are timed, these are sent after the backward pass: so
 * the first steps show how long computation takes alone, which later ones, with messages beside it,
 * do not.
 */
static mgw_status make_first(mgw_tuner *tuner, const char *const *names, const uint64_t *bytes,
                             mgw_error *error)
{
    double ratio = tuner->options.parameter_ratio;
    /* The common dtype; otherwise f32 if parameters are smaller, so that these can be f16;
     * otherwise f16. */
    mgw_dtype dtype = tuner->options.one_dtype ? tuner->options.dtype
                      : ratio > 0 && ratio < 1 ? MGW_F32
                                               : MGW_F16;
    size_t element = mgw_dtype_bytes(dtype);
    size_t n = tuner->tensor_count;
    mgw_tensor *tensors = calloc(n, sizeof *tensors);
    if (!tensors)
        return mgw_fail_memory(error, "tuner");
    for (size_t i = 0; i < n; i++)
        tensors[i] = (mgw_tensor){.count = (bytes[i] + element - 1) / element,
                                  .forward_start_s = MGW_TIME_UNKNOWN};
    mgw_cost cost;
    tune_alone(tuner, &cost);
    mgw_status status =
        mgw_trace_create("measured", dtype, 0, n, names, tensors, &tuner->untimed, error);
    if (!status && ratio > 0)
        tuner->untimed->parameter_dtype = parameters_of(dtype, ratio);
    if (!status)
        status = mgw_plan_make(tuner->untimed, &cost, &ddp_buckets, &tuner->ddp, error);
    if (!status && ratio > 0)
        status = mgw_plan_make(tuner->untimed, &cost, &zero_buckets, &tuner->zero, error);
    if (!status)
        status = mgw_plan_make(tuner->untimed, &cost, first_policy(tuner), &tuner->first, error);
    if (!status)
        tune_use_one_lane(tuner, tuner->ddp);
    if (!status && tuner->zero)
        tune_use_one_lane(tuner, tuner->zero);
    bool behind = !status && tuner->options.whole_steps && !tune_gathers(tuner);
    for (size_t m = 0; behind && m < tuner->first->operation_count; m++)
        tuner->first->operations[m].release = MGW_AFTER_BACKWARD;
    free(tensors);
    return status;
}

mgw_status mgw_tuner_create(const mgw_tuner_options *options, size_t tensor_count,
                            const char *const *names, const uint64_t *bytes, mgw_cluster *cluster,
                            mgw_tuner **out, mgw_error *error)
{
    if (tensor_count == 0 || tensor_count >= TUNE_TENSORS || options->size == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "tuner: %zu tensors, %u workers", tensor_count,
                        options->size);
    mgw_tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner)
        return mgw_fail_memory(error, "tuner");
    tuner->options = *options;
    tuner->options.policy = NULL; /* owned by the caller */
    mgw_status status = mgw_tuner_set_policy(tuner, options->policy, error);
    tuner->tensor_count = tensor_count;
    if (!status)
        status = tune_recent_init(tuner, error);
    tuner->cluster = cluster;
    if (!status)
        status = make_first(tuner, names, bytes, error);
    if (status) {
        tuner->cluster = NULL; /* still the caller's */
        mgw_tuner_destroy(tuner);
        return status;
    }
    *out = tuner;
    return MGW_OK;
}

const mgw_operation *mgw_tuner_operations(const mgw_tuner *tuner, size_t *count)
{
    const mgw_plan *plan = tuner->plan ? tuner->plan : tuner->first;
    *count = plan->operation_count;
    return plan->operations;
}

mgw_status mgw_tuner_set_policy(mgw_tuner *tuner, const char *policy, mgw_error *error)
{
    mgw_policy parsed;
    mgw_status status = mgw_policy_parse(policy, &parsed, error);
    if (!status && mgw_policy_gathers(&parsed) && !tune_gathers(tuner))
        status = mgw_fail(
            error, MGW_ERR_UNSUPPORTED,
            "policy %.60s: its plans gather parameters, which the engine does not keep", policy);
    if (status)
        return status;
    tune_stop_trying(tuner);
    tuner->policy = parsed;
    tuner->given = false;
    return MGW_OK;
}

/* ---- When to look ---- */

void mgw_tuner_count(mgw_tuner *tuner)
{
    tuner->steps++;
    tuner->since_look++;
}

/* Steps from the last look to the next. */
static size_t interval(const mgw_tuner *tuner)
{
    const mgw_tuner_options *o = &tuner->options;
    if (tune_is_trying(tuner))
        return tune_round_steps(tuner);
    int first = o->profile_steps;
    int later = o->replan_steps;
    if (tuner->looks <= (size_t)o->early_looks && first < later)
        later = first;
    int due = tuner->plan ? later : first;
    return (size_t)(due > o->sampled ? due : o->sampled + 1); /* long enough to time every tensor */
}

bool mgw_tuner_due(const mgw_tuner *tuner)
{
    return tuner->since_look >= interval(tuner);
}

/* The last steps before a look: enough to sample every tensor, or those that are kept. */
bool mgw_tuner_watches(const mgw_tuner *tuner)
{
    int sampled = tuner->options.sampled;
    size_t last = sampled ? (size_t)sampled : TUNE_RECENT;
    if (tune_is_trying(tuner)) /* trials only time whole steps */
        return false;
    return !tuner->plan || tuner->since_look + last >= interval(tuner);
}

/* ---- Reports of a worker ---- */

void mgw_tuner_observe(mgw_tuner *tuner, const mgw_step_record *record)
{
    uint64_t step = record->step ? record->step : tuner->observed + 1;
    tuner->observed = step;
    if (step <= tuner->trying.stopped)
        return;
    tuner->window.steps++;
    tuner->window.iteration_sum_s += record->iteration_s;
    tuner->window.compute_sum_s += record->compute_s;
    tuner->window.stall_sum_s += record->stall_s;
    if (record->forward_s > 0) /* moving average over about eight steps */
        tuner->forward_s += (record->forward_s - tuner->forward_s) / (tuner->forward_s > 0 ? 8 : 1);
    tune_trying_observe(tuner, record, step);
    if (!tune_is_trying(tuner)) /* plans change from turn to turn */
        tune_recent_observe(tuner, record);
}

/* The data for trials comes first, then the data for planning. */
void mgw_tuner_row_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima)
{
    *sums = *maxima = 0;
    if (!tune_is_trying(tuner))
        tune_recent_size(tuner, sums, maxima);
    *sums += tune_trying_size(tuner);
}

void mgw_tuner_row(const mgw_tuner *tuner, double *row)
{
    tune_trying_row(tuner, row);
    if (!tune_is_trying(tuner))
        tune_recent_row(tuner, row + tune_trying_size(tuner));
}

/* ---- Rank 0's message ---- */

/* The layout of a message: whether the plan changes, the learned values, the data of a trial, and
 * the new plan. In a trial there is none, so that messages between rounds are short. */
enum { CHANGES, SLOWDOWN, WORTH, STRETCH, BESIDE, HASH, TRYING };

size_t mgw_tuner_word_size(const mgw_tuner *tuner)
{
    size_t plan = tune_is_trying(tuner) ? 0 : tune_plan_words(tuner);
    return TRYING + tune_trying_words(tuner) + plan;
}

static size_t plan_at(const mgw_tuner *tuner)
{
    return TRYING + tune_trying_words(tuner);
}

static uint64_t hash_of(const mgw_tuner *tuner, const uint64_t *word)
{
    return mgw_hash(word, HASH * sizeof *word) ^
           mgw_hash(word + TRYING, (mgw_tuner_word_size(tuner) - TRYING) * sizeof *word);
}

static mgw_status learn_and_choose(mgw_tuner *tuner, const double *combined, bool may_stay,
                                   mgw_error *error)
{
    tune_take_pace(tuner, combined);
    mgw_status status = tune_learn(tuner, combined + tune_trying_size(tuner), error);
    return status ? status : tune_choose(tuner, may_stay, error);
}

mgw_status mgw_tuner_propose(mgw_tuner *tuner, const double *combined, bool may_stay,
                             uint64_t *word, mgw_error *error)
{
    mgw_status status = MGW_OK;
    if (tune_is_trying(tuner))
        tune_play(tuner, combined);
    else
        status = learn_and_choose(tuner, combined, may_stay, error);
    if (status)
        return status;
    memset(word, 0, mgw_tuner_word_size(tuner) * sizeof *word);
    word[CHANGES] = tuner->proposed != NULL;
    memcpy(&word[SLOWDOWN], &tuner->learned.slowdown, sizeof *word);
    memcpy(&word[WORTH], &tuner->learned.worth_s, sizeof *word);
    memcpy(&word[STRETCH], &tuner->model.beside.compute, sizeof *word);
    memcpy(&word[BESIDE], &tuner->model.beside.message, sizeof *word);
    tune_trying_write(tuner, word + TRYING);
    if (tuner->proposed)
        tune_write_plan(tuner->proposed, word + plan_at(tuner));
    word[HASH] = hash_of(tuner, word);
    return MGW_OK;
}

static void forget_window(mgw_tuner *tuner)
{
    mgw_tuner_statistics seen; /* shown by statistics until there are new steps */
    mgw_tuner_measure(tuner, &seen);
    tuner->window = (tune_window){.last_iteration_s = seen.iteration_s,
                                  .last_compute_s = seen.compute_s,
                                  .last_stall_s = seen.stall_s};
    tune_recent_forget(tuner);
    tuner->periods.count = 0;
    tuner->trying.begun = tuner->steps;
    tuner->since_look = 0;
    tuner->looks++;
}

/* Takes rank 0's new plan, starts its trial, or keeps the current plan; times them with this
 * worker's data. */
static mgw_status take_plans(mgw_tuner *tuner, const uint64_t *word, bool *changed,
                             mgw_error *error)
{
    char policy[MGW_POLICY_NAME_MAX];
    mgw_plan *plan = NULL;
    mgw_cost cost;
    mgw_sample *samples = NULL;
    const uint64_t *trying = word + TRYING;
    *changed = word[CHANGES] || tune_trying_begins(tuner, trying);
    mgw_status status = tune_cost(tuner, tuner->learned.slowdown, &cost, &samples, error);
    if (!status && word[CHANGES])
        status = tune_read_plan(tuner, word + plan_at(tuner),
                                mgw_policy_name(&tuner->policy, policy), &cost, &plan, error);
    else if (!status && *changed)
        status = tune_begin_trial(tuner, trying, &cost, error);
    else if (!status && tuner->plan)
        status = mgw_plan_time(tuner->plan, tuner->proposal, &cost, error);
    if (!status && (plan || (tuner->plan && !*changed)))
        status = tune_correct(tuner, plan ? plan : tuner->plan, error);
    free(samples);
    if (plan) {
        tune_keep_earlier(tuner, tuner->plan);
        tuner->plan = plan;
        tuner->plans++;
    }
    return status;
}

/* What others may plan with: a step without messages, and how both slow each other down. */
static mgw_status describe(mgw_tuner *tuner, mgw_error *error)
{
    const tune_model *m = &tuner->model;
    mgw_beside beside = {tuner->learned.slowdown, 1};
    mgw_trace *alone = NULL;
    mgw_status status = MGW_OK;
    if (m->known) {
        beside = m->beside;
        status = tune_make_trace(tuner, m->alone_s, &alone, error);
    }
    if (!status)
        status = mgw_cluster_set_beside(tuner->cluster, &beside, error);
    if (status) {
        mgw_trace_destroy(alone);
        return status;
    }
    mgw_trace_destroy(tuner->alone);
    tuner->alone = alone;
    return MGW_OK;
}

static mgw_status follow_choice(mgw_tuner *tuner, const uint64_t *word, bool *changed,
                                mgw_error *error)
{
    memcpy(&tuner->learned.slowdown, &word[SLOWDOWN], sizeof *word);
    memcpy(&tuner->learned.worth_s, &word[WORTH], sizeof *word);
    mgw_beside beside;
    memcpy(&beside.compute, &word[STRETCH], sizeof *word);
    memcpy(&beside.message, &word[BESIDE], sizeof *word);
    tune_model_follow(tuner, beside);
    mgw_status status = describe(tuner, error);
    if (!status)
        status = take_plans(tuner, word, changed, error);
    if (status)
        return status;
    mgw_plan_destroy(tuner->proposed);
    tuner->proposed = NULL;
    mgw_trace_destroy(tuner->trace);
    tuner->trace = tuner->proposal;
    tuner->proposal = NULL;
    tune_count_look(tuner);
    return MGW_OK;
}

mgw_status mgw_tuner_follow(mgw_tuner *tuner, const uint64_t *word, bool *changed, mgw_error *error)
{
    *changed = false;
    if (word[HASH] != hash_of(tuner, word) || !tune_trying_is_sane(tuner, word + TRYING))
        return mgw_fail(error, MGW_ERR_PEER, "the plan received from rank 0 is damaged");
    mgw_status status = MGW_OK;
    if (tune_is_trying(tuner))
        tune_follow_round(tuner, word + TRYING, changed);
    else
        status = follow_choice(tuner, word, changed, error);
    if (!status)
        forget_window(tuner);
    return status;
}

mgw_status mgw_tuner_set_operations(mgw_tuner *tuner, const mgw_operation *operations, size_t count,
                                    mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_plan *plan = NULL;
    mgw_cost cost;
    mgw_sample *samples = NULL;
    if (count > tune_most_operations(tuner))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "set_operations: %zu operations for %zu tensors, %s parameters", count,
                        tuner->tensor_count, tune_gathers(tuner) ? "with" : "without");
    mgw_status status = tune_cost(tuner, tuner->learned.slowdown, &cost, &samples, error);
    if (!status)
        status = tune_make_trace(tuner, tuner->learned.ready_s, &trace, error);
    if (!status)
        status = mgw_plan_from_operations(trace, &cost, "given", operations, count, &plan, error);
    free(samples);
    if (status) {
        mgw_trace_destroy(trace);
        return status;
    }
    tune_stop_trying(tuner);
    mgw_plan_destroy(tuner->plan);
    mgw_trace_destroy(tuner->trace);
    tuner->plan = plan;
    tuner->trace = trace;
    tuner->given = true;
    tuner->plans++;
    forget_window(tuner);
    return MGW_OK;
}

/* ---- A look ---- */

/* Fails on all workers if one could not follow, naming the first such rank. */
static mgw_status check_all(const mgw_exchange *exchange, mgw_status own, const mgw_error *why,
                            mgw_error *error)
{
    double failed = own ? (double)(exchange->size - exchange->rank) : 0;
    mgw_status status = exchange->combine(exchange->context, &failed, 0, 1, error);
    if (status || failed == 0)
        return status;
    if (own)
        return mgw_fail(error, own, "%s", why->message);
    return mgw_fail(error, MGW_ERR_PEER, "rank %u cannot follow the plan of rank 0",
                    exchange->size - (unsigned)failed);
}

mgw_status mgw_tuner_look(mgw_tuner *tuner, const mgw_exchange *exchange, bool may_stay,
                          bool *changed, mgw_error *error)
{
    size_t sums = 0;
    size_t maxima = 0;
    size_t words = mgw_tuner_word_size(tuner);
    mgw_tuner_row_size(tuner, &sums, &maxima);
    double *row = malloc((sums + maxima) * sizeof *row);
    uint64_t *word = malloc(words * sizeof *word);
    mgw_error why = {0};
    mgw_status own = MGW_OK; /* a rank that fails must still tell the others */
    mgw_status status = row && word ? MGW_OK : mgw_fail_memory(error, "tuner");
    if (!status) {
        mgw_tuner_row(tuner, row);
        status = exchange->combine(exchange->context, row, sums, maxima, error);
    }
    if (!status) {
        memset(word, 0, words * sizeof *word);
        own = mgw_tuner_propose(tuner, row, may_stay, word, &why);
        status = exchange->tell(exchange->context, word, words * sizeof *word, error);
    }
    if (!status && !own)
        own = mgw_tuner_follow(tuner, word, changed, &why);
    if (!status)
        status = check_all(exchange, own, &why, error);
    free(row);
    free(word);
    return status;
}

/* ---- Queries ---- */

const mgw_cluster *mgw_tuner_cluster(const mgw_tuner *tuner)
{
    return tuner->cluster;
}

const mgw_plan *mgw_tuner_plan(const mgw_tuner *tuner)
{
    return tuner->plan;
}

const mgw_trace *mgw_tuner_trace(const mgw_tuner *tuner)
{
    return tuner->alone ? tuner->alone : tuner->trace;
}

void mgw_tuner_measure(const mgw_tuner *tuner, mgw_tuner_statistics *out)
{
    const tune_window *w = &tuner->window;
    const mgw_plan *plan = tuner->plan;
    bool known = plan && !tune_is_limited(tuner, plan->operations, plan->operation_count);
    double steps = (double)w->steps;
    *out = (mgw_tuner_statistics){
        .steps = tuner->steps,
        .plans = tuner->plans,
        .iteration_s = w->steps ? w->iteration_sum_s / steps : w->last_iteration_s,
        .compute_s = w->steps ? w->compute_sum_s / steps : w->last_compute_s,
        .slowdown = tuner->learned.slowdown,
        .worth_s = tuner->learned.worth_s,
        .stretch = tuner->model.beside.compute,
        .beside = tuner->model.beside.message,
        .stall_s = w->steps ? w->stall_sum_s / steps : w->last_stall_s,
        .predicted_s = known ? plan->iteration_s : 0,
        .trials = tuner->trying.trials,
        .trial_steps = tuner->trying.steps,
        .trial_cost_s = tuner->trying.cost_s,
        .trying = tune_is_trying(tuner) ? tuner->trying.order.left : 0};
}
