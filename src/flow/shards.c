/* Ownership of elements: pieces that no operation cuts, each divided among the workers. */
#include <mgwfbp/shards.h>

#include <stdint.h>
#include <stdlib.h>

#include "base/block.h"
#include "base/status.h"
#include "plan/places.h"

enum { DTYPES = MGW_F64 + 1 };

typedef struct range {
    size_t first;
    size_t count;
} range;

typedef struct tensor {
    mgw_dtype dtype;
    size_t begin; /* in its dtype's memory */
    size_t count;
} tensor;

/* Every piece contains at least one tensor, and every tensor is in at most one piece. */
struct mgw_shards {
    unsigned workers;
    tensor *tensors;
    size_t piece_count;
    mgw_piece *pieces;
    range *runs;     /* by piece: its tensors, which may include some of other dtypes */
    size_t *lengths; /* by piece: its length, for mgw_call */
    range (*by_operation)[DTYPES]; /* by operation: its pieces */
};

void mgw_shards_destroy(mgw_shards *shards)
{
    if (!shards)
        return;
    free(shards->tensors);
    free(shards->pieces);
    free(shards->runs);
    free(shards->lengths);
    free(shards->by_operation);
    free(shards);
}

/* ---- Creating ---- */

static void note(mgw_shards *s, size_t operation, mgw_dtype dtype)
{
    range *r = &s->by_operation[operation][dtype];
    r->first = r->count++ ? r->first : s->piece_count;
}

/* The tensors of a run are in the same operations; their neighbours are in others. */
static void add_piece(mgw_shards *s, const mgw_layout *layout, const mgw_places *places, range run,
                      mgw_dtype dtype)
{
    size_t gathered_by = places->gathered_by[run.first];
    mgw_piece piece = {.dtype = dtype,
                       .shared_out = gathered_by != MGW_NOWHERE,
                       .reduced_by = places->averaged_by[run.first],
                       .gathered_by = gathered_by};
    mgw_layout_slice(layout, run.first, run.count, dtype, &piece.begin, &piece.length);
    if (!piece.length)
        return;
    note(s, piece.reduced_by, dtype);
    if (piece.shared_out)
        note(s, piece.gathered_by, dtype);
    else
        piece.gathered_by = MGW_NO_OPERATION;
    s->pieces[s->piece_count] = piece;
    s->runs[s->piece_count] = run;
    s->lengths[s->piece_count++] = piece.length;
}

static void cut(mgw_shards *s, const mgw_layout *layout, const mgw_places *places)
{
    size_t n = mgw_layout_tensor_count(layout);
    for (int d = 0; d < DTYPES; d++)
        for (range run = {0}; run.first < n; run.first += run.count) {
            size_t end = run.first + 1;
            while (end < n && places->averaged_by[end] == places->averaged_by[run.first] &&
                   places->gathered_by[end] == places->gathered_by[run.first])
                end++;
            run.count = end - run.first;
            add_piece(s, layout, places, run, (mgw_dtype)d);
        }
}

static mgw_status make(mgw_shards *s, const mgw_layout *layout, size_t operations, mgw_error *error)
{
    size_t n = mgw_layout_tensor_count(layout);
    s->tensors = calloc(n, sizeof *s->tensors);
    s->pieces = calloc(n, sizeof *s->pieces);
    s->runs = calloc(n, sizeof *s->runs);
    s->lengths = calloc(n, sizeof *s->lengths);
    s->by_operation = calloc(operations, sizeof *s->by_operation);
    if (!s->tensors || !s->pieces || !s->runs || !s->lengths || !s->by_operation)
        return mgw_fail_memory(error, "shards");
    for (size_t i = 0; i < n; i++)
        s->tensors[i] = (tensor){mgw_layout_dtype(layout, i), mgw_layout_offset(layout, i),
                                 mgw_layout_count(layout, i)};
    return MGW_OK;
}

