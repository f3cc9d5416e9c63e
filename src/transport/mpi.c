/*
 * The transport over MPI. It uses non-blocking collectives and tests them until done, so that every
 * wait is bounded. Whoever initialised MPI, our own communicator keeps our messages separate.
 */
#include "transport/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

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

/*
 * The smaller block before stays allocated: the room grows by at least half, so this is not much.
 */
char *mpi_make_room(mpi *m, mpi_room *room, size_t bytes)
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

bool mpi_owns(const mpi *m, const char *data, size_t bytes)
{
    for (const mpi_block *b = m->blocks; b; b = b->next) {
        const char *own = (const char *)b + ALIGNMENT;
        if (data >= own && data + bytes <= own + b->bytes)
            return true;
    }
    return false;
}

static mgw_status mpi_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    *out = mpi_keep(state, bytes);
    return *out ? MGW_OK : mgw_fail_memory(error, "mpi");
}

/* ---- Life ---- */

static pid_t initialised_by; /* if initialised by us */

/*
 * MPI can be initialised only once in a process, so if we initialised it, it is finalized when the
 * process ends. Both happen on the main thread: prepare is called there, and so are atexit
 * handlers.
 */
static void finalize(void)
{
    int finalized = 0;
    if (getpid() != initialised_by) /* a forked child, unknown to MPI */
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
        return mgw_fail(error, MGW_ERR_ARGUMENT, "mpi: the program has already finalized MPI");
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
 * An MPI that srun does not support starts every worker as a job of its own: each would train
 * alone, unnoticed.
 */
static mgw_status check_alone(const mpi *m, mgw_error *error)
{
    unsigned long tasks = mgw_transport_srun_tasks();
    if (m->size > 1 || tasks < 2 || getenv("OMPI_COMM_WORLD_SIZE"))
        return MGW_OK;
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "mpi: srun has started %lu workers, but MPI sees only this one: name the interface that "
        "this MPI supports (srun --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH)",
        tasks);
}

/* Makes our own communicator, which returns errors. */
static mgw_status join(mpi *m, mgw_error *error)
{
    MPI_Request request;
    m->comm = MPI_COMM_WORLD;
    m->made = MPI_COMM_NULL;
    m->collective = 1;
    MPI_Comm_rank(m->comm, &m->rank);
    MPI_Comm_size(m->comm, &m->size);
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

/* Allocates the tables that depend on the number of ranks. */
static mgw_status make_tables(mpi *m, mgw_error *error)
{
    size_t size = (size_t)m->size;
    int *counts = mpi_keep(m, 4 * size * sizeof *counts); /* like all memory that MPI sees */
    m->source = mpi_keep(m, size * sizeof *m->source);
    m->words = mpi_keep(m, 4 * sizeof *m->words);
    if (!counts || !m->source || !m->words)
        return mgw_fail_memory(error, "mpi");
    for (size_t i = 0; i < 4; i++)
        m->counts[i] = counts + i * size;
    return MGW_OK;
}

/*
 * After a failure, or if nobody waited, MPI may still use its buffers or be creating the
 * communicator in them. Freeing a communicator is collective: not possible with workers that are
 * gone, nor after the program has finalized MPI.
 */
static void mpi_close(void *state)
{
    mpi *m = state;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (m->failed || m->over < m->posted)
        return;
    if (!finalized && m->made != MPI_COMM_NULL)
        MPI_Comm_free(&m->made);
    for (mpi_block *b = m->blocks, *next = NULL; b; b = next) {
        next = b->next;
        free(b);
    }
    free(m);
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
        status = make_tables(m, error);
    if (!status)
        *state = m;
    else
        mpi_close(m);
    return status;
}

static void mpi_place(void *state, unsigned *rank, unsigned *size)
{
    const mpi *m = state;
    *rank = (unsigned)m->rank;
    *size = (unsigned)m->size;
}

static mgw_status mpi_barrier(void *state, mgw_error *error)
{
    return mpi_agree(state, mgw_word_make(MGW_WORD_BARRIER, IN_BUFFERS, 0), error);
}

static mgw_status mpi_meet(void *state, const mgw_transport_call *call, unsigned buffer,
                           mgw_error *error)
{
    return mpi_agree(state, mgw_word_in_buffer(call, buffer), error);
}

const mgw_transport_table mgw_transport_mpi = {
    .capabilities = MGW_MOVES_HALVES | MGW_NAMES_LATE,
    .prepare = mpi_prepare,
    .open = mpi_open,
    .place = mpi_place,
    .close = mpi_close,
    .allocate = mpi_allocate,
    .meet = mpi_meet,
    .post = mpi_post,
    .test = mpi_test,
    .wait = mpi_await,
    .barrier = mpi_barrier,
};
