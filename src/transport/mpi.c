/* The transport over MPI. Collectives are the non-blocking ones, tested until done, so that every
 * wait is bounded. Whoever initialised MPI, a communicator of our own keeps our messages apart. */
#include "transport/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "transport/reduce.h"
#include "transport/transport.h"

enum { ALIGNMENT = 64 };

/* ---- Memory ---- */

void *mpi_keep(mpi *m, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return NULL;
    size_t size = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    mpi_block *made = aligned_alloc(ALIGNMENT, size);
    if (!made)
        return NULL;
    memset(made, 0, size);
    *made = (mpi_block){m->blocks, bytes};
    m->blocks = made;
    return (char *)made + ALIGNMENT;
}

/* Where it was smaller stays with the other blocks: growing by half at least, that is not much. */
static char *make_room(mpi *m, mpi_room *room, size_t bytes)
{
    if (room->bytes < bytes) {
        size_t more = room->bytes + room->bytes / 2;
        size_t wanted = bytes > more ? bytes : more;
        char *at = mpi_keep(m, wanted);
        if (!at)
            return NULL;
        *room = (mpi_room){at, wanted};
    }
    return room->at;
}

/* What MPI may use instead of `data`: that itself if it is ours, or a copy. Null: no memory. */
static char *lend(mpi *m, void *data, size_t bytes)
{
    for (const mpi_block *b = m->blocks; b; b = b->next) {
        const char *own = (const char *)b + ALIGNMENT;
        if ((const char *)data >= own && (const char *)data + bytes <= own + b->bytes)
            return data;
    }
    char *stage = make_room(m, &m->stage, bytes);
    if (stage)
        memcpy(stage, data, bytes);
    return stage;
}

static void give_back(void *data, const char *lent, size_t bytes)
{
    if (lent != data)
        memcpy(data, lent, bytes);
}

static mgw_status mpi_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    *out = mpi_keep(state, bytes);
    return *out ? MGW_OK : mgw_fail_memory(error, "mpi");
}

/* ---- Life ---- */

static pid_t initialised_by; /* if by us */

/*
 * MPI can be initialised only once in a process, so what we began ends with the process. Both
 * belong to the main thread: prepare is called there, and so are the functions of atexit.
 */
static void finalize(void)
{
    int finalized = 0;
    if (getpid() != initialised_by) /* a fork, which MPI does not know */
        return;
    MPI_Finalized(&finalized);
    if (!finalized && !mpi_any_failed()) /* it would wait for workers that are gone */
        MPI_Finalize();
}

static mgw_status mpi_prepare(const mgw_transport_setup *setup, bool *caller, mgw_error *error)
{
    (void)setup;
    int initialized = 0;
    int finalized = 0;
    int level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "mpi: the program has ended MPI already");
    if (!initialized) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
            return mgw_fail(error, MGW_ERR_PEER, "mpi: MPI_Init_thread failed");
        initialised_by = getpid();
        atexit(finalize);
    }
    MPI_Query_thread(&level);
    *caller = level < MPI_THREAD_SERIALIZED;
    return MGW_OK;
}

/*
 * An MPI that srun does not speak to takes every worker for one alone: each would train for itself,
 * and nobody would know.
 */
static mgw_status check_alone(const mpi *m, mgw_error *error)
{
    unsigned long tasks = mgw_transport_srun_tasks();
    if (m->size > 1 || tasks < 2 || getenv("OMPI_COMM_WORLD_SIZE"))
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "mpi: srun has started %lu workers, but MPI sees only this one: name the "
                    "interface that this MPI speaks (srun --mpi=pmix for Open MPI, --mpi=pmi2 for "
                    "MPICH)",
                    tasks);
}

/* Our own communicator, whose errors are returned. */
static mgw_status join(mpi *m, mgw_error *error)
{
    MPI_Request request;
    m->comm = MPI_COMM_WORLD;
    m->collective = 1;
    MPI_Comm_rank(m->comm, &m->rank);
    MPI_Comm_size(m->comm, &m->size);
    if (m->size > MPI_RANKS_MAX)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "mpi: at most %d workers", MPI_RANKS_MAX);
    mgw_status status = check_alone(m, error);
    if (status)
        return status;
    int code = MPI_Comm_idup(m->comm, &m->made, &request);
    status = mpi_finish(m, code, &request, "joining the job", error);
    if (status)
        return status;
    m->comm = m->made;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    return MGW_OK;
}

