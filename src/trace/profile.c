/* Converts a profile to a trace: the median step, names for its gradients, and the times of its
 * all-reduces. */
#include <mgwfbp/profile.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "trace/profile_names.h"
#include "trace/profile_steps.h"

/* ---- Choosing a step ---- */

static int compare_steps(const void *left, const void *right)
{
    const mgw_step *a = *(const mgw_step *const *)left;
    const mgw_step *b = *(const mgw_step *const *)right;
    if (a->compute_s != b->compute_s)
        return a->compute_s < b->compute_s ? -1 : 1;
    return (a > b) - (a < b);
}

/* The median of the steps with the most gradients; *whole is the number of these. */
static mgw_status choose(const char *origin, const mgw_steps *steps, const mgw_step **out,
                         double **times_s, size_t *whole, mgw_error *error)
{
    const mgw_step **list = malloc(steps->count * sizeof *list);
    *times_s = malloc(steps->count * sizeof **times_s);
    if (!list || !*times_s) {
        free((void *)list);
        return mgw_fail_memory(error, origin);
    }
    size_t most = 0;
    *whole = 0;
    for (size_t i = 0; i < steps->count; i++)
        most = steps->list[i].count > most ? steps->list[i].count : most;
    for (size_t i = 0; i < steps->count; i++)
        if (steps->list[i].count == most) {
            (*times_s)[*whole] = steps->list[i].compute_s;
            list[(*whole)++] = &steps->list[i];
        }
    qsort((void *)list, *whole, sizeof *list, compare_steps);
    *out = list[(*whole - 1) / 2];
    free((void *)list);
    return MGW_OK;
}

/* ---- Notes ---- */

static void note(mgw_profile *out, const char *words)
{
    mgw_text_printf(&out->notes, "%s\n", words);
}

/* Below this share of busy time, the host, slowed down by the profiler, may be the bottleneck. */
static const double busy_share = 0.5;

static void note_idle(const mgw_rows *rows, const mgw_step *step, mgw_profile *out)
{
    double busy_us = 0;
    double until_us = step->begin_us;
    double end_us = step->begin_us + step->compute_s * 1e6;
    for (size_t i = 0; i < rows->count; i++) {
        const mgw_row *row = &rows->list[i];
        if (row->kind != MGW_ROW_KERNEL)
            continue;
        busy_us += fmax(0, fmin(row->end_us, end_us) - fmax(row->start_us, until_us));
        until_us = fmax(until_us, row->end_us);
    }
    double share = busy_us * 1e-6 / step->compute_s;
    if (share < busy_share)
        mgw_text_printf(
            &out->notes,
            "the GPU is busy for only %.0f%% of the step: if the host is the bottleneck and the "
            "profiler slows it down, the times are too long\n",
            100 * share);
}

static void note_step(const mgw_rows *rows, const mgw_steps *steps, const mgw_step *step,
                      size_t whole, mgw_profile *out)
{
    size_t unknown = 0;
    for (size_t i = 0; i < step->count; i++)
        unknown += step->gradients[i].needed_s == MGW_TIME_UNKNOWN;
    if (whole < steps->count)
        mgw_text_printf(&out->notes, "%zu of %zu steps have fewer gradients and are ignored\n",
                        steps->count - whole, steps->count);
    if (!step->has_forward)
        note(out, "no operation before the backward pass: assuming a forward pass of 0 s");
    if (unknown)
        mgw_text_printf(&out->notes,
                        "for %zu of %zu parameters, the profile does not say when the forward pass "
                        "needs them: %s\n",
                        unknown, step->count,
                        rows->numbered
                            ? "no operation has the sequence number of what made their gradient"
                            : "rows have no sequence numbers (this PyTorch has no Kineto)");
    if (steps->on_device && step->compute_s > 0)
        note_idle(rows, step, out);
    if (!steps->on_device && rows->device)
        note(out, "no kernels: using the host's times; add ProfilerActivity.CUDA");
    if (rows->broken)
        mgw_text_printf(&out->notes, "%zu rows with invalid times are ignored\n", rows->broken);
}

/* ---- The trace ---- */

