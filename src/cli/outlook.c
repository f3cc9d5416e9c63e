/* The outlook for a large job: its options and output. */
#include "cli/outlook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "5y", "2000h", "30s". */
static mgw_status read_time(const cli_args *args, const char *name, double *out, mgw_error *error)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1},     {"min", 60},
                 {"h", 3600},  {"d", 86400}, {"y", 365 * 86400}};
    const char *value = cli_value(args, name);
    *out = 0;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    double number = strtod(value, &end);
    for (size_t i = 0; end != value && i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name) && isfinite(number * units[i].seconds) && number >= 0) {
            *out = number * units[i].seconds;
            return MGW_OK;
        }
    return cli_fail(error, "--%s: '%.40s' is not a time: write 250ms, 30s, 10min, 12h, 90d or 5y",
                    name, value);
}

static mgw_status read_jitter(const cli_args *args, mgw_conditions *out, mgw_error *error)
{
    static const struct {
        const char *prefix;
        mgw_jitter_kind kind;
    } kinds[] = {{"normal:", MGW_JITTER_NORMAL},
                 {"lognormal:", MGW_JITTER_LOGNORMAL},
                 {"", MGW_JITTER_LOGNORMAL}};
    const char *value = cli_value(args, "jitter");
    if (!value)
        return MGW_OK;
    if (!strcmp(value, "measured")) {
        out->jitter = MGW_JITTER_MEASURED;
        return MGW_OK;
    }
    size_t k = 0;
    while (strncmp(value, kinds[k].prefix, strlen(kinds[k].prefix)) != 0)
        k++;
    const char *number = value + strlen(kinds[k].prefix);
    char *end = NULL;
    double percent = strtod(number, &end);
    if (end == number || strcmp(end, "%") != 0 || !(percent >= 0) || percent > 1000)
        return cli_fail(
            error, "--jitter: '%.40s': write 5%%, normal:5%%, lognormal:5%% or measured", value);
    out->jitter = kinds[k].kind;
    out->deviation = percent / 100;
    return MGW_OK;
}

static mgw_status read_samples(const cli_args *args, mgw_conditions *out, mgw_error *error)
{
    double samples = 0;
    mgw_status status = cli_number(args, "samples", 0, &samples, error);
    if (!status && (samples != floor(samples) || samples > 1e15))
        status = cli_fail(error, "--samples: must be a whole number, at most 10^15");
    out->samples = status ? 0 : (uint64_t)samples;
    if (!status)
        status = cli_number(args, "price", 0, &out->price, error);
    if (!status && out->price > 0 && out->samples == 0)
        status = cli_fail(error, "--price: also give --samples, the number of samples in an epoch");
    return status;
}

