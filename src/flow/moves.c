/*
 * Moves state from one ownership to another. The elements that a rank has of the pieces that change
 * owners form a stream. The streams are gathered one window at a time, with windows of equal length
 * for all ranks, and every rank takes the elements that it owns from now on.
 */
#include <mgwfbp/shards.h>

#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

enum { UNIT = 32, SCRATCH = 4 << 20 }; /* elements */

/* A move, and its window. */
typedef struct step {
    size_t window;
    mgw_move move;
} step;

typedef struct steps {
    step *at;
    size_t count;
    size_t room;
} steps;

typedef struct owned {
    mgw_shard *shards;
    size_t count;
} owned;

typedef struct moving {
    const mgw_shards *before;
    const mgw_shards *after;
    unsigned rank;
    mgw_dtype dtype;
    bool *moves;   /* by old piece: whether it changes owners */
    owned next;    /* what this rank owns afterwards */
    size_t window; /* elements per rank in a window */
    size_t windows;
    steps made;
} moving;

/* ---- Pieces that change owners ---- */

static size_t least(size_t x, size_t y)
{
    return x < y ? x : y;
}

static size_t largest(size_t x, size_t y)
{
    return x > y ? x : y;
}

/* Whether every rank already owned its part of the new piece, as far as that lies in the old piece.
 */
static bool stays(const moving *m, size_t piece, size_t next)
{
    size_t count = 0;
    const mgw_piece *p = &mgw_shards_pieces(m->before, &count)[piece];
    for (unsigned r = 0; r < mgw_shards_workers(m->before); r++) {
        size_t had = 0;
        size_t had_length = 0;
        size_t has = 0;
        size_t has_length = 0;
        mgw_shards_owned(m->before, piece, r, &had, &had_length);
        mgw_shards_owned(m->after, next, r, &has, &has_length);
        size_t from = largest(has, p->begin);
        size_t to = least(has + has_length, p->begin + p->length);
        if (from < to && (from < had || to > had + had_length))
            return false;
    }
    return true;
}

static bool changes(const moving *m, size_t piece)
{
    size_t count = 0;
    size_t next_count = 0;
    const mgw_piece *p = &mgw_shards_pieces(m->before, &count)[piece];
    const mgw_piece *next = mgw_shards_pieces(m->after, &next_count);
    for (size_t q = 0; p->dtype == m->dtype && q < next_count; q++)
        if (next[q].dtype == p->dtype && next[q].begin < p->begin + p->length &&
            p->begin < next[q].begin + next[q].length && !stays(m, piece, q))
            return true;
    return false;
}

/* ---- Moves ---- */

/* Appends a move, or extends the last one. */
static bool add(steps *s, size_t window, mgw_move move)
{
    step *last = s->count ? &s->at[s->count - 1] : NULL;
    if (last && last->window == window && last->move.kind == move.kind &&
        last->move.from + last->move.count == move.from &&
        last->move.to + last->move.count == move.to) {
        last->move.count += move.count;
        return true;
    }
    if (!s->at || s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        step *at = realloc(s->at, room * sizeof *at);
        if (!at)
            return false;
        s->at = at;
        s->room = room;
    }
    s->at[s->count++] = (step){window, move};
    return true;
}

/* Adds moves from or to a rank's stream, one for each window. */
static bool add_windows(moving *m, mgw_move_kind kind, unsigned rank, size_t place, size_t other,
                        size_t count)
{
    while (count) {
        size_t part = least(count, m->window - place % m->window);
        size_t scratch = rank * m->window + place % m->window;
        mgw_move move = {kind, kind == MGW_MOVE_LEND ? other : scratch,
                         kind == MGW_MOVE_LEND ? scratch : other, part};
        if (!add(&m->made, place / m->window, move))
            return false;
        place += part;
        other += part;
        count -= part;
    }
    return true;
}