/* The type of gradients; several types are counted as 16-bit elements. */
static mgw_dtype find_dtype(const mgw_step *step, bool *mixed, mgw_profile *out)
{
    int dtype = step->gradients[0].row->dtype;
    *mixed = false;
    for (size_t i = 1; i < step->count; i++)
        *mixed = *mixed || step->gradients[i].row->dtype != dtype;
    if (*mixed) {
        note(out, "gradients have several types: counting them as 16-bit elements");
        return MGW_F16;
    }
    if (dtype < 0)
        note(out, "the type of gradients is unknown: assuming f32");
    return dtype < 0 ? MGW_F32 : (mgw_dtype)dtype;
}

static mgw_status describe(const mgw_profile_options *options, const mgw_rows *rows,
                           const mgw_step *step, bool mixed, mgw_profile *out, mgw_error *error)
{
    static const char *const precisions[] = {
        [MGW_F32] = "fp32", [MGW_F16] = "fp16", [MGW_BF16] = "bf16", [MGW_F64] = "fp64"};
    mgw_trace *trace = out->trace;
    char *device = strdup(rows->device ? rows->device : "CPU");
    char *precision = strdup(mixed ? "mixed" : precisions[trace->gradient_dtype]);
    if (!device || !precision) {
        free(device);
        free(precision);
        return mgw_fail_memory(error, "profile");
    }
    free(trace->device);
    free(trace->precision);
    trace->device = device;
    trace->precision = precision;
    trace->batch = options->batch ? options->batch : step->samples;
    if (trace->batch == 0) {
        trace->batch = 1;
        note(out, "the number of samples per step is unknown: assuming 1");
    } else if (options->batch == 0) {
        mgw_text_printf(
            &out->notes,
            "assuming %llu samples per step: the first dimension of the first operation\n",
            (unsigned long long)trace->batch);
    }
    return MGW_OK;
}

static mgw_status make_trace(const char *origin, const mgw_profile_options *options,
                             const mgw_rows *rows, const mgw_step *step, mgw_profile *out,
                             mgw_error *error)
{
    mgw_named *named = NULL;
    mgw_tensor *tensors = calloc(step->count, sizeof *tensors);
    const char **names = calloc(step->count, sizeof *names);
    bool mixed = false;
    mgw_status status = MGW_OK;
    if (!tensors || !names)
        status = mgw_fail_memory(error, origin);
    if (!status)
        status = mgw_profile_name(origin, options, step, &named, &out->notes, error);
    mgw_dtype dtype = status ? MGW_F32 : find_dtype(step, &mixed, out);
    for (size_t i = 0; !status && i < step->count; i++) {
        const mgw_step_gradient *gradient = &step->gradients[i];
        int own = gradient->row->dtype < 0 ? MGW_F32 : gradient->row->dtype;
        uint64_t width = mgw_dtype_bytes((mgw_dtype)own);
        names[i] = named[i].name;
        tensors[i] =
            (mgw_tensor){.count = mixed ? named[i].count * width / 2 : named[i].count,
                         .backward_s = gradient->ready_s - (i ? step->gradients[i - 1].ready_s : 0),
                         .forward_start_s = gradient->needed_s};
    }
    if (!status)
        status = mgw_trace_create(options->model ? options->model : "profiled", dtype,
                                  step->forward_s, step->count, names, tensors, &out->trace, error);
    if (!status)
        status = describe(options, rows, step, mixed, out, error);
    mgw_named_free(named, step->count);
    free((void *)names);
    free(tensors);
    return status;
}

/* ---- Messages ---- */