mgw_status cli_conditions(const cli_args *args, bool *given, mgw_conditions *out, mgw_error *error)
{
    static const char *const all[] = {"jitter",           "mtbf",    "checkpoint", "restart",
                                      "checkpoint-every", "samples", "price"};
    *given = false;
    *out = (mgw_conditions){0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *given = *given || cli_value(args, all[i]);
    mgw_status status = read_jitter(args, out, error);
    if (!status)
        status = read_time(args, "mtbf", &out->mtbf_s, error);
    if (!status)
        status = read_time(args, "checkpoint", &out->checkpoint_s, error);
    if (!status)
        status = read_time(args, "restart", &out->restart_s, error);
    if (!status)
        status = read_time(args, "checkpoint-every", &out->interval_s, error);
    if (!status && cli_value(args, "mtbf") && out->mtbf_s <= 0)
        status = cli_fail(error, "--mtbf: must be above 0");
    if (!status && !cli_value(args, "mtbf") &&
        (cli_value(args, "restart") ||
         (cli_value(args, "checkpoint") && !cli_value(args, "checkpoint-every"))))
        status = cli_fail(
            error, "--checkpoint, --restart: only with --mtbf, the mean time between failures");
    return status ? status : read_samples(args, out, error);
}

/* "17.9 ms", "12.5 min", "3.2 h", "8.1 d" */
static const char *format_long(double seconds, char out[MGW_UNITS_MAX])
{
    static const struct {
        double from, unit;
        const char *name;
    } units[] = {{2 * 86400, 86400, "d"}, {2 * 3600, 3600, "h"}, {120, 60, "min"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (seconds >= units[i].from) {
            snprintf(out, MGW_UNITS_MAX, "%.1f %s", seconds / units[i].unit, units[i].name);
            return out;
        }
    return mgw_format_seconds(seconds, out);
}

static void print_row(const mgw_conditions *c, const mgw_scaling_row *row, mgw_table *table)
{
    const mgw_outlook *o = &row->outlook;
    char name[MGW_POLICY_NAME_MAX];
    char units[MGW_UNITS_MAX];
    mgw_table_cell(table, "%s", row->algorithm);
    mgw_table_cell(table, "%u", row->workers);
    mgw_table_cell(table, "%s", mgw_policy_name(&row->policy, name));
    if (c->jitter)
        mgw_table_cell(table, "%+.1f%%", 100 * (o->slowest - 1));
    mgw_table_cell(table, "%s", mgw_format_seconds(o->iteration_s, units));
    if (c->mtbf_s > 0)
        mgw_table_cell(table, "%s", format_long(o->failure_s, units));
    if (o->interval_s > 0) {
        mgw_table_cell(table, "%s", format_long(o->interval_s, units));
        mgw_table_cell(table, "%.1f%%", 100 * o->trains);
    }
    mgw_table_cell(table, "%.2f", o->speedup);
    mgw_table_cell(table, "%.1f%%", 100 * o->efficiency);
    mgw_table_cell(table, "%.4g", o->samples_per_s);
    if (c->samples)
        mgw_table_cell(table, "%s", format_long(o->epoch_s, units));
    if (c->price > 0)
        mgw_table_cell(table, "%.2f", o->epoch_cost);
}

static const char *column(bool there, const char *heads)
{
    return there ? heads : "";
}

void cli_outlook_table(const mgw_conditions *c, const mgw_trace *trace, const mgw_scaling_row *rows,
                       size_t count, mgw_text *text)
{
    char heads[256];
    bool saves = count > 0 && rows[0].outlook.interval_s > 0;
    snprintf(heads, sizeof heads,
             "<algorithm|workers|<policy%s|step%s%s|speed-up|efficiency|samples/s%s%s",
             column(c->jitter, "|slowest worker"), column(c->mtbf_s > 0, "|a failure every"),
             column(saves, "|checkpoint every|trains"), column(c->samples > 0, "|epoch"),
             column(c->price > 0, "|costs"));
    mgw_table *table = mgw_table_create(heads);
    unsigned most = 0;
    for (size_t i = 0; i < count; i++) {
        print_row(c, &rows[i], table);
        most = rows[i].workers > most ? rows[i].workers : most;
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
    if (c->jitter == MGW_JITTER_MEASURED && most > trace->step_count)
        mgw_text_printf(text,
                        "\n"
                        "Only %zu steps were measured, which does not tell how slow the slowest of "
                        "more workers is, and the slowest step of all stands for it.\n",
                        trace->step_count);
}

void cli_outlook_json(const mgw_conditions *c, const mgw_outlook *o, mgw_text *text)
{
    mgw_text_printf(text, ", \"slowest\": %.12g, \"expected_s\": %.12g", o->slowest,
                    o->iteration_s);
    if (c->mtbf_s > 0)
        mgw_text_printf(text,
                        ", \"failure_s\": %.12g, \"daly_interval_s\": %.12g, "
                        "\"daly_trains\": %.12g",
                        o->failure_s, o->daly_s, o->daly_trains);
    if (o->interval_s > 0)
        mgw_text_printf(text, ", \"interval_s\": %.12g, \"interval_steps\": %.12g", o->interval_s,
                        o->interval_steps);
    mgw_text_printf(text,
                    ", \"trains\": %.12g, \"expected_speedup\": %.12g, "
                    "\"expected_efficiency\": %.12g, \"samples_per_s\": %.12g",
                    o->trains, o->speedup, o->efficiency, o->samples_per_s);
    if (c->samples && isfinite(o->epoch_s)) /* a job that never trains has no epochs */
        mgw_text_printf(text, ", \"epoch_s\": %.12g", o->epoch_s);
    if (c->price > 0 && isfinite(o->epoch_cost))
        mgw_text_printf(text, ", \"epoch_cost\": %.12g", o->epoch_cost);
}