/* Adds moves for the elements of another rank's old shard that this rank owns afterwards: kept, or
 * taken from that rank's stream. Advances *next to the first new shard that ends after it. */
static bool take(moving *m, const mgw_shard *had, bool keeps, unsigned rank, size_t place,
                 size_t *next)
{
    size_t end = had->begin + had->count;
    for (; *next < m->next.count; ++*next) {
        const mgw_shard *has = &m->next.shards[*next];
        size_t from = largest(has->begin, had->begin);
        size_t to = least(has->begin + has->count, end);
        size_t into = has->at + (from - has->begin);
        bool good =
            from >= to ||
            (keeps ? add(&m->made, 0,
                         (mgw_move){MGW_MOVE_KEEP, had->at + (from - had->begin), into, to - from})
                   : add_windows(m, MGW_MOVE_TAKE, rank, place + (from - had->begin), into,
                                 to - from));
        if (!good)
            return false;
        if (has->begin + has->count > end)
            break;
    }
    return true;
}

/* The shards of a rank, of the dtype. */
static mgw_status find_owned(const mgw_shards *shards, unsigned rank, mgw_dtype dtype, owned *out,
                             mgw_error *error)
{
    mgw_status status = mgw_shards_of(shards, rank, &out->shards, &out->count, error);
    size_t kept = 0;
    for (size_t i = 0; !status && i < out->count; i++)
        if (out->shards[i].dtype == dtype)
            out->shards[kept++] = out->shards[i];
    out->count = kept;
    return status;
}

/* Whether the shard is in a piece that moves; *piece is not after that piece. */
static bool is_moved(const moving *m, const mgw_shard *shard, size_t *piece)
{
    size_t count = 0;
    const mgw_piece *p = mgw_shards_pieces(m->before, &count);
    while (p[*piece].dtype != m->dtype || p[*piece].begin + p[*piece].length <= shard->begin)
        ++*piece;
    return m->moves[*piece];
}

/* Adds the moves for a rank's old shards. */
static mgw_status walk(moving *m, unsigned rank, mgw_error *error)
{
    owned had = {0};
    mgw_status status = find_owned(m->before, rank, m->dtype, &had, error);
    size_t piece = 0;
    size_t next = 0;
    size_t place = 0; /* in its stream */
    bool good = true;
    for (size_t i = 0; !status && good && i < had.count; i++) {
        const mgw_shard *shard = &had.shards[i];
        bool moved = is_moved(m, shard, &piece);
        if (moved && rank == m->rank)
            good = add_windows(m, MGW_MOVE_LEND, rank, place, shard->at, shard->count);
        if (good && (moved || rank == m->rank))
            good = take(m, shard, !moved, rank, place, &next);
        place += moved ? shard->count : 0;
    }
    free(had.shards);
    return good ? status : mgw_fail_memory(error, "moves");
}

/* Number of elements of a rank's stream. */
static mgw_status measure(const moving *m, unsigned rank, size_t *length, mgw_error *error)
{
    owned had = {0};
    mgw_status status = find_owned(m->before, rank, m->dtype, &had, error);
    size_t piece = 0;
    *length = 0;
    for (size_t i = 0; !status && i < had.count; i++)
        *length += is_moved(m, &had.shards[i], &piece) ? had.shards[i].count : 0;
    free(had.shards);
    return status;
}

/* Uses as few windows as the scratch allows, all of the same length. */
static mgw_status divide(moving *m, size_t most, mgw_error *error)
{
    size_t workers = largest(mgw_shards_workers(m->before), 1);
    size_t longest = 0;
    mgw_status status = MGW_OK;
    for (unsigned r = 0; !status && r < workers; r++) {
        size_t length = 0;
        status = measure(m, r, &length, error);
        longest = largest(longest, length);
    }
    size_t fits = largest((most ? most : SCRATCH) / workers / UNIT * UNIT, UNIT);
    m->windows = (longest + fits - 1) / fits;
    size_t each = m->windows ? (longest + m->windows - 1) / m->windows : 1;
    m->window = (each + UNIT - 1) / UNIT * UNIT;
    return status;
}

