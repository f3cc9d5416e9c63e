/* Rank 1 comes too late, or not at all: the others name it within the timeout, and what comes in
 * later does not touch memory that is the program's again. Run under mpirun.
 * usage: test_mpi_late sleeps|stops|opens|asks */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <mpi.h>

#include <mgwfbp/mgwfbp.h>

enum { COUNT = 1 << 18 }; /* more than MPI sends unasked */

/* Lets MPI do what it still has to do; rank 1 comes meanwhile. */
static void progress(double seconds)
{
    double end_s = MPI_Wtime() + seconds;
    int unused = 0;
    while (MPI_Wtime() < end_s) {
        struct timespec pause = {.tv_nsec = 1000 * 1000};
        MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &unused, MPI_STATUS_IGNORE);
        nanosleep(&pause, NULL);
    }
}

/* The collective's memory is freed, and had again by somebody else. */
static bool is_left_alone(float *data)
{
    free(data);
    size_t bytes = COUNT * sizeof *data;
    unsigned char *next = malloc(bytes);
    if (!next)
        return false;
    memset(next, 7, bytes);
    progress(4);
    bool alone = true;
    for (size_t i = 0; i < bytes; i++)
        alone = alone && next[i] == 7;
    free(next);
    return alone;
}

/* Asks after a request instead of waiting; but not while it computes for longer than the timeout.
 */
static mgw_status ask(mgw_transport *t, float *data, mgw_error *error)
{
    mgw_call call = {.data = data, .count = COUNT, .dtype = MGW_F32, .op = MGW_SUM};
    mgw_request request;
    bool done = false;
    mgw_status status = mgw_transport_post(t, &call, &request, error);
    if (!status)
        status = mgw_request_test(t, &request, &done, error);
    sleep(3);
    while (!status && !done) {
        struct timespec pause = {.tv_nsec = 1000 * 1000};
        status = mgw_request_test(t, &request, &done, error);
        nanosleep(&pause, NULL);
    }
    return status;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "sleeps";
    int level = 0;
    int rank = 0;
    mgw_error error = {0};
    mgw_transport *t = NULL;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mgw_transport_options options = {.name = "mpi", .timeout_s = 2};
    float *data = calloc(COUNT, sizeof *data);
    if (rank == 1 && !strcmp(mode, "opens"))
        progress(6);
    mgw_status status = mgw_transport_open(&options, &t, &error);
    for (int i = 0; !status && i < 3; i++)
        status = mgw_transport_all_reduce(t, data, COUNT, MGW_F32, MGW_SUM, &error);
    if (!status && !strcmp(mode, "asks"))
        status = ask(t, data, &error); /* all come, and compute meanwhile */
    if (!status && rank == 1 && !strcmp(mode, "stops"))
        raise(SIGSTOP);
    if (!status && rank == 1)
        sleep(!strcmp(mode, "asks") ? 9 : 5);
    if (!status && !strcmp(mode, "asks"))
        status = ask(t, data, &error);
    else if (!status)
        status = mgw_transport_all_reduce(t, data, COUNT, MGW_F32, MGW_SUM, &error);
    mgw_transport_close(t);
    bool alone = is_left_alone(data);
    printf("rank %d: %s; memory %s\n", rank, status ? error.message : "nobody was late",
           alone ? "left alone" : "WRITTEN TO");
    fflush(stdout);
    sleep(2); /* mpirun ends all when the first ends without MPI_Finalize */
    _exit(status && alone ? 0 : 1);
}
