/* Timeouts: one line names the late worker and its missing tensor, and every worker writes a file
 * about its state. */
#include <dirent.h>
#include <sys/stat.h>

#include "tcp_ranks.h"

enum { RANKS = 3, TENSORS = 5, STEPS = 3 };

static const char *device; /* of the gradients */

/* Rank 1 takes its time with one tensor of the last step. */
static void train(const char *job_name, unsigned rank, const char *transport, rank_result *result)
{
    mgw_engine_options options = {.transport = {.name = transport,
                                                .rank = rank,
                                                .size = RANKS,
                                                .job = job_name,
                                                .timeout_s = 1},
                                  .device = device,
                                  .policy = "wfbp"};
    mgw_engine *engine = NULL;
    unsigned id = 0;
    mgw_error *error = &result->error;
    result->status = mgw_engine_open(&options, &engine, error);
    for (int t = 0; !result->status && t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", t);
        result->status = mgw_engine_add(engine, name, 4000, MGW_F32, &id, error);
    }
    if (!result->status)
        result->status = mgw_engine_start(engine, error);
    for (int step = 1; !result->status && step <= STEPS; step++) {
        result->status = mgw_engine_begin(engine, error);
        for (unsigned t = 0; !result->status && t < TENSORS; t++) {
            if (rank == 1 && step == STEPS && t == 3)
                usleep(device ? 5000000 : 2500000);
            mgw_engine_ready(engine, t);
        }
        if (!result->status)
            result->status = mgw_engine_wait(engine, error);
        if (!result->status) /* what a GPU does is over only then */
            result->status = mgw_engine_synchronize(engine, error);
    }
    mgw_engine_close(engine);
}

/* The file that the error leads to. */
static void read_more(const char *message, char *out, size_t size)
{
    char path[256] = "";
    const char *found = strstr(message, "(more in ");
    assert_non_null(found);
    assert_int_equal(sscanf(found, "(more in %255[^)])", path), 1);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

static void run_job(job *j, const char *transport)
{
    start_job(j);
    pid_t children[RANKS];
    for (unsigned r = 0; r < RANKS; r++)
        if ((children[r] = fork()) == 0) {
            train(j->name, r, transport, &j->results[r]);
            _exit(0);
        }
    for (unsigned r = 0; r < RANKS; r++)
        waitpid(children[r], NULL, 0);
}

static void who_is_behind_is_explained(void **unused)
{
    (void)unused;
    static const char *const transports[] = {"shm", "emulated:1e-5,0:shm"};
    char folder[] = "/tmp/mgwfbp-late-XXXXXX";
    char text[8192];
    assert_non_null(mkdtemp(folder));
    setenv("MGWFBP_DUMP", folder, 1);
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        job j = {.size = RANKS};
        unsigned timed_out = 0;
        run_job(&j, transports[i]);
        for (unsigned r = 0; r < RANKS; r++) {
            const char *message = j.results[r].error.message;
            assert_int_not_equal(j.results[r].status, MGW_OK);
            assert_contains(message, "rank 1");
            if (j.results[r].status == MGW_ERR_TIMEOUT) {
                timed_out++;
                assert_contains(message,
                                "message 1 of 1 (from 'layer0'): all-reduce: rank 1 did not come "
                                "within 1 s (it waits for its tensor 'layer3')");
            }
            read_more(message, text, sizeof text);
            assert_contains(text, r == 0 ? "rank 0 of 3" : r == 1 ? "rank 1 of 3" : "rank 2 of 3");
            assert_contains(text, "step 3, begun");
            assert_contains(text, "step 2, all-reduce 1 (5 tensors from 'layer0'): begun");
            assert_contains(text, "step 3, all-reduce 1 (5 tensors from 'layer0'): begun");
            assert_contains(text, "not done");
            if (r == 1) /* it went on to make that one ready */
                assert_null(strstr(text, "not ready:"));
        }
        assert_true(timed_out > 0);
        end_job(&j);
    }
    assert_int_equal(rmdir(folder), 0); /* nothing else was left */
    unsetenv("MGWFBP_DUMP");
}

/* On fake GPUs: what a worker waits for goes over what they agree through, too. */
static void who_is_behind_is_explained_on_gpus(void **unused)
{
    (void)unused;
    static const char *const transports[] = {"nccl:tcp", "nccl:shm", "shm"};
    set_port("127.0.0.1");
    setenv("MGWFBP_DUMP", "", 1);
    device = "cuda";
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        job j = {.size = RANKS};
        bool said = false;
        run_job(&j, transports[i]);
        for (unsigned r = 0; r < RANKS; r++) {
            if (!j.results[r].status)
                fail_msg("%s: rank %u is content", transports[i], r);
            assert_contains(j.results[r].error.message, "rank 1");
            if (strstr(j.results[r].error.message,
                       "rank 1 did not come within 1 s (it waits for its tensor 'layer3')"))
                said = true;
        }
        if (!said)
            fail_msg("%s: '%s', '%s'", transports[i], j.results[0].error.message,
                     j.results[2].error.message);
        end_job(&j);
    }
    device = NULL;
    unsetenv("MGWFBP_DUMP");
}

/* A tensor of its own: the file has it, too; with an empty folder there is none. */
static void own_tensors_are_listed(void **unused)
{
    (void)unused;
    char text[8192];
    for (int dumps = 0; dumps < 2; dumps++) {
        mgw_engine_options options = {.transport = {.name = "self", .size = 1, .timeout_s = 0.3},
                                      .keeps_parameters = dumps,
                                      .policy = "single"};
        mgw_engine *engine = NULL;
        mgw_error error = {0};
        unsigned id = 0;
        setenv("MGWFBP_DUMP", dumps ? "/tmp" : "", 1);
        assert_int_equal(mgw_engine_open(&options, &engine, &error), MGW_OK);
        for (int t = 0; t < 3; t++)
            assert_int_equal(mgw_engine_add(engine,
                                            t == 0   ? "a"
                                            : t == 1 ? "b"
                                                     : "c",
                                            4, MGW_F32, &id, &error),
                             MGW_OK);
        assert_int_equal(mgw_engine_start(engine, &error), MGW_OK);
        assert_int_equal(mgw_engine_begin(engine, &error), MGW_OK);
        mgw_engine_ready(engine, 1);
        assert_int_equal(mgw_engine_wait(engine, &error), MGW_ERR_TIMEOUT);
        assert_contains(error.message, "tensor 'a' was not ready within 0.3 s");
        if (dumps) {
            read_more(error.message, text, sizeof text);
            assert_contains(text, "2 not ready: 'a' 'c'");
        } else {
            assert_null(strstr(error.message, "more in"));
        }
        mgw_engine_close(engine);
    }
    unsetenv("MGWFBP_DUMP");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_behind_is_explained),
        cmocka_unit_test(who_is_behind_is_explained_on_gpus),
        cmocka_unit_test(own_tensors_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
