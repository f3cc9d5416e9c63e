/* The cost of levels, compared with simulated transfers: all small clusters of up to three levels,
 * and all orders in which a message could pass through them. */
#include "support.h"

#include <math.h>

enum { LEVELS = 3, WORKERS = 36, BYTES = 1000 }; /* at most; of an element, one for each worker */

/* ---- A cluster that holds numbers, and counts what goes through its links ---- */

typedef struct stretch {
    size_t first;
    size_t count;
} stretch;

typedef struct machine {
    const mgw_level *levels;
    size_t count;
    unsigned workers;
    int numbers[WORKERS][WORKERS]; /* by worker and element: a sum, as far as it has come */
    int before[WORKERS][WORKERS];  /* as they were when a round of transfers began */
    stretch holds[WORKERS];        /* what a worker is at */
    double through[WORKERS];       /* by port: bytes in one round */
    double added[WORKERS];         /* by worker: the same */
    double taken_s;
} machine;

/* Workers of a group that a level links. */
static unsigned below(const machine *m, size_t level)
{
    unsigned workers = 1;
    for (size_t i = 0; i < level; i++)
        workers *= m->levels[i].workers;
    return workers;
}

static unsigned place_of(const machine *m, unsigned worker, size_t level)
{
    return worker / below(m, level) % m->levels[level].workers;
}

static unsigned peer_at(const machine *m, unsigned worker, size_t level, unsigned place)
{
    return worker + (place - place_of(m, worker, level)) * below(m, level);
}

static void begin_round(machine *m)
{
    memcpy(m->before, m->numbers, sizeof m->numbers);
    memset(m->through, 0, sizeof m->through);
    memset(m->added, 0, sizeof m->added);
}

/* Through one of the ports that the sender's group has: its workers take turns at them. */
static void transfer(machine *m, size_t level, unsigned from, unsigned to, stretch what, bool adds)
{
    unsigned group = below(m, level);
    unsigned port = from / group * group + from % group % m->levels[level].ports;
    m->through[port] += (double)what.count * BYTES;
    m->added[to] += adds ? (double)what.count * BYTES : 0;
    for (size_t e = what.first; e < what.first + what.count; e++)
        m->numbers[to][e] = m->before[from][e] + (adds ? m->before[to][e] : 0);
}

/* All transfers are at the same time: the fullest port and the busiest worker count. */
static void end_round(machine *m, size_t level)
{
    const mgw_link *link = &m->levels[level].link;
    double most = 0;
    double sums = 0;
    for (unsigned w = 0; w < m->workers; w++) {
        most = fmax(most, m->through[w]);
        sums = fmax(sums, m->added[w]);
    }
    m->taken_s += link->alpha_s + most * link->beta_s_per_byte + sums * link->gamma_s_per_byte;
}

static stretch part_of(stretch whole, unsigned place, unsigned parts)
{
    size_t count = whole.count / parts;
    return (stretch){whole.first + place * count, count};
}

/* ---- Collectives of one level ---- */

/* n - 1 rounds, in which every worker passes a part on to the next. Of a reduce-scatter, the part
 * that it ends with is its own; an all-gather begins with that. */
static void go_round(machine *m, size_t level, bool adds)
{
    unsigned n = m->levels[level].workers;
    for (unsigned s = 0; s + 1 < n; s++) {
        begin_round(m);
        for (unsigned w = 0; w < m->workers; w++) {
            unsigned i = place_of(m, w, level);
            unsigned part = (i + 2 * n - s - (adds ? 1 : 0)) % n;
            transfer(m, level, w, peer_at(m, w, level, (i + 1) % n), part_of(m->holds[w], part, n),
                     adds);
        }
        end_round(m, level);
    }
}

static void ring(machine *m, size_t level, bool adds)
{
    unsigned n = m->levels[level].workers;
    for (unsigned w = 0; w < m->workers && !adds; w++) { /* it holds a part; wanted is the whole */
        m->holds[w].first -= place_of(m, w, level) * m->holds[w].count;
        m->holds[w].count *= n;
    }
    go_round(m, level, adds);
    for (unsigned w = 0; w < m->workers && adds; w++)
        m->holds[w] = part_of(m->holds[w], place_of(m, w, level), n);
}

/* Pairs that are n/2, n/4 … 1 apart: each keeps one half and sends the other. */
static void halving(machine *m, size_t level)
{
    for (unsigned apart = m->levels[level].workers / 2; apart; apart /= 2) {
        begin_round(m);
        for (unsigned w = 0; w < m->workers; w++) {
            unsigned i = place_of(m, w, level);
            transfer(m, level, w, peer_at(m, w, level, i ^ apart),
                     part_of(m->holds[w], !(i & apart), 2), true);
        }
        end_round(m, level);
        for (unsigned w = 0; w < m->workers; w++)
            m->holds[w] = part_of(m->holds[w], (place_of(m, w, level) & apart) != 0, 2);
    }
}

static void doubling(machine *m, size_t level, bool adds)
{
    for (unsigned apart = 1; apart < m->levels[level].workers; apart *= 2) {
        begin_round(m);
        for (unsigned w = 0; w < m->workers; w++)
            transfer(m, level, w, peer_at(m, w, level, place_of(m, w, level) ^ apart), m->holds[w],
                     adds);
        end_round(m, level);
        for (unsigned w = 0; w < m->workers && !adds; w++) {
            m->holds[w].first -= place_of(m, w, level) & apart ? m->holds[w].count : 0;
            m->holds[w].count *= 2;
        }
    }
}