static mgw_status mpi_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    bool caller = false;
    mgw_status status = mpi_prepare(setup, &caller, error);
    if (status)
        return status;
    mpi *m = calloc(1, sizeof *m);
    if (!m)
        return mgw_fail_memory(error, "mpi");
    m->timeout_s = setup->options.timeout_s;
    status = join(m, error);
    if (!status)
        *state = m;
    else if (!m->failed) /* else MPI may still make the communicator, in there */
        free(m);
    return status;
}

static void mpi_place(void *state, unsigned *rank, unsigned *size)
{
    const mpi *m = state;
    *rank = (unsigned)m->rank;
    *size = (unsigned)m->size;
}

static void mpi_close(void *state)
{
    mpi *m = state;
    /* Freeing a communicator is collective: not with workers that are gone. And MPI may still use
     * what it was given. */
    if (!m->failed) {
        MPI_Comm_free(&m->comm);
        for (mpi_block *b = m->blocks, *next = NULL; b; b = next) {
            next = b->next;
            free(b);
        }
        free(m);
    }
}

/* ---- Collectives ---- */

static mgw_status begin(mpi *m, const char *what, mgw_error *error)
{
    if (m->failed)
        return mgw_fail(error, MGW_ERR_PEER, "mpi: %s: the transport failed before; close it",
                        what);
    m->collective++;
    return MGW_OK;
}

/* MPI counts in int. */
enum { PIECE = 1 << 28 };

static int piece_of(size_t left)
{
    return left < PIECE ? (int)left : PIECE;
}

static MPI_Datatype type_of(mgw_dtype dtype)
{
    return dtype == MGW_F32 ? MPI_FLOAT : MPI_DOUBLE;
}

static void divide(const mpi *m, void *data, size_t count, mgw_dtype dtype)
{
    float *floats = data;
    double *doubles = data;
    for (size_t i = 0; i < count; i++)
        if (dtype == MGW_F32)
            floats[i] /= (float)m->size;
        else
            doubles[i] /= m->size;
}

static mgw_status sum_by_mpi(mpi *m, char *data, size_t count, mgw_dtype dtype, mgw_op op,
                             mgw_error *error)
{
    MPI_Request request;
    int code = MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, type_of(dtype),
                              op == MGW_MAX ? MPI_MAX : MPI_SUM, m->comm, &request);
    mgw_status status = mpi_finish(m, code, &request, "all-reduce", error);
    if (!status && op == MGW_AVERAGE)
        divide(m, data, count, dtype);
    return status;
}

/*
 * MPI does not know 16-bit numbers, and sums of them would be rounded, and might overflow, at every
 * hop. So each rank gets everybody's elements of its block, adds these up, and tells all.
 */
static mgw_status sum_halves(mpi *m, char *data, size_t count, mgw_dtype dtype, mgw_op op,
                             mgw_error *error)
{
    int *length = m->counts[0]; /* kept, as all that MPI sees */
    int *begin = m->counts[1];
    int *part_length = m->counts[2];
    int *part_begin = m->counts[3];
    const void *source[MPI_RANKS_MAX];
    size_t first = 0;
    size_t own = 0;
    mgw_transport_block(count, (unsigned)m->size, (unsigned)m->rank, &first, &own);
    char *parts = make_room(m, &m->parts, (own * (size_t)m->size + 1) * sizeof(uint16_t));
    if (!parts)
        return mgw_fail_memory(error, "mpi");
    for (int r = 0; r < m->size; r++) {
        size_t at = 0;
        size_t elements = 0;
        mgw_transport_block(count, (unsigned)m->size, (unsigned)r, &at, &elements);
        length[r] = (int)elements;
        begin[r] = (int)at;
        part_length[r] = (int)own;
        part_begin[r] = (int)((size_t)r * own);
        source[r] = parts + (size_t)r * own * sizeof(uint16_t);
    }
    MPI_Request request;
    int code = MPI_Ialltoallv(data, length, begin, MPI_UINT16_T, parts, part_length, part_begin,
                              MPI_UINT16_T, m->comm, &request);
    mgw_status status = mpi_finish(m, code, &request, "all-reduce", error);
    if (status)
        return status;
    void *target = data + first * sizeof(uint16_t);
    mgw_reduce(source, (size_t)m->size, &target, 1, own, dtype, op);
    code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_UINT16_T, data, length, begin, MPI_UINT16_T,
                           m->comm, &request);
    return mpi_finish(m, code, &request, "all-reduce", error);
}

