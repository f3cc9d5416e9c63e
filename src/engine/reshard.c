/* A new plan makes other shards each worker's: the program's state moves with them. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/parameters.h"

/* Whether the same workers own the same elements: what is not shared out is everybody's. */
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

/* Whether the piece is one under the new plan, too: then nobody else has what one needs of it. */
static bool stays(const mgw_shards *now, const mgw_piece *piece)
{
    size_t count = 0;
    const mgw_piece *pieces = mgw_shards_pieces(now, &count);
    for (size_t i = 0; i < count; i++)
        if (pieces[i].dtype == piece->dtype && pieces[i].begin == piece->begin)
            return pieces[i].length == piece->length && pieces[i].shared_out == piece->shared_out;
    return false;
}

/* Copies shards that lie in a piece between an array of them and that piece as a whole. Every
 * tensor, and so every shard, is in one piece of any plan. */
static void copy_shards(const engine_ownership *o, const mgw_piece *piece,
                        const engine_moved *moved, char *whole, bool in)
{
    size_t bytes = moved->element_bytes;
    for (size_t i = 0; i < o->count; i++) {
        const mgw_shard *shard = &o->own[i];
        if (shard->dtype != piece->dtype || shard->begin < piece->begin ||
            shard->begin >= piece->begin + piece->length)
            continue;
        char *at = whole + (shard->begin - piece->begin) * bytes;
        if (in)
            memcpy(at, (const char *)moved->before + shard->at * bytes, shard->count * bytes);
        else
            memcpy((char *)moved->after + shard->at * bytes, at, shard->count * bytes);
    }
}

static mgw_status move_piece(mgw_engine *engine, const mgw_piece *piece, char *whole,
                             mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    const engine_moved *moved = &p->moved;
    static const mgw_dtype of_bytes[] = {[2] = MGW_F16, [4] = MGW_F32, [8] = MGW_F64};
    memset(whole, 0, piece->length * moved->element_bytes);
    copy_shards(&p->before, piece, moved, whole, true);
    mgw_status status = MGW_OK;
    if (piece->shared_out && !stays(p->now.shards, piece))
        status = mgw_transport_all_gather(engine->transport, whole, piece->length,
                                          of_bytes[moved->element_bytes], error);
    if (!status)
        copy_shards(&p->now, piece, moved, whole, false);
    return status;
}

static mgw_status move(mgw_engine *engine, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    size_t count = 0;
    const mgw_piece *pieces = mgw_shards_pieces(p->before.shards, &count);
    size_t longest = 1;
    for (size_t i = 0; i < count; i++)
        longest = pieces[i].length > longest ? pieces[i].length : longest;
    char *whole = malloc(longest * p->moved.element_bytes);
    mgw_status status = whole ? MGW_OK : mgw_fail_memory(error, "move");
    for (size_t i = 0; !status && i < count; i++)
        if (pieces[i].dtype == p->moved.dtype)
            status = move_piece(engine, &pieces[i], whole, error);
    free(whole);
    return status;
}

mgw_status mgw_engine_move(mgw_engine *engine, mgw_dtype dtype, const void *before, void *after,
                           size_t element_bytes, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    if (!p || !p->moving || engine->failed)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "move: only while a new plan moves shards");
    if (element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "move: elements of %zu bytes, not of 2, 4 or 8",
                        element_bytes);
    p->moved = (engine_moved){dtype, before, after, element_bytes};
    return engine_run(engine, move, error);
}
