/*
 * Ownership of elements under plans that split all-reduces into halves: which elements a worker
 * holds averaged after the reduce-scatters, updates, and sends in the all-gathers.
 *
 * Reduce-scatters and all-gathers may cut the tensors differently. Therefore the memory of a layout
 * is split into pieces such that no operation cuts a piece. mgw_transport_block divides each piece
 * among the workers. An operation moves all of its pieces at once, as segments of one mgw_call.
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

/* Elements begin .. begin+length-1 of a dtype's memory, including gaps after tensors. */
typedef struct mgw_piece {
    mgw_dtype dtype;
    size_t begin;
    size_t length;      /* at least 1 */
    bool shared_out;    /* divided among the workers; otherwise every worker has all of it */
    size_t reduced_by;  /* index of the operation that reduces it */
    size_t gathered_by; /* and that gathers it; MGW_NO_OPERATION: it is all-reduced */
} mgw_piece;

/*
 * For operations that mgw_flow_adopt accepts, and at least one worker. Ownership: the caller
 * destroys *out; nothing is borrowed.
 */
MGW_CHECKED mgw_status mgw_shards_create(const mgw_layout *layout, const mgw_operation *operations,
                                         size_t count, unsigned workers, mgw_shards **out,
                                         mgw_error *error);
void mgw_shards_destroy(mgw_shards *shards);

unsigned mgw_shards_workers(const mgw_shards *shards);

/* In memory order, dtype by dtype. Ownership: the shards'. */
const mgw_piece *mgw_shards_pieces(const mgw_shards *shards, size_t *count);

/* The part of a piece that a rank owns: its block, or all of it. In elements of the dtype's memory;
 * may be empty. */
void mgw_shards_owned(const mgw_shards *shards, size_t piece, unsigned rank, size_t *begin,
                      size_t *length);

/* Elements first .. first+count-1 of a tensor. */
typedef struct mgw_shard {
    unsigned tensor;
    size_t first;
    size_t count; /* at least 1 */
    mgw_dtype dtype;
    size_t begin; /* its offset in the dtype's memory */
    size_t at;    /* its offset in an array that holds the rank's shards of the dtype back to back,
                     such as optimizer state */
    size_t reduced_by; /* index of the operation */
} mgw_shard;

/* The shards that a rank updates, in memory order, dtype by dtype, split at tensor boundaries: an
 * optimizer iterates over them. Ownership: the caller frees *out. */
MGW_CHECKED mgw_status mgw_shards_of(const mgw_shards *shards, unsigned rank, mgw_shard **out,
                                     size_t *count, mgw_error *error);

/* Number of elements of such an array. */
size_t mgw_shards_length(const mgw_shards *shards, unsigned rank, mgw_dtype dtype);

/*
 * The segments of an operation in a dtype's memory, for mgw_call: its pieces, which are contiguous
 * from *begin on. Returns their number; 0: the operation has nothing of that dtype. Ownership:
 * *segments is the shards'.
 */
size_t mgw_shards_segments(const mgw_shards *shards, size_t operation, mgw_dtype dtype,
                           const size_t **segments, size_t *begin, size_t *length);

/*
 * ---- From one ownership to another ----
 *
 * A new plan may assign elements to other workers. Then the optimizer state of these elements must
 * move. Nothing is computed, so it moves bit for bit.
 */

typedef enum mgw_move_kind {
    MGW_MOVE_KEEP,   /* from the old array to the new array */
    MGW_MOVE_LEND,   /* from the old array to the scratch */
    MGW_MOVE_GATHER, /* an all-gather of the scratch's first `count` elements */
    MGW_MOVE_TAKE,   /* from the scratch to the new array */
} mgw_move_kind;

/* Moves `count` elements between these offsets. */
typedef struct mgw_move {
    mgw_move_kind kind;
    size_t from;
    size_t to;
    size_t count;
} mgw_move;

/*
 * The moves, in order, that turn a rank's array of shards of a dtype under `before` into the one
 * under `after`. Both must have the same layout and number of workers. All ranks have the same
 * gathers, with the equal blocks of mgw_transport_block. The scratch has at most about `most`
 * elements (0: 4 Mi), and each gather covers all of it. Ownership: the caller frees *out.
 */
MGW_CHECKED mgw_status mgw_shards_moves(const mgw_shards *before, const mgw_shards *after,
                                        unsigned rank, mgw_dtype dtype, size_t most, mgw_move **out,
                                        size_t *count, size_t *scratch, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
