/* The optimizer on this worker's shards: updates, and its state when shards move. */
#include "train/update.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

const mgw_shard *train_shards(const train_worker *w, size_t *count)
{
    if (!w->whole)
        return mgw_engine_shards(w->engine, count);
    *count = (size_t)w->net->parameter_count;
    return w->whole;
}

/* Length of an array with one number per element of the shards. */
static size_t length_of(const mgw_shard *shards, size_t count)
{
    return count ? shards[count - 1].at + shards[count - 1].count : 0;
}

/* ---- Called by the engine ---- */

/* On the communication thread or the caller's, perhaps both at once, for different shards. */
static mgw_status update(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    (void)error;
    const train_worker *w = context;
    const nn_optimizer *optimizer = w->state.optimizer;
    for (const mgw_shard *s = shards; s < shards + count; s++) {
        float *arrays[NN_ARRAYS_MAX] = {NULL};
        for (int k = 0; k < optimizer->array_count; k++)
            arrays[k] = w->arrays[k] + s->at;
        optimizer->update(&w->rule, w->by_tensor[s->tensor]->data + s->first,
                          w->gradients[s->tensor] + s->first, arrays, s->count);
    }
    return MGW_OK;
}

static mgw_status reshard(void *context, const mgw_shard *before, size_t before_count,
                          const mgw_shard *after, size_t after_count, mgw_error *error)
{
    (void)before, (void)before_count;
    train_worker *w = context;
    mgw_status status = MGW_OK;
    for (int k = 0; !status && k < w->state.optimizer->array_count; k++) {
        float *moved = nn_allocate(length_of(after, after_count) + 1); /* it may be empty */
        if (!moved)
            return mgw_fail_memory(error, "optimizer");
        status = mgw_engine_move(w->engine, MGW_F32, w->arrays[k], moved, sizeof *moved, error);
        free(w->arrays[k]);
        w->arrays[k] = moved;
    }
    return status;
}

static mgw_status need(void *engine, unsigned tensor, mgw_error *error)
{
    return mgw_engine_need(engine, tensor, error);
}

/* ---- Opening and closing ---- */

mgw_status train_update_join(train_worker *w, mgw_error *error)
{
    if (!w->options.engine.keeps_parameters)
        return MGW_OK;
    mgw_status status = mgw_engine_on_update(w->engine, update, w, error);
    return status ? status : mgw_engine_on_reshard(w->engine, reshard, w, error);
}

/* If the engine does not keep parameters: shards are whole tensors, one after the other. */
static mgw_status own_all(train_worker *w, mgw_error *error)
{
    unsigned count = (unsigned)w->net->parameter_count;
    w->whole = calloc(count, sizeof *w->whole);
    size_t at = 0;
    for (unsigned t = 0; w->whole && t < count; t++) {
        size_t elements = w->by_tensor[t]->count;
        w->whole[t] = (mgw_shard){.tensor = t, .count = elements, .dtype = MGW_F32, .at = at};
        at += elements;
    }
    return w->whole ? MGW_OK : mgw_fail_memory(error, "optimizer");
}

mgw_status train_update_init(train_worker *w, mgw_error *error)
{
    mgw_status status = MGW_OK;
    if (w->options.engine.keeps_parameters)
        for (unsigned t = 0; t < (unsigned)w->net->parameter_count; t++)
            nn_move(w->by_tensor[t], mgw_engine_parameter(w->engine, t));
    else
        status = own_all(w, error);
    size_t count = 0;
    const mgw_shard *shards = status ? NULL : train_shards(w, &count);
    for (int k = 0; !status && k < w->state.optimizer->array_count; k++)
        if (!(w->arrays[k] = nn_allocate(length_of(shards, count) + 1)))
            status = mgw_fail_memory(error, "optimizer");
    return status;
}

void train_update_watch(train_worker *w)
{
    if (!w->options.engine.keeps_parameters)
        return;
    nn_watch_forward(w->program, need, w->engine);
    nn_change_beside(w->program);
}

void train_update_fini(train_worker *w)
{
    for (int k = 0; k < NN_ARRAYS_MAX; k++) {
        free(w->arrays[k]);
        w->arrays[k] = NULL;
    }
    free(w->whole);
    w->whole = NULL;
}

mgw_status train_update_rest(train_worker *w, mgw_error *error)
{
    return w->whole ? update(w, w->whole, (size_t)w->net->parameter_count, error) : MGW_OK;
}

mgw_status train_update_drain(train_worker *w, mgw_error *error)
{
    return w->whole ? MGW_OK : mgw_engine_drain(w->engine, error);
}

size_t train_update_bytes(const train_worker *w)
{
    size_t count = 0;
    const mgw_shard *shards = train_shards(w, &count);
    return (size_t)w->state.optimizer->array_count * length_of(shards, count) * sizeof(float);
}
