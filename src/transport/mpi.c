/* The transport over MPI. Collectives are the non-blocking ones, tested until done, so that every
 * wait is bounded. Whoever initialised MPI, a communicator of our own keeps our messages apart. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mpi.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/reduce.h"
#include "transport/transport.h"

typedef struct block {
    struct block *next;
} block;

enum { ALIGNMENT = 64, RANKS_MAX = 4096 };

typedef struct mpi {
    MPI_Comm comm;
    int rank;
    int size;
    double timeout_s;
    MPI_Op sum_f16; /* sums of 16-bit numbers, which MPI does not know */
    MPI_Op sum_bf16;
    block *blocks; /* what was allocated */
    bool failed;
} mpi;

static mgw_status fail_mpi(int code, const char *what, mgw_error *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return mgw_fail(error, MGW_ERR_PEER, "mpi: %s: %s", what, text);
}

/* ---- 16-bit sums: one rounding per hop ---- */

static void sum_halves(void *in, void *inout, int count, mgw_dtype dtype)
{
    const void *sources[2] = {inout, in};
    mgw_reduce(sources, 2, &inout, 1, (size_t)count, dtype, MGW_SUM);
}

static void sum_f16(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    sum_halves(in, inout, *count, MGW_F16);
}

static void sum_bf16(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    sum_halves(in, inout, *count, MGW_BF16);
}

/* ---- Life ---- */

/* MPI can be initialised only once in a process, so what we began ends with the process. */
static _Atomic bool any_failed;

static void finalize(void)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && !any_failed) /* it would wait for workers that are gone */
        MPI_Finalize();
}

bool mgw_mpi_wants_caller(void)
{
    int initialized = 0;
    int level = MPI_THREAD_MULTIPLE;
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Query_thread(&level);
    return initialized && level < MPI_THREAD_SERIALIZED;
}

static mgw_status initialize(mgw_error *error)
{
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "mpi: the program has ended MPI already");
    if (initialized)
        return MGW_OK;
    int level = 0;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS)
        return fail_mpi(code, "MPI_Init_thread", error);
    atexit(finalize);
    return MGW_OK;
}

static mgw_status mpi_open(const mgw_transport_options *options, void **state, mgw_error *error)
{
    mgw_status status = initialize(error);
    if (status)
        return status;
    mpi *m = calloc(1, sizeof *m);
    if (!m)
        return mgw_fail_memory(error, "mpi");
    m->timeout_s = options->timeout_s;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    if (code != MPI_SUCCESS) {
        free(m);
        return fail_mpi(code, "MPI_Comm_dup", error);
    }
    MPI_Comm_rank(m->comm, &m->rank);
    MPI_Comm_size(m->comm, &m->size);
    if (m->size > RANKS_MAX) {
        MPI_Comm_free(&m->comm);
        free(m);
        return mgw_fail(error, MGW_ERR_ARGUMENT, "mpi: at most %d workers", RANKS_MAX);
    }
    MPI_Op_create(sum_f16, 1, &m->sum_f16);
    MPI_Op_create(sum_bf16, 1, &m->sum_bf16);
    *state = m;
    return MGW_OK;
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
    /* After a failure a request may still be open, and write into our memory: that is left alone.
     */
    for (block *b = m->failed ? NULL : m->blocks, *next = NULL; b; b = next) {
        next = b->next;
        free(b);
    }
    MPI_Op_free(&m->sum_f16);
    MPI_Op_free(&m->sum_bf16);
    if (!m->failed) /* freeing is collective: not with workers that are gone */
        MPI_Comm_free(&m->comm);
    free(m);
}

static mgw_status mpi_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    mpi *m = state;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT)
        return mgw_fail_memory(error, "mpi");
    size_t size = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block *made = aligned_alloc(ALIGNMENT, size);
    if (!made)
        return mgw_fail_memory(error, "mpi");
    memset(made, 0, size);
    made->next = m->blocks;
    m->blocks = made;
    *out = (char *)made + ALIGNMENT;
    return MGW_OK;
}

/* ---- Collectives ---- */

