/* What the transport over MPI is made of, and how it waits. */
#ifndef MGW_TRANSPORT_MPI_H
#define MGW_TRANSPORT_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

#include <mgwfbp/transport.h>

enum { MPI_RANKS_MAX = 4096, MPI_TAG_REDUCE = 0, MPI_TAG_ROLL = 29081 };

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

typedef struct mpi {
    MPI_Comm comm; /* ours; until that is made, the program's */
    MPI_Comm made;
    int rank;
    int size;
    double timeout_s;
    mpi_block *blocks;
    mpi_room stage;               /* for data from elsewhere */
    int counts[4][MPI_RANKS_MAX]; /* of elements, and where they begin: sent, and received */
    mpi_room parts;               /* for what others' numbers are collected in */
    uint64_t collective;          /* how many this rank has come to */
    bool failed;                  /* only closing is left */
} mpi;

/* ---- mpi.c ---- */

/* Memory that lives until close, or for ever after a failure. Zeroed; null if there is none. */
void *mpi_keep(mpi *m, size_t bytes);

/* ---- mpi_wait.c ---- */

/* Whether a transport of this process has failed: then MPI_Finalize would wait for ever. */
bool mpi_any_failed(void);

/* An error that MPI has returned: the transport has failed. */
MGW_CHECKED mgw_status mpi_fail(mpi *m, int code, const char *what, mgw_error *error);

/* Waits for a request that was begun with `code`. After a timeout the error names who is late. */
MGW_CHECKED mgw_status mpi_finish(mpi *m, int code, MPI_Request *request, const char *what,
                                  mgw_error *error);

#endif
