/* Calls of MPI, which may fail as those of the system do. Without MPI's header, since a build may
 * have any MPI or none: all their arguments are pointers, handles or integers, so each is passed on
 * as a long. */
#include "inside.h"

enum { MPI_REFUSES = 16 }; /* a class of errors in Open MPI and in MPICH */

#define MPI(name)                                                                                  \
    int name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j);      \
    int name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j)       \
    {                                                                                              \
        NEXT(name);                                                                                \
        if (inject_fails(INJECT_SYSTEM, #name, CALLER))                                            \
            return MPI_REFUSES;                                                                    \
        return next(a, b, c, d, e, f, g, h, i, j);                                                 \
    }

MPI(MPI_Init_thread)
MPI(MPI_Query_thread)
MPI(MPI_Comm_rank)
MPI(MPI_Comm_size)
MPI(MPI_Comm_set_errhandler)
MPI(MPI_Comm_idup)
MPI(MPI_Iallgather)
MPI(MPI_Iallgatherv)
MPI(MPI_Iallreduce)
MPI(MPI_Ialltoallv)
MPI(MPI_Ibcast)
MPI(MPI_Iprobe)
MPI(MPI_Irecv)
MPI(MPI_Isend)
MPI(MPI_Test)
