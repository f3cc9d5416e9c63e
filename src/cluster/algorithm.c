/* The cost of a collective from link constants, by algorithm. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <mgwfbp/cluster.h>

#include "base/near.h"
#include "base/status.h"
#include "cluster/kinds.h"

/* a = alpha * alpha_s and b = beta * beta_s_per_byte + gamma * gamma_s_per_byte. */
typedef struct factors {
    double alpha;
    double beta;
    double gamma;
} factors;

static factors binary_tree(double n, double servers)
{
    (void)servers;
    double steps = log2(n);
    return (factors){2 * steps, 2 * steps, steps};
}

static factors recursive_doubling(double n, double servers)
{
    (void)servers;
    double steps = log2(n);
    return (factors){steps, steps, steps};
}

static factors recursive_halving_doubling(double n, double servers)
{
    (void)servers;
    return (factors){2 * log2(n), 2 - 2 / n, 1 - 1 / n};
}

static factors double_binary_trees(double n, double servers)
{
    (void)servers;
    return (factors){2 * log2(n), 1, 1};
}

static factors ring(double n, double servers)
{
    (void)servers;
    return (factors){2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n};
}

/*
 * Every message is spread evenly over k servers. Push: each of n workers sends 1/k of its message
 * to every server; the link of a server carries n/k messages (that of a worker at least one), and
 * the server sums n parts. Pull: the reverse, without the sum.
 */
static factors parameter_server(double n, double servers)
{
    double load = fmax(1, n / servers);
    return (factors){2, 2 * load, (n - 1) / servers};
}

/*
 * In algorithms that consist of a reduce-scatter and an all-gather, or of a push and a pull, both
 * halves cost the same for start-up and transfer, and the first half does all sums. The others have
 * no such halves: trees sum towards the root, and recursive doubling exchanges whole messages.
 */
static const bool has_halves[MGW_ALGORITHM_COUNT] = {
    [MGW_RECURSIVE_HALVING_DOUBLING] = true,
    [MGW_RING] = true,
    [MGW_PARAMETER_SERVER] = true,
};

static const struct {
    const char *name;
    bool power_of_two;
} algorithms[] = {
#define X(constant, name, power_of_two) [constant] = {name, power_of_two},
    MGW_ALGORITHM_LIST(X)
#undef X
};

static factors (*const formulas[])(double workers, double servers) = {
    [MGW_BINARY_TREE] = binary_tree,
    [MGW_RECURSIVE_DOUBLING] = recursive_doubling,
    [MGW_RECURSIVE_HALVING_DOUBLING] = recursive_halving_doubling,
    [MGW_DOUBLE_BINARY_TREES] = double_binary_trees,
    [MGW_RING] = ring,
    [MGW_PARAMETER_SERVER] = parameter_server,
};

const char *mgw_algorithm_name(mgw_algorithm algorithm)
{
    return algorithms[algorithm].name;
}

mgw_status mgw_algorithm_parse(const char *name, mgw_algorithm *out, mgw_error *error)
{
    char known[256] = "";
    char hint[MGW_NEAR_HINT];
    mgw_near near = mgw_near_to(name);
    for (size_t i = 0; i < MGW_ALGORITHM_COUNT; i++) {
        if (!strcmp(algorithms[i].name, name)) {
            *out = (mgw_algorithm)i;
            return MGW_OK;
        }
        strcat(strcat(known, i ? ", " : ""), algorithms[i].name);
        mgw_near_offer(&near, algorithms[i].name);
    }
    mgw_near_hint(&near, hint);
    return mgw_fail(error, MGW_ERR_ARGUMENT, "unknown algorithm '%.40s'%s%s", name,
                    *hint ? hint : "; choose one of ", *hint ? "" : known);
}

static mgw_status find_factors(mgw_algorithm algorithm, unsigned workers, unsigned servers,
                               factors *out, mgw_error *error)
{
    if (workers < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "workers: at least 2 are needed, not %u", workers);
    if (servers < 1)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "servers: at least 1 is needed");
    if (algorithms[algorithm].power_of_two && (workers & (workers - 1)))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "workers: %s needs a power of two, not %u (ring takes any number)",
                        algorithms[algorithm].name, workers);
    *out = formulas[algorithm](workers, servers);
    return MGW_OK;
}

mgw_status mgw_algorithm_line(mgw_algorithm algorithm, const mgw_link *link, unsigned workers,
                              unsigned servers, mgw_line *out, mgw_error *error)
{
    factors f;
    mgw_status status = find_factors(algorithm, workers, servers, &f, error);
    if (!status)
        *out = (mgw_line){f.alpha * link->alpha_s,
                          f.beta * link->beta_s_per_byte + f.gamma * link->gamma_s_per_byte};
    return status;
}

bool mgw_algorithm_halves(mgw_algorithm algorithm, const mgw_link *link, unsigned workers,
                          unsigned servers, mgw_line *first, mgw_line *second)
{
    if (!has_halves[algorithm])
        return false;
    factors f = formulas[algorithm](workers, servers);
    double a_s = f.alpha / 2 * link->alpha_s;
    double b_s_per_byte = f.beta / 2 * link->beta_s_per_byte;
    *first = (mgw_line){a_s, b_s_per_byte + f.gamma * link->gamma_s_per_byte};
    *second = (mgw_line){a_s, b_s_per_byte};
    return true;
}

mgw_status mgw_algorithm_link(mgw_algorithm algorithm, const mgw_line *line, unsigned workers,
                              unsigned servers, mgw_link *out, mgw_error *error)
{
    factors f;
    mgw_status status = find_factors(algorithm, workers, servers, &f, error);
    if (!status)
        *out = (mgw_link){line->a_s / f.alpha, line->b_s_per_byte / f.beta, 0};
    return status;
}