/* Tests until done. MPI cannot say who is late, so the error names no rank. */
static mgw_status finish(mpi *m, MPI_Request *request, const char *what, mgw_error *error)
{
    double begun_s = mgw_now_s();
    int done = 0;
    for (unsigned tests = 0; !done; tests++) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            m->failed = true;
            return fail_mpi(code, what, error);
        }
        if (done || tests < 200)
            continue;
        sched_yield();
        if (tests % 64 == 0 && mgw_now_s() - begun_s > m->timeout_s) {
            m->failed = true; /* the request stays open: it cannot be cancelled */
            any_failed = true;
            return mgw_fail(error, MGW_ERR_TIMEOUT,
                            "mpi: %s: another rank than %d of %d did not come within %.3g s", what,
                            m->rank, m->size, m->timeout_s);
        }
    }
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
    return dtype == MGW_F32 ? MPI_FLOAT : dtype == MGW_F64 ? MPI_DOUBLE : MPI_UINT16_T;
}

static void divide(const mpi *m, void *data, size_t count, mgw_dtype dtype)
{
    if (dtype == MGW_F32) {
        float *numbers = data;
        for (size_t i = 0; i < count; i++)
            numbers[i] /= (float)m->size;
    } else if (dtype == MGW_F64) {
        double *numbers = data;
        for (size_t i = 0; i < count; i++)
            numbers[i] /= m->size;
    } else {
        uint16_t *halves = data;
        float number = 0;
        for (size_t i = 0; i < count; i++) {
            mgw_widen(&halves[i], &number, 1, dtype);
            number /= (float)m->size;
            mgw_narrow(&number, &halves[i], 1, dtype);
        }
    }
}

static mgw_status mpi_all_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                                 mgw_error *error)
{
    mpi *m = state;
    MPI_Op sum = dtype == MGW_F16 ? m->sum_f16 : dtype == MGW_BF16 ? m->sum_bf16 : MPI_SUM;
    size_t element = mgw_dtype_bytes(dtype);
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < count; begin += PIECE) {
        MPI_Request request;
        int code = MPI_Iallreduce(MPI_IN_PLACE, (char *)data + begin * element,
                                  piece_of(count - begin), type_of(dtype), sum, m->comm, &request);
        status = code == MPI_SUCCESS ? finish(m, &request, "all-reduce", error)
                                     : fail_mpi(code, "all-reduce", error);
    }
    if (!status && op == MGW_AVERAGE)
        divide(m, data, count, dtype);
    return status;
}

/* Bytes of one rank's part while root collects all of them, to add up in rank order. */
enum { COLLECT = 256 * 1024 };

static mgw_status collect(mpi *m, char *parts, char *own, size_t length, mgw_dtype dtype, mgw_op op,
                          mgw_error *error)
{
    const void *source[RANKS_MAX];
    size_t bytes = length * mgw_dtype_bytes(dtype);
    mgw_status status = MGW_OK;
    for (int r = 0; !status && r < m->size; r++) {
        MPI_Request request;
        source[r] = r == m->rank ? own : parts + (size_t)r * COLLECT;
        if (r == m->rank)
            continue;
        int code =
            MPI_Irecv(parts + (size_t)r * COLLECT, (int)bytes, MPI_BYTE, r, 0, m->comm, &request);
        status = code == MPI_SUCCESS ? finish(m, &request, "reduce", error)
                                     : fail_mpi(code, "reduce", error);
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
    char *parts = is_root ? malloc((size_t)m->size * COLLECT) : NULL;
    if (is_root && !parts)
        return mgw_fail_memory(error, "mpi");
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < count; begin += piece) {
        size_t length = count - begin < piece ? count - begin : piece;
        char *own = (char *)data + begin * element;
        if (is_root) {
            status = collect(m, parts, own, length, dtype, op, error);
            continue;
        }
        MPI_Request request;
        int code =
            MPI_Isend(own, (int)(length * element), MPI_BYTE, (int)root, 0, m->comm, &request);
        status = code == MPI_SUCCESS ? finish(m, &request, "reduce", error)
                                     : fail_mpi(code, "reduce", error);
    }
    free(parts);
    return status;
}

static mgw_status mpi_broadcast(void *state, void *data, size_t bytes, unsigned root,
                                mgw_error *error)
{
    mpi *m = state;
    mgw_status status = MGW_OK;
    for (size_t begin = 0; !status && begin < bytes; begin += PIECE) {
        MPI_Request request;
        int code = MPI_Ibcast((char *)data + begin, piece_of(bytes - begin), MPI_BYTE, (int)root,
                              m->comm, &request);
        status = code == MPI_SUCCESS ? finish(m, &request, "broadcast", error)
                                     : fail_mpi(code, "broadcast", error);
    }
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
    int code = MPI_Ibarrier(m->comm, &request);
    return code == MPI_SUCCESS ? finish(m, &request, "barrier", error)
                               : fail_mpi(code, "barrier", error);
}

const mgw_transport_table mgw_transport_mpi = {
    .name = "mpi",
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