static void go_up(machine *m, size_t level)
{
    if (m->levels[level].algorithm == MGW_RING)
        ring(m, level, true);
    else if (m->levels[level].algorithm == MGW_RECURSIVE_HALVING_DOUBLING)
        halving(m, level);
    else
        doubling(m, level, true);
}

static void go_down(machine *m, size_t level)
{
    if (m->levels[level].algorithm == MGW_RING)
        ring(m, level, false);
    else if (m->levels[level].algorithm == MGW_RECURSIVE_HALVING_DOUBLING)
        doubling(m, level, false);
}

static int number_of(unsigned worker, size_t element)
{
    return (int)(worker * 100 + element * element + 1);
}

/* An all-reduce through the levels in some order and back: the time until the turn, and behind. */
static void all_reduce(machine *m, const size_t *order, double took_s[2])
{
    int sum[WORKERS] = {0};
    m->taken_s = 0;
    for (unsigned w = 0; w < m->workers; w++) {
        m->holds[w] = (stretch){0, m->workers};
        for (size_t e = 0; e < m->workers; e++)
            sum[e] += m->numbers[w][e] = number_of(w, e);
    }
    for (size_t i = 0; i < m->count; i++)
        go_up(m, order[i]);
    took_s[0] = m->taken_s;
    for (size_t i = m->count; i-- > 0;)
        go_down(m, order[i]);
    took_s[1] = m->taken_s - took_s[0];
    for (unsigned w = 0; w < m->workers; w++)
        assert_memory_equal(m->numbers[w], sum, m->workers * sizeof *sum);
}

/* ---- All clusters, and all orders ---- */

static const size_t orders[][LEVELS] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* Permutations of the first 1, 2 and 3 are the first 1, 2 and 6; of those with 2 the third stays.
 */
static const size_t order_count[] = {0, 1, 2, 6};

/* Whether a byte of a worker takes longer at every level than at those inside of it: then no order
 * is better than from the inside out. */
static bool is_slower_outside(const machine *m)
{
    double before = 0;
    for (size_t i = 0; i < m->count; i++) {
        double own = 2 * m->levels[i].link.beta_s_per_byte * below(m, i) / m->levels[i].ports +
                     m->levels[i].link.gamma_s_per_byte;
        if (m->levels[i].workers > 1 && own < before)
            return false;
        before = m->levels[i].workers > 1 ? own : before;
    }
    return true;
}

static void check(const mgw_level *levels, size_t count, size_t *searched)
{
    static machine m;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    mgw_cost cost;
    m.levels = levels;
    m.count = count;
    m.workers = below(&m, count);
    if (m.workers < 2 || m.workers > WORKERS)
        return;
    if (mgw_cluster_from_levels("c", levels, count, &cluster, &error))
        fail_msg("%s", error.message);
    mgw_cluster_cost(cluster, &cost);
    uint64_t bytes = (uint64_t)m.workers * BYTES;
    double whole_s = mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes);
    double took_s[2];
    all_reduce(&m, orders[0], took_s);
    assert_close(whole_s, took_s[0] + took_s[1]);
    if (levels[count - 1].algorithm != MGW_RECURSIVE_DOUBLING) { /* which has no halves */
        assert_close(mgw_cost_seconds(&cost, MGW_REDUCE_SCATTER, bytes), took_s[0]);
        assert_close(mgw_cost_seconds(&cost, MGW_ALL_GATHER, bytes), took_s[1]);
        for (size_t o = 1; o < order_count[count] && is_slower_outside(&m); o++) {
            all_reduce(&m, orders[o], took_s);
            assert_true(whole_s <= (took_s[0] + took_s[1]) * (1 + 1e-12));
            *searched += 1;
        }
    }
    mgw_cluster_destroy(cluster);
}

/* Every number of workers, of ports that divide them, and every algorithm, from level `at` on. */
static void try_levels(mgw_level *levels, size_t at, size_t count, size_t *searched)
{
    static const mgw_link links[LEVELS] = {
        {2e-6, 3e-10, 1e-11}, {5e-6, 4e-10, 2e-11}, {3e-5, 8e-10, 3e-11}};
    static const mgw_algorithm algorithms[] = {MGW_RING, MGW_RECURSIVE_HALVING_DOUBLING,
                                               MGW_RECURSIVE_DOUBLING};
    if (at == count) {
        check(levels, count, searched);
        return;
    }
    const machine so_far = {.levels = levels};
    unsigned group = below(&so_far, at);
    for (unsigned workers = 1; workers <= 4; workers++)
        for (unsigned ports = 1; ports <= group; ports++)
            for (size_t a = 0; a < 3; a++) {
                bool halves = (workers & (workers - 1)) == 0;
                if (group % ports || (a && !halves) || (a == 2 && at + 1 < count))
                    continue;
                levels[at] = (mgw_level){"l", workers, ports, links[at], algorithms[a]};
                try_levels(levels, at + 1, count, searched);
            }
}

static void costs_are_those_of_messages_moved(void **unused)
{
    (void)unused;
    mgw_level levels[LEVELS];
    size_t searched = 0;
    for (size_t count = 1; count <= LEVELS; count++)
        try_levels(levels, 0, count, &searched);
    assert_true(searched > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(costs_are_those_of_messages_moved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
