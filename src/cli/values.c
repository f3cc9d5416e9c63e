/* Parses the values of options: numbers, workers, lists. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "cli/command.h"

mgw_status cli_number(const cli_args *args, const char *name, double fallback, double *out,
                      mgw_error *error)
{
    const char *value = cli_value(args, name);
    *out = fallback;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    *out = strtod(value, &end);
    if (end == value || *end || !isfinite(*out) || *out <= 0)
        return cli_fail(error, "--%s: '%s' is not a number above 0", name, value);
    return MGW_OK;
}

mgw_status cli_count(const cli_args *args, const char *name, unsigned fallback, unsigned most,
                     unsigned *out, mgw_error *error)
{
    double value = 0;
    mgw_status status = cli_number(args, name, fallback, &value, error);
    if (!status && cli_value(args, name) && (value != floor(value) || value > most))
        status = cli_fail(error, "--%s: must be a whole number from 1 to %u", name, most);
    *out = status ? fallback : (unsigned)value;
    return status;
}

mgw_status cli_bytes(const cli_args *args, const char *name, uint64_t fallback, uint64_t *out,
                     mgw_error *error)
{
    const char *value = cli_value(args, name);
    *out = fallback;
    if (!value)
        return MGW_OK;
    mgw_error why = {0};
    return mgw_parse_size(value, out, &why) ? cli_fail(error, "--%s: %s", name, why.message)
                                            : MGW_OK;
}

mgw_status cli_device(const cli_args *args, bool *cuda, mgw_error *error)
{
    const char *value = cli_value(args, "device");
    *cuda = value && !strcmp(value, "cuda");
    if (!value || *cuda || !strcmp(value, "host"))
        return MGW_OK;
    return cli_fail(error, "--device: '%.40s' is not host or cuda", value);
}

mgw_status cli_parameters(const cli_args *args, bool *given, mgw_dtype *out, mgw_error *error)
{
    const char *value = cli_value(args, "parameters");
    *given = value != NULL;
    if (!value)
        return MGW_OK;
#define X(constant, name, bytes)                                                                   \
    if (constant <= MGW_F64 && !strcmp(value, name)) {                                             \
        *out = constant;                                                                           \
        return MGW_OK;                                                                             \
    }
    MGW_DTYPE_LIST(X)
#undef X
    return cli_fail(error, "--parameters: '%.40s' is not f32, f16, bf16 or f64", value);
}

mgw_status cli_wires(const cli_args *args, const mgw_trace *trace, unsigned *out, mgw_error *error)
{
    const char *value = cli_value(args, "wire");
    mgw_error inner;
    *out = 0;
    if (!value)
        return MGW_OK;
    if (mgw_wires_parse(value, out, &inner))
        return cli_fail(error, "--wire: %s", inner.message);
    mgw_dtype dtype = trace->gradient_dtype;
    if (dtype == MGW_F32 || *out >> MGW_F32 & 1 || *out >> dtype & 1) /* or unchanged */
        return MGW_OK;
    return cli_fail(error, "--wire: gradients of %s are %s, but only f32 gradients can be cast",
                    trace->model, mgw_dtype_name(dtype));
}

/* The transport that emulates a cluster's all-reduces; a measured curve is passed by file name. */
static mgw_status emulate(const mgw_cluster *cluster, const char *name, mgw_text *transport,
                          mgw_error *error)
{
    if (cluster->of[MGW_ALL_REDUCE].sample_count)
        mgw_text_printf(transport, "emulated:%s", name);
    else
        mgw_text_printf(transport, "emulated:%.17g,%.17g", cluster->cost.a_s,
                        cluster->cost.b_s_per_byte);
    return mgw_text_status(transport, error);
}

static mgw_status load_network(const char *name, mgw_cluster **out, mgw_text *transport,
                               mgw_error *error)
{
    mgw_status status = mgw_cluster_load(name, out, error);
    return status ? status : emulate(*out, name, transport, error);
}

mgw_status cli_network(const cli_args *args, mgw_cluster **out, mgw_text *transport,
                       mgw_error *error)
{
    const char *name = cli_value(args, "cluster");
    const char *network = cli_value(args, "network");
    if (name && network)
        return cli_fail(error, "--cluster and --network: give only one of the two");
    if (name)
        return load_network(name, out, transport, error);
    if (!network)
        return MGW_OK;
    mgw_line line;
    char *end = NULL;
    line.a_s = strtod(network, &end);
    const char *second = end + 1;
    bool good = end != network && *end == ',';
    if (good)
        line.b_s_per_byte = strtod(second, &end);
    if (!good || end == second || *end)
        return cli_fail(error, "--network: '%s' is not A,B in seconds and seconds per byte",
                        network);
    mgw_status status = mgw_cluster_from_line("network", 2, &line, out, error);
    return status ? status : emulate(*out, network, transport, error);
}

enum { WORKERS_MAX = 1 << 30 };

static mgw_status parse_workers(const char *value, char **end, unsigned *out, mgw_error *error)
{
    errno = 0;
    unsigned long workers = strtoul(value, end, 10);
    if (*value < '0' || *value > '9' || errno || workers < 2 || workers > WORKERS_MAX)
        return cli_fail(error, "--workers: '%s' is not a number of workers from 2 to %d", value,
                        WORKERS_MAX);
    *out = (unsigned)workers;
    return MGW_OK;
}

