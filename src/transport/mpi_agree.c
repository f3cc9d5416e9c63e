/*
 * Checks that all ranks are in the same collective, before MPI sees it: MPI would not notice a
 * mismatch, and would write past the end of a shorter buffer.
 */
#include "base/status.h"
#include "transport/mpi.h"

enum { CALL, PURPOSE, FIELDS };

/*
 * If all ranks have the same number, the maximum of the number and that of its complement are
 * complements of each other.
 */
int mpi_ask(mpi *m, mgw_word word, MPI_Request *request)
{
    uint64_t *asked = m->words;
    m->word = word;
    asked[CALL] = word.call;
    asked[PURPOSE] = word.purpose;
    asked[FIELDS + CALL] = ~word.call;
    asked[FIELDS + PURPOSE] = ~word.purpose;
    return MPI_Iallreduce(MPI_IN_PLACE, asked, 2 * FIELDS, MPI_UINT64_T, MPI_MAX, m->comm, request);
}

/* All ranks detect the difference, so all call this, and no request stays open. */
static mgw_status tell_difference(mpi *m, mgw_error *error)
{
    MPI_Request request;
    const char *what = mgw_word_name(m->word);
    uint64_t *of_rank = mpi_keep(m, FIELDS * (size_t)m->size * sizeof *of_rank);
    if (!of_rank)
        return mgw_fail_memory(error, "mpi");
    of_rank[FIELDS * m->rank + CALL] = m->word.call;
    of_rank[FIELDS * m->rank + PURPOSE] = m->word.purpose;
    int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_UINT64_T, of_rank, FIELDS, MPI_UINT64_T, m->comm,
                              &request);
    mgw_status status = mpi_finish(m, code, &request, what, error);
    for (int r = 0; !status && r < m->size; r++) {
        const uint64_t *told = of_rank + FIELDS * r;
        status = mgw_word_compare(m->word, (unsigned)m->rank, (mgw_word){told[CALL], told[PURPOSE]},
                                  (unsigned)r, error);
    }
    m->failed = true;
    return status;
}

mgw_status mpi_answer(mpi *m, mgw_error *error)
{
    const uint64_t *asked = m->words;
    bool same = asked[CALL] == ~asked[FIELDS + CALL] && asked[PURPOSE] == ~asked[FIELDS + PURPOSE];
    return same ? MGW_OK : tell_difference(m, error);
}

mgw_status mpi_agree(mpi *m, mgw_word word, mgw_error *error)
{
    MPI_Request request;
    const char *what = mgw_word_name(word);
    mgw_status status = mpi_begin(m, what, error);
    if (!status)
        status = mpi_finish(m, mpi_ask(m, word, &request), &request, what, error);
    return status ? status : mpi_answer(m, error);
}
