/* A worker that says which phase of the engine's life it is about to enter, for who wants to kill
 * it there: bench/kill_workers. The last line that it has written is the phase it died in.
 * usage: test_phases LAST    it stays in the phase LAST: join, calibrate, profile, steady, re-plan;
 *                            gather: steady, with parameters that are gathered beside the next step
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <mgwfbp/mgwfbp.h>

enum { TENSORS = 12, PROFILE_STEPS = 40 };

static void enter(const char *phase)
{
    printf("%s\n", phase);
    fflush(stdout);
}

static bool gathers;

static mgw_status step(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = mgw_engine_begin(engine, error);
    for (unsigned t = TENSORS; gathers && !status && t-- > 0;)
        status = mgw_engine_need(engine, t, error);
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        struct timespec pause = {.tv_nsec = 200 * 1000};
        nanosleep(&pause, NULL);
        mgw_engine_ready(engine, t);
    }
    if (!status)
        status = mgw_engine_wait(engine, error);
    return status || !gathers ? status : mgw_engine_update(engine, MGW_NO_OPERATION, error);
}

static mgw_status run(mgw_engine *engine, const char *last, mgw_error *error)
{
    mgw_status status = MGW_OK;
    enter("profile"); /* and the first plan, in the step after that */
    for (int i = 0; !status && i <= PROFILE_STEPS; i++)
        status = step(engine, error);
    bool planning = !strcmp(last, "re-plan");
    if (!status)
        enter(planning ? "re-plan" : gathers ? "gather" : "steady");
    for (int i = 0; !status; i++) /* every policy is another plan, made by all together */
        status = planning ? mgw_engine_set_policy(engine, i % 2 ? "single" : "wfbp", error)
                          : step(engine, error);
    return status;
}

int main(int argc, char **argv)
{
    const char *last = argc > 1 ? argv[1] : "steady";
    gathers = !strcmp(last, "gather");
    mgw_engine_options options = {.profile_steps = PROFILE_STEPS,
                                  .policy = gathers ? "zero:60000" : NULL,
                                  .keeps_parameters = gathers};
    mgw_engine *engine = NULL;
    mgw_error error = {0};
    enter("join");
    mgw_status status = mgw_engine_open(&options, &engine, &error);
    if (!status)
        enter("calibrate");
    for (unsigned t = 0; !status && t < TENSORS; t++) {
        char name[8];
        unsigned id = 0;
        snprintf(name, sizeof name, "t%u", t);
        status = mgw_engine_add(engine, name, (size_t)5000 * (t % 4 + 1), MGW_F32, &id, &error);
    }
    if (!status)
        status = mgw_engine_start(engine, &error);
    if (!status)
        status = run(engine, last, &error);
    mgw_engine_close(engine);
    fprintf(stderr, "%s\n", error.message);
    return status ? 1 : 0;
}
