/* The output of train, as text or as JSON. */
#include "cli/print_train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "train/update.h"

/* Prints on rank 0 only. */
static mgw_status say(const train_worker *w, mgw_text *text, mgw_error *error)
{
    mgw_status status = w->rank == 0 ? cli_print(text, error) : MGW_OK;
    mgw_text_fini(text);
    return status;
}

mgw_status cli_print_training(const train_worker *w, const mgw_cluster *network, mgw_error *error)
{
    char bytes[MGW_UNITS_MAX];
    char memory[MGW_UNITS_MAX];
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_printf(&text, "model    %s, %d gradient tensors, %s; activations %s per worker\n",
                    w->net->name, w->net->parameter_count,
                    mgw_format_bytes(w->state.parameter_total * sizeof(float), bytes),
                    mgw_format_bytes(nn_program_bytes(w->program), memory));
    mgw_text_printf(&text, "data     ");
    mgw_text_plain(&text, w->train->name);
    mgw_text_printf(&text, ", %d images of %dx%d; %d per worker and step\n", w->train->count,
                    w->train->size, w->train->size, w->options.batch);
    if (network || w->size > 1)
        cli_describe_cluster(network ? network : mgw_engine_cluster(w->engine), &text);
    mgw_text_printf(&text, "workers  %u%s\n\n", w->size,
                    network ? "; the network is emulated" : "");
    return say(w, &text, error);
}

mgw_status cli_print_resumed(const train_worker *w, const char *path, bool json, mgw_error *error)
{
    const nn_progress *p = &w->state.progress;
    mgw_text text;
    mgw_text_init(&text);
    if (json) {
        mgw_text_printf(&text,
                        "{\"event\": \"resume\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                        ", \"workers\": %u}\n",
                        p->epoch, p->steps, w->size);
    } else {
        mgw_text_printf(&text, "continues from step %" PRIu64 ", epoch %" PRIu64 ", of ", p->steps,
                        p->epoch + (p->samples > 0));
        mgw_text_plain(&text, path);
        mgw_text_printf(&text, "\n");
    }
    return say(w, &text, error);
}

void cli_tell_interrupted(const train_worker *w, int signal_number, const char *path)
{
    const nn_progress *p = &w->state.progress;
    fprintf(stderr,
            "mgwfbp train: interrupted by signal %d (%s) after step %" PRIu64
            ", with %.2f of %g epochs done%s%s%s\n",
            signal_number, strsignal(signal_number), p->steps,
            (double)p->epoch + (double)p->samples / w->train->count, w->options.epochs,
            path ? "; --resume " : "", path ? path : "", path ? " continues from there" : "");
}

/* ---- Progress ---- */

static void show_progress(cli_training *t, const train_worker *w)
{
    const nn_progress *p = &w->state.progress;
    uint64_t per_epoch = (uint64_t)w->train->count / ((uint64_t)w->options.batch * w->size);
    double all = w->options.epochs * (double)per_epoch - (double)t->first;
    double done = (double)(p->steps - t->first);
    double wanted = t->steps && t->steps < all ? t->steps : all;
    char what[64];
    snprintf(what, sizeof what, "step %.0f of %.0f", done, wanted);
    if (w->rank == 0 && wanted > 0)
        cli_progress_show(&t->progress, done < wanted ? done / wanted : 1, what);
}

void cli_show_compared(void *training, double share)
{
    cli_training *t = training;
    cli_progress_show(&t->progress, share, "comparing");
}

static mgw_status print_window(void *context, const train_worker *w, const train_window *window,
                               mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    const nn_progress *p = &w->state.progress;
    mgw_text_printf(&text,
                    "epoch %" PRIu64 ", step %" PRIu64
                    ": loss %.4f, %.0f images/s, exposed communication %.1f%%\n",
                    p->epoch + (p->samples > 0), p->steps, window->loss, window->images_per_s,
                    100 * window->exposed_share);
    mgw_status status = say(w, &text, error);
    show_progress(context, w);
    return status;
}

static mgw_status print_window_json(void *context, const train_worker *w,
                                    const train_window *window, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    const nn_progress *p = &w->state.progress;
    mgw_text_printf(&text,
                    "{\"event\": \"progress\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                    ", \"loss\": %.17g, \"rate\": %.6g, \"images_per_s\": %.6g, "
                    "\"exposed_share\": %.6g}\n",
                    p->epoch, p->steps, window->loss, train_worker_rate(w), window->images_per_s,
                    window->exposed_share);
    mgw_status status = say(w, &text, error);
    show_progress(context, w);
    return status;
}

static mgw_status print_epoch(void *context, const train_worker *w, double loss, double accuracy,
                              mgw_error *error)
{
    (void)context;
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_printf(&text, "epoch %" PRIu64 " is done: test loss %.4f, accuracy %.2f%%\n",
                    w->state.progress.epoch, loss, 100 * accuracy);
    return say(w, &text, error);
}

static mgw_status print_epoch_json(void *context, const train_worker *w, double loss,
                                   double accuracy, mgw_error *error)
{
    (void)context;
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_printf(&text,
                    "{\"event\": \"epoch\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                    ", \"test_loss\": %.17g, \"test_accuracy\": %.6g}\n",
                    w->state.progress.epoch, w->state.progress.steps, loss, accuracy);
    return say(w, &text, error);
}

