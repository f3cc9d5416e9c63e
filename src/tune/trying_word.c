/* Rank 0's message about a trial: its candidates, and the order of turns. */
#include "base/status.h"
#include "tune/tuner.h"

/* The number of candidates; those left, in order; their kinds. Before a trial also the plans of all
 * candidates except the first. */
enum { COUNT, ORDER, KINDS, PLANS };

size_t tune_trying_words(const mgw_tuner *tuner)
{
    if (!tune_tries(tuner))
        return 0;
    return tune_is_trying(tuner) ? PLANS : PLANS + (MGW_TRIED_MAX - 1) * tune_plan_words(tuner);
}

static size_t plan_at(const mgw_tuner *tuner, size_t candidate)
{
    return PLANS + (candidate - 1) * tune_plan_words(tuner);
}

static uint64_t pack_order(const tune_order *order)
{
    uint64_t packed = order->left;
    for (size_t i = 0; i < order->left; i++)
        packed |= (uint64_t)order->of[i] << 4 * (i + 1);
    return packed;
}

/* Returns whether it is a valid order of `count` candidates. */
static bool unpack_order(uint64_t packed, uint64_t count, tune_order *out)
{
    unsigned seen = 0;
    *out = (tune_order){.left = packed & 15};
    if (out->left == 0 || out->left > count)
        return false;
    for (size_t i = 0; i < out->left; i++) {
        out->of[i] = packed >> 4 * (i + 1) & 15;
        if (out->of[i] >= count || seen >> out->of[i] & 1)
            return false;
        seen |= 1U << out->of[i];
    }
    return true;
}

void tune_trying_write(const mgw_tuner *tuner, uint64_t *word)
{
    const tune_slate *slate = &tuner->slate;
    if (tune_is_trying(tuner)) {
        word[COUNT] = tuner->trying.count;
        word[ORDER] = pack_order(&tuner->trying.next);
        return;
    }
    if (slate->count == 0)
        return;
    tune_order all = {.left = slate->count};
    word[COUNT] = slate->count;
    for (size_t c = 0; c < slate->count; c++) {
        all.of[c] = c;
        word[KINDS] |= (uint64_t)slate->kinds[c] << 4 * c;
        if (c)
            tune_write_plan(slate->plans[c], word + plan_at(tuner, c));
    }
    word[ORDER] = pack_order(&all);
}

bool tune_trying_is_sane(const mgw_tuner *tuner, const uint64_t *word)
{
    tune_order order;
    if (tune_trying_words(tuner) == 0)
        return true;
    bool agrees =
        tune_is_trying(tuner) ? word[COUNT] == tuner->trying.count : word[COUNT] <= MGW_TRIED_MAX;
    return agrees && (word[COUNT] == 0 || unpack_order(word[ORDER], word[COUNT], &order));
}

bool tune_trying_begins(const mgw_tuner *tuner, const uint64_t *word)
{
    return tune_trying_words(tuner) && !tune_is_trying(tuner) && word[COUNT];
}

size_t tune_read_order(const uint64_t *word, tune_order *out)
{
    unpack_order(word[ORDER], word[COUNT], out);
    return word[COUNT];
}

unsigned tune_incumbent(const uint64_t *word)
{
    unsigned c = 1;
    while (c < word[COUNT] && (word[KINDS] >> 4 * c & 15) != TUNE_KEPT)
        c++;
    return c < word[COUNT] ? c : 0;
}

mgw_status tune_read_candidate(const mgw_tuner *tuner, const uint64_t *word, size_t c,
                               const mgw_cost *cost, mgw_plan **out, mgw_error *error)
{
    const char *name = tune_kind_name(tuner, (tune_kind)(word[KINDS] >> 4 * c & 15));
    if (c == 0)
        return mgw_plan_from_operations(tuner->proposal, cost, name, tune_peer(tuner)->operations,
                                        tune_peer(tuner)->operation_count, out, error);
    return tune_read_plan(tuner, word + plan_at(tuner, c), name, cost, out, error);
}
