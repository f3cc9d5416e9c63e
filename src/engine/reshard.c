/* A new plan changes the ownership of shards: moves the program's state accordingly. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/transport.h"

/* Whether the same workers own the same elements; pieces that are not shared out belong to all. */
static bool is_same(const mgw_shards *a, const mgw_shards *b)
{
    size_t a_count = 0;
    size_t b_count = 0;
    const mgw_piece *a_pieces = mgw_shards_pieces(a, &a_count);
    const mgw_piece *b_pieces = mgw_shards_pieces(b, &b_count);
    size_t i = 0;
    size_t j = 0;
    for (;; i++, j++) {
        while (i < a_count && !a_pieces[i].shared_out)
            i++;
        while (j < b_count && !b_pieces[j].shared_out)
            j++;
        if (i == a_count || j == b_count)
            return i == a_count && j == b_count;
        if (a_pieces[i].dtype != b_pieces[j].dtype || a_pieces[i].begin != b_pieces[j].begin ||
            a_pieces[i].length != b_pieces[j].length)
            return false;
    }
}

mgw_status engine_reshard(mgw_engine *engine, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    if (!p || !p->next.shards)
        return MGW_OK;
    pthread_mutex_lock(&p->lock);
    p->before = p->now;
    p->now = p->next;
    p->next = (engine_ownership){0};
    p->averaged = p->taken = p->said = 0;
    p->first_step = mgw_flow_step(engine->flow) + 1;
    size_t most = 2 * engine->arena.count;
    memset(engine->times.took_s, 0, most * sizeof *engine->times.took_s);
    memset(engine->times.busy_s, 0, most * sizeof *engine->times.busy_s);
    pthread_mutex_unlock(&p->lock);
    mgw_status status = MGW_OK;
    mgw_error inner = {0};
    if (p->on_reshard && p->before.shards && !is_same(p->before.shards, p->now.shards)) {
        p->moving = true;
        status = p->on_reshard(p->reshard_context, p->before.own, p->before.count, p->now.own,
                               p->now.count, &inner);
        p->moving = false;
    }
    engine_ownership_fini(&p->before);
    if (!status)
        return MGW_OK;
    engine->failed = true;
    return mgw_fail(error, status, "rank %u: reshard: %s", engine->rank,
                    inner.message[0] ? inner.message : "it failed");
}

/* ---- Moving an array ---- */

enum { SCRATCH_BYTES = 8 << 20 };

/* Scratch memory comes from the transport, which cannot free it, so it is kept. */
static mgw_status make_room(mgw_engine *engine, size_t bytes, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    if (bytes <= p->scratch_bytes)
        return MGW_OK;
    void *scratch = NULL;
    mgw_status status = mgw_transport_allocate(engine->transport, bytes, &scratch, error);
    if (!status) {
        p->scratch = scratch;
        p->scratch_bytes = bytes;
    }
    return status;
}

static mgw_status do_move(mgw_engine *engine, const mgw_move *one, mgw_error *error)
{
    static const mgw_dtype of_bytes[] = {[2] = MGW_F16, [4] = MGW_F32, [8] = MGW_F64};
    const engine_parameters *p = engine->parameters;
    const engine_moved *moved = &p->moved;
    size_t bytes = moved->element_bytes;
    if (one->kind == MGW_MOVE_GATHER)
        return engine_post(engine,
                           &(mgw_call){.kind = MGW_ALL_GATHER,
                                       .data = p->scratch,
                                       .count = one->count,
                                       .dtype = of_bytes[bytes]},
                           error);
    const char *from = one->kind == MGW_MOVE_TAKE ? p->scratch : moved->before;
    char *to = one->kind == MGW_MOVE_LEND ? p->scratch : moved->after;
    engine->place->move(engine, to + one->to * bytes, from + one->from * bytes, one->count * bytes,
                        mgw_transport_stream(engine->transport));
    return MGW_OK;
}

static mgw_status move(mgw_engine *engine, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    const engine_moved *moved = &p->moved;
    mgw_move *moves = NULL;
    size_t count = 0;
    size_t scratch = 0;
    mgw_transport_intend(engine->transport, MGW_FOR_MOVE, false);
    mgw_status status =
        mgw_shards_moves(p->before.shards, p->now.shards, engine->rank, moved->dtype,
                         SCRATCH_BYTES / moved->element_bytes, &moves, &count, &scratch, error);
    if (!status)
        status = make_room(engine, scratch * moved->element_bytes, error);
    if (!status)
        status = engine_at_place(engine, engine->place->ask, error);
    for (size_t i = 0; !status && i < count; i++)
        status = do_move(engine, &moves[i], error);
    free(moves);
    return status ? status : engine_at_place(engine, engine->place->answer, error);
}

mgw_status mgw_engine_move(mgw_engine *engine, mgw_dtype dtype, const void *before, void *after,
                           size_t element_bytes, mgw_error *error)
{
    mgw_status status = engine_check(engine, "move", error);
    if (status)
        return status;
    engine_parameters *p = engine->parameters;
    if (!p || !p->moving || engine->failed)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "move: only while a new plan moves shards");
    if (element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "move: elements must have 2, 4 or 8 bytes, not %zu", element_bytes);
    p->moved = (engine_moved){dtype, before, after, element_bytes};
    return engine_run(engine, move, error);
}
