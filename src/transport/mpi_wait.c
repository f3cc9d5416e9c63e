/*
 * Bounded waiting for MPI. MPI cannot tell which rank is late. So after a timeout there is a roll
 * call: every waiting rank tells all others where it is, and ranks that do not respond are named.
 */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/mpi.h"

static _Atomic bool any_failed;

bool mpi_any_failed(void)
{
    return any_failed;
}

static void give_up(mpi *m)
{
    m->failed = true;
    any_failed = true;
}

mgw_status mpi_fail(mpi *m, int code, const char *what, mgw_error *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    give_up(m);
    MPI_Error_string(code, text, &length);
    return mgw_fail(error, MGW_ERR_PEER, "mpi: %s: %s", what, text);
}

/* ---- The roll ---- */

/* How long to wait for answers: waiting ranks check for a roll call all the time. */
static const double answer_s = 1;

typedef struct roll {
    uint64_t own;
    uint64_t *told;      /* by rank: the collective it waits in; 0 if it did not respond */
    MPI_Request *answer; /* by rank: receives, then sends */
} roll;

/* Never freed, because requests to silent ranks stay open. */
static bool make_roll(mpi *m, roll *r)
{
    size_t size = (size_t)m->size;
    uint64_t *numbers = mpi_keep(m, (size + 1) * sizeof *numbers);
    r->answer = mpi_keep(m, 2 * size * sizeof(MPI_Request));
    if (!numbers || !r->answer)
        return false;
    numbers[size] = m->collective;
    r->own = m->collective;
    r->told = numbers;
    for (size_t i = 0; i < 2 * size; i++)
        r->answer[i] = MPI_REQUEST_NULL;
    for (int other = 0; other < m->size; other++) {
        if (other == m->rank)
            continue;
        MPI_Irecv(&numbers[other], 1, MPI_UINT64_T, other, MPI_TAG_ROLL, m->comm,
                  &r->answer[other]);
        MPI_Isend(&numbers[size], 1, MPI_UINT64_T, other, MPI_TAG_ROLL, m->comm,
                  &r->answer[m->size + other]);
    }
    return true;
}

static void await_answers(const mpi *m, roll *r)
{
    int done = 0;
    for (double end_s = mgw_awake_s() + answer_s; !done && mgw_awake_s() < end_s; sched_yield())
        for (int i = done = 0; i < 2 * m->size; i++) {
            int one = 0;
            MPI_Test(&r->answer[i], &one, MPI_STATUS_IGNORE);
            done = i == 0 ? one : done && one;
        }
}

/*
 * Lists the ranks that reported less than `least`: "rank 2", "ranks 1, 2 and 5 more". Returns how
 * many.
 */
static unsigned list_late(const mpi *m, const roll *r, uint64_t least, char *text, size_t size)
{
    enum { NAMED = 6 };
    unsigned count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int other = 0; other < m->size; other++)
        if (other != m->rank && r->told[other] < least && count++ < NAMED)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", rank " : "rank ",
                                     other);
    if (count > NAMED)
        snprintf(text + used, size - used, " and %u more", count - NAMED);
    return count;
}

static mgw_status call_roll(mpi *m, bool waited, const char *what, mgw_error *error)
{
    roll r;
    char late[160];
    give_up(m);
    if (!make_roll(m, &r))
        return mgw_fail_memory(error, "mpi");
    await_answers(m, &r);
    /*
     * A rank that waits in an earlier collective is waiting for another rank: silent ranks are
     * named first.
     */
    if (list_late(m, &r, 1, late, sizeof late) || list_late(m, &r, r.own, late, sizeof late))
        return mgw_fail(error, MGW_ERR_TIMEOUT, "mpi: %s: %s did not come within %.3g s", what,
                        late, m->timeout_s);
    if (!waited)
        return mgw_fail(error, MGW_ERR_TIMEOUT,
                        "mpi: %s: the other workers stopped waiting for rank %d", what, m->rank);
    return mgw_fail(error, MGW_ERR_TIMEOUT,
                    "mpi: %s: all %d ranks have come, but MPI was not done within %.3g s", what,
                    m->size, m->timeout_s);
}

static bool is_called(const mpi *m)
{
    int called = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_TAG_ROLL, m->comm, &called, MPI_STATUS_IGNORE);
    return called;
}

/* ---- Waiting ---- */

enum { SPINS = 200, LOOK = 64 }; /* tests before the first yield; between two checks */

static mgw_status look(mpi *m, const mpi_patience *patience, double now_s, const char *what,
                       mgw_error *error)
{
    bool waited = now_s - patience->begun_s > m->timeout_s;
    return waited || is_called(m) ? call_roll(m, waited, what, error) : MGW_OK;
}

mgw_status mpi_wait_more(mpi *m, mpi_patience *patience, const char *what, mgw_error *error)
{
    unsigned tests = patience->tests++;
    if (tests == 0)
        patience->begun_s = mgw_awake_s();
    if (tests < SPINS)
        return MGW_OK;
    sched_yield();
    return tests % LOOK == 0 ? look(m, patience, mgw_awake_s(), what, error) : MGW_OK;
}

/* The most that the time between two tests counts. */
static const double counts_s = 0.1;
static const double between_s = 10e-3; /* two checks */

mgw_status mpi_ask_more(mpi *m, mpi_patience *patience, const char *what, mgw_error *error)
{
    double now_s = mgw_awake_s();
    if (patience->begun_s == 0)
        patience->begun_s = patience->asked_s = now_s;
    patience->begun_s += fmax(0, now_s - patience->asked_s - counts_s);
    patience->asked_s = now_s;
    if (now_s - patience->looked_s < between_s)
        return MGW_OK;
    patience->looked_s = now_s;
    return look(m, patience, now_s, what, error);
}

mgw_status mpi_finish(mpi *m, int code, MPI_Request *request, const char *what, mgw_error *error)
{
    mpi_patience patience = {0};
    mgw_status status = MGW_OK;
    int done = 0;
    while (!status && code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done)
            status = mpi_wait_more(m, &patience, what, error);
    }
    return status ? status : code == MPI_SUCCESS ? MGW_OK : mpi_fail(m, code, what, error);
}