mgw_status cli_workers(const cli_args *args, unsigned fallback, unsigned *out, mgw_error *error)
{
    const char *value = cli_value(args, "workers");
    *out = fallback;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    mgw_status status = parse_workers(value, &end, out, error);
    if (!status && *end)
        status = cli_fail(error, "--workers: '%s' is not one number", value);
    return status;
}

/* "8", or "4:2048": 4, 8, 16 … 2048. Appends them to `made`, which has room for 32. */
static mgw_status parse_range(const char *item, unsigned *made, size_t *count, mgw_error *error)
{
    char *end = NULL;
    unsigned low = 0;
    mgw_status status = parse_workers(item, &end, &low, error);
    unsigned high = low;
    if (!status && *end == ':') {
        status = parse_workers(end + 1, &end, &high, error);
        if (!status && ((low & (low - 1)) || (high & (high - 1)) || high < low))
            status = cli_fail(
                error, "--workers: '%s' is not a range of powers of two, such as 4:2048", item);
    }
    if (!status && *end)
        status =
            cli_fail(error, "--workers: '%s' is neither a number nor a range like 4:2048", item);
    if (status)
        return status;
    made[(*count)++] = low;
    while (low < high)
        made[(*count)++] = low *= 2;
    return MGW_OK;
}

/*
 * Calls `add` for each comma-separated item. With `join_digits`, an item that begins with a digit
 * belongs to a preceding item with a ':': the CAP of ddp:FIRST,CAP.
 */
static mgw_status each_item(const char *list, bool join_digits,
                            mgw_status (*add)(void *context, const char *item, mgw_error *error),
                            void *context, mgw_error *error)
{
    char *copy = strdup(list);
    if (!copy)
        return cli_fail(error, "out of memory");
    mgw_status status = MGW_OK;
    for (char *item = copy; item && !status;) {
        char *comma = strchr(item, ',');
        if (comma && join_digits && comma[1] >= '0' && comma[1] <= '9')
            comma = strchr(comma + 1, ',');
        if (comma)
            *comma = '\0';
        status = add(context, item, error);
        item = comma ? comma + 1 : NULL;
    }
    free(copy);
    return status;
}

static size_t count_commas(const char *list)
{
    size_t commas = 0;
    for (; *list; list++)
        commas += *list == ',';
    return commas;
}

typedef struct collected {
    void *items;
    size_t count;
} collected;

static mgw_status add_workers(void *context, const char *item, mgw_error *error)
{
    collected *made = context;
    return parse_range(item, made->items, &made->count, error);
}

static mgw_status add_algorithm(void *context, const char *item, mgw_error *error)
{
    collected *made = context;
    mgw_algorithm *algorithms = made->items;
    return mgw_algorithm_parse(item, &algorithms[made->count++], error);
}

static mgw_status add_policies(collected *made, const char *item,
                               const mgw_policy *(*list)(size_t *count), mgw_error *error)
{
    mgw_policy *policies = made->items;
    if (strcmp(item, "all") != 0)
        return mgw_policy_parse(item, &policies[made->count++], error);
    size_t count = 0;
    const mgw_policy *all = list(&count);
    for (size_t i = 0; i < count; i++)
        policies[made->count++] = all[i];
    return MGW_OK;
}

static mgw_status add_policy(void *context, const char *item, mgw_error *error)
{
    return add_policies(context, item, mgw_policy_list, error);
}

static mgw_status add_any_policy(void *context, const char *item, mgw_error *error)
{
    return add_policies(context, item, mgw_policy_all, error);
}

/* Collects a list, with room for `per_item` entries of `size` bytes per item. */
static mgw_status collect(const char *list, bool join_digits, size_t per_item, size_t size,
                          mgw_status (*add)(void *, const char *, mgw_error *), void **out,
                          size_t *count, mgw_error *error)
{
    collected made = {.items = calloc((count_commas(list) + 1) * per_item, size)};
    if (!made.items)
        return cli_fail(error, "out of memory");
    mgw_status status = each_item(list, join_digits, add, &made, error);
    if (status)
        free(made.items);
    else {
        *out = made.items;
        *count = made.count;
    }
    return status;
}

mgw_status cli_worker_list(const char *value, unsigned **out, size_t *count, mgw_error *error)
{
    void *made = NULL;
    mgw_status status = collect(value, false, 32, sizeof **out, add_workers, &made, count, error);
    *out = made;
    return status;
}

mgw_status cli_algorithm_list(const char *value, mgw_algorithm **out, size_t *count,
                              mgw_error *error)
{
    void *made = NULL;
    mgw_status status = collect(value, false, 1, sizeof **out, add_algorithm, &made, count, error);
    *out = made;
    return status;
}

static mgw_status collect_policies(const char *value,
                                   mgw_status (*add)(void *, const char *, mgw_error *),
                                   mgw_policy **out, size_t *count, mgw_error *error)
{
    void *made = NULL;
    mgw_status status =
        collect(value, true, MGW_POLICY_COUNT, sizeof **out, add, &made, count, error);
    *out = made;
    return status;
}

mgw_status cli_policy_list(const char *value, mgw_policy **out, size_t *count, mgw_error *error)
{
    return collect_policies(value, add_policy, out, count, error);
}

mgw_status cli_any_policy_list(const char *value, mgw_policy **out, size_t *count, mgw_error *error)
{
    return collect_policies(value, add_any_policy, out, count, error);
}

double cli_median(double *values, size_t count, double *spread)
{
    double median = mgw_median(values, count);
    if (spread)
        *spread = (values[count - 1] - values[0]) / median;
    return median;
}
