/*
 * Who owns what, under plans whose operations are halves of an all-reduce: which elements a worker
 * has averaged after the reduce-scatters, updates, and sends in the all-gathers.
 *
 * Reduce-scatters and all-gathers may cut the tensors differently. So a layout's memory falls into
 * pieces, which no operation cuts, and each piece is divided among the workers by
 * mgw_transport_block; an operation moves all of its pieces at once, as segments of one mgw_call.
 *
 * Threads: any, on shards that are not being destroyed.
 */
#ifndef MGWFBP_SHARDS_H
#define MGWFBP_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/dtype.h>
#include <mgwfbp/flow.h>
#include <mgwfbp/layout.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_shards mgw_shards;

/* Elements begin .. begin+length-1 of a dtype's memory, gaps behind tensors among them. */
typedef struct mgw_piece {
    mgw_dtype dtype;
    size_t begin;
    size_t length;      /* at least 1 */
    bool shared_out;    /* divided among the workers; else everybody has it whole */
    size_t reduced_by;  /* operations, by index */
    size_t gathered_by; /* MGW_NO_OPERATION: it is all-reduced */
} mgw_piece;

/*
 * Under operations that mgw_flow_adopt takes, for so many workers, at least one. Ownership: the
 * caller destroys *out; nothing is borrowed.
 */
MGW_CHECKED mgw_status mgw_shards_create(const mgw_layout *layout, const mgw_operation *operations,
                                         size_t count, unsigned workers, mgw_shards **out,
                                         mgw_error *error);
void mgw_shards_destroy(mgw_shards *shards);

unsigned mgw_shards_workers(const mgw_shards *shards);

/* In memory order, dtype by dtype. Ownership: the shards'. */
const mgw_piece *mgw_shards_pieces(const mgw_shards *shards, size_t *count);

/* What a rank has of a piece: its block, or all of it. In elements of the dtype's memory; it may be
 * empty. */
void mgw_shards_owned(const mgw_shards *shards, size_t piece, unsigned rank, size_t *begin,
                      size_t *length);

/* Elements first .. first+count-1 of a tensor. */
typedef struct mgw_shard {
    unsigned tensor;
    size_t first;
    size_t count; /* at least 1 */
    mgw_dtype dtype;
    size_t begin; /* where in the dtype's memory */
    size_t at;    /* where in an array that holds the rank's shards of the dtype, one behind the
                     other: the state of an optimizer */
    size_t reduced_by; /* the operation, by index */
} mgw_shard;

/* The shards that a rank updates, split at tensors, in memory order, dtype by dtype: what an
 * optimizer walks over. Ownership: the caller frees *out. */
MGW_CHECKED mgw_status mgw_shards_of(const mgw_shards *shards, unsigned rank, mgw_shard **out,
                                     size_t *count, mgw_error *error);

/* Elements of such an array. */
size_t mgw_shards_length(const mgw_shards *shards, unsigned rank, mgw_dtype dtype);

/*
 * The segments of an operation in a dtype's memory, for mgw_call: its pieces, which lie one behind
 * the other from *begin on. Returns how many there are; 0: it has nothing of that dtype. Ownership:
 * *segments is the shards'.
 */
size_t mgw_shards_segments(const mgw_shards *shards, size_t operation, mgw_dtype dtype,
                           const size_t **segments, size_t *begin, size_t *length);

/*
 * ---- From one ownership to another ----
 *
 * A new plan may cut differently, and then state must move: what an optimizer keeps for elements
 * that are another worker's from now on. Nothing is computed, so it moves bit for bit.
 */

typedef enum mgw_move_kind {
    MGW_MOVE_KEEP,   /* from the array before to the array after */
    MGW_MOVE_LEND,   /* from the array before to the scratch */
    MGW_MOVE_GATHER, /* an all-gather of the scratch's first `count` elements */
    MGW_MOVE_TAKE,   /* from the scratch to the array after */
} mgw_move_kind;

/* So many elements, from there to there. */
typedef struct mgw_move {
    mgw_move_kind kind;
    size_t from;
    size_t to;
    size_t count;
} mgw_move;

/*
 * What a rank does, in order, with an array that holds its shards of a dtype under `before`, to
 * have the same under `after`; both of one layout, for as many workers. All ranks have the same
 * gathers, of equal blocks: those that mgw_transport_block says. The scratch has at most about
 * `most` elements (0: 4 Mi), and all of it is gathered each time. Ownership: the caller frees *out.
 */
MGW_CHECKED mgw_status mgw_shards_moves(const mgw_shards *before, const mgw_shards *after,
                                        unsigned rank, mgw_dtype dtype, size_t most, mgw_move **out,
                                        size_t *count, size_t *scratch, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
