/* Parameters over MPI: in the caller's thread, for a program that has called MPI_Init, or beside
 * it. Run under mpirun: test_mpi_parameters callback|said [init] */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include <mgwfbp/mgwfbp.h>

enum { TENSORS = 4, COUNT = 1000, STEPS = 9 };

static const mgw_operation plans[2][4] = {
    {{.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 3},
     {.kind = MGW_ALL_REDUCE, .first = 3, .count = 1},
     {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 2, .count = 1},
     {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 2}},
    {{.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2},
     {.kind = MGW_REDUCE_SCATTER, .first = 2, .count = 2},
     {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 4}}};

static mgw_engine *engine;

static mgw_status update(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    (void)context, (void)error;
    const float *sums = mgw_engine_gradient_memory(engine, MGW_F32);
    float *parameters = mgw_engine_parameter_memory(engine, MGW_F32);
    for (size_t k = 0; k < count; k++)
        for (size_t i = shards[k].begin; i < shards[k].begin + shards[k].count; i++)
            parameters[i] += sums[i];
    return MGW_OK;
}

/* What all steps before have added up. */
static mgw_status check(unsigned t, int steps, mgw_error *error)
{
    unsigned size = mgw_engine_size(engine);
    const float *parameters = mgw_engine_parameter(engine, t);
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned expected = 0;
        for (unsigned s = 0; s < (unsigned)steps; s++)
            for (unsigned r = 0; r < size; r++)
                expected += (r + i + s + t) % 7;
        if (parameters[i] == (float)expected)
            continue;
        snprintf(error->message, sizeof error->message, "step %d: element %u of %u is wrong", steps,
                 i, t);
        return MGW_ERR_INPUT;
    }
    return MGW_OK;
}

static mgw_status run_step(int step, bool says, mgw_error *error)
{
    size_t count = 0;
    mgw_status status = MGW_OK;
    if (step % 3 == 1)
        status = mgw_engine_set_plan(engine, plans[step % 2], step % 2 ? 3 : 4, error);
    if (!status)
        status = mgw_engine_begin(engine, error);
    for (unsigned t = TENSORS; !status && t-- > 0;) {
        status = mgw_engine_need(engine, t, error);
        if (!status)
            status = check(t, step, error);
    }
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        float *gradient = mgw_engine_gradient(engine, t);
        for (unsigned i = 0; i < COUNT; i++)
            gradient[i] = (float)((mgw_engine_rank(engine) + i + (unsigned)step + t) % 7);
        mgw_engine_ready(engine, t);
    }
    if (!status)
        status = mgw_engine_wait(engine, error);
    const mgw_shard *shards = mgw_engine_shards(engine, &count);
    if (!status && says)
        status = update(NULL, shards, count, error);
    return status || !says ? status : mgw_engine_update(engine, MGW_NO_OPERATION, error);
}

int main(int argc, char **argv)
{
    bool says = argc > 1 && !strcmp(argv[1], "said");
    bool initialises = argc > 2;
    mgw_error error = {0};
    if (initialises)
        MPI_Init(&argc, &argv);
    mgw_engine_options options = {.op = MGW_SUM, .profile_steps = 2, .keeps_parameters = true};
    mgw_status failed = mgw_engine_open(&options, &engine, &error);
    if (!failed && !says)
        failed = mgw_engine_on_update(engine, update, NULL, &error);
    for (unsigned t = 0; !failed && t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        failed = mgw_engine_add(engine, name, COUNT, MGW_F32, &id, &error);
    }
    if (!failed)
        failed = mgw_engine_start(engine, &error);
    for (int step = 0; !failed && step < STEPS; step++)
        failed = run_step(step, says, &error);
    if (!failed)
        failed = mgw_engine_drain(engine, &error);
    for (unsigned t = 0; !failed && t < TENSORS; t++)
        failed = check(t, STEPS, &error);
    mgw_engine_close(engine);
    puts(failed ? error.message : "right");
    if (initialises)
        MPI_Finalize();
    return failed ? 1 : 0;
}
