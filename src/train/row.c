/* The state of all workers as a row of numbers: collecting and distributing it. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/update.h"

/* Numbers sent at a time. */
enum { PIECE = 1 << 18 };

/* Where the running statistics of all workers begin. */
static size_t running_at(const train_worker *w)
{
    return nn_state_count(&w->state) - w->size * w->state.running_total;
}

/* Where this worker's begin. */
static size_t own_running_at(const train_worker *w)
{
    return running_at(w) + w->rank * w->state.running_total;
}

/* ---- Collecting ---- */

/*
 * Every number is owned by one worker, or by all. Its bits are summed as integers, which a double
 * can hold exactly. So values are preserved bit for bit, including -0 and NaN.
 */
static double to_number(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_number(double number)
{
    uint32_t bits = (uint32_t)number;
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The number of workers that own each tensor's numbers: one, or all. */
static mgw_status count_owners(train_worker *w, double *owners, mgw_error *error)
{
    size_t count = 0;
    const mgw_shard *shards = train_shards(w, &count);
    size_t tensors = (size_t)w->net->parameter_count;
    memset(owners, 0, tensors * sizeof *owners);
    for (size_t i = 0; i < count; i++)
        owners[shards[i].tensor] += (double)shards[i].count;
    mgw_status status = train_worker_sum(w, owners, tensors, error);
    for (size_t t = 0; t < tensors; t++)
        owners[t] /= (double)w->by_tensor[t]->count;
    return status;
}

static size_t later(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t earlier(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Writes this worker's part of numbers begin .. end-1 of an array, in the order of parameters. */
static void put_own(const train_worker *w, const float *array, size_t begin, size_t end,
                    double *piece)
{
    size_t count = 0;
    const mgw_shard *shards = train_shards(w, &count);
    memset(piece, 0, (end - begin) * sizeof *piece);
    for (const mgw_shard *s = shards; s < shards + count; s++) {
        size_t place = w->by_tensor[s->tensor]->offset + s->first;
        for (size_t i = later(place, begin); i < earlier(place + s->count, end); i++)
            piece[i - begin] = to_number(array[s->at + i - place]);
    }
}

static void get_all(const train_worker *w, const double *owners, const double *piece, size_t begin,
                    size_t end, float *numbers)
{
    for (int p = 0; p < w->net->parameter_count; p++) {
        const nn_parameter *parameter = &w->net->parameters[p];
        size_t behind = earlier(parameter->offset + parameter->count, end);
        for (size_t i = later(parameter->offset, begin); i < behind; i++)
            numbers[i] = from_number(piece[i - begin] / owners[parameter->tensor]);
    }
}

/* Collects an array of all workers, in the order of parameters; `numbers` null: only takes part. */
static mgw_status collect(train_worker *w, const float *array, const double *owners, double *piece,
                          float *numbers, mgw_error *error)
{
    size_t total = w->state.parameter_total;
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < total; begin += PIECE) {
        size_t end = earlier(begin + PIECE, total);
        put_own(w, array, begin, end, piece);
        status = train_worker_sum(w, piece, end - begin, error);
        if (!status && numbers)
            get_all(w, owners, piece, begin, end, numbers);
    }
    return status;
}

/* Whether every worker has the whole state: then nothing needs to be sent. */
static bool have_all(const train_worker *w, const double *owners)
{
    int t = 0;
    while (t < w->net->parameter_count && owners[t] == w->size)
        t++;
    return t == w->net->parameter_count;
}

static void copy_own(const train_worker *w, const float *array, float *numbers)
{
    size_t count = 0;
    const mgw_shard *shards = train_shards(w, &count);
    for (const mgw_shard *s = shards; s < shards + count; s++)
        memcpy(numbers + w->by_tensor[s->tensor]->offset + s->first, array + s->at,
               s->count * sizeof *numbers);
}

/* Collects the running statistics of all workers, one after the other. */
static mgw_status collect_running(train_worker *w, float *numbers, mgw_error *error)
{
    size_t each = w->state.running_total;
    if (!each)
        return MGW_OK;
    float *own = nn_allocate(each);
    double *all = calloc(each * w->size, sizeof *all); /* zero except for our own */
    mgw_status status = own && all ? MGW_OK : mgw_fail_memory(error, "worker");
    if (!status) {
        nn_state_running_out(&w->state, own);
        for (size_t i = 0; i < each; i++)
            all[w->rank * each + i] = to_number(own[i]);
        status = train_worker_sum(w, all, each * w->size, error);
    }
    for (size_t i = 0; !status && numbers && i < each * w->size; i++)
        numbers[i] = from_number(all[i]);
    free(own);
    free(all);
    return status;
}

mgw_status train_row_out(train_worker *w, float *row, mgw_error *error)
{
    double *owners = calloc((size_t)w->net->parameter_count, sizeof *owners);
    double *piece = malloc(PIECE * sizeof *piece);
    size_t total = w->state.parameter_total;
    mgw_status status = owners && piece ? MGW_OK : mgw_fail_memory(error, "worker");
    if (!status)
        status = train_update_drain(w, error);
    if (!status)
        status = count_owners(w, owners, error);
    bool travels = !status && !have_all(w, owners);
    for (int k = 0; !status && k < w->state.optimizer->array_count; k++) {
        float *numbers = row ? row + (1 + (size_t)k) * total : NULL;
        if (travels)
            status = collect(w, w->arrays[k], owners, piece, numbers, error);
        else if (numbers)
            copy_own(w, w->arrays[k], numbers);
    }
    for (int i = 0; !status && row && i < w->net->parameter_count; i++) {
        const nn_parameter *p = &w->net->parameters[i];
        memcpy(row + p->offset, p->data, p->count * sizeof *row);
    }
    if (!status)
        status = collect_running(w, row ? row + running_at(w) : NULL, error);
    free(owners);
    free(piece);
    return status;
}

/* ---- Distributing ---- */

/* Takes numbers begin .. end-1 of a part of a row: of the weights, or of one of the arrays. */
static void take(train_worker *w, int part, const float *numbers, size_t begin, size_t end)
{
    size_t count = 0;
    const mgw_shard *shards = train_shards(w, &count);
    for (int i = 0; part == 0 && i < w->net->parameter_count; i++) {
        const nn_parameter *p = &w->net->parameters[i];
        size_t from = later(p->offset, begin);
        size_t to = earlier(p->offset + p->count, end);
        if (from < to)
            memcpy(p->data + (from - p->offset), numbers + (from - begin),
                   (to - from) * sizeof *numbers);
    }
    for (const mgw_shard *s = shards; part > 0 && s < shards + count; s++) {
        size_t place = w->by_tensor[s->tensor]->offset + s->first;
        size_t from = later(place, begin);
        size_t to = earlier(place + s->count, end);
        if (from < to)
            memcpy(w->arrays[part - 1] + s->at + (from - place), numbers + (from - begin),
                   (to - from) * sizeof *numbers);
    }
}

mgw_status train_row_in(train_worker *w, const float *row, mgw_error *error)
{
    size_t total = w->state.parameter_total;
    mgw_status status = train_update_drain(w, error);
    for (int part = 0; !status && part <= w->state.optimizer->array_count; part++)
        take(w, part, row + (size_t)part * total, 0, total);
    if (!status)
        nn_state_running_in(&w->state, row + own_running_at(w));
    return status;
}

/* Broadcasts rank 0's numbers. */
static mgw_status share(train_worker *w, const float *own, float *piece, size_t count,
                        mgw_error *error)
{
    if (own)
        memcpy(piece, own, count * sizeof *piece);
    return mgw_engine_broadcast(w->engine, piece, count * sizeof *piece, error);
}

mgw_status train_row_share(train_worker *w, const float *row, mgw_error *error)
{
    size_t total = w->state.parameter_total;
    size_t running = w->state.running_total * w->size;
    float *piece = nn_allocate(later(PIECE, running));
    mgw_status status = piece ? train_update_drain(w, error) : mgw_fail_memory(error, "worker");
    for (int part = 0; part <= w->state.optimizer->array_count; part++)
        for (size_t begin = 0; !status && begin < total; begin += PIECE) {
            size_t end = earlier(begin + PIECE, total);
            const float *own = row ? row + (size_t)part * total + begin : NULL;
            status = share(w, own, piece, end - begin, error);
            if (!status)
                take(w, part, piece, begin, end);
        }
    if (!status && running)
        status = share(w, row ? row + running_at(w) : NULL, piece, running, error);
    if (!status && running)
        nn_state_running_in(&w->state, piece + w->rank * w->state.running_total);
    free(piece);
    return status;
}