static mgw_status mpi_all_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                                 mgw_error *error)
{
    mpi *m = state;
    size_t element = mgw_dtype_bytes(dtype);
    mgw_status status = begin(m, "all-reduce", error);
    char *lent = status || !count ? data : lend(m, data, count * element);
    if (!status && count && !lent)
        status = mgw_fail_memory(error, "mpi");
    for (size_t first = 0; !status && first < count; first += PIECE)
        status = (element == sizeof(uint16_t) ? sum_halves : sum_by_mpi)(
            m, lent + first * element, (size_t)piece_of(count - first), dtype, op, error);
    if (!status && count)
        give_back(data, lent, count * element);
    return status;
}

/* Bytes of one rank's part while root collects all of them, to add up in rank order. */
enum { COLLECT = 256 * 1024 };

static mgw_status collect(mpi *m, char *parts, char *own, size_t length, mgw_dtype dtype, mgw_op op,
                          mgw_error *error)
{
    const void *source[MPI_RANKS_MAX];
    size_t bytes = length * mgw_dtype_bytes(dtype);
    mgw_status status = MGW_OK;
    for (int r = 0; !status && r < m->size; r++) {
        MPI_Request request;
        char *part = parts + (size_t)r * COLLECT;
        source[r] = r == m->rank ? own : part;
        if (r == m->rank)
            continue;
        int code = MPI_Irecv(part, (int)bytes, MPI_BYTE, r, MPI_TAG_REDUCE, m->comm, &request);
        status = mpi_finish(m, code, &request, "reduce", error);
    }
    void *target = own;
    if (!status)
        mgw_reduce(source, (size_t)m->size, &target, 1, length, dtype, op);
    return status;
}

static mgw_status mpi_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                             unsigned root, mgw_error *error)
{
    mpi *m = state;
    size_t element = mgw_dtype_bytes(dtype);
    size_t piece = COLLECT / element;
    bool is_root = m->rank == (int)root;
    mgw_status status = begin(m, "reduce", error);
    if (status || !count)
        return status;
    char *memory = is_root ? make_room(m, &m->parts, (size_t)m->size * COLLECT)
                           : lend(m, data, count * element);
    if (!memory)
        return mgw_fail_memory(error, "mpi");
    for (size_t first = 0; !status && first < count; first += piece) {
        size_t length = count - first < piece ? count - first : piece;
        if (is_root) {
            status = collect(m, memory, (char *)data + first * element, length, dtype, op, error);
            continue;
        }
        MPI_Request request;
        int code = MPI_Isend(memory + first * element, (int)(length * element), MPI_BYTE, (int)root,
                             MPI_TAG_REDUCE, m->comm, &request);
        status = mpi_finish(m, code, &request, "reduce", error);
    }
    return status;
}

static mgw_status mpi_broadcast(void *state, void *data, size_t bytes, unsigned root,
                                mgw_error *error)
{
    mpi *m = state;
    mgw_status status = begin(m, "broadcast", error);
    char *lent = status || !bytes ? data : lend(m, data, bytes);
    if (!status && bytes && !lent)
        status = mgw_fail_memory(error, "mpi");
    for (size_t first = 0; !status && first < bytes; first += PIECE) {
        MPI_Request request;
        int code = MPI_Ibcast(lent + first, piece_of(bytes - first), MPI_BYTE, (int)root, m->comm,
                              &request);
        status = mpi_finish(m, code, &request, "broadcast", error);
    }
    if (!status && bytes)
        give_back(data, lent, bytes);
    return status;
}

/* Every rank's block from its owner. */
static mgw_status mpi_all_gather(void *state, void *data, size_t count, mgw_dtype dtype,
                                 mgw_error *error)
{
    mpi *m = state;
    size_t element = mgw_dtype_bytes(dtype);
    mgw_status status = MGW_OK;
    for (int r = 0; !status && r < m->size; r++) {
        size_t first = 0;
        size_t length = 0;
        mgw_transport_block(count, (unsigned)m->size, (unsigned)r, &first, &length);
        status =
            mpi_broadcast(m, (char *)data + first * element, length * element, (unsigned)r, error);
    }
    return status;
}

static mgw_status mpi_barrier(void *state, mgw_error *error)
{
    mpi *m = state;
    MPI_Request request;
    mgw_status status = begin(m, "barrier", error);
    if (status)
        return status;
    int code = MPI_Ibarrier(m->comm, &request);
    return mpi_finish(m, code, &request, "barrier", error);
}

const mgw_transport_table mgw_transport_mpi = {
    .prepare = mpi_prepare,
    .open = mpi_open,
    .place = mpi_place,
    .close = mpi_close,
    .allocate = mpi_allocate,
    .all_reduce = mpi_all_reduce,
    .reduce_scatter = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .reduce = mpi_reduce,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
};
