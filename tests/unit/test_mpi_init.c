/* A program that has called MPI_Init, as most do, before it uses the engine. Run under mpirun. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include <mgwfbp/mgwfbp.h>

/* The program ends MPI, and closes the transport afterwards. */
static int finalize_first(void)
{
    mgw_transport *t = NULL;
    mgw_error error = {0};
    float data[100] = {0};
    mgw_transport_options options = {.name = "mpi"};
    mgw_status failed = mgw_transport_open(&options, &t, &error);
    if (!failed)
        failed = mgw_transport_all_reduce(t, data, 100, MGW_F32, MGW_SUM, &error);
    MPI_Finalize();
    mgw_transport_close(t);
    puts(failed ? error.message : "closed");
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    unsigned id[2];
    int rank = 0;
    int size = 0;
    MPI_Init(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "finalizes"))
        return finalize_first();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mgw_engine_options options = {.op = MGW_SUM, .profile_steps = 2};
    mgw_status failed = mgw_engine_open(&options, &engine, &error);
    if (!failed)
        failed = mgw_engine_add(engine, "b", 1000, MGW_F32, &id[0], &error);
    if (!failed)
        failed = mgw_engine_add(engine, "a", 3, MGW_F64, &id[1], &error);
    if (!failed)
        failed = mgw_engine_start(engine, &error);
    for (int step = 0; !failed && step < 10; step++) {
        double mine = rank;
        double all = 0;
        failed = mgw_engine_begin(engine, &error);
        for (int i = 0; !failed && i < 1000; i++)
            ((float *)mgw_engine_gradient(engine, id[0]))[i] = (float)(rank + i);
        for (int i = 0; !failed && i < 3; i++)
            ((double *)mgw_engine_gradient(engine, id[1]))[i] = rank * 10 + step;
        /* The program's own use of MPI goes on. */
        MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int k = 0; !failed && k < 2; k++)
            mgw_engine_ready(engine, id[k]);
        if (!failed)
            failed = mgw_engine_wait(engine, &error);
        for (int i = 0; !failed && i < 1000; i++)
            failed = ((float *)mgw_engine_gradient(engine, id[0]))[i] == (float)(all + size * i)
                         ? MGW_OK
                         : MGW_ERR_INPUT;
    }
    mgw_engine_close(engine);
    if (failed)
        fprintf(stderr, "rank %d: %s\n", rank, error.message);
    else
        printf("rank %d: right\n", rank);
    MPI_Finalize();
    return failed ? 1 : 0;
}