/* Keeps come first, then by window lends, gathers and takes. */
static int compare(const void *x, const void *y)
{
    const step *a = x;
    const step *b = y;
    bool a_keeps = a->move.kind == MGW_MOVE_KEEP;
    bool b_keeps = b->move.kind == MGW_MOVE_KEEP;
    if (a_keeps != b_keeps)
        return a_keeps ? -1 : 1;
    if (a->window != b->window)
        return a->window < b->window ? -1 : 1;
    if (a->move.kind != b->move.kind)
        return a->move.kind < b->move.kind ? -1 : 1;
    return (a->move.from > b->move.from) - (a->move.from < b->move.from);
}

static mgw_status make(moving *m, size_t most, mgw_error *error)
{
    size_t pieces = 0;
    unsigned workers = mgw_shards_workers(m->before);
    mgw_shards_pieces(m->before, &pieces);
    if (!(m->moves = calloc(pieces + 1, sizeof *m->moves)))
        return mgw_fail_memory(error, "moves");
    for (size_t p = 0; p < pieces; p++)
        m->moves[p] = changes(m, p);
    mgw_status status = find_owned(m->after, m->rank, m->dtype, &m->next, error);
    if (!status)
        status = divide(m, most, error);
    for (unsigned r = 0; !status && r < workers; r++)
        status = walk(m, r, error);
    for (size_t k = 0; !status && k < m->windows; k++)
        if (!add(&m->made, k, (mgw_move){MGW_MOVE_GATHER, 0, 0, workers * m->window}))
            status = mgw_fail_memory(error, "moves");
    return status;
}

/* ---- The public function ---- */

/* Checks that both have the same elements. */
static mgw_status check(const mgw_shards *before, const mgw_shards *after, unsigned rank,
                        mgw_error *error)
{
    if (mgw_shards_workers(before) != mgw_shards_workers(after))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shards: %u workers before, %u after",
                        mgw_shards_workers(before), mgw_shards_workers(after));
    if (rank >= mgw_shards_workers(before))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "shards: rank %u of %u workers", rank,
                        mgw_shards_workers(before));
    size_t ends[2][MGW_F64 + 1] = {{0}};
    for (int i = 0; i < 2; i++) {
        size_t count = 0;
        const mgw_piece *p = mgw_shards_pieces(i ? after : before, &count);
        for (size_t k = 0; k < count; k++)
            ends[i][p[k].dtype] = p[k].begin + p[k].length;
    }
    for (int d = 0; d <= MGW_F64; d++)
        if (ends[0][d] != ends[1][d])
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "shards have different layouts: %zu and %zu elements of %s", ends[0][d],
                            ends[1][d], mgw_dtype_name((mgw_dtype)d));
    return MGW_OK;
}

mgw_status mgw_shards_moves(const mgw_shards *before, const mgw_shards *after, unsigned rank,
                            mgw_dtype dtype, size_t most, mgw_move **out, size_t *count,
                            size_t *scratch, mgw_error *error)
{
    mgw_status status = check(before, after, rank, error);
    if (status)
        return status;
    moving m = {.before = before, .after = after, .rank = rank, .dtype = dtype};
    status = make(&m, most, error);
    mgw_move *moves = status ? NULL : malloc((m.made.count + 1) * sizeof *moves);
    if (moves) {
        if (m.made.count)
            qsort(m.made.at, m.made.count, sizeof *m.made.at, compare);
        for (size_t i = 0; i < m.made.count; i++)
            moves[i] = m.made.at[i].move;
        *out = moves;
        *count = m.made.count;
        *scratch = m.windows ? mgw_shards_workers(before) * m.window : 0;
    } else if (!status) {
        status = mgw_fail_memory(error, "moves");
    }
    free(m.moves);
    free(m.next.shards);
    free(m.made.at);
    return status;
}
