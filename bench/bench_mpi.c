/* MPI's own all-reduce at the sizes of bench_all_reduce, in its columns: build it with either MPI
 * and run it beside that. bench/all_reduce does so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

enum { SIZES = 9, ROUNDS = 15 };

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The same on all ranks. */
static double time_once(float *data, size_t bytes)
{
    double seconds = 0;
    for (int i = 0; i < 3; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds = MPI_Wtime() - start;
    }
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

int main(int argc, char **argv)
{
    int rank = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *data = calloc(1, (size_t)64 << 20);
    memset(data, 0, (size_t)64 << 20);
    for (int s = 0; s < SIZES; s++) {
        size_t bytes = (size_t)1024 << 2 * s;
        /* Ranks that spin for each other on few cores take milliseconds for anything. */
        double once = time_once(data, bytes);
        int repeats = once > 1e-3 ? 1 : once > 1e-4 ? 10 : 200;
        int rounds = once > 1e-3 ? 5 : ROUNDS;
        double times[ROUNDS];
        for (int round = 0; round < rounds; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (int i = 0; i < repeats; i++)
                MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD);
            times[round] = (MPI_Wtime() - start) / repeats;
        }
        qsort(times, (size_t)rounds, sizeof *times, compare);
        if (rank == 0)
            printf("%zu %.9g\n", bytes, times[rounds / 2]);
    }
    free(data);
    MPI_Finalize();
    return 0;
}