mgw_status mgw_shards_create(const mgw_layout *layout, const mgw_operation *operations,
                             size_t count, unsigned workers, mgw_shards **out, mgw_error *error)
{
    if (!workers)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shards: no workers");
    mgw_places places;
    mgw_status status =
        mgw_places_init(mgw_layout_tensor_count(layout), operations, count, &places, error);
    if (status)
        return status;
    mgw_shards *s = calloc(1, sizeof *s);
    status = s ? make(s, layout, count, error) : mgw_fail_memory(error, "shards");
    if (!status) {
        s->workers = workers;
        cut(s, layout, &places);
        *out = s;
    } else {
        mgw_shards_destroy(s);
    }
    mgw_places_fini(&places);
    return status;
}

/* ---- Queries ---- */

unsigned mgw_shards_workers(const mgw_shards *shards)
{
    return shards->workers;
}

const mgw_piece *mgw_shards_pieces(const mgw_shards *shards, size_t *count)
{
    *count = shards->piece_count;
    return shards->pieces;
}

void mgw_shards_owned(const mgw_shards *shards, size_t piece, unsigned rank, size_t *begin,
                      size_t *length)
{
    const mgw_piece *p = &shards->pieces[piece];
    size_t first = 0;
    *length = p->length;
    if (p->shared_out)
        mgw_block(p->length, shards->workers, rank, &first, length);
    *begin = p->begin + first;
}

/* The part of a tensor in a piece that a rank owns; false: none. */
static bool shard_of(const mgw_shards *s, size_t piece, size_t i, unsigned rank, mgw_shard *out)
{
    const tensor *t = &s->tensors[i];
    size_t begin = 0;
    size_t length = 0;
    mgw_shards_owned(s, piece, rank, &begin, &length);
    size_t from = t->begin > begin ? t->begin : begin;
    size_t to = t->begin + t->count < begin + length ? t->begin + t->count : begin + length;
    if (t->dtype != s->pieces[piece].dtype || from >= to)
        return false;
    *out = (mgw_shard){.tensor = (unsigned)i,
                       .first = from - t->begin,
                       .count = to - from,
                       .dtype = t->dtype,
                       .begin = from,
                       .reduced_by = s->pieces[piece].reduced_by};
    return true;
}

mgw_status mgw_shards_of(const mgw_shards *shards, unsigned rank, mgw_shard **out, size_t *count,
                         mgw_error *error)
{
    if (rank >= shards->workers)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shards: rank %u of %u workers", rank,
                        shards->workers);
    size_t most = 1;
    for (size_t p = 0; p < shards->piece_count; p++)
        most += shards->runs[p].count;
    mgw_shard *made = malloc(most * sizeof *made);
    if (!made)
        return mgw_fail_memory(error, "shards");
    size_t length[DTYPES] = {0};
    size_t n = 0;
    for (size_t p = 0; p < shards->piece_count; p++)
        for (size_t k = 0; k < shards->runs[p].count; k++)
            if (shard_of(shards, p, shards->runs[p].first + k, rank, &made[n])) {
                made[n].at = length[made[n].dtype];
                length[made[n].dtype] += made[n].count;
                n++;
            }
    *out = made;
    *count = n;
    return MGW_OK;
}

size_t mgw_shards_length(const mgw_shards *shards, unsigned rank, mgw_dtype dtype)
{
    size_t length = 0;
    mgw_shard shard;
    for (size_t p = 0; p < shards->piece_count; p++)
        for (size_t k = 0; k < shards->runs[p].count && shards->pieces[p].dtype == dtype; k++)
            if (shard_of(shards, p, shards->runs[p].first + k, rank, &shard))
                length += shard.count;
    return length;
}

size_t mgw_shards_segments(const mgw_shards *shards, size_t operation, mgw_dtype dtype,
                           const size_t **segments, size_t *begin, size_t *length)
{
    const range *own = &shards->by_operation[operation][dtype];
    *segments = &shards->lengths[own->first];
    *begin = own->count ? shards->pieces[own->first].begin : 0;
    *length = 0;
    for (size_t p = own->first; p < own->first + own->count; p++)
        *length += shards->lengths[p];
    return own->count;
}
