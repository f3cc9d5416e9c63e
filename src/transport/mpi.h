/* Internals of the transport over MPI, and how it waits. */
#ifndef MGW_TRANSPORT_MPI_H
#define MGW_TRANSPORT_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

#include "transport/word.h"

enum { MPI_TAG_REDUCE = 0, MPI_TAG_ROLL = 29081 };

/*
 * Memory of ours. A request that timed out stays open, and MPI may write at any later time. So MPI
 * only ever sees such memory, which is never freed after a failure.
 */
typedef struct mpi_block {
    struct mpi_block *next;
    size_t bytes;
} mpi_block;

/* A buffer that grows on demand. */
typedef struct mpi_room {
    char *at;
    size_t bytes;
} mpi_room;

/*
 * How long a wait has lasted. MPI makes no progress while nobody tests, and such time does not
 * count.
 */
typedef struct mpi_patience {
    double begun_s; /* 0: not started */
    double asked_s;
    double looked_s;
    unsigned tests; /* during this wait */
} mpi_patience;

/* The check that all ranks are in the same collective: due, started, done. */
typedef enum mpi_check { MPI_CHECK_DUE, MPI_CHECK_ASKED, MPI_CHECK_DONE } mpi_check;

/* A collective in progress: a sequence of requests, each started when the previous one is done. */
typedef struct mpi_flow {
    mgw_transport_call call;
    mpi_check check; /* comes first */
    char *lent;      /* its data, in memory that MPI may use */
    bool packed;     /* there, the ranks' blocks of all segments are contiguous, rank by rank */
    size_t first;    /* of the current piece, in elements */
    size_t length;   /* its elements */
    size_t steps;    /* requests so far, after the check */
    MPI_Request request;
    mpi_patience patience;
} mpi_flow;

typedef struct mpi {
    MPI_Comm comm; /* ours; until it is created, the program's */
    MPI_Comm made;
    int rank;
    int size;
    double timeout_s;
    mpi_block *blocks;
    mpi_room stage;      /* for data in other memory */
    mpi_room parts;      /* receives other ranks' elements */
    int *counts[4];      /* by rank: counts and displacements, for sending and for receiving */
    const void **source; /* by rank: inputs of a reduction */
    uint64_t *words;     /* the check's input and output */
    mgw_word word;       /* what this rank is in */
    mpi_flow flow;
    uint64_t posted;
    uint64_t over;       /* equal to `posted`, or one less while the flow is open */
    uint64_t collective; /* collectives this rank has started */
    bool failed;         /* it can only be closed */
} mpi;

/* ---- mpi.c ---- */

/* Memory that lives until close, or for ever after a failure. Zeroed; null if out of memory. */
void *mpi_keep(mpi *m, size_t bytes);

/* Returns a buffer of `bytes`; the previous contents may be lost. Null: out of memory. */
char *mpi_make_room(mpi *m, mpi_room *room, size_t bytes);

/* Whether the range is in memory of ours. */
bool mpi_owns(const mpi *m, const char *data, size_t bytes);

/* ---- mpi_flow.c ---- */

/* Starts the first request; over at once if there is none. */
MGW_CHECKED mgw_status mpi_post(void *state, const mgw_transport_call *call, mgw_request *out,
                                mgw_error *error);
MGW_CHECKED mgw_status mpi_test(void *state, const mgw_request *request, bool *done,
                                mgw_error *error);
MGW_CHECKED mgw_status mpi_await(void *state, const mgw_request *request, mgw_error *error);

/* Waits for everything that was posted, and counts one more collective. */
MGW_CHECKED mgw_status mpi_begin(mpi *m, const char *what, mgw_error *error);

/* ---- mpi_agree.c ---- */

/*
 * mpi_ask starts the check that all ranks are in the same collective. Once it is done, mpi_answer
 * fails on all ranks if they are not. Both come after everything that was posted, when all ranks
 * have arrived.
 */
int mpi_ask(mpi *m, mgw_word word, MPI_Request *request);
MGW_CHECKED mgw_status mpi_answer(mpi *m, mgw_error *error);
MGW_CHECKED mgw_status mpi_agree(mpi *m, mgw_word word, mgw_error *error);

/* ---- mpi_wait.c ---- */

/* Whether a transport of this process has failed: then MPI_Finalize would never return. */
bool mpi_any_failed(void);

/* Reports an error from MPI: the transport has failed. */
MGW_CHECKED mgw_status mpi_fail(mpi *m, int code, const char *what, mgw_error *error);

/*
 * Call after a test found a request open. Checks now and then whether the request is overdue, or
 * others have given up; the error then names the late rank. mpi_ask_more is for callers that test
 * occasionally; the other is for callers that wait, and yields the core.
 */
MGW_CHECKED mgw_status mpi_ask_more(mpi *m, mpi_patience *patience, const char *what,
                                    mgw_error *error);

MGW_CHECKED mgw_status mpi_wait_more(mpi *m, mpi_patience *patience, const char *what,
                                     mgw_error *error);

/* Waits for a request whose start returned `code`. */
MGW_CHECKED mgw_status mpi_finish(mpi *m, int code, MPI_Request *request, const char *what,
                                  mgw_error *error);

#endif