train_listener cli_train_listener(bool json, cli_training *training)
{
    return (train_listener){.context = training,
                            .window = json ? print_window_json : print_window,
                            .epoch = json ? print_epoch_json : print_epoch};
}

/* ---- The summary ---- */

static void write_summary_json(const train_worker *w, const train_summary *summary, mgw_text *text)
{
    const mgw_engine_statistics *s = &summary->statistics;
    char what[NN_WHAT_MAX];
    mgw_text_printf(
        text,
        "{\"event\": \"summary\", \"model\": \"%s\", \"workers\": %u, \"batch\": %d, \"steps\": "
        "%" PRIu64 ", \"policy\": \"%s\", \"plans\": %" PRIu64 ", \"messages\": %zu, "
        "\"iteration_s\": %.9g, \"compute_s\": %.9g, \"exposed_s\": %.9g, \"predicted_s\": "
        "%.9g, \"trial_steps\": %" PRIu64 ", \"trying\": %zu, \"images_per_s\": %.6g, "
        "\"reference_share\": %.6g, \"state_bytes\": %zu, \"weights\": \"%08" PRIx32 "\"}\n",
        w->net->name, w->size, w->options.batch, w->state.progress.steps,
        summary->plan ? summary->plan->policy : "none yet", s->plans, s->messages, s->iteration_s,
        s->compute_s, s->exposed_s, s->predicted_s, s->trial_steps, s->trying,
        summary->images_per_s, nn_program_reference(w->program, what, NULL), train_update_bytes(w),
        nn_state_checksum(&w->state));
}

static void write_summary(const train_worker *w, const train_summary *summary, mgw_text *text)
{
    const mgw_engine_statistics *s = &summary->statistics;
    char units[MGW_UNITS_MAX];
    mgw_table *table =
        mgw_table_create("<policy|messages|iteration|compute|exposed|predicted|images/s|weights");
    mgw_table_cell(table, "%s", summary->plan ? summary->plan->policy : "none yet");
    mgw_table_cell(table, "%zu", s->messages);
    mgw_table_cell(table, "%s", mgw_format_seconds(s->iteration_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(s->compute_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(s->exposed_s, units));
    mgw_table_cell(table, "%s",
                   s->predicted_s > 0 ? mgw_format_seconds(s->predicted_s, units) : "-");
    mgw_table_cell(table, "%.0f", summary->images_per_s);
    mgw_table_cell(table, "%08" PRIx32, nn_state_checksum(&w->state));
    mgw_text_printf(text, "\n");
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

mgw_status cli_print_summary(const train_worker *w, const train_summary *summary, bool json,
                             mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    if (json)
        write_summary_json(w, summary, &text);
    else
        write_summary(w, summary, &text);
    return say(w, &text, error);
}

/* ---- Comparisons ---- */

void cli_print_round(const train_worker *w, unsigned done, unsigned rounds)
{
    cli_progress_clear();
    if (w->rank == 0)
        fprintf(stderr, "round %u of %u is done\n", done, rounds);
}

static void write_rows_json(const train_worker *w, const train_row *rows, size_t count,
                            mgw_text *text)
{
    for (const train_row *row = rows; row < rows + count; row++)
        mgw_text_printf(
            text,
            "{\"event\": \"compare\", \"policy\": \"%s\", \"workers\": %u, \"messages\": %zu, "
            "\"iteration_s\": %.9g, \"spread\": %.6g, \"ratio\": %.6g, \"ratio_low\": %.6g, "
            "\"ratio_high\": %.6g, \"compute_s\": %.9g, \"exposed_s\": %.9g, "
            "\"predicted_s\": %.9g, \"weights\": \"%08" PRIx32 "\"}\n",
            row->policy, w->size, row->messages, row->iteration_s, row->spread, row->ratio,
            row->ratio_low, row->ratio_high, row->compute_s, row->iteration_s - row->compute_s,
            row->predicted_s, row->checksum);
}

static void write_rows(const train_row *rows, size_t count, mgw_text *text)
{
    mgw_table *table = mgw_table_create(
        "<policy|messages|iteration|ratio|compute|exposed|predicted|difference|weights");
    for (const train_row *row = rows; row < rows + count; row++) {
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", row->policy);
        mgw_table_cell(table, "%zu", row->messages);
        mgw_table_cell(table, "%s", mgw_format_seconds(row->iteration_s, units));
        mgw_table_cell(table, "%.3f (%.3f to %.3f)", row->ratio, row->ratio_low, row->ratio_high);
        mgw_table_cell(table, "%s", mgw_format_seconds(row->compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(row->iteration_s - row->compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(row->predicted_s, units));
        mgw_table_cell(table, "%+.1f%%", 100 * (row->iteration_s / row->predicted_s - 1));
        mgw_table_cell(table, "%08" PRIx32, row->checksum);
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

mgw_status cli_print_comparison(const train_worker *w, const train_row *rows, size_t count,
                                bool json, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    if (json)
        write_rows_json(w, rows, count, &text);
    else
        write_rows(rows, count, &text);
    return say(w, &text, error);
}
