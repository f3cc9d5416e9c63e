/* What the transport over MPI is made of, and how it waits. */
#ifndef MGW_TRANSPORT_MPI_H
#define MGW_TRANSPORT_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

#include "transport/word.h"

enum { MPI_TAG_REDUCE = 0, MPI_TAG_ROLL = 29081 };

/*
 * Memory of ours. A request that timed out stays open, and MPI may write at any time later: so it
 * only ever sees such memory, which after a failure is never freed.
 */
typedef struct mpi_block {
    struct mpi_block *next;
    size_t bytes;
} mpi_block;

/* A place that grows with what is put there. */
typedef struct mpi_room {
    char *at;
    size_t bytes;
} mpi_room;

/* How long somebody has been waiting: while nobody asks, MPI does nothing, and that is no wait. */
typedef struct mpi_patience {
    double begun_s; /* 0: it has not begun */
    double asked_s;
    double looked_s;
    unsigned tests; /* while it waited */
} mpi_patience;

/* Whether all ranks are in the same collective: is to be asked, was asked, is known. */
typedef enum mpi_check { MPI_CHECK_DUE, MPI_CHECK_ASKED, MPI_CHECK_DONE } mpi_check;

/* A collective under way: one request after the other, each begun when the one before is done. */
typedef struct mpi_flow {
    mgw_transport_call call;
    mpi_check check; /* comes before all else */
    char *lent;      /* its data, where MPI may use it */
    bool packed;   /* there, ranks' blocks of all segments lie one behind the other, rank by rank */
    size_t first;  /* of the piece under way, in elements */
    size_t length; /* its elements */
    size_t steps;  /* requests so far, behind the check */
    MPI_Request request;
    mpi_patience patience;
} mpi_flow;

typedef struct mpi {
    MPI_Comm comm; /* ours; until that is made, the program's */
    MPI_Comm made;
    int rank;
    int size;
    double timeout_s;
    mpi_block *blocks;
    mpi_room stage;      /* for data from elsewhere */
    mpi_room parts;      /* for what others' numbers are collected in */
    int *counts[4];      /* by rank: elements, and where they begin: sent, and received */
    const void **source; /* by rank: what is added up */
    uint64_t *words;     /* what is asked, and comes back */
    mgw_word word;       /* what this rank is in */
    mpi_flow flow;
    uint64_t posted;
    uint64_t over;       /* the same, or one less: then the flow is open */
    uint64_t collective; /* how many this rank has come to */
    bool failed;         /* only closing is left */
} mpi;

/* ---- mpi.c ---- */

/* Memory that lives until close, or for ever after a failure. Zeroed; null if there is none. */
void *mpi_keep(mpi *m, size_t bytes);

/* A place of so many bytes; what was there before may be gone. Null: no memory. */
char *mpi_make_room(mpi *m, mpi_room *room, size_t bytes);

/* Whether it is memory of ours. */
bool mpi_owns(const mpi *m, const char *data, size_t bytes);

/* ---- mpi_flow.c ---- */

/* Begins the first request; over at once if there is none. */
MGW_CHECKED mgw_status mpi_post(void *state, const mgw_transport_call *call, mgw_request *out,
                                mgw_error *error);
MGW_CHECKED mgw_status mpi_test(void *state, const mgw_request *request, bool *done,
                                mgw_error *error);
MGW_CHECKED mgw_status mpi_await(void *state, const mgw_request *request, mgw_error *error);

/* Waits for all that was posted, and counts one more collective. */
MGW_CHECKED mgw_status mpi_begin(mpi *m, const char *what, mgw_error *error);

/* ---- mpi_agree.c ---- */

/* Begins to ask whether all ranks are in the same; once that is done, the answer: it fails on all
 * of them if not. Both, behind what was posted: then all ranks have come. */
int mpi_ask(mpi *m, mgw_word word, MPI_Request *request);
MGW_CHECKED mgw_status mpi_answer(mpi *m, mgw_error *error);
MGW_CHECKED mgw_status mpi_agree(mpi *m, mgw_word word, mgw_error *error);

/* ---- mpi_wait.c ---- */

/* Whether a transport of this process has failed: then MPI_Finalize would wait for ever. */
bool mpi_any_failed(void);

/* An error that MPI has returned: the transport has failed. */
MGW_CHECKED mgw_status mpi_fail(mpi *m, int code, const char *what, mgw_error *error);

/*
 * After a test that found a request open: now and then, whether it is overdue, or others have given
 * up. Then the error names who is late. For who asks now and then, and for who waits, so that
 * others may have the core.
 */
MGW_CHECKED mgw_status mpi_ask_more(mpi *m, mpi_patience *patience, const char *what,
                                    mgw_error *error);

MGW_CHECKED mgw_status mpi_wait_more(mpi *m, mpi_patience *patience, const char *what,
                                     mgw_error *error);

/* Waits for a request that was begun with `code`. */
MGW_CHECKED mgw_status mpi_finish(mpi *m, int code, MPI_Request *request, const char *what,
                                  mgw_error *error);

#endif