static int compare_messages(const void *left, const void *right)
{
    const mgw_profile_message *a = left;
    const mgw_profile_message *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

/* The next row of that kind. */
static const mgw_row *next(const mgw_rows *rows, mgw_row_kind kind, size_t *at)
{
    while (*at < rows->count && rows->list[*at].kind != kind)
        ++*at;
    return *at < rows->count ? &rows->list[(*at)++] : NULL;
}

/* If messages do not have their size, their calls do: one for each, in the same order. */
static mgw_status collect_messages(const char *origin, const mgw_rows *rows, mgw_profile *out,
                                   size_t *total, mgw_error *error)
{
    size_t sent = 0;
    *total = 0;
    for (size_t i = 0; i < rows->count; i++) {
        *total += rows->list[i].kind == MGW_ROW_MESSAGE;
        sent += rows->list[i].kind == MGW_ROW_SENT;
    }
    if (*total == 0)
        return MGW_OK;
    out->messages = malloc(*total * sizeof *out->messages);
    if (!out->messages)
        return mgw_fail_memory(error, origin);
    size_t at = 0;
    size_t call_at = 0;
    for (size_t i = 0; i < *total; i++) {
        const mgw_row *row = next(rows, MGW_ROW_MESSAGE, &at);
        const mgw_row *call = sent == *total ? next(rows, MGW_ROW_SENT, &call_at) : NULL;
        uint64_t count = row->count || !call ? row->count : call->count;
        int dtype = row->dtype >= 0 || !call ? row->dtype : call->dtype;
        out->workers = row->workers ? row->workers : out->workers;
        if (count && dtype >= 0 && row->end_us > row->start_us)
            out->messages[out->message_count++] = (mgw_profile_message){
                count * mgw_dtype_bytes((mgw_dtype)dtype), (row->end_us - row->start_us) * 1e-6};
    }
    return MGW_OK;
}

static mgw_status read_messages(const char *origin, const mgw_rows *rows, mgw_profile *out,
                                mgw_error *error)
{
    size_t total = 0;
    out->workers = rows->workers;
    mgw_status status = collect_messages(origin, rows, out, &total, error);
    if (status)
        return status;
    size_t known = out->message_count;
    size_t kept = 0;
    if (known)
        qsort(out->messages, known, sizeof *out->messages, compare_messages);
    for (size_t i = 0; i < known; i++)
        if (kept == 0 || out->messages[i].bytes != out->messages[kept - 1].bytes)
            out->messages[kept++] = out->messages[i];
    out->message_count = kept;
    if (total == 0)
        note(out, "no all-reduces: the network is unknown");
    else if (known < total)
        mgw_text_printf(&out->notes, "the size of %zu of %zu all-reduces is unknown\n",
                        total - known, total);
    if (known && kept < 2)
        note(out, "all all-reduces have the same size, but T(M) needs two sizes");
    return MGW_OK;
}

/* ---- The public functions ---- */

mgw_status mgw_profile_parse(const char *origin, const char *text, size_t size,
                             const mgw_profile_options *options, mgw_profile *out, mgw_error *error)
{
    mgw_rows rows = {0};
    mgw_steps steps = {0};
    const mgw_step *step = NULL;
    double *times_s = NULL;
    size_t whole = 0;
    *out = (mgw_profile){0};
    mgw_text_init(&out->notes);
    mgw_status status = mgw_rows_read(origin, text, size, &rows, error);
    if (!status)
        status = mgw_steps_find(origin, &rows, &steps, error);
    if (!status)
        status = choose(origin, &steps, &step, &times_s, &whole, error);
    if (!status)
        status = make_trace(origin, options, &rows, step, out, error);
    if (!status && whole > 1)
        status = mgw_trace_set_steps(out->trace, times_s, whole, error);
    if (!status) {
        note_step(&rows, &steps, step, whole, out);
        status = read_messages(origin, &rows, out, error);
    }
    free(times_s);
    mgw_steps_fini(&steps);
    mgw_rows_fini(&rows);
    return status ? status : mgw_text_status(&out->notes, error);
}

mgw_status mgw_profile_load(const char *path, const char *tensors_path,
                            const mgw_profile_options *options, mgw_profile *out, mgw_error *error)
{
    mgw_profile_options own = *options;
    char *text = NULL;
    char *tensors = NULL;
    size_t size = 0;
    *out = (mgw_profile){0};
    mgw_status status = mgw_file_read(path, &text, &size, error);
    if (!status && tensors_path) {
        status = mgw_file_read(tensors_path, &tensors, &own.tensors_size, error);
        own.tensors = tensors;
        own.tensors_origin = tensors_path;
    }
    if (!status)
        status = mgw_profile_parse(path, text, size, &own, out, error);
    free(tensors);
    free(text);
    return status;
}

void mgw_profile_fini(mgw_profile *profile)
{
    mgw_trace_destroy(profile->trace);
    free(profile->messages);
    mgw_text_fini(&profile->notes);
    *profile = (mgw_profile){0};
}
